"""The rows that the cluster keeps for replicas that lag, as the leader decides (S5)."""

from qsync_node.consensus.context import Context
from qsync_node.consensus.tracker import Tracker


class Retention:
    """Replicas for which rows are kept, in one term."""

    def __init__(self, context: Context, tracker: Tracker) -> None:
        self.context = context
        self.tracker = tracker
        self._evicted: dict[str, int] = {}  # UUIDs -> the checkpoint that each one has to reach
        self._since_ns = context.now_ns

    def on_follow(self, uuid: str) -> None:
        """Keep rows for a replica again that has found its place in the log."""
        self._evicted.pop(uuid, None)

    def _is_evicted(self, uuid: str) -> bool:
        """Return whether no row is kept for a replica.

        A Tarantool replica never reports that it follows. A new join ends its eviction,
        by a match past the checkpoint.
        """
        return self.tracker.follower(uuid).match < self._evicted.get(uuid, 0)

    def floor_index(self) -> int:
        """Return the greatest index that every registered replica has.

        Replicas that have been silent for longer than the retention and evicted replicas are
        ignored.
        """
        context = self.context
        floor = context.tail.durable_index
        for member in context.configuration.members:
            if member.uuid == context.uuid or self._is_evicted(member.uuid):
                continue
            follower = self.tracker.follower(member.uuid)
            silent_ns = context.now_ns - max(follower.heard_at_ns, self._since_ns)
            if silent_ns <= context.settings.retention_ns:
                floor = min(floor, follower.match)
        return floor

    def evict_slowest(self, checkpoint_index: int) -> None:
        """Evict the slowest replica because the disk is filling up.

        A replica is evicted only if it needs rows before the checkpoint; it later catches up from a
        snapshot (S3). The eviction is not stored: a later leader decides again.

        Args:
            checkpoint_index: index of the newest local checkpoint.
        """
        context = self.context
        lagging = [
            (self.tracker.follower(member.uuid).match, member.uuid)
            for member in context.configuration.members
            if member.uuid != context.uuid and not self._is_evicted(member.uuid)
        ]
        if not lagging:
            return
        index, uuid = min(lagging)
        if index < checkpoint_index:
            self._evicted[uuid] = checkpoint_index
            context.report(
                "replica_evicted", uuid=uuid, index=index, checkpoint_index=checkpoint_index
            )
