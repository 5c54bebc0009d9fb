"""The confirmed index of a follower: raised as rows arrive, in bounded steps (T3, G1).

It also decides how far rows are acknowledged, because that bounds the rows that wait here (T11).

Theory. The source announces its confirmed index with heartbeats and rows. The log may end before
it, because the follower catches up. The announced index then proves that the rows of the log are
decided, but not that they are kept: a ROLLBACK that is yet to arrive may cover them. So the
follower confirms up to the newest CONFIRM row that is durable in its log, and no further.

Rows become durable faster than steps confirm them. The leader sends a limited number of bytes
ahead of the ACKs, so a follower whose queue exceeds its bound acknowledges confirmed rows only.

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
        self._acknowledged_index = 0
        self._is_ack_held = False  # whether the last ACK left out durable rows
        self._waits_for_step = False  # whether this step's work was used up
        self._waits_for_build = False  # whether the next row needs a build (builds.py)

    def begin(self) -> None:
        """Begin a stream: nothing is announced or recorded in it yet."""
        self._announced_index = self._recorded_index = 0
        self._acknowledged_index = 0
        self._is_ack_held = self._waits_for_step = self._waits_for_build = False

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
        self._waits_for_step = self._waits_for_build = False
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
                self.source.is_confirm_due = self._waits_for_step = True
                return
            index = limbo.step_towards(goal, rows)
            self.repair.before_confirm(index)
            index = self.machine.confirmable(index)
            if index <= limbo.confirmed_index:
                self.source.is_confirm_due = self._waits_for_build = index < goal
                return
            assert index <= context.tail.last_index, "A4: only rows in the log are confirmed"
            self.transitions.confirm(index)

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(self) -> int:
        """Return the index for an ACK that is sent now; it never falls in a stream (T2)."""
        index = self._index_for_ack()
        self._acknowledged_index = max(self._acknowledged_index, index)
        self._is_ack_held = index < self.context.tail.durable_index
        return index

    def is_ack_due(self) -> bool:
        """Return whether rows that the last ACK left out may be acknowledged now."""
        return self._is_ack_held and self._index_for_ack() > self._acknowledged_index

    def _index_for_ack(self) -> int:
        """Return the durable index, or a smaller one while the queue exceeds its bound (T11)."""
        index = self.context.tail.durable_index
        if not self._must_hold_acks():
            return index
        confirmed = self.context.limbo.confirmed_index
        return min(index, max(confirmed, self._acknowledged_index))

    def _must_hold_acks(self) -> bool:
        """Return whether the queue exceeds its bound, and its rows wait for this member.

        A queue that waits for the leader's CONFIRM is as long as the leader's own, and ends only
        if its rows are acknowledged. The quorum does not wait for a build, either. But it does not
        need a member whose log ends before the announced index: others hold those rows. If they
        stop meanwhile, writes wait for the build.
        """
        settings, limbo = self.context.settings, self.context.limbo
        if not limbo.is_longer_than(settings.limbo_entries_max, settings.limbo_bytes_max):
            return False
        is_behind = self._announced_index > self.context.tail.last_index
        return self._waits_for_step or (self._waits_for_build and is_behind)
