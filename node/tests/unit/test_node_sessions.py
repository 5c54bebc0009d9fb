"""Sessions that continue in a later turn: with returned reads, and without budget for requests."""

import io
import itertools
from collections.abc import Callable

from qsync_node.consensus import effects as fx
from qsync_node.server.admission import REQUESTS_TOTAL_BYTES_MAX
from qsync_node.server.logs import Log
from qsync_node.server.sessions import Sessions
from qsync_node.server.watches import Watches


class TurnClient:
    """A client connection that only counts its turns; `on_turn` may ask for another one."""

    user = "app"

    def __init__(self, sessions: Sessions, on_turn: Callable[["TurnClient"], None]) -> None:
        self.out: list[bytes] = []
        self.watches = Watches()
        self.turns = 0
        self._on_turn = on_turn
        self.number = sessions.add(self)

    def work(self) -> None:
        self.turns += 1
        self._on_turn(self)

    def flush(self) -> None: ...
    def evict(self) -> None: ...
    def answer(self, answer: fx.Answer) -> None: ...
    def defer(self, number: int) -> None: ...
    def send_to_tarantool(self, effect: fx.TarantoolPackets) -> None: ...
    def notify(self, key: str, value: bytes | None) -> None: ...
    def unread_bytes(self) -> int:
        return 0

    def peer_name(self) -> str:
        return ""


def no_sessions() -> Sessions:
    log = Log("n0", "error", io.StringIO())
    return Sessions(itertools.count(1), 100, lambda item: None, lambda: None, log)


def test_session_repeats_a_returned_read_in_each_turn() -> None:
    """Its second read must not wait for other traffic of the connection."""
    sessions = no_sessions()
    client = TurnClient(sessions, sessions.note_ready)
    sessions.note_ready(client)
    for turn in range(1, 4):
        sessions.work()
        assert client.turns == turn


def test_session_that_uses_the_budget_up_again_continues_later() -> None:
    """Its connection would not be read any more otherwise."""
    sessions = no_sessions()

    def use_up(client: TurnClient) -> None:
        sessions.requests.add(REQUESTS_TOTAL_BYTES_MAX)
        assert not sessions.may_read(client)

    client = TurnClient(sessions, use_up)
    use_up(client)
    sessions.flush()
    assert client.turns == 0
    for turn in range(1, 4):
        sessions.requests.add(-REQUESTS_TOTAL_BYTES_MAX)
        sessions.flush()
        assert client.turns == turn
