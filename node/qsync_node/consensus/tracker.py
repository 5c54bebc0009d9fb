"""The leader's knowledge of the progress of each replica, in one term (T2, M3, M4).

Theory. An ACK is a level: it names an index up to which its sender holds the log durably. The
greatest one of every voter, and the leader's own durable index, decide how far the log is confirmed
(T3).

Invariants

  C2  The local copy counts only after the local fsync (D6), and only while the ballot is settled.
  C6  A NACK excludes its voter's ACKs from that row on, until a decision lifts it (T7).
"""

from qsync_node.consensus.context import Context
from qsync_node.consensus.decisions import effective, is_lifted
from qsync_node.consensus.messages import Ack, HeartbeatReply
from qsync_node.consensus.quorum import needed, reached_index


class Follower:
    """Progress of one registered replica, as known to the leader in this term."""

    __slots__ = (
        "acked_max",
        "answered_at_ns",
        "caught_up_at_ns",
        "confirmed_index",
        "heard_at_ns",
        "heartbeat_link",
        "is_tried_by_all",
        "match",
        "may_lead",
        "nack_index",
        "rose_at_ns",
        "round_began_ns",
        "round_goal",
        "sequence",
    )

    def __init__(self) -> None:
        self.match = 0
        self.rose_at_ns = 0  # when `match` rose
        self.acked_max = 0
        self.nack_index = 0
        self.sequence = 0
        self.confirmed_index = 0
        self.heard_at_ns = 0
        self.answered_at_ns = 0  # when it answered the newest heartbeat that it has answered
        self.is_tried_by_all = False  # whether heartbeats go by each connection until an answer
        self.heartbeat_link = 0  # the connection by which that answer came, if there was one
        self.may_lead = False
        self.round_goal = 0  # where the leader's log ended when this round of catching up began
        self.round_began_ns = 0
        self.caught_up_at_ns = 0  # when the round began that ended last

    def follow_round(self, last_index: int, now_ns: int) -> None:
        """End the round of catching up if its goal is reached, and begin the next (M3, M4).

        Args:
            last_index: where the leader's log ends now.
        """
        if self.match < self.round_goal:
            return
        self.caught_up_at_ns = self.round_began_ns
        self.round_goal, self.round_began_ns = last_index, now_ns


class Tracker:
    """Progress of all replicas, as known to the leader of one term."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._followers: dict[str, Follower] = {}

    def find(self, uuid: str) -> Follower | None:
        """Return the progress of a replica, or None if nothing is known of it."""
        return self._followers.get(uuid)

    def follower(self, uuid: str) -> Follower:
        """Return the progress of a replica, which may have none yet."""
        found = self._followers.get(uuid)
        if found is None:
            found = self._followers[uuid] = Follower()
        return found

    # --- messages -----------------------------------------------------------------------------

    def on_follow(self, uuid: str, index: int) -> None:
        """Start a new stream: ACKs count again only past the index acknowledged before (M6)."""
        follower = self.follower(uuid)
        if index < follower.acked_max:
            follower.match = 0
            self.context.report(
                "acknowledged_rows_missing", uuid=uuid, index=index, acknowledged=follower.acked_max
            )

    def on_ack(self, uuid: str, ack: Ack) -> bool:
        """Take an ACK if the local log has that term at that index (T2).

        Returns:
            Whether the ACK counts.
        """
        context, tail = self.context, self.context.tail
        index = ack.log_index
        if index > tail.last_index or tail.term_at(index) != ack.index_term:
            return False
        follower = self.follower(uuid)
        follower.heard_at_ns = context.now_ns
        follower.nack_index = ack.nack_index
        follower.confirmed_index = max(follower.confirmed_index, ack.confirmed_index)
        if index > follower.acked_max:
            follower.rose_at_ns = context.now_ns
        if index >= follower.acked_max:
            follower.match = follower.acked_max = index
        assert follower.match <= follower.acked_max, "M6: no row counts twice"
        follower.follow_round(tail.last_index, context.now_ns)
        return True

    def on_heartbeat_reply(self, uuid: str, link: int, reply: HeartbeatReply) -> None:
        follower = self.follower(uuid)
        follower.heard_at_ns = self.context.now_ns
        if reply.sequence > follower.sequence:
            follower.sequence = reply.sequence
            follower.answered_at_ns = self.context.now_ns
            if follower.is_tried_by_all:
                follower.heartbeat_link, follower.is_tried_by_all = link, False
        follower.may_lead = reply.may_lead
        if follower.round_began_ns:
            follower.follow_round(self.context.tail.last_index, self.context.now_ns)

    # --- quorums ------------------------------------------------------------------------------

    def quorum(self) -> int:
        """Return the number of voters that must hold a row (T2)."""
        context = self.context
        return needed(len(context.voter_uuids()), context.settings.quorum)

    def matched_index(self, uuid: str) -> int:
        """Return the index up to which the copy of voter `uuid` counts (C2, C6)."""
        context = self.context
        if uuid == context.uuid:
            index = context.tail.durable_index if context.is_settled else 0
            nack = context.ballot.nack_in(context.ballot.term)
        else:
            follower = self._followers.get(uuid)
            if follower is None:
                return 0
            index, nack = follower.match, follower.nack_index
        if context.limbo.confirmed_index < nack <= index:
            decisions = effective(context.limbo.decisions)
            if not is_lifted(nack, index, decisions):
                return nack - 1
        assert 0 <= index <= context.tail.last_index, "T2: no copy counts for a row without a term"
        return index

    def held_index(self) -> int:
        """Return the greatest index that a quorum of voters holds durably."""
        context = self.context
        voters = context.voter_uuids()
        quorum = needed(len(voters), context.settings.quorum)
        return reached_index([self.matched_index(uuid) for uuid in voters], quorum)

    def quorum_expected_ns(self, index: int) -> int:
        """Return when a quorum was last expected to hold the row at `index` (T4).

        A voter is expected to hold it if it holds it now, or when its log last grew towards it.
        """
        context = self.context
        voters = context.voter_uuids()
        quorum = needed(len(voters), context.settings.quorum)
        return reached_index([self._expected_ns(uuid, index) for uuid in voters], quorum)

    def _expected_ns(self, uuid: str, index: int) -> int:
        if self.matched_index(uuid) >= index:
            return self.context.now_ns
        follower = self._followers.get(uuid)
        # A voter that has the row and refused it will not hold it later either (C6).
        return follower.rose_at_ns if follower is not None and follower.match < index else 0

    def nacks(self) -> list[int]:
        """Return the rows of this term that voters refused, local ones included."""
        context = self.context
        voters = context.voter_uuids()
        theirs = [self._followers[u].nack_index for u in voters if u in self._followers]
        return theirs + [n.index for n in context.ballot.nacks if n.term == context.term]

    # --- liveness -----------------------------------------------------------------------------

    def live_voters(self, extra: str = "") -> list[str]:
        """Return the voters (and `extra`) heard within an election timeout, with this one (M3)."""
        context = self.context
        timeout = context.settings.election_timeout_ns
        live = []
        for uuid in sorted({*context.voter_uuids(), *([extra] if extra else [])}):
            follower = self._followers.get(uuid)
            is_heard = follower is not None and context.now_ns - follower.heard_at_ns <= timeout
            if uuid == context.uuid or is_heard:
                live.append(uuid)
        return live

    def successors(self) -> list[str]:
        """Return the live voters that can take user writes, the one with the most rows first."""
        live = (uuid for uuid in self.live_voters() if uuid != self.context.uuid)
        able = [uuid for uuid in live if self._followers[uuid].may_lead]
        return sorted(able, key=lambda uuid: (-self._followers[uuid].match, uuid))

    def has_caught_up(self, uuid: str, within_ns: int) -> bool:
        """Return whether a replica holds every row that the log had `within_ns` ago."""
        follower = self.follower(uuid)
        since_ns = follower.caught_up_at_ns
        return bool(since_ns) and self.context.now_ns - since_ns <= within_ns

    def is_caught_up_voter(self, uuid: str) -> bool:
        """Return whether a voter would not hold up writes whose quorum needs it (M3).

        A round began when the one before it ended, so the last complete one of a voter that
        acknowledges within an election timeout began within two.
        """
        context = self.context
        if uuid == context.uuid or self.follower(uuid).match >= context.tail.last_index:
            return True
        return self.has_caught_up(uuid, 2 * context.settings.election_timeout_ns)
