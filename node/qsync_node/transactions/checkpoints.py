"""Checkpoints of the confirmed state, and the removal of log files that they cover (S2, S5).

Any member writes checkpoints, with or without a leader. A log file is removed once a checkpoint
covers it and every registered replica, every transfer and every unmodified replica has its rows.
"""

from collections.abc import Callable
from random import Random

from qsync_node.consensus import effects as fx
from qsync_node.consensus.replica import Replica
from qsync_node.consensus.settings import SECOND
from qsync_node.consensus.source import SourceState
from qsync_node.transactions.snapshot import SnapshotView, view_of
from qsync_node.transactions.state import StatementState

RELIEF_INTERVAL_NS = 10 * SECOND


class Checkpoints:
    """The newest checkpoint, and the one that is being written.

    Attributes:
        index: log index of the newest checkpoint.
        is_writing: whether another one is being written.
    """

    def __init__(
        self, replica: Replica, state: StatementState, pinned_index: Callable[[], int | None]
    ) -> None:
        """Begin without a checkpoint.

        Args:
            replica: consensus of the member.
            state: its state.
            pinned_index: returns the index after which unmodified replicas need the log, or None.
        """
        self.replica = replica
        self.context = replica.context
        self.state = state
        self._pinned_index = pinned_index
        self.index = 0
        self.is_writing = False
        # Separate from the replica's: elections must not depend on checkpoints.
        self._rng = Random(self.context.uuid)
        self._bytes = self._draw_bytes()
        self._relief_due_ns = 0
        self._has_failed = False  # the last attempt, which may have lacked the space

    def begin(self) -> bool:
        """Begin a checkpoint of the confirmed state; return whether one has begun (S2)."""
        if self.is_writing or not self.context.has_origin or self.context.is_stopped:
            return False
        if self.replica.repair.is_state_wrong:
            return False
        if self.replica.source.state is SourceState.INSTALLING:
            return False  # the snapshot of the same index is being written already (S3)
        view = self.view()
        assert view.index == self.context.limbo.confirmed_index, "S2: confirmed rows only"
        self.is_writing = True
        self.state.bytes_since_checkpoint = 0
        self._bytes = self._draw_bytes()
        bodies = view.bodies()
        self.context.out.append(fx.WriteSnapshot(view.index, view.vclock, bodies))
        return True

    def view(self, spaces: frozenset[int] = frozenset()) -> SnapshotView:
        """Return a view of the confirmed state, vclock, history and keys, at once (S2).

        Args:
            spaces: ids of the wanted user spaces; empty for all.
        """
        return view_of(self.context, self.state, spaces)

    def consider(self) -> None:
        """Begin a checkpoint after enough log."""
        if self.state.bytes_since_checkpoint >= self._bytes:
            self.begin()

    def _draw_bytes(self) -> int:
        """Return the amount of log after which the next checkpoint begins, in bytes.

        All members have the same log. With one common threshold they would all write a checkpoint
        at the same row, and no member with an idle disk and processor would remain (G2).
        """
        return int(self.context.settings.checkpoint_bytes * self._rng.uniform(1.0, 1.5))

    def on_written(self, item: fx.SnapshotWritten) -> None:
        """Take note of a checkpoint, or of its failure."""
        assert self.is_writing, "S2: one checkpoint at a time"
        self.is_writing = False
        self._has_failed = bool(item.reason)
        if item.reason:
            self.context.report("checkpoint_failed", reason=item.reason)
            return
        self.index = max(self.index, item.log_index)
        self.context.report("checkpoint", index=item.log_index)
        self.replica.repair.on_state_replaced(item.log_index)
        self.collect_garbage()

    def on_state_replaced(self, index: int) -> None:
        """Take note of a snapshot of another member that is this member's newest (S3)."""
        self.index = index
        self.state.bytes_since_checkpoint = 0

    def on_space_low(self) -> None:
        """Free disk space: write a checkpoint, or evict the slowest replica without one (S5).

        If a checkpoint has failed, the eviction is next: there may be no space for any.
        """
        if self.context.now_ns < self._relief_due_ns:
            return
        self._relief_due_ns = self.context.now_ns + RELIEF_INTERVAL_NS
        is_due = self.context.limbo.confirmed_index > self.index and not self._has_failed
        self._has_failed = False
        if is_due and self.begin():
            return
        leader = self.replica.leader
        if leader is not None:
            leader.retention.evict_slowest(self.index)
        self.replica.snapshots.release_stalled()
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Remove log files that a snapshot covers and every registered replica has (S5)."""
        replica = self.replica
        if self.context.is_stopped:
            return  # an administrator may need every row
        index = self.index
        for pinned in (replica.snapshots.pinned_index(), self._pinned_index()):
            if pinned is not None:
                index = min(index, pinned)
        leader = replica.leader
        if leader is not None:
            index = min(index, leader.retention.floor_index())
        elif not self.context.is_anonymous:  # it will never lead, and may hear no leader
            index = min(index, replica.applier.floor_index)
        assert index <= self.index, "S5: a checkpoint covers removed rows"
        if index >= self.context.tail.first_available_index:
            self.context.out.append(fx.RemoveSegments(index))
