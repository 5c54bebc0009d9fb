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

from qsync_node.consensus.changes import Changes
from qsync_node.consensus.context import Context
from qsync_node.consensus.decisions import effective, is_lifted
from qsync_node.consensus.entries import Entry, EntryKind, control_body
from qsync_node.consensus.interfaces import StateMachine, Transitions
from qsync_node.consensus.lease import LeaderLease
from qsync_node.consensus.messages import Ack, HeartbeatReply
from qsync_node.consensus.quorum import is_impossible
from qsync_node.consensus.retention import Retention
from qsync_node.consensus.tracker import Tracker
from qsync_node.consensus.transfer import Transfer


class Leader:
    """One term of leadership; the object is discarded when the term ends.

    Attributes:
        tracker: progress of the followers.
        lease: heartbeat rounds, and the proof that this member still leads.
        transfer: switchovers.
        changes: membership changes.
        retention: rows that are kept for lagging replicas.
    """

    def __init__(
        self,
        context: Context,
        machine: StateMachine,
        transitions: Transitions,
        promote_index: int,
        *,
        is_read_only: bool,
    ) -> None:
        """Begin a term.

        Args:
            context: the replica.
            machine: its state machine.
            transitions: changes that concern other components.
            promote_index: index of the PROMOTE that begins the term.
            is_read_only: whether this member leads without taking user writes (E1).
        """
        self.context = context
        self.machine = machine
        self.transitions = transitions
        self.promote_index = promote_index
        self.is_read_only = is_read_only
        self.tracker = Tracker(context)
        self.lease = LeaderLease(context, self.tracker)
        self.transfer = Transfer(context, self.tracker, transitions, is_read_only=is_read_only)
        self.changes = Changes(context, self.tracker, self.transfer, promote_index)
        self.retention = Retention(context, self.tracker)
        self.is_over = False  # the term has ended; the object is discarded
        self.promote_confirmed_ns = 0
        self.progress_ns = 0  # when the confirmed index last rose
        self.started_ns = context.now_ns
        self.recorded_index = 0
        self.confirm_index = 0  # index of the last CONFIRM row of this term
        self.confirm_due_ns = 0
        self.is_confirm_due = False  # a quorum holds more rows than one step confirms (G1)
        self.rollback_at = 0
        self.rollback_deadline_ns = 0

    # --- queries ------------------------------------------------------------------------------

    @property
    def is_confirmed(self) -> bool:
        """Whether this term's PROMOTE is confirmed (L2)."""
        return self.context.limbo.confirmed_index >= self.promote_index

    def can_append(self) -> bool:
        """Return whether user rows may enter the log now; if not, they wait (C4, E9)."""
        return not self.context.is_decision_in_flight() and not self.transfer.is_active

    # --- counting -----------------------------------------------------------------------------

    def on_written(self, entries: list[Entry]) -> None:
        self.advance()

    def on_follow(self, uuid: str, index: int) -> None:
        """Take note of a new stream, which continues after `index`."""
        self.retention.on_follow(uuid)
        self.tracker.on_follow(uuid, index)

    def on_ack(self, uuid: str, ack: Ack) -> None:
        """Count an ACK: confirm rows, roll back refused ones, or promote a replica (T2, T7, M4)."""
        if not self.tracker.on_ack(uuid, ack):
            return
        if uuid in self.context.voter_uuids():
            self.advance()
            self._check_anti_quorum()
        else:
            self.changes.consider_promotion(uuid)

    def on_heartbeat_reply(self, uuid: str, link: int, reply: HeartbeatReply) -> None:
        self.tracker.on_heartbeat_reply(uuid, link, reply)
        self.lease.begin_wanted_round()

    def advance(self) -> None:
        """Raise the confirmed index to the rows that a quorum holds (T3).

        No other function raises it on a leader.
        """
        context = self.context
        index = self.tracker.held_index()
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
        assert goal >= self.promote_index, "L2: a quorum holds the PROMOTE, and all rows before it"
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
        confirmed = context.limbo.confirmed_index
        nacks = sorted(n for n in self.tracker.nacks() if n > confirmed)
        if not nacks:
            return
        voters = context.voter_uuids()
        decisions = effective(context.limbo.decisions)
        for index in nacks:
            if any(d.first <= index < d.at for d in decisions):
                continue
            refusals = sum(n <= index and not is_lifted(n, index, decisions) for n in nacks)
            if is_impossible(len(voters), refusals, self.tracker.quorum()):
                entry = next(e for e in context.limbo.entries if e.batch.last_index >= index)
                if not entry.is_own and not self.is_confirmed:
                    # Only a PROMOTE decides about inherited rows, and this term has written its own
                    # one. It would never be confirmed, because the quorum never passes this row.
                    self.transitions.step_down("too many voters cannot apply an inherited row")
                elif (
                    entry.is_own
                    and entry.kind is EntryKind.USER
                    and not context.is_decision_in_flight()
                ):
                    self.roll_back(entry, "too many voters cannot apply the row")
                return

    # --- control rows -------------------------------------------------------------------------

    def take_confirm(self) -> None:
        """Append a CONFIRM row if the confirmed index is ahead of the recorded one (T3)."""
        context = self.context
        index = context.limbo.confirmed_index
        self.confirm_due_ns = 0
        if self.transfer.has_nominated:
            return  # another row would make the target's log older than this one (E9)
        if index <= self.recorded_index or context.is_decision_in_flight():
            return
        if index == self.confirm_index == self.recorded_index + 1:
            return  # only the CONFIRM itself was confirmed since; it needs no second one
        assert not context.limbo.decisions or index == context.limbo.clamp(index), "T5"
        self.recorded_index = index
        owner = context.replica_id
        lsn = context.limbo.confirmed_vclock.get(owner, 0)
        body = control_body(context.term, owner, lsn, index, context.tail.term_at(index))
        entry = context.append_control(EntryKind.CONFIRM, body, index)
        self.confirm_index = entry.batch.last_index

    def roll_back(self, entry: Entry, reason: str) -> None:
        """Write a ROLLBACK that covers `entry` and every row after it (T4)."""
        context = self.context
        assert entry.is_own_write, "C5: only rows of this term are rolled back"
        assert entry.batch.first_index > context.limbo.confirmed_index, "L3: confirmed rows stay"
        assert not context.is_decision_in_flight(), "C4: one decision at a time"
        index = entry.batch.first_index
        lsn = entry.batch.last_lsn - (entry.batch.last_index - index)
        body = control_body(
            context.term, entry.batch.replica_id, lsn, index, context.tail.term_at(index)
        )
        rollback = context.append_control(EntryKind.ROLLBACK, body, index)
        self.rollback_at = rollback.batch.last_index
        self.rollback_deadline_ns = context.now_ns + context.settings.synchro_timeout_ns
        context.report("rollback", index=index, at=self.rollback_at, reason=reason)
        self.machine.on_decision_written()

    def become_writable(self) -> None:
        """Take user writes: the reason why this leader was read-only has ended (E1)."""
        self.is_read_only = self.transfer.is_read_only = False
        self.context.report("writable", term=self.context.term)

    # --- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        context = self.context
        if self.lease.is_lost():
            self.transitions.step_down(
                "no quorum answered heartbeats for the duration of the lease"
            )
            return
        if context.is_write_path_hung():
            self.transitions.step_down("the log write hangs")
            return
        if context.now_ns >= self.lease.next_heartbeat_ns:
            self.send_heartbeats()
        if self.is_confirm_due:
            self.advance()
            if self.is_over:
                return
        if self.confirm_due_ns and context.now_ns >= self.confirm_due_ns:
            self.take_confirm()
        self._time_out()
        self.transfer.tick()
        is_useless = self.is_read_only or context.is_space_low
        if is_useless and self.is_confirmed and not self.transfer.is_active:
            self.transfer.hand_over_to_the_able()

    def _time_out(self) -> None:
        context = self.context
        if not context.limbo.entries:
            return  # every row is confirmed, so this term's PROMOTE is, too
        if not self.is_confirmed or context.is_decision_in_flight():
            return
        self.advance()
        if self.is_confirm_due or self.is_over:
            return
        timeout = context.settings.synchro_timeout_ns
        if self.rollback_at and context.now_ns >= self.rollback_deadline_ns:
            if not self._is_quorum_near(self.rollback_at):
                self.transitions.step_down(
                    "no quorum confirmed a ROLLBACK within another synchro_timeout"
                )
            return
        # A long queue is not a lost quorum: nothing times out while the confirmed index rises.
        not_before_ns = max(self.promote_confirmed_ns, self.progress_ns)
        entry = context.limbo.first_timed_out(context.now_ns, timeout, not_before_ns)
        if entry is None or self.rollback_at:
            return
        if not self._is_quorum_near(entry.batch.last_index):
            self.roll_back(entry, "no quorum acknowledged the rows within synchro_timeout")

    def _is_quorum_near(self, index: int) -> bool:
        """Return whether a quorum holds a row, or voters that it needs catch up to it (T4)."""
        expected_ns = self.tracker.quorum_expected_ns(index)
        return expected_ns + self.context.settings.synchro_timeout_ns > self.context.now_ns

    def send_heartbeats(self) -> None:
        """Start a heartbeat round."""
        self.changes.record_levels()
        self.lease.begin_round(self.retention.floor_index())

    def greet(self, link: int) -> None:
        """Announce this leader on a new connection at once."""
        self.lease.greet(link, self.retention.floor_index())
