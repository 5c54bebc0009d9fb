"""Reads of confirmed state, each in as many parts as it needs (G1, R1).

A read of many tuples takes longer than a step may. Its first part comes from the state itself; if
that is not all, the rest is read from a view of the same moment, a part in each of the following
steps. So the answer is one state's, and heartbeats and other clients are served in between. Few
reads do so at a time, because each holds what it has found; further ones begin anew later.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from qsync_node.core.engine.reads import Reading
from qsync_node.errors import ClientError, ErrorCode

if TYPE_CHECKING:
    from qsync_node.core.calls import Call
    from qsync_node.core.clients import Clients
    from qsync_node.core.node import Node

PAUSED_MAX = 4
TUPLE_WORK = 50
"""What finding a tuple costs beside its bytes, in units of 25 ns."""


class _Paused(NamedTuple):
    call: "Call"
    reading: Reading
    log_index: int


class ConfirmedReads:
    """Reads that this member answers from its confirmed state."""

    def __init__(self, node: "Node", clients: "Clients") -> None:
        self.node = node
        self.clients = clients
        self._paused: deque[_Paused] = deque()
        self._later: deque[tuple[Call, int, bool]] = deque()  # forwarded ones that begin anew

    def __len__(self) -> int:
        """Return how many reads go on in the next step."""
        return len(self._paused) + len(self._later)

    def serve(self, call: "Call", log_index: int = 0, *, is_dirty: bool = False) -> None:
        """Begin a read; its answer names `log_index`. Raises ClientError if it is refused.

        `is_dirty` reads pending state: in parts if nothing is pending in the index, else at once.
        """
        user = self.clients.user_of(call)
        pending = self.clients.commits.pending
        state = pending if is_dirty and pending is not None else self.node.database
        reading = state.begin_read(call.request, user)
        if self._run_part(reading):
            self._finish(call, reading, log_index)
        elif len(self._paused) >= PAUSED_MAX:
            if call.link:  # no session of this member repeats it
                self._later.append((call, log_index, is_dirty))
            else:
                self.clients.defer(call)
        elif reading.pause():
            self._paused.append(_Paused(call, reading, log_index))
        else:
            while not self._run_part(reading):
                continue
            self._finish(call, reading, log_index)

    def advance(self) -> None:
        """Go on with reads that were paused: one part at least, more if the budget allows."""
        self._begin_later()
        is_any = False
        while self._paused and not (is_any and self.clients.is_read_budget_spent()):
            is_any = True
            paused = self._paused.popleft()
            if paused.call.done:
                continue
            try:
                is_done = self._run_part(paused.reading)
            except ClientError as error:
                self.clients.refuse(paused.call, error.code, error.message)
                continue
            if is_done:
                self._finish(paused.call, paused.reading, paused.log_index)
            else:
                self._paused.append(paused)

    def _begin_later(self) -> None:
        while self._later and len(self._paused) < PAUSED_MAX:
            call, log_index, is_dirty = self._later.popleft()
            if call.done:
                continue
            try:
                self.clients.check_state_is_served()
                self.serve(call, log_index, is_dirty=is_dirty)
            except ClientError as error:
                self.clients.refuse(call, error.code, error.message)
            if self.clients.is_read_budget_spent():
                return

    def on_session_closed(self, owner: tuple[int, int]) -> None:
        """`owner` is (link, session): members number their sessions alike."""
        self._paused = deque(one for one in self._paused if one.call.owner != owner)
        self._later = deque(one for one in self._later if one[0].owner != owner)

    def on_link_down(self, link: int) -> None:
        self._paused = deque(one for one in self._paused if one.call.link != link)
        self._later = deque(one for one in self._later if one[0].link != link)

    def on_state_replaced(self) -> None:
        """A snapshot replaced the state that they read."""
        paused, self._paused = self._paused, deque()
        for call, _, _ in paused:
            if not call.done:
                reason = "a snapshot has replaced the state of this member: try again"
                self.clients.refuse(call, ErrorCode.LOADING, reason)

    def _run_part(self, reading: Reading) -> bool:
        tuples, size = len(reading.found), reading.size
        try:
            return reading.run(self.node.settings.read_part_tuples)
        finally:
            found = len(reading.found) - tuples
            self.clients.charge(reading.size - size + found * TUPLE_WORK)

    def _finish(self, call: "Call", reading: Reading, log_index: int) -> None:
        call.position = reading.position
        self.clients.answer(call, reading.found, log_index)
