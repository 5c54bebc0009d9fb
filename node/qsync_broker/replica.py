"""A journal at this broker: its spool, its pipeline as a primary, and its stream as a peer.

The replica exists while the journal is assigned to the broker. Its spool and its completed spools
are on disk and outlive it.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qsync_broker import messages as msg
from qsync_broker.coverage import Span, first_hole, missing_bytes
from qsync_broker.flow import FlowLimit
from qsync_broker.index import LocalFragment, RemoteFragment, RemoteIndex
from qsync_broker.operations import Roll, SpoolOperation
from qsync_broker.pipeline import Pipeline, commit_operations, promise_of
from qsync_broker.spool import Choice, Proposal, Spool, SpoolMismatchError
from qsync_node.format.journals import BrokerId, JournalRow, Route

if TYPE_CHECKING:
    from qsync_broker.keyspace import KeyChange, KeySpace


class ReplicaHost(Protocol):
    """The broker, as the journals at it use it."""

    me: BrokerId
    keys: "KeySpace"

    @property
    def unix_s(self) -> int:
        """Return the Unix time in seconds."""

    def replica(self, journal: str) -> "JournalReplica | None":
        """Return the journal's replica at this broker."""

    def stated_replicas(self, journal: JournalRow) -> int:
        """Return the number of brokers that a journal has while it is not suspended."""

    def transact(self, change: "KeyChange", done: Callable[[bool], None]) -> None:
        """Carry out a transaction; `done` gets whether it is known to be committed."""

    def store(self, operations: list[SpoolOperation], done: Callable[[], None]) -> None:
        """Make operations durable, then call `done`."""

    def open(
        self,
        peer: BrokerId,
        on_message: Callable[[msg.Message], None],
        on_lost: Callable[[str], None],
    ) -> int:
        """Open a stream to a peer, and return its number."""

    def send(self, peer: BrokerId, stream: int, message: msg.Message) -> None:
        """Send a message on a stream."""

    def close(self, peer: BrokerId, stream: int) -> None:
        """End a stream."""

    def wake_journal(self, journal: str) -> None:
        """Advance all appends of a journal in this step."""

    def completed(self, replica: "JournalReplica", fragment: LocalFragment) -> None:
        """Persist a completed fragment."""

    def readable(self, journal: str) -> None:
        """Wake readers of a journal: more bytes are visible."""


class QueuedAppend(Protocol):
    """An append, as its journal's queue uses it (`qsync_broker.append`)."""

    def wake(self) -> None:
        """Advance the append in this step."""

    def fail(self, reason: str) -> None:
        """End the append with an error."""


class ReplicaSettings(NamedTuple):
    """The parts of a journal's specification that replication depends on.

    Attributes:
        codec: codec of new fragments.
        length: content length in bytes after which a fragment is completed.
        flush_s: interval at whose multiples fragments are completed, 0 for none.
        is_writable: whether content may be appended.
        stores: URLs of its stores, of which the first is written; none if it is not persisted.
        refresh_ns: interval between two listings of the stores.
        postfix: template of the folder of persisted fragments (`qsync_broker.postfix`).
        max_rate: maximum rate of appends in bytes per second, 0 for no limit.
        has_retention: whether old fragments may be removed from the stores.
    """

    codec: int
    length: int
    flush_s: int
    is_writable: bool
    stores: tuple[str, ...] = ()
    refresh_ns: int = 300_000_000_000
    postfix: str = ""
    max_rate: int = 0
    has_retention: bool = False


class FragmentPart(NamedTuple):
    """Visible bytes of a journal: of a local spool, or of a persisted fragment.

    Attributes:
        begin: offset of the first byte.
        end: offset after the last visible byte.
        sum: SHA-1 of these bytes.
        codec: codec of the fragment.
        remote: the persisted fragment, None for a local one.
    """

    begin: int
    end: int
    sum: bytes
    codec: int
    remote: RemoteFragment | None = None

    @classmethod
    def of_remote(cls, fragment: RemoteFragment) -> "FragmentPart":
        """Return a persisted fragment."""
        return cls(fragment.begin, fragment.end, fragment.sum, fragment.codec, fragment)


class JournalReplica:
    """A journal at this broker.

    Attributes:
        journal: name of the journal.
        spool: the open spool.
        completed: completed spools that are still on disk, by their first offset.
        promised: greatest epoch that this broker has promised.
        pipeline: replication to the peers, if this broker is the primary.
        sender: the append that owns the sending side of the pipeline.
        in_flight: appends that wait for acknowledgements, oldest first.
        remote: persisted fragments.
        is_index_known: whether the stores have been listed, or there are none.
        store_error: sentence of the last failure of a store, "" after a success.
        append_error: cause why the last pulse failed, "" after a success (`qsync_broker.pulses`).
        is_end_known: whether the last synchronisation found all acknowledged bytes (J3).
        limit: maximum rate of appends.
    """

    def __init__(self, host: ReplicaHost, spool: Spool, settings: ReplicaSettings) -> None:
        self.journal = spool.journal
        self.spool = spool
        self.settings = settings
        self.completed: dict[int, LocalFragment] = {}
        self.promised = spool.epoch
        self.pipeline: Pipeline | None = None
        self.sender: QueuedAppend | None = None
        self.in_flight: deque[QueuedAppend] = deque()
        self.is_index_known = not settings.stores
        self.remote = RemoteIndex()
        self.store_error = ""
        self.append_error = ""
        self.is_end_known = True
        self.limit = FlowLimit(settings.max_rate)
        self._queue: deque[QueuedAppend] = deque()
        self._host = host
        self._stream: PeerStream | None = None

    # --- index --------------------------------------------------------------------------------

    @property
    def index_end(self) -> int:
        """Return the greatest offset of persisted and of local fragments."""
        completed = max((fragment.end for fragment in self.completed.values()), default=0)
        return max(self.remote.end, completed)

    @property
    def is_empty(self) -> bool:
        """Return whether the journal has no bytes, neither at a broker nor in its store.

        A broker that joined at a greater offset has none itself, but others may have them.
        """
        return not self.completed and not self.remote.end and self.spool.end == 0

    @property
    def is_flushed(self) -> bool:
        """Return whether all bytes of the journal are in its store."""
        return not self.completed and self.spool.end == self.spool.begin

    @property
    def local_parts(self) -> list[FragmentPart]:
        """Return the fragments on this broker's disk, in ascending order."""
        parts = [FragmentPart(*fragment[:4]) for _, fragment in sorted(self.completed.items())]
        return [*parts, self._open_part] if self.spool.begin < self.spool.confirmed else parts

    @property
    def _open_part(self) -> FragmentPart:
        spool = self.spool
        return FragmentPart(spool.begin, spool.confirmed, spool.confirmed_sum, spool.codec)

    def part_at(self, offset: int) -> FragmentPart | None:
        """Return the fragment that covers an offset; a local one is preferred."""
        if self.spool.begin <= offset < self.spool.confirmed:
            return self._open_part
        for begin, fragment in self.completed.items():
            if begin <= offset < fragment.end:
                return FragmentPart(*fragment[:4])
        remote = self.remote.find(offset)
        return FragmentPart.of_remote(remote) if remote is not None else None

    def lacks(self, offset: int) -> bool:
        """Return whether an earlier fragment has the byte at an offset, but none known here."""
        return offset < self.spool.begin and self.part_at(offset) is None

    @property
    def spans(self) -> list[Span]:
        """Return the offsets on this broker's disk, in ascending order."""
        spans = [Span(begin, fragment.end) for begin, fragment in sorted(self.completed.items())]
        return [*spans, Span(self.spool.begin, self.spool.end)]

    def hole(self, begin: int, end: int) -> Span | None:
        """Return the first offsets between two that are not on this broker's disk."""
        return first_hole(self.spans, begin, end)

    @property
    def promise(self) -> msg.Promised:
        """Return the state of the spool, and the number of bytes that this broker lacks."""
        missing = missing_bytes(self.spans, self.spool.end)
        return promise_of(self.spool)._replace(missing=missing)

    def has_before(self, offset: int) -> bool:
        """Return whether a local fragment has bytes before an offset."""
        return self.spool.begin < min(offset, self.spool.confirmed) or any(
            begin < offset for begin in self.completed
        )

    @property
    def is_head_known(self) -> bool:
        """Return whether no acknowledged byte is known to be missing."""
        return self.is_end_known and self.index_end <= self.spool.end

    @property
    def visible_end(self) -> int:
        """Return the write head: the offset after the last visible byte."""
        return max(self.spool.confirmed, self.index_end)

    # --- pipeline -----------------------------------------------------------------------------

    def enqueue(self, append: QueuedAppend) -> None:
        """Queue an append for the sending side of the pipeline."""
        self._queue.append(append)
        self._next()

    def sent(self, append: QueuedAppend) -> None:
        """Give the sending side to the next append; this one waits for acknowledgements."""
        self.in_flight.append(append)
        self.sender = None
        self._next()

    def release(self, append: QueuedAppend) -> None:
        """Forget an append, wherever it is."""
        if append is self.sender:
            self.sender = None
        elif self.in_flight and append is self.in_flight[0]:
            self.in_flight.popleft()
        elif append in self.in_flight:
            self.in_flight.remove(append)
        elif append in self._queue:
            self._queue.remove(append)
        self._next()
        self._host.wake_journal(self.journal)

    def _next(self) -> None:
        if self.sender is None and self._queue:
            self.sender = self._queue.popleft()
            self.sender.wake()

    @property
    def woken(self) -> list[QueuedAppend]:
        """Return the appends that can advance: the oldest in flight, and the sender.

        The end of an append wakes the journal, and with it the next one.
        """
        first = [self.in_flight[0]] if self.in_flight else []
        return [*first, self.sender] if self.sender is not None else first

    @property
    def waiting(self) -> list[QueuedAppend]:
        """Return all appends of this journal at this broker."""
        sender = [self.sender] if self.sender is not None else []
        return [*self.in_flight, *sender, *self._queue]

    def open_pipeline(self, route: Route, epoch: int) -> None:
        """Begin a pipeline to the brokers of a route."""
        self._end_stream("this broker is the primary")
        self.promised = epoch
        self.pipeline = Pipeline(
            self._host,
            self.spool,
            self._host.me,
            route,
            epoch,
            self._on_pipeline,
            self.confirm,
            lambda: self.promise,
        )

    def close_pipeline(self, reason: str) -> None:
        """End the pipeline."""
        if self.pipeline is not None:
            self.pipeline.close(reason)
            self.pipeline = None
            self._host.wake_journal(self.journal)

    def leave_route(self, route: Route) -> None:
        """End a pipeline if one of its brokers is no longer in the journal's route.

        A broker that was added changes nothing for the appends that are in flight.
        """
        pipeline = self.pipeline
        if pipeline is not None and not set(pipeline.route.members) <= set(route.members):
            self.close_pipeline("a broker has left the journal's route")

    def _on_pipeline(self) -> None:
        self._host.wake_journal(self.journal)

    def confirm(self, end: int) -> None:
        """Make bytes visible that all brokers have."""
        if self.spool.confirm(end):
            self._host.readable(self.journal)

    def wants_roll(self, unix_s: int) -> bool:
        """Return whether the fragment is to be completed before the next append."""
        spool, settings = self.spool, self.settings
        length = spool.end - spool.begin
        if not length:
            return False
        if length > settings.length:
            return True
        return bool(
            settings.flush_s
            and spool.first_append // settings.flush_s != unix_s // settings.flush_s
        )

    # --- peer ---------------------------------------------------------------------------------

    def accept(self, stream: "PeerStream", prepare: msg.Prepare, route: Route) -> None:
        """Answer a primary that asks for a promise (J2)."""
        is_same = (
            route.members == tuple(BrokerId(*member) for member in prepare.members)
            and route.primary == prepare.primary
            and prepare.journal_id == self.spool.journal_id
        )
        if not is_same:
            stream.reply(msg.PeerRefused(self._host.keys.revision, 0))
            return
        if prepare.epoch <= self.promised:
            stream.reply(msg.PeerRefused(0, self.promised))
            return
        self.promised = prepare.epoch
        self._end_stream("another primary has a greater epoch")
        self.close_pipeline("another primary has a greater epoch")
        self._stream = stream
        stream.replica = self
        self.spool.rollback()
        # The state must be durable before the primary chooses by it.
        self._host.store([], lambda: stream.reply(self.promise))

    def _end_stream(self, reason: str) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.fail(reason)
            self.spool.rollback()

    def stream_closed(self, stream: "PeerStream") -> None:
        """Discard the content of a stream that has ended."""
        if self._stream is stream:
            self._stream = None
            self.spool.rollback()

    @property
    def has_bytes(self) -> bool:
        """Return whether there are bytes on the disk of this broker."""
        return bool(self.completed) or self.spool.end > self.spool.begin

    def depart(self) -> None:
        """Complete the open fragment, so that its bytes are persisted without this replica."""
        spool = self.spool
        if spool.end == spool.confirmed > spool.begin:
            self._host.store([spool.roll(spool.end, spool.codec)], _nothing)

    def leave(self, reason: str) -> None:
        """End replication: the journal is no longer assigned to this broker.

        Appends that are in flight get their results. Those whose content was not asked for yet are
        resolved again, because another broker can serve them: often one that has suspended the
        journal, as the allocator then removes brokers.
        """
        self.close_pipeline(reason)
        self._end_stream(reason)
        for append in self.waiting:
            append.wake()

    def stop(self, reason: str) -> None:
        """End replication and all appends: the broker stops."""
        self.close_pipeline(reason)
        self._end_stream(reason)
        for append in self.waiting:
            append.fail(reason)

    def rolled(self, roll: SpoolOperation) -> None:
        """Add a completed spool to the index."""
        if isinstance(roll, Roll) and roll.completed_end > roll.completed.begin:
            begin, former = roll.completed.begin, self.spool.former
            assert former is not None
            fragment = LocalFragment(
                begin, roll.completed_end, roll.completed_sum, former.codec, former.first_append
            )
            self.completed[begin] = fragment
            self._host.readable(self.journal)
            self._host.completed(self, fragment)


class PeerStream:
    """A primary's stream to this broker, for one journal."""

    def __init__(self, host: ReplicaHost, send: Callable[[msg.Message], None]) -> None:
        self.replica: JournalReplica | None = None
        self.is_over = False
        self._host = host
        self._send = send

    def reply(self, message: msg.Message) -> None:
        """Send a message to the primary, unless the stream has ended."""
        if not self.is_over:
            self._send(message)

    def fail(self, reason: str) -> None:
        """End the stream with a reason."""
        self.reply(msg.Failed(reason))
        self.end()

    def end(self) -> None:
        """End the stream: the primary closed it, or it is lost."""
        self.is_over = True
        if self.replica is not None:
            self.replica.stream_closed(self)

    def receive(self, message: msg.Message) -> None:
        """Handle a message of the primary after its promise."""
        replica = self.replica
        if self.is_over:
            return
        if replica is None:
            self.fail(f"{type(message).__name__} before a promise")
            return
        try:
            self._handle(message, replica)
        except SpoolMismatchError as error:
            self.fail(str(error))

    def _handle(self, message: msg.Message, replica: JournalReplica) -> None:
        host, spool = self._host, replica.spool
        if isinstance(message, msg.Content):
            self._store([spool.receive(message.delta, message.data)])
        elif isinstance(message, msg.Propose):
            replica.confirm(message.confirmed)
            proposal = Proposal(message.end, message.sum, message.registers)
            operations = commit_operations(spool, proposal, host.unix_s)
            acked = msg.Acked(message.sequence)
            host.store(operations, lambda: self.reply(acked))
        elif isinstance(message, msg.Confirm):
            replica.confirm(message.end)
        elif isinstance(message, msg.Abort):
            spool.rollback()
        elif isinstance(message, msg.Begin):
            self._store([spool.roll(message.begin, message.codec)])
        elif isinstance(message, msg.Adopt):
            if message.epoch != replica.promised:
                raise SpoolMismatchError(
                    f"epoch {message.epoch} is not the promised {replica.promised}"
                )
            operation = spool.adopt(Choice(*message))
            host.store([operation], lambda: self.reply(msg.Acked(0)))
        elif isinstance(message, msg.Close):
            self.end()
        else:
            raise SpoolMismatchError(f"unexpected {type(message).__name__}")

    def _store(self, operations: list[SpoolOperation]) -> None:
        self._host.store(operations, _nothing)


def _nothing() -> None:
    """Ignore the end of a write that no answer depends on."""
