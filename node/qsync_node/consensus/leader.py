"""The leader's side of one term: count ACKs, confirm, time out and prove that the leader is alive.

Theory. The leader's knowledge of each follower is a *level*: the newest ACK of every voter. The
leader recomputes it whenever an ACK arrives or one of its own writes completes (T2). The greatest
index that a quorum of voters holds durably becomes the confirmed index. That index must not lie
before this term's PROMOTE (L2) or inside a decision (T5). A CONFIRM row only records the confirmed
index and travels in the next batch (T3).

Invariants

  C1  A Leader exists for one term, so nothing is counted for a term that has ended (D2).
  C2  The local copy counts only after the local fsync (D6), and only while the ballot is settled.
  C3  Once a decision is handed to the log, no ACK confirms the rows that it covers (T5).
  C4  While the local write of a decision is in flight, only decisions enter the log (E6).
  C5  Only this leader's entries after its PROMOTE time out (T4).
  C6  A NACK excludes its voter's ACKs from that row on, until a decision lifts it (T7).
"""

from collections import deque

from qsync_node.consensus.context import Context
from qsync_node.consensus.decisions import effective, is_lifted
from qsync_node.consensus.entries import Entry, Kind, control_body
from qsync_node.consensus.interfaces import StateMachine, Transitions
from qsync_node.consensus.membership import Member, put_member
from qsync_node.consensus.messages import Ack, Heartbeat, HeartbeatReply, Nominate
from qsync_node.consensus.quorum import is_impossible, needed, reached_index


class Follower:
    """Progress of one registered replica, as known to the leader in this term."""

    __slots__ = (
        "acked_max",
        "caught_up_at_ns",
        "confirmed_index",
        "heard_at_ns",
        "match",
        "may_lead",
        "nack_index",
        "round_began_ns",
        "round_goal",
        "sequence",
    )

    def __init__(self) -> None:
        self.match = 0
        self.acked_max = 0
        self.nack_index = 0
        self.sequence = 0
        self.confirmed_index = 0
        self.heard_at_ns = 0
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


class Switchover:
    """A handover in progress (E9).

    Writes wait until the target has every row; then the leader nominates it.
    """

    __slots__ = ("deadline_ns", "is_nominated", "on_end", "target_uuid")

    def __init__(self, target_uuid: str, deadline_ns: int) -> None:
        self.target_uuid = target_uuid
        self.deadline_ns = deadline_ns
        self.is_nominated = False


class Leader:
    """One term of leadership; the object is discarded when the term ends."""

    def __init__(
        self,
        context: Context,
        machine: StateMachine,
        transitions: Transitions,
        promote_index: int,
        *,
        is_caretaker: bool,
    ) -> None:
        """Begin a term.

        Args:
            context: the replica.
            machine: its state machine.
            transitions: changes that concern other components.
            promote_index: index of the PROMOTE that begins the term.
            is_caretaker: whether this member leads without taking user writes (E1).
        """
        self.context = context
        self.machine = machine
        self.transitions = transitions
        self.promote_index = promote_index
        self.is_caretaker = is_caretaker
        self.is_over = False  # the term has ended; the object is discarded
        self.promote_confirmed_ns = 0
        self.progress_ns = 0  # when the confirmed index last rose
        self.followers: dict[str, Follower] = {}
        self.sequence = 0
        self.sent_at: deque[tuple[int, int]] = deque()  # start times of the unproven rounds
        self.proven_ns = context.now_ns  # start time of the newest proven round
        self.wanted_sequence = 0  # the round that linearizable reads wait for
        self.started_ns = context.now_ns
        self.next_heartbeat_ns = 0
        self.recorded_index = 0
        self.confirm_index = 0  # index of the last CONFIRM row of this term
        self.confirm_due_ns = 0
        self.is_confirm_due = False  # a quorum holds more rows than one step confirms (G1)
        self.rollback_at = 0
        self.rollback_deadline_ns = 0
        self.switchover: Switchover | None = None
        self.let_go: set[str] = set()  # UUIDs of replicas evicted from WAL retention (S5)

    # --- queries ------------------------------------------------------------------------------

    @property
    def is_confirmed(self) -> bool:
        """Whether this term's PROMOTE is confirmed (L2)."""
        return self.context.limbo.confirmed_index >= self.promote_index

    def can_append(self) -> bool:
        """Return whether user rows may enter the log now; if not, they wait (C4, E9)."""
        return not self._is_decision_in_flight() and self.switchover is None

    def _is_decision_in_flight(self) -> bool:
        decisions = self.context.limbo.decisions
        return bool(decisions) and decisions[-1].at > self.context.tail.durable_index

    def follower(self, uuid: str) -> Follower:
        found = self.followers.get(uuid)
        if found is None:
            found = self.followers[uuid] = Follower()
        return found

    def quorum(self) -> int:
        context = self.context
        return needed(len(context.voter_uuids()), context.settings.quorum)

    # --- counting -----------------------------------------------------------------------------

    def on_written(self, entries: list[Entry]) -> None:
        self.advance()

    def on_follow(self, uuid: str, index: int) -> None:
        """Start a new stream: ACKs count again only past the index acknowledged before (M6)."""
        self.let_go.discard(uuid)
        follower = self.follower(uuid)
        if index < follower.acked_max:
            follower.match = 0
            self.context.report(
                "acknowledged_rows_missing", uuid=uuid, index=index, acknowledged=follower.acked_max
            )

    def on_ack(self, uuid: str, ack: Ack) -> None:
        """Take an ACK if the local log has that term at that index; ignore it otherwise (T2)."""
        tail = self.context.tail
        index = ack.log_index
        if index > tail.last_index or tail.term_at(index) != ack.index_term:
            return
        follower = self.follower(uuid)
        follower.heard_at_ns = self.context.now_ns
        follower.nack_index = ack.nack_index
        follower.confirmed_index = max(follower.confirmed_index, ack.confirmed_index)
        if index >= follower.acked_max:
            follower.match = follower.acked_max = index
        follower.follow_round(tail.last_index, self.context.now_ns)
        if uuid in self.context.voter_uuids():
            self.advance()
            self._check_anti_quorum()
        else:
            self._consider_promotion(uuid)

    def matched_index(self, uuid: str) -> int:
        """Return the index up to which the copy of voter `uuid` counts (C2, C6)."""
        context = self.context
        if uuid == context.uuid:
            index = context.tail.durable_index if context.is_settled else 0
            nack = context.ballot.nack_in(context.term)
        else:
            follower = self.followers.get(uuid)
            if follower is None:
                return 0
            index, nack = follower.match, follower.nack_index
        if context.limbo.confirmed_index < nack <= index:
            decisions = effective(context.limbo.decisions)
            if not is_lifted(nack, index, decisions):
                return nack - 1
        return index

    def advance(self) -> None:
        """Raise the confirmed index to the rows that a quorum holds (T3).

        No other function raises it on a leader.
        """
        context = self.context
        voters = context.voter_uuids()
        index = reached_index([self.matched_index(uuid) for uuid in voters], self.quorum())
        if index < self.promote_index:
            return
        index = context.limbo.clamp(index)
        self.is_confirm_due = False
        if index <= context.limbo.confirmed_index:
            return
        if context.confirm_rows_left <= 0:
            self.is_confirm_due = True
            return
        part = context.limbo.step_towards(index, context.confirm_rows_left)
        goal, index = index, self.machine.confirmable(part)
        self.is_confirm_due = index < goal
        if index <= context.limbo.confirmed_index:
            return
        self.progress_ns = context.now_ns
        was_confirmed = self.is_confirmed
        self.transitions.confirm(index)
        if self.is_over:
            return
        if not was_confirmed and self.is_confirmed:
            self.promote_confirmed_ns = context.now_ns
            context.report("promote_confirmed", term=context.term, index=self.promote_index)
        if self.rollback_at and context.limbo.confirmed_index >= self.rollback_at:
            self.rollback_at = 0
        if not self.confirm_due_ns:
            self.confirm_due_ns = context.now_ns + context.settings.confirm_delay_ns

    def _check_anti_quorum(self) -> None:
        """Roll back at once any entry that can no longer reach its quorum (T7)."""
        context = self.context
        voters = context.voter_uuids()
        decisions = effective(context.limbo.decisions)
        nacks = [self.followers[u].nack_index for u in voters if u in self.followers]
        nacks += [nack.index for nack in context.ballot.nacks if nack.term == context.term]
        for index in sorted(n for n in nacks if n > context.limbo.confirmed_index):
            if any(d.first <= index < d.at for d in decisions):
                continue
            refusals = sum(
                1
                for n in nacks
                if context.limbo.confirmed_index < n <= index and not is_lifted(n, index, decisions)
            )
            if is_impossible(len(voters), refusals, self.quorum()):
                entry = next(e for e in context.limbo.entries if e.batch.last_index >= index)
                if not entry.is_own and not self.is_confirmed:
                    # Only a PROMOTE decides about inherited rows, and this term has written its own
                    # one. It would never be confirmed, because the quorum never passes this row.
                    self.transitions.step_down("too many voters cannot apply an inherited row")
                elif entry.is_own and entry.kind is Kind.USER and not self._is_decision_in_flight():
                    self.roll_back(entry, "too many voters cannot apply the row")
                return

    # --- control rows -------------------------------------------------------------------------

    def take_confirm(self) -> None:
        """Append a CONFIRM row if the confirmed index is ahead of the recorded one (T3)."""
        context = self.context
        index = context.limbo.confirmed_index
        self.confirm_due_ns = 0
        if self.switchover is not None and self.switchover.is_nominated:
            # Another row would make the target's log older than this one (E9).
            return
        if index <= self.recorded_index or self._is_decision_in_flight():
            return
        if index == self.confirm_index == self.recorded_index + 1:
            return  # only the CONFIRM itself was confirmed since; it needs no second one
        self.recorded_index = index
        owner = context.replica_id
        lsn = context.limbo.confirmed_vclock.get(owner, 0)
        body = control_body(context.term, owner, lsn, index, context.tail.term_at(index))
        entry = context.append_control(Kind.CONFIRM, body, index)
        self.confirm_index = entry.batch.last_index

    def roll_back(self, entry: Entry, reason: str) -> None:
        """Write a ROLLBACK that covers `entry` and every row after it (T4)."""
        context = self.context
        index = entry.batch.first_index
        lsn = entry.batch.last_lsn - (entry.batch.last_index - index)
        body = control_body(
            context.term, entry.batch.replica_id, lsn, index, context.tail.term_at(index)
        )
        rollback = context.append_control(Kind.ROLLBACK, body, index)
        self.rollback_at = rollback.batch.last_index
        self.rollback_deadline_ns = context.now_ns + context.settings.synchro_timeout_ns
        context.report("rollback", index=index, at=self.rollback_at, reason=reason)
        self.machine.on_decision_written()

    # --- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        context = self.context
        if self._lost_lease():
            self.transitions.step_down(
                "no quorum answered heartbeats for the duration of the lease"
            )
            return
        if context.is_write_path_hung():
            self.transitions.step_down("the log write hangs")
            return
        if context.now_ns >= self.next_heartbeat_ns:
            self.send_heartbeats()
        if self.is_confirm_due:
            self.advance()
            if self.is_over:
                return
        if self.confirm_due_ns and context.now_ns >= self.confirm_due_ns:
            self.take_confirm()
        self._time_out()
        if self.switchover is not None:
            self._tick_switchover(self.switchover)
        is_useless = self.is_caretaker or context.is_space_low
        if is_useless and self.switchover is None:
            self._hand_over_to_the_able()

    def _time_out(self) -> None:
        context = self.context
        if not self.is_confirmed or self._is_decision_in_flight():
            return
        self.advance()
        if self.is_confirm_due or self.is_over:
            return
        if self.rollback_at and context.now_ns >= self.rollback_deadline_ns:
            self.transitions.step_down(
                "no quorum confirmed a ROLLBACK within another synchro_timeout"
            )
            return
        timeout = context.settings.synchro_timeout_ns
        # A long queue is not a lost quorum: nothing times out while the confirmed index rises.
        not_before_ns = max(self.promote_confirmed_ns, self.progress_ns)
        entry = context.limbo.first_timed_out(context.now_ns, timeout, not_before_ns)
        if entry is not None and not self.rollback_at:
            self.roll_back(entry, "no quorum acknowledged the rows within synchro_timeout")

    def send_heartbeats(self) -> None:
        """Start a heartbeat round: send the term to every connected member."""
        context = self.context
        self.sequence += 1
        self.sent_at.append((self.sequence, context.now_ns))
        self.next_heartbeat_ns = context.now_ns + context.settings.heartbeat_ns
        self._record_levels()
        beat = self._heartbeat()
        seen: set[str] = set()
        for link in context.links.values():
            if link.peer_uuid not in seen:
                seen.add(link.peer_uuid)
                context.send_to(link.peer_uuid, beat)

    def want_round(self) -> int:
        """Request a heartbeat round that begins after now and return its number (R2).

        A round begins at once unless an earlier one still awaits its quorum; then all waiting reads
        share the next one. Without answers, rounds begin only at the heartbeat rate. The lease
        therefore bounds `sent_at`, and no rate of reads can shorten that bound (E4).
        """
        self.wanted_sequence = self.sequence + 1
        self._begin_wanted_round()
        return self.wanted_sequence

    def _begin_wanted_round(self) -> None:
        if self.wanted_sequence > self.sequence and self.proven_sequence() >= self.sequence:
            self.next_heartbeat_ns = 0

    def greet(self, link: int) -> None:
        """Announce this leader on a new connection at once."""
        self.context.send(link, self._heartbeat())

    def _heartbeat(self) -> Heartbeat:
        context = self.context
        confirmed = context.limbo.confirmed_index
        return Heartbeat(context.term, self.sequence, confirmed, self.floor_index())

    def floor_index(self) -> int:
        """Return the greatest index that every registered replica has (S5).

        Replicas that have been silent for longer than the retention and evicted replicas are
        ignored.
        """
        context = self.context
        floor = context.tail.durable_index
        for member in context.limbo.configuration.members:
            if member.uuid == context.uuid or member.uuid in self.let_go:
                continue
            follower = self.follower(member.uuid)
            silent_ns = context.now_ns - max(follower.heard_at_ns, self.started_ns)
            if silent_ns <= context.settings.retention_ns:
                floor = min(floor, follower.match)
        return floor

    def let_go_farthest(self, checkpoint_index: int) -> None:
        """Evict the slowest replica from WAL retention because the disk is filling up (S5).

        A replica is evicted only if it needs rows before the checkpoint; it later catches up from a
        snapshot (S3). The eviction is not stored: a later leader decides again.

        Args:
            checkpoint_index: index of the newest local checkpoint.
        """
        context = self.context
        behind = [
            (self.follower(member.uuid).match, member.uuid)
            for member in context.limbo.configuration.members
            if member.uuid != context.uuid and member.uuid not in self.let_go
        ]
        if not behind:
            return
        index, uuid = min(behind)
        if index < checkpoint_index:
            self.let_go.add(uuid)
            context.report("let_go", uuid=uuid, index=index, checkpoint_index=checkpoint_index)

    def on_heartbeat_reply(self, uuid: str, reply: HeartbeatReply) -> None:
        follower = self.follower(uuid)
        follower.sequence = max(follower.sequence, reply.sequence)
        follower.may_lead = reply.may_lead
        follower.heard_at_ns = self.context.now_ns
        if follower.round_began_ns:
            follower.follow_round(self.context.tail.last_index, self.context.now_ns)
        self._begin_wanted_round()

    def proven_sequence(self) -> int:
        """Return the newest heartbeat round that a quorum of voters answered (R2, E4)."""
        context = self.context
        voters = context.voter_uuids()
        rounds = [
            self.sequence
            if uuid == context.uuid
            else (self.followers[uuid].sequence if uuid in self.followers else 0)
            for uuid in voters
        ]
        return reached_index(rounds, len(voters) // 2 + 1)

    def _lost_lease(self) -> bool:
        context = self.context
        proven = self.proven_sequence()
        while self.sent_at and self.sent_at[0][0] <= proven:
            self.proven_ns = self.sent_at.popleft()[1]
        if len(context.voter_uuids()) == 1:
            return False
        return context.now_ns - self.proven_ns > context.settings.election_timeout_ns

    # --- membership ---------------------------------------------------------------------------

    def _record_levels(self) -> None:
        """Register the feature level of a process of another version (P2)."""
        context = self.context
        announced = {context.uuid: context.settings.level}
        for link in context.links.values():
            # The link of a former process may still be open; the lower level is the safe one.
            announced[link.peer_uuid] = min(announced.get(link.peer_uuid, link.level), link.level)
        member = context.limbo.configuration.misregistered(announced)
        if member is None or self.can_change_membership():
            return
        self.write_members([put_member(member)])
        context.report("feature_level", uuid=member.uuid, level=member.level)

    def can_change_membership(self) -> str:
        """Return the reason why membership cannot change now, or "" if it can.

        The PROMOTE must be confirmed, and only one change runs at a time (M2).
        """
        if not self.is_confirmed:
            return "the PROMOTE of this term is not confirmed yet; retry"
        if self.context.limbo.has_pending_membership:
            return "another membership change is not confirmed yet; retry"
        if self._is_decision_in_flight():
            return "a CONFIRM or ROLLBACK is being written; retry"
        if self.switchover is not None:
            return "a switchover is in progress; retry"
        return ""

    def write_members(self, rows: list[tuple[int, bytes]]) -> Entry:
        return self.context.append_rows([[(t, b, None) for t, b in rows]], 6, Kind.MEMBERSHIP)

    def _consider_promotion(self, uuid: str) -> None:
        """Make a replica voting once it has caught up, if its configured role is "voter" (M4)."""
        context = self.context
        member = context.limbo.configuration.by_uuid(uuid)
        if member is None or member.is_voting or member.role != "voter":
            return
        if not self._has_caught_up(uuid, context.settings.election_timeout_ns):
            return  # as a voter, it would delay writes; the next round may be shorter
        if self.can_change_membership() or uuid not in self.live_voters(context.now_ns, uuid):
            return
        promoted = Member(
            member.replica_id, member.uuid, member.name, member.role, True, member.level
        )
        context.report("promoted_to_voting", uuid=uuid, replica_id=member.replica_id)
        self.write_members([put_member(promoted)])

    def live_voters(self, now_ns: int, extra: str = "") -> list[str]:
        """Return the voters (and `extra`) heard within an election timeout, with this one (M3)."""
        context = self.context
        timeout = context.settings.election_timeout_ns
        live = []
        for uuid in sorted({*context.voter_uuids(), *([extra] if extra else [])}):
            follower = self.followers.get(uuid)
            is_heard = follower is not None and now_ns - follower.heard_at_ns <= timeout
            if uuid == context.uuid or is_heard:
                live.append(uuid)
        return live

    def refusal_to_remove(self, member: Member) -> str:
        """Return the reason why `member` cannot be unregistered now, or "" if it can (M3)."""
        context = self.context
        if member.uuid == context.uuid:
            return "it leads the cluster; switch over first"
        busy = self.can_change_membership()
        if busy:
            return busy
        voters = [uuid for uuid in context.voter_uuids() if uuid != member.uuid]
        available = [
            uuid
            for uuid in self.live_voters(context.now_ns)
            if uuid in voters and self._is_caught_up_voter(uuid)
        ]
        wanted = needed(len(voters), context.settings.quorum)
        if len(available) < wanted:
            return (
                f"{wanted} of the {len(voters)} remaining voters must answer and have caught up "
                f"(now {len(available)}); restore another voter, or wait for it"
            )
        return ""

    def _has_caught_up(self, uuid: str, within_ns: int) -> bool:
        """Return whether a replica holds every row that the log had `within_ns` ago."""
        follower = self.follower(uuid)
        since_ns = follower.caught_up_at_ns
        return bool(since_ns) and self.context.now_ns - since_ns <= within_ns

    def _is_caught_up_voter(self, uuid: str) -> bool:
        """Return whether a voter would not hold up writes whose quorum needs it (M3).

        A round began when the one before it ended, so the last complete one of a voter that
        acknowledges within an election timeout began within two.
        """
        context = self.context
        if uuid == context.uuid or self.follower(uuid).match >= context.tail.last_index:
            return True
        return self._has_caught_up(uuid, 2 * context.settings.election_timeout_ns)

    # --- switchover ---------------------------------------------------------------------------

    def start_switchover(self, target_uuid: str, timeout_ns: int) -> str:
        """Hold writes back and start handing over to `target_uuid` (E9).

        Returns:
            The reason for a refusal, or "" if the switchover has started.
        """
        context = self.context
        if target_uuid == context.uuid:
            return "the target already leads"
        if target_uuid not in context.voter_uuids():
            return "the target is not a voter; choose a voter"
        if target_uuid not in self.live_voters(context.now_ns):
            return "the target does not answer; choose another voter"
        if target_uuid not in self.successors(context.now_ns):
            return (
                "the target cannot lead: it is fenced, has election_mode voter, its "
                "state is divergent, or its disk is nearly full; choose another voter"
            )
        if self.switchover is not None:
            return "another switchover is in progress; wait for its end"
        self.switchover = Switchover(target_uuid, context.now_ns + timeout_ns)
        context.report("switchover", target=target_uuid)
        return ""

    def successors(self, now_ns: int) -> list[str]:
        """Return the live voters that can take user writes, the one with the most rows first."""
        live = (uuid for uuid in self.live_voters(now_ns) if uuid != self.context.uuid)
        able = [uuid for uuid in live if self.followers[uuid].may_lead]
        return sorted(able, key=lambda uuid: (-self.followers[uuid].match, uuid))

    def _tick_switchover(self, switchover: Switchover) -> None:
        context = self.context
        if context.now_ns >= switchover.deadline_ns:
            # This member still leads its term: nothing was discarded, and writes continue (E9).
            self.switchover = None
            context.report("switchover_ended", reason="deadline")
            if context.ballot.is_fenced and not self.is_caretaker:
                # It must not take writes, and the target did not take over (E10).
                self.transitions.step_down("this member was fenced, and its switchover did not end")
            return
        follower = self.followers.get(switchover.target_uuid)
        done = context.limbo.confirmed_index == context.tail.last_index
        if switchover.is_nominated or follower is None or not done:
            return
        if follower.match == context.tail.last_index:
            switchover.is_nominated = context.send_to(
                switchover.target_uuid, Nominate(context.term)
            )

    def _hand_over_to_the_able(self) -> None:
        """Hand over to a member that can take writes once it has every confirmed row (E1, D5).

        This applies to a read-only leader and to one that is short of disk space. It stays if no
        member can take over, because the cluster needs a leader.
        """
        context = self.context
        if not self.is_confirmed:
            return
        for uuid in self.successors(context.now_ns):
            if self.followers[uuid].match >= context.limbo.confirmed_index:
                self.start_switchover(uuid, 2 * context.settings.election_timeout_ns)
                return
