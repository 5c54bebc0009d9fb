"""A broker whose events a test decides one by one."""

from collections.abc import Callable
from typing import Any

from qsync_broker import messages as msg
from qsync_broker.allocator import wanted_replicas
from qsync_broker.append import AppendMachine
from qsync_broker.health import StoreState
from qsync_broker.index import LocalFragment
from qsync_broker.keyspace import KeyChange, KeySpace, Written
from qsync_broker.operations import SpoolOperation
from qsync_broker.replica import JournalReplica, ReplicaSettings
from qsync_broker.requests import Append, AppendInput, Finish, Piece
from qsync_broker.spool import Spool
from qsync_broker.states import AppendState
from qsync_node.format.journals import (
    NO_ROUTE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    KeySpaceRow,
    encode_row,
    space_of,
)
from qsync_sim.journals.keys import SPEC

A, B, C = BrokerId("z", "broker-a"), BrokerId("z", "broker-b"), BrokerId("z", "broker-c")
NAME = "a/journal"


def state_of(append: AppendMachine) -> AppendState:
    """Return the state. mypy narrows the type of an attribute, but not that of a result."""
    return append.state


class Hand:
    """A broker whose every event the test decides; it is `A`, and `B` is its only peer."""

    me = A
    unix_s = 1_700_000_000

    def __init__(self) -> None:
        self.keys = KeySpace()
        self.keys.revision = 3
        self.replicas: dict[str, JournalReplica] = {}
        self.changes: list[tuple[KeyChange, Callable[[bool], None]]] = []
        self.sent: list[msg.Message] = []
        self.stores: list[Callable[[], None]] = []
        self.listeners: list[tuple[Callable[[msg.Message], None], Callable[[str], None]]] = []
        self.asked = self.finished = 0
        self.woken_readers: list[str] = []
        self.is_awake = False
        self.health = StoreState(True)
        self.space_problem = ""
        journal = JournalRow(NAME, {"replication": 2, **SPEC}, 0, 0, 0, 0, NO_ROUTE, 2, 2)
        self.put(journal, broker(A), broker(B))
        self.put(AssignmentRow(NAME, A, 0, 4, 4), AssignmentRow(NAME, B, 1, 5, 5))
        settings = ReplicaSettings(1, 4096, 0, True)
        self.replica_of_a = self.replicas[NAME] = JournalReplica(self, Spool(NAME, 2, 1), settings)

    def put(self, *rows: KeySpaceRow) -> None:
        for row in rows:
            self.keys.apply(Written(space_of(row), encode_row(row)))
        self.keys.revision += 1

    @property
    def row(self) -> JournalRow:
        return self.keys.journals[NAME]

    # --- Host ---------------------------------------------------------------------------------

    def replica(self, journal: str) -> JournalReplica | None:
        return self.replicas.get(journal)

    def desired_replicas(self, journal: JournalRow) -> int:
        return wanted_replicas(journal, 9)

    def stated_replicas(self, journal: JournalRow) -> int:
        return wanted_replicas(journal._replace(suspend_level=0), 9)

    def store_state(self, url: str) -> StoreState:
        return self.health

    def transact(self, change: KeyChange, done: Callable[[bool], None]) -> None:
        self.changes.append((change, done))

    def store(self, operations: list[SpoolOperation], done: Callable[[], None]) -> None:
        self.stores.append(done)

    def open(self, peer: BrokerId, on_message: Any, on_lost: Any) -> int:
        self.listeners.append((on_message, on_lost))
        return 1

    def send(self, peer: BrokerId, stream: int, message: msg.Message) -> None:
        self.sent.append(message)

    def close(self, peer: BrokerId, stream: int) -> None:
        self.sent.append(msg.Close())

    def wake(self, append: AppendMachine) -> None:
        self.is_awake = True

    def wake_journal(self, journal: str) -> None:
        self.is_awake = True

    def ask_content(self, append: AppendMachine) -> None:
        self.asked += 1

    def content_sent(self, append: AppendMachine) -> None:
        self.asked += 1

    def finish(self, append: AppendMachine) -> None:
        self.finished += 1

    def completed(self, replica: JournalReplica, fragment: LocalFragment) -> None:
        """Do nothing."""

    def readable(self, journal: str) -> None:
        self.woken_readers.append(journal)

    # --- events -------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the last transaction, and deliver its rows."""
        change, done = self.changes.pop()
        self.put(*change.written)
        done(True)

    def stored(self) -> None:
        stores, self.stores = self.stores, []
        for done in stores:
            done()

    def answer(self, message: msg.Message) -> None:
        self.listeners[-1][0](message)


def broker(identity: BrokerId) -> BrokerRow:
    return BrokerRow(identity, f"http://{identity.suffix}", "x:1", 9, False, 1000, "p", 1, 1, 1)


def begin(hand: Hand, **fields: Any) -> AppendMachine:
    return AppendMachine(hand, 1, Append(NAME, **fields), 1 << 62)


def promised(epoch: int = 0, end: int = 0, begin: int = 0) -> msg.Promised:
    return msg.Promised(epoch, begin, end, bytes(20), b"", 1)


def until(hand: Hand, append: AppendMachine, state: AppendState) -> None:
    """Advance with friendly answers until the machine waits in a state."""
    for _ in range(20):
        append.advance()
        if append.state is state:
            return
        if state_of(append) is AppendState.RESERVE_EPOCH or (
            state_of(append) is AppendState.UPDATE_ASSIGNMENTS and hand.changes
        ):
            hand.commit()
        elif state_of(append) is AppendState.RECV_PIPELINE_SYNC:
            hand.stored()
            if isinstance(hand.sent[-1], msg.Prepare):
                hand.answer(promised())
            else:
                hand.answer(msg.Acked(0))
    raise AssertionError(f"the append waits in {append.state}")


def ready(hand: Hand, **fields: object) -> AppendMachine:
    """Return a second append over a pipeline that is ready."""
    first = begin(hand)
    until(hand, first, AppendState.STREAM_CONTENT)
    hand.replica_of_a.sender = None
    hand.asked = 0
    append = begin(hand, **fields)
    append.advance()
    return append


def give(append: AppendMachine, *received: AppendInput) -> None:
    """Let an append receive inputs of its client."""
    for one in received:
        append.content.inputs.append(one)
        append.advance()


def acknowledge(hand: Hand, append: AppendMachine, data: bytes) -> None:
    """Let an append receive its content, and all brokers acknowledge it."""
    give(append, Piece(data), Finish())
    hand.stored()
    hand.answer(msg.Acked(append.content.sequence))
    append.advance()
