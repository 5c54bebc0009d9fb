"""The lease of a leader: heartbeat rounds, and the proof that it still leads (E4, E5, R2).

Theory. A round is a heartbeat with a number, sent to every member. A leader has proven that it led
when a round began once a quorum has answered that round or a later one. It steps down when its
newest proven round began longer than an election timeout ago. Reads wait for a round that began
after them; the lease itself proves nothing to a reader (R2).
"""

from collections import deque

from qsync_node.consensus.context import Context
from qsync_node.consensus.messages import Heartbeat
from qsync_node.consensus.quorum import reached_index
from qsync_node.consensus.tracker import Follower, Tracker


class LeaderLease:
    """Heartbeat rounds of one term."""

    def __init__(self, context: Context, tracker: Tracker) -> None:
        self.context = context
        self.tracker = tracker
        self.sequence = 0
        self.next_heartbeat_ns = 0
        self.proven_ns = context.now_ns  # start time of the newest proven round
        self._began_ns = context.now_ns
        self._sent_at: deque[tuple[int, int]] = deque()  # start times of the unproven rounds
        self._wanted_sequence = 0  # the round that linearizable reads wait for

    def begin_round(self, floor_index: int) -> None:
        """Send the term to every connected member.

        A connection may be lost without notice, or be slow (E12). If answers are late, each one is
        used until the next answer, and then the one by which it came. Otherwise it is one that this
        member has opened, because rows go by the other and may delay what follows them.
        """
        context = self.context
        assert not self._sent_at or self._sent_at[-1][1] <= context.now_ns, "E4: rounds in order"
        self.sequence += 1
        self._sent_at.append((self.sequence, context.now_ns))
        self.next_heartbeat_ns = context.now_ns + context.settings.heartbeat_ns
        beat = self._heartbeat(floor_index)
        seen: set[str] = set()
        for link in context.links.values():
            uuid = link.peer_uuid
            if uuid in seen:
                continue
            seen.add(uuid)
            follower = self.tracker.follower(uuid)
            follower.is_tried_by_all |= self._is_late(follower)
            if follower.is_tried_by_all:
                context.send_by_all(uuid, beat)
            elif follower.heartbeat_link in context.links:
                context.send(follower.heartbeat_link, beat)
            else:
                context.send_to(uuid, beat)

    def greet(self, link: int, floor_index: int) -> None:
        """Announce this leader on a new connection at once."""
        self.context.send(link, self._heartbeat(floor_index))

    def _heartbeat(self, floor_index: int) -> Heartbeat:
        context = self.context
        confirmed = context.limbo.confirmed_index
        return Heartbeat(context.term, self.sequence, confirmed, floor_index)

    def want_round(self) -> int:
        """Request a heartbeat round that begins after now and return its number (R2).

        A round begins at once unless an earlier one still awaits its quorum; then all waiting reads
        share the next one. Without answers, rounds begin only at the heartbeat rate. The lease
        therefore bounds `_sent_at`, and no rate of reads can shorten that bound (E4).
        """
        self._wanted_sequence = self.sequence + 1
        self.begin_wanted_round()
        return self._wanted_sequence

    def begin_wanted_round(self) -> None:
        """Let the requested round begin in this step, unless an earlier one awaits its quorum."""
        if self._wanted_sequence > self.sequence and self.proven_sequence() >= self.sequence:
            self.next_heartbeat_ns = 0

    def proven_sequence(self) -> int:
        """Return the newest heartbeat round that a quorum of voters answered (R2, E4)."""
        voters = self.context.voter_uuids()
        return reached_index([self._answered(uuid) for uuid in voters], len(voters) // 2 + 1)

    def _answered(self, uuid: str) -> int:
        if uuid == self.context.uuid:
            return self.sequence
        follower = self.tracker.find(uuid)
        return follower.sequence if follower is not None else 0

    def _is_late(self, follower: Follower) -> bool:
        """Return whether a member's answers are half an election timeout late."""
        now_ns = self.context.now_ns
        half_ns = self.context.settings.election_timeout_ns // 2
        if now_ns - max(follower.answered_at_ns, self._began_ns) > half_ns:
            return True
        unanswered = (at_ns for number, at_ns in self._sent_at if number > follower.sequence)
        return now_ns - next(unanswered, now_ns) > half_ns

    def is_lost(self) -> bool:
        """Return whether no quorum answered for an election timeout. A single voter needs none."""
        context = self.context
        if self._sent_at:
            proven = self.proven_sequence()
            while self._sent_at and self._sent_at[0][0] <= proven:
                self.proven_ns = self._sent_at.popleft()[1]
        is_unproven = context.now_ns - self.proven_ns > context.settings.election_timeout_ns
        return is_unproven and len(context.voter_uuids()) > 1
