"""Local reads, each in as many parts as it needs (G1, R1).

A read of many tuples takes longer than a step may. Its first part comes from the state itself. The
rest comes from a view of the same moment, one part per step. The answer therefore shows one state,
and heartbeats and other clients are served in between. A paused read holds the tuples that it has
found, so only a few reads are paused at a time. The others start over once there is room.
"""

from collections import deque
from typing import NamedTuple

from qsync_node.engine.reads import SteppedSelect
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.transactions.budget import TUPLE_WORK
from qsync_node.transactions.calls import Call
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.users import check_state_is_served
from qsync_node.transactions.waiting import WaitingCalls

PAUSED_MAX = 4


class _Paused(NamedTuple):
    call: "Call"
    reading: SteppedSelect
    log_index: int


class _Queued(NamedTuple):
    """A read that waits for room, and that no session of this member repeats."""

    call: "Call"
    log_index: int
    is_dirty: bool


class SteppedReads:
    """Reads of this member's confirmed state, or of its pending state for read-committed ones."""

    def __init__(self, shared: Shared) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.state = shared.state
        self.answers = shared.answers
        self.budget = shared.budget
        self.users = shared.users
        self._paused: deque[_Paused] = deque()
        self._queued: WaitingCalls[_Queued] = WaitingCalls()

    def __len__(self) -> int:
        """Return how many reads continue in the next step."""
        return len(self._paused) + len(self._queued)

    @property
    def is_waiting(self) -> bool:
        """Whether a read continues in the next step."""
        return bool(self._paused or self._queued)

    def serve(self, call: "Call", log_index: int = 0, *, is_dirty: bool = False) -> None:
        """Run the first part of a read, and answer it if that completes it.

        Args:
            call: the SELECT.
            log_index: index of the state, reported in the answer.
            is_dirty: read pending state. While the index has pending changes, such a read cannot be
                paused and runs to its end.

        Raises:
            ClientError: the read is refused.
        """
        assert not call.is_done, "K1: a read without a reader"
        user = self.users.user_of(call.user)
        pending = self.state.pending
        state = pending if is_dirty and pending is not None else self.state.database
        reading = state.begin_read(call.request, user)
        if self._run_part(reading):
            self._finish(call, reading, log_index)
        elif len(self._paused) >= PAUSED_MAX:
            if call.is_deferrable:
                self.answers.defer(call)
            else:
                self._queued.append(call, _Queued(call, log_index, is_dirty))
        elif reading.pause():
            self._paused.append(_Paused(call, reading, log_index))
        else:
            while not self._run_part(reading):
                continue
            self._finish(call, reading, log_index)

    def advance(self) -> None:
        """Continue paused reads: at least one part, and more while the budget lasts."""
        if self._queued:
            self._serve_queued()
        is_any = False
        while self._paused and not (is_any and self.budget.is_read_budget_spent()):
            is_any = True
            paused = self._paused.popleft()
            if paused.call.is_done:
                continue
            try:
                is_done = self._run_part(paused.reading)
            except ClientError as error:
                self.answers.refuse(paused.call, error.code, error.message)
                continue
            if is_done:
                self._finish(paused.call, paused.reading, paused.log_index)
            else:
                self._paused.append(paused)

    def _serve_queued(self) -> None:
        while self._queued and len(self._paused) < PAUSED_MAX:
            queued = self._queued.popleft()
            if queued.call.is_done:
                continue
            try:
                check_state_is_served(self.replica)
                self.serve(queued.call, queued.log_index, is_dirty=queued.is_dirty)
            except ClientError as error:
                self.answers.refuse(queued.call, error.code, error.message)
            if self.budget.is_read_budget_spent():
                return

    def on_owner_closed(self, owner: tuple[int, int]) -> None:
        """Drop the reads of `owner`, a (link, session): each member numbers its own sessions."""
        ended = [one.call for one in self._paused if one.call.owner == owner]
        if ended:
            self._paused = deque(one for one in self._paused if one.call.owner != owner)
        for call in (*ended, *(one.call for one in self._queued.remove_owner(owner))):
            if not call.is_done:
                self.answers.drop(call)

    def on_link_down(self, link: int) -> None:
        self._paused = deque(one for one in self._paused if one.call.link != link)
        self._queued.remove_link(link)

    def on_state_replaced(self) -> None:
        """Refuse paused reads: a snapshot replaced the state that they read."""
        paused, self._paused = self._paused, deque()
        for one in paused:
            if not one.call.is_done:
                reason = "the read failed: a snapshot replaced the state of the member; retry"
                self.answers.refuse(one.call, ErrorCode.LOADING, reason)

    def _run_part(self, reading: SteppedSelect) -> bool:
        tuples, size = len(reading.found), reading.size
        try:
            return reading.run(self.context.settings.read_part_tuples)
        finally:
            found = len(reading.found) - tuples
            self.budget.charge(reading.size - size + found * TUPLE_WORK)

    def _finish(self, call: "Call", reading: SteppedSelect, log_index: int) -> None:
        call.position = reading.position
        self.answers.answer(call, reading.found, log_index)
