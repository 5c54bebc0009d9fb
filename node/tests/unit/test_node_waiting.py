"""Calls that wait beside the queue (T11, G1)."""

from qsync_node.consensus import effects as fx
from qsync_node.format.keys import PING
from qsync_node.transactions.calls import Call
from qsync_node.transactions.waiting import WaitingCalls

OTHERS = 1_000


class WatchedCall(Call):
    """A call that counts how often its owner is asked for."""

    __slots__ = ("asked",)

    def __init__(self, sync: int, session: int, link: int = 0) -> None:
        super().__init__(fx.Request(session, sync, PING, b"", 0, "admin", None), 0)
        self.link = link
        self.asked = 0

    @property
    def owner(self) -> tuple[int, int]:
        """Return (link, session)."""
        self.asked += 1
        return super().owner


def waiting(*calls: WatchedCall) -> WaitingCalls[WatchedCall]:
    found: WaitingCalls[WatchedCall] = WaitingCalls()
    for call in calls:
        found.append(call, call)
        call.asked = 0
    return found


def syncs(calls: WaitingCalls[WatchedCall] | list[WatchedCall]) -> list[int]:
    return [call.sync for call in calls]


def test_first_call_is_the_one_that_waited_longest() -> None:
    calls = waiting(WatchedCall(1, 7), WatchedCall(2, 8), WatchedCall(3, 7))
    first = calls.popleft()
    calls.append(first, first)
    assert syncs(calls) == [2, 3, 1]
    assert len(calls) == 3
    assert syncs(calls.remove_owner((0, 7))) == [3, 1]
    assert syncs(calls.clear()) == [2]
    assert not calls


def test_end_of_a_session_examines_its_own_calls_only() -> None:
    others = [WatchedCall(sync, 8) for sync in range(OTHERS)]
    calls = waiting(*others, WatchedCall(OTHERS, 7))
    assert syncs(calls.remove_owner((0, 7))) == [OTHERS]
    assert calls.remove_owner((0, 7)) == []
    assert not any(call.asked for call in others)
    assert syncs(calls) == list(range(OTHERS))


def test_sessions_of_other_members_have_numbers_of_their_own() -> None:
    calls = waiting(WatchedCall(1, 7), WatchedCall(2, 7, link=3), WatchedCall(3, 8, link=3))
    assert syncs(calls.remove_owner((3, 7))) == [2]
    assert syncs(calls.remove_link(3)) == [3]
    assert syncs(calls) == [1]
