"""The confirmed index of a follower: raised as rows arrive, in bounded steps (T3, G1).

Theory. The source announces its confirmed index with heartbeats and rows. The log may end before
it, because the follower catches up. The announced index then proves that the rows of the log are
decided, but not that they are kept: a ROLLBACK that is yet to arrive may cover them. So the
follower confirms up to the newest CONFIRM row that is durable in its log, and no further.

Source: replication.md T3 and T11; gh-5213 (CONFIRM visible before it is durable).
"""

from qsync_node.consensus.context import Context
from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.consensus.interfaces import StateMachine, Transitions
from qsync_node.consensus.repair import StateRepair
from qsync_node.consensus.source import Source, SourceState

CONFIRM_PART_ROWS = 64
"""Rows confirmed between two checks of the work that they cost."""


class Confirming:
    """Confirmation of the rows that one stream brings."""

    def __init__(
        self,
        context: Context,
        source: Source,
        repair: StateRepair,
        machine: StateMachine,
        transitions: Transitions,
    ) -> None:
        self.context = context
        self.source = source
        self.repair = repair
        self.machine = machine
        self.transitions = transitions
        self._announced_index = 0  # the newest confirmed index that the source announced
        self._recorded_index = 0  # the greatest position of a CONFIRM row that is durable here
        self._is_step_used_up = False  # whether rows wait for the next step

    def begin(self) -> None:
        """Begin a stream: nothing is announced or recorded in it yet."""
        self._announced_index = self._recorded_index = 0
        self._is_step_used_up = False

    def announce(self, index: int) -> None:
        """Note a confirmed index that the source sent; the greatest one counts."""
        self._announced_index = max(self._announced_index, index)

    def on_written(self, entries: list[Entry]) -> None:
        """Note CONFIRM rows that are durable (T3)."""
        for entry in entries:
            if entry.kind is EntryKind.CONFIRM:
                self._recorded_index = max(self._recorded_index, entry.position)

    def postpone(self) -> None:
        """Leave the confirmation to the next step, if the messages so far allow one."""
        self.source.is_confirm_due = self._goal() > self.context.limbo.confirmed_index

    def is_queue_full(self) -> bool:
        """Return whether later steps have rows to confirm, and the queue exceeds its bound (T11).

        A queue that only waits for the leader's CONFIRM is never full: it is as long as the
        leader's own queue, and ends only if its rows are acknowledged.
        """
        limbo, settings = self.context.limbo, self.context.settings
        is_long = len(limbo) > settings.limbo_entries_max or limbo.bytes > settings.limbo_bytes_max
        return self._is_step_used_up and is_long

    def _goal(self) -> int:
        """Return the index that messages or rows of the leader prove to be confirmed (T3)."""
        if self._announced_index > self.context.tail.last_index:
            return self._recorded_index
        return self._announced_index

    def advance(self) -> None:
        """Raise the confirmed index, with a bounded amount of work in each step (T3, G1).

        The cost of a row is known only after it has been applied, so a long range is confirmed in
        short parts.
        """
        context = self.context
        limbo, settings = context.limbo, context.settings
        self._is_step_used_up = False
        goal = self._goal()
        latest_index = self.repair.latest_index()
        if latest_index is not None:
            goal = min(goal, latest_index)
        if goal <= limbo.confirmed_index:
            return
        self.source.is_confirm_due = False
        while self.source.state is SourceState.FOLLOWING and limbo.confirmed_index < goal:
            rows = min(CONFIRM_PART_ROWS, context.confirm_rows_left)
            if rows <= 0 or self.machine.work() >= settings.work_per_step:
                self.source.is_confirm_due = self._is_step_used_up = True
                return
            index = limbo.step_towards(goal, rows)
            self.repair.before_confirm(index)
            index = self.machine.confirmable(index)
            if index <= limbo.confirmed_index:
                self.source.is_confirm_due = index < goal
                return
            assert index <= context.tail.last_index, "A4: only rows in the log are confirmed"
            self.transitions.confirm(index)
