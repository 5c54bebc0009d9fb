"""Changes of the membership in the log of a leader, one at a time (M2, M3, M4, P2)."""

from qsync_node.consensus.context import Context
from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.consensus.membership import ClusterMember, put_member
from qsync_node.consensus.quorum import needed
from qsync_node.consensus.tracker import Tracker
from qsync_node.consensus.transfer import Transfer

SYNC_FLAGS = 6


class Changes:
    """The membership changes of one term."""

    def __init__(
        self, context: Context, tracker: Tracker, transfer: Transfer, promote_index: int
    ) -> None:
        self.context = context
        self.tracker = tracker
        self.transfer = transfer
        self.promote_index = promote_index

    def refusal(self) -> str:
        """Return the reason why the membership cannot change now, or "" if it can.

        The PROMOTE must be confirmed, and only one change runs at a time (M2).
        """
        context = self.context
        if context.limbo.confirmed_index < self.promote_index:
            return "the PROMOTE of this term is not confirmed yet; retry"
        if context.limbo.has_pending_membership:
            return "another membership change is not confirmed yet; retry"
        if context.is_decision_in_flight():
            return "a CONFIRM or ROLLBACK is being written; retry"
        if self.transfer.is_active:
            return "a switchover is in progress; retry"
        return ""

    def refusal_to_remove(self, member: ClusterMember) -> str:
        """Return the reason why `member` cannot be unregistered now, or "" if it can (M3)."""
        context = self.context
        if member.uuid == context.uuid:
            return "it leads the cluster; switch over first"
        busy = self.refusal()
        if busy:
            return busy
        level = context.configuration.without(member.replica_id).level
        running = [own for uuid, own in self._announced().items() if uuid != member.uuid]
        if level > min(running):
            return (
                f"the remaining members are registered with feature level {level}, and one of "
                "them runs an earlier version; upgrade it, or wait until its level is registered"
            )
        voters = [uuid for uuid in context.voter_uuids() if uuid != member.uuid]
        available = [
            uuid
            for uuid in self.tracker.live_voters()
            if uuid in voters and self.tracker.is_caught_up_voter(uuid)
        ]
        wanted = needed(len(voters), context.settings.quorum)
        if len(available) < wanted:
            return (
                f"{wanted} of the {len(voters)} remaining voters must answer and have caught up "
                f"(now {len(available)}); restore another voter, or wait for it"
            )
        return ""

    def write(self, rows: list[tuple[int, bytes]]) -> Entry:
        """Append the rows of one change as a transaction."""
        context = self.context
        is_alone = not context.limbo.has_pending_membership
        assert is_alone or context.ballot.forced_voters, "M2: one change at a time"
        transaction = [(row_type, body, None) for row_type, body in rows]
        return context.append_rows([transaction], SYNC_FLAGS, EntryKind.MEMBERSHIP)

    def consider_promotion(self, uuid: str) -> None:
        """Make a replica voting once it has caught up, if its configured role is "voter" (M4)."""
        context = self.context
        member = context.configuration.by_uuid(uuid)
        if member is None or member.is_voting or member.role != "voter":
            return
        if not self.tracker.has_caught_up(uuid, context.settings.election_timeout_ns):
            return  # as a voter, it would delay writes; the next round may be shorter
        if self.refusal() or uuid not in self.tracker.live_voters(uuid):
            return
        promoted = ClusterMember(
            member.replica_id, member.uuid, member.name, member.role, True, member.level
        )
        context.report("promoted_to_voting", uuid=uuid, replica_id=member.replica_id)
        self.write([put_member(promoted)])

    def _announced(self) -> dict[str, int]:
        """Return the feature level of each registered member that is known to run, by its UUID."""
        context = self.context
        announced = {context.uuid: context.settings.level}
        for link in context.links.values():
            uuid = link.peer_uuid
            if context.configuration.by_uuid(uuid) is not None:
                # The link of a former process may still be open; the lower level is the safe one.
                announced[uuid] = min(announced.get(uuid, link.level), link.level)
        return announced

    def record_levels(self) -> None:
        """Register the feature level of a process of another version (P2)."""
        context = self.context
        member = context.configuration.misregistered(self._announced())
        if member is None or self.refusal():
            return
        self.write([put_member(member)])
        context.report("feature_level", uuid=member.uuid, level=member.level)
