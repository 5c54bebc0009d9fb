"""Transfer of the leadership to a member that has every row (E9, E1, D5).

States of a leader:

  none                    -> waiting for rows    a switchover starts: user writes wait
  waiting for rows        -> nominated           the log is confirmed, and the target has all of it
  waiting for rows,
  nominated               -> none                the deadline: this member still leads its term
  any                     -> the term ends       the target, or another member, is elected
"""

from collections.abc import Callable

from qsync_node.consensus.context import Context
from qsync_node.consensus.interfaces import Transitions
from qsync_node.consensus.messages import NominationOrder, PeerMessage
from qsync_node.consensus.tracker import Tracker

PeerSender = Callable[[str, PeerMessage], bool]
"""Sends a message to an instance, and returns whether it is connected."""


class LeadershipTransfer:
    """A transfer in progress: writes wait until the target has every row, then it is nominated."""

    __slots__ = ("deadline_ns", "is_nominated", "repeat_ns", "target_uuid")

    def __init__(self, target_uuid: str, deadline_ns: int) -> None:
        self.target_uuid = target_uuid
        self.deadline_ns = deadline_ns
        self.is_nominated = False
        self.repeat_ns = 0


class Transfer:
    """The switchovers of one term, one at a time."""

    def __init__(
        self, context: Context, tracker: Tracker, transitions: Transitions, *, is_read_only: bool
    ) -> None:
        """Begin without a switchover.

        Args:
            context: the replica.
            tracker: progress of its followers.
            transitions: changes that concern other components.
            is_read_only: whether the leader takes no user writes (E1).
        """
        self.context = context
        self.tracker = tracker
        self.transitions = transitions
        self.is_read_only = is_read_only
        self.switchover: LeadershipTransfer | None = None

    @property
    def is_active(self) -> bool:
        return self.switchover is not None

    @property
    def has_nominated(self) -> bool:
        """Whether another row would make the target's log older than this one."""
        return self.switchover is not None and self.switchover.is_nominated

    def start(self, target_uuid: str, timeout_ns: int) -> str:
        """Hold writes back and start handing over to `target_uuid`.

        Returns:
            The reason for a refusal, or "" if the switchover has started.
        """
        context, tracker = self.context, self.tracker
        if target_uuid == context.uuid:
            return "the target already leads"
        if target_uuid not in context.voter_uuids():
            return "the target is not a voter; choose a voter"
        if target_uuid not in tracker.live_voters():
            return "the target does not answer; choose another voter"
        if target_uuid not in tracker.successors():
            return (
                "the target cannot lead: it is fenced, has election_mode voter, its "
                "state is divergent, or its disk is nearly full; choose another voter"
            )
        if self.switchover is not None:
            return "another switchover is in progress; wait for its end"
        self.switchover = LeadershipTransfer(target_uuid, context.now_ns + timeout_ns)
        context.report("switchover", target=target_uuid)
        return ""

    def tick(self) -> None:
        """Nominate the target once it has every row, or end the switchover at its deadline."""
        context, switchover = self.context, self.switchover
        if switchover is None:
            return
        if context.now_ns >= switchover.deadline_ns:
            # This member still leads its term: nothing was discarded, and writes continue (E9).
            self.switchover = None
            context.report("switchover_ended", reason="deadline")
            if context.ballot.is_fenced and not self.is_read_only:
                # It must not take writes, and the target did not take over (E10).
                self.transitions.step_down("this member was fenced, and its switchover did not end")
            return
        follower = self.tracker.find(switchover.target_uuid)
        done = context.limbo.confirmed_index == context.tail.last_index
        if switchover.is_nominated:
            if context.now_ns >= switchover.repeat_ns:
                self._nominate(switchover, context.send_by_all)
        elif follower is not None and done and follower.match == context.tail.last_index:
            self._nominate(switchover, context.send_to)

    def _nominate(self, switchover: LeadershipTransfer, send: PeerSender) -> None:
        """Send the order, which is repeated if it has no effect: a link may be silent (E12)."""
        context = self.context
        order = NominationOrder(context.term)
        if send(switchover.target_uuid, order):
            switchover.is_nominated = True
            switchover.repeat_ns = context.now_ns + context.settings.election_timeout_ns // 2

    def hand_over_to_the_able(self) -> None:
        """Hand over to a member that can take writes once it has every confirmed row (E1, D5).

        This applies to a read-only leader and to one that is short of disk space. It stays if no
        member can take over, because the cluster needs a leader.
        """
        context = self.context
        for uuid in self.tracker.successors():
            if self.tracker.follower(uuid).match >= context.limbo.confirmed_index:
                self.start(uuid, 2 * context.settings.election_timeout_ns)
                return
