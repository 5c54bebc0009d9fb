"""Inputs of a broker's core, and the effects that it requests: plain values, handled by a shell."""

from typing import NamedTuple, TypeAlias

from qsync_broker.index import LocalFragment, RemoteFragment
from qsync_broker.keyspace import KeyChange, RowChange
from qsync_broker.messages import Message
from qsync_broker.operations import Publication, SpoolKey, SpoolOperation
from qsync_broker.requests import Append, Appended, AppendInput
from qsync_node.format.journals import BrokerId

Messages: TypeAlias = list[tuple[int, Message]]

# --- inputs: shell -> core ------------------------------------------------------------------------


class Watched(NamedTuple):
    """Confirmed changes of the key space up to a revision.

    Attributes:
        revision: the new revision.
        changes: changed rows, in order.
        is_whole: whether these rows replace everything that was known (a snapshot).
    """

    revision: int
    changes: list[RowChange]
    is_whole: bool = False


class Transacted(NamedTuple):
    """Result of a `Transact`: whether it is known to be committed."""

    token: int
    is_committed: bool


class OperationsStored(NamedTuple):
    """All operations up to `StoreOperations` number `token` are durable."""

    token: int


class StoreFailed(NamedTuple):
    """The storage cannot continue: the broker must stop."""

    reason: str


class SpaceChanged(NamedTuple):
    """The disk has enough free space, or the sentence of the problem."""

    problem: str


class BrokerLinkUp(NamedTuple):
    """The connection to a peer is open."""

    peer: BrokerId


class BrokerLinkDown(NamedTuple):
    """The connection to a peer could not be opened, or broke."""

    peer: BrokerId
    reason: str


class LinkBlocked(NamedTuple):
    """The connection to a peer accepts no more, or accepts more again."""

    peer: BrokerId
    is_blocked: bool


class LinkReceived(NamedTuple):
    """Messages of a peer, on streams that this broker opened."""

    peer: BrokerId
    messages: Messages


class PeerUp(NamedTuple):
    """A primary has connected to this broker, on connection `number`."""

    number: int
    peer: BrokerId


class PeerDown(NamedTuple):
    """The connection of a primary broke."""

    number: int


class PeerReceived(NamedTuple):
    """Messages of a primary, on streams that it opened."""

    number: int
    messages: Messages


class StoreListed(NamedTuple):
    """The persisted fragments of a journal, or the sentence of the failure."""

    token: int
    fragments: list[RemoteFragment]
    error: str = ""


class Uploaded(NamedTuple):
    """A persisted fragment, or None and the sentence of the failure."""

    token: int
    fragment: RemoteFragment | None
    error: str = ""


class PublicationsRead(NamedTuple):
    """Publications in ascending order, or None if they could not be read."""

    token: int
    publications: list[Publication] | None


class StoreChecked(NamedTuple):
    """A store is healthy, or the sentence of the failure."""

    store: str
    error: str = ""


class GapRead(NamedTuple):
    """A read of a journal wants bytes that are in no fragment which this broker knows."""

    journal: str


class SpoolRead(NamedTuple):
    """Bytes of a completed spool, or None if they could not be read."""

    token: int
    data: bytes | None


class AppendBegun(NamedTuple):
    """A client wants to append; `number` identifies the request until its result."""

    number: int
    request: Append
    deadline_ns: int


class AppendReceived(NamedTuple):
    """Content of an append, its end, or its abortion."""

    number: int
    received: AppendInput


FragmentEvent: TypeAlias = StoreListed | Uploaded | StoreChecked | SpoolRead | GapRead
BrokerEvent: TypeAlias = (
    Watched
    | Transacted
    | OperationsStored
    | StoreFailed
    | SpaceChanged
    | BrokerLinkUp
    | BrokerLinkDown
    | LinkBlocked
    | LinkReceived
    | PeerUp
    | PeerDown
    | PeerReceived
    | PublicationsRead
    | FragmentEvent
    | AppendBegun
    | AppendReceived
)

# --- effects: core -> shell -----------------------------------------------------------------------


class Transact(NamedTuple):
    """Carry out a transaction over the key space; answered by `Transacted`."""

    token: int
    change: KeyChange


class StoreOperations(NamedTuple):
    """Carry out operations on spools in the order of the tokens; answer: `OperationsStored`."""

    token: int
    operations: list[SpoolOperation]


class OpenLink(NamedTuple):
    """Connect to a peer; answered by `BrokerLinkUp` or `BrokerLinkDown`."""

    peer: BrokerId
    address: str


class CloseBrokerLink(NamedTuple):
    """Close the connection to a peer, or end the attempt; nothing answers."""

    peer: BrokerId


class SendLink(NamedTuple):
    """Send to a peer on a stream that this broker opened."""

    peer: BrokerId
    stream: int
    message: Message


class SendPeer(NamedTuple):
    """Send to a primary on a stream that it opened."""

    number: int
    stream: int
    message: Message


class BlockPeer(NamedTuple):
    """Read no more from the connection of a primary, or read again."""

    number: int
    is_blocked: bool


class AskContent(NamedTuple):
    """Let a client send more content of its append."""

    number: int


class FinishAppend(NamedTuple):
    """The result of an append; with `is_proxied`, another broker must serve it."""

    number: int
    result: Appended
    is_proxied: bool


class ListStores(NamedTuple):
    """List a journal's fragments in its stores; answered by `StoreListed`."""

    token: int
    journal: str
    stores: tuple[str, ...]


class UploadFragment(NamedTuple):
    """Persist a completed fragment unless the store has it; answered by `Uploaded`."""

    token: int
    store: str
    key: SpoolKey
    fragment: LocalFragment
    path: str


class CheckStore(NamedTuple):
    """Write, read and list an object of a store; answered by `StoreChecked`."""

    store: str


class ReadPublications(NamedTuple):
    """Read confirmed publications after a sequence; answered by `PublicationsRead`."""

    token: int
    journal: str
    journal_id: int
    after: int
    limit: int


class RemovePublications(NamedTuple):
    """Call `qsync.published`; answered by `Transacted`."""

    token: int
    journal: str
    journal_id: int
    through: int
    places: tuple[tuple[int, ...], ...]


class DiscardPublications(NamedTuple):
    """Call `qsync.discard`; answered by `Transacted`."""

    token: int
    journal: str
    journal_id: int


class ReadSpool(NamedTuple):
    """Read bytes of a completed spool; answered by `SpoolRead`."""

    token: int
    key: SpoolKey
    offset: int
    size: int


class Rewatch(NamedTuple):
    """Open the watch again, after a pause: its snapshot is older than the known revision."""


class Readable(NamedTuple):
    """More bytes of a journal are visible."""

    journal: str


class Halt(NamedTuple):
    """Stop the process: the broker cannot continue."""

    reason: str


BrokerEffect: TypeAlias = (
    Transact
    | StoreOperations
    | OpenLink
    | CloseBrokerLink
    | SendLink
    | SendPeer
    | BlockPeer
    | AskContent
    | FinishAppend
    | ListStores
    | UploadFragment
    | CheckStore
    | ReadPublications
    | RemovePublications
    | DiscardPublications
    | ReadSpool
    | Rewatch
    | Readable
    | Halt
)
