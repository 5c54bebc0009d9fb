"""One replica: joins the components of consensus, and makes the changes that concern all of them.

Theory. Each component handles one conversation: election, leader, applier, relays, snapshots and
state repair. They share a `Context` and do not know each other, except for those below them. A
change that concerns several of them is a transition of this class:

    adopt_term(term)   Adopt a higher term: from now on nothing of an older term is
                       acknowledged, counted or answered *committed*, whether or not it is
                       stored (D2, E4).
    become_leader()    A majority of the voters in this replica's own log voted for it (E1).
    step_down()        The term of this leader is over (E4, E7).
    confirm(index)     The quorum is known (leader) or was received (all others): T3, T5.
    forget_behind()    The disk does not hold the rows after an index (L6, D5).
    replace_log()      A snapshot replaces log and state (S3).
    on_split_brain()   Two logs contradict each other (L4).
    stop_at_unsupported_level()   The log has a feature level of a later version (P2).

The meaning of the rows belongs to the state machine (`node.py`). The replica moves entries and
reports their outcome to the state machine.
"""

from dataclasses import replace

from qsync_node.consensus import effects as fx
from qsync_node.consensus.applier import Applier
from qsync_node.consensus.context import Context, ReplicaLink
from qsync_node.consensus.election import Election
from qsync_node.consensus.entries import Entry, EntryKind, control_body
from qsync_node.consensus.interfaces import StateMachine
from qsync_node.consensus.leader import Leader
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.membership import delete_member, put_member
from qsync_node.consensus.messages import Ack, Follow, SnapshotRequest
from qsync_node.consensus.relay import Relays
from qsync_node.consensus.repair import StateRepair
from qsync_node.consensus.snapshots import Snapshots
from qsync_node.consensus.source import Source
from qsync_node.consensus.tail import Tail


class Replica:
    """Consensus of one instance, driven by `Node.step`."""

    def __init__(self, context: Context, machine: StateMachine) -> None:
        self.context = context
        self.machine = machine
        self.source = Source(context)
        self.election = Election(context, self.source, self)
        self.repair = StateRepair(context, self.source, machine, self)
        self.applier = Applier(context, self.source, self.election, self.repair, machine, self)
        self.relays = Relays(context, self.source, self)
        self.snapshots = Snapshots(context, self.repair, machine)
        self.leader: Leader | None = None

    # --- roles --------------------------------------------------------------------------------

    def adopt_term(self, term: int, vote: str = "") -> None:
        """Adopt `term`: from now on, send no ACK, answer or count for an older term (D2)."""
        ballot = self.context.ballot
        assert term > ballot.term, f"D2: {term} is not above {ballot.term}"
        self.step_down(f"the member adopted term {term}")
        self.source.stop()
        self.election.on_term(term)
        self.context.store_ballot(replace(self.context.ballot.in_term(term), vote=vote))

    def become_leader(self, keep_index: int) -> None:
        """Open this term with a PROMOTE that keeps the log up to `keep_index` (L2, E8)."""
        context = self.context
        tail = context.tail
        assert self.leader is None, "one function makes a leader, once a term"
        assert context.limbo.confirmed_index <= keep_index <= tail.last_index, "T5"
        assert tail.last_term < context.term, "L1: a term begins with its PROMOTE"
        self.election.on_won()
        owner_id = tail.history.owner_id
        lsn = tail.vclock.get(owner_id, 0)
        body = control_body(context.term, owner_id, lsn, keep_index, tail.term_at(keep_index))
        is_read_only = self.election.is_read_only
        promote_index = tail.last_index + 1
        leader = Leader(context, self.machine, self, promote_index, is_read_only=is_read_only)
        self.leader = leader
        context.is_leading = True
        context.append_control(EntryKind.PROMOTE, body, keep_index)
        context.report("leader", term=context.term, promote_index=promote_index, kept=keep_index)
        if context.ballot.forced_voters:
            self._write_forced_configuration(leader)
        self.machine.on_leadership_gained()
        leader.send_heartbeats()

    def _write_forced_configuration(self, leader: Leader) -> None:
        """Remove the voters that were left out, in the same write as the PROMOTE (E11)."""
        rows: list[tuple[int, bytes]] = []
        for member in self.context.configuration.voters:
            if member.uuid not in self.context.ballot.forced_voters:
                rows += delete_member(member)
        if not rows:
            return
        own = self.context.configuration.by_uuid(self.context.uuid)
        level = self.context.settings.level
        if own is not None and own.level != level:
            # The lost members may have had the lowest levels; this process must support the rest.
            rows.append(put_member(replace(own, level=level)))
        leader.changes.write(rows)

    def _end_forced_configuration(self) -> None:
        """Count by the log again once it records the forced configuration (E11)."""
        context = self.context
        left_out = set(context.confirmed_configuration.voter_uuids)
        if left_out.issubset(context.ballot.forced_voters):
            context.store_ballot(replace(context.ballot, forced_voters=()))
            context.report("forced_configuration_confirmed")

    def step_down(self, reason: str) -> None:
        """Step down; waiting clients get *unknown* (E4, T6).

        This member never leads this term again (E7).
        """
        if self.leader is None:
            return
        self.leader.is_over = True
        self.leader = None
        self.context.is_leading = False
        self.context.report("step_down", term=self.context.term, reason=reason)
        for entry in self.context.limbo.entries:
            entry.is_own = False
        # A follower of this leader must not receive another leader's rows from it (E4, L8).
        self.relays.close_all(reason)
        self.election.on_leadership_lost()
        self.machine.on_leadership_lost(reason)

    def on_split_brain(self, reason: str) -> None:
        """Keep the files and wait for an administrator (L4).

        Meanwhile this replica gives no vote, candidacy, ACK or default read.
        """
        self.context.split_brain = reason
        self.step_down(reason)
        self.source.stop()
        self.relays.close_all(reason)  # anonymous replicas follow another member (L8)
        self.context.report("split_brain", reason=reason)

    def stop_at_unsupported_level(self) -> bool:
        """Stop if the log has a feature level that this version does not support (P2).

        Rows after that point may have types and rules that this version does not know. A later
        version continues with the same files.

        Returns:
            Whether this replica is stopped.
        """
        context = self.context
        level = context.configuration.level
        if level > context.settings.level and not context.is_stopped:
            context.unsupported_level = level
            reason = context.stop_reason
            self.step_down(reason)
            self.source.stop()
            self.relays.close_all(reason)
            context.report("feature_level_unsupported", level=level, reason=reason)
        return context.is_stopped

    # --- log ----------------------------------------------------------------------------------

    def on_log_written(self, epoch: int, last_index: int) -> None:
        """Count rows that are durable now: this member's vote for them, or its ACK (D6, T2)."""
        if epoch != self.context.tail.epoch:
            return
        written = self.context.take_written(last_index)
        if self.leader is not None:
            self.leader.on_written(written)
            if any(entry.kind is EntryKind.USER and not entry.wait_ack for entry in written):
                self.machine.on_asynchronous_written()
        else:
            self.applier.on_written(written)

    def on_log_failed(self, failure: fx.LogFailed) -> None:
        """Handle a failed log write (D4).

        The write is never retried, and no row after the last good fsync is trusted.
        """
        context = self.context
        self.step_down(f"the log cannot be written: {failure.reason}")
        self.source.stop()
        if not failure.is_full or failure.epoch != context.tail.epoch:
            # In an older epoch, rows are missing that a truncation or a snapshot builds on.
            context.out.append(fx.RestartNode(f"log write failed: {failure.reason}"))
            return
        if context.limbo.confirmed_index > context.tail.durable_index:
            # The state holds confirmed rows that this disk lacks: only the disk is trusted (E7).
            reason = "the disk is full and lacks rows that the state contains"
            context.out.append(fx.RestartNode(reason))
            return
        context.is_disk_full = True
        self.forget_behind(context.tail.durable_index)
        context.report("disk_full", durable_index=context.tail.durable_index)

    def on_space(self, is_low: bool) -> None:
        """Handle free space crossing the mark: a full node resumes in a new file (D5)."""
        if not is_low and self.context.is_disk_full:
            self.context.is_disk_full = False
            self.source.restart()
        self.context.is_space_low = is_low

    def forget_behind(self, index: int) -> None:
        """Drop every row after `index` from memory because the disk does not hold it."""
        context = self.context
        lost = sum(entry.answered_writes for entry in context.limbo.cut(index))
        if lost:
            self.machine.on_acknowledged_lost(lost)
        context.tail.cut(index, context.limbo.vclock_at(index))
        context.forget_unwritten()
        self.relays.close_all("the log was truncated")

    def replace_log(self, tail: Tail, limbo: Limbo) -> None:
        """Continue after a snapshot; nothing of the former log is written or sent any more (S3)."""
        assert limbo.confirmed_index == tail.last_index, "S3: nothing is pending after a snapshot"
        self.context.tail, self.context.limbo = tail, limbo
        self.context.forget_unwritten()
        self.relays.close_all("the state was replaced by a snapshot")

    # --- confirmation -------------------------------------------------------------------------

    def confirm(self, index: int) -> None:
        """Make everything up to `index` final (L3)."""
        context = self.context
        assert index <= context.tail.last_index, "L3: only rows in the log are confirmed"
        context.confirm_rows_left -= index - context.limbo.confirmed_index
        taken, removed = context.limbo.confirm(index)
        if any(nack.index <= index for nack in context.ballot.nacks):
            self._forget_nacks(taken, index)
        if removed:
            rows = sum(e.batch.last_index - e.batch.first_index + 1 for e in removed)
            context.report("rolled_back", rows=rows, confirmed_index=index)
        if context.is_leading:
            self._note_waits(taken)
        self.machine.on_confirmed(taken, removed)
        context.is_relay_due = True
        if context.ballot.forced_voters:
            self._end_forced_configuration()
        if self.repair.is_open and not self.election.is_read_only:
            # A divergent state must take no writes (T7, E1).
            self.step_down("a row was confirmed that this member could not apply")

    def _note_waits(self, taken: list[Entry]) -> None:
        """Note the waits for the quorum; they are 0 if the other voters were faster."""
        context = self.context
        for entry in taken:
            if entry.is_own and entry.wait_ack:
                begun = entry.written_at or context.now_ns
                context.quorum_waits.observe((context.now_ns - begun) * 1e-9)

    def _forget_nacks(self, taken: list[Entry], index: int) -> None:
        """Drop the NACKs of decided rows; a confirmed one makes the state divergent (T7)."""
        context = self.context
        diverged = context.ballot.divergent_index
        for nack in context.ballot.nacks:
            if any(e.batch.first_index <= nack.index <= e.batch.last_index for e in taken):
                diverged = max(diverged, nack.index)
        left = tuple(nack for nack in context.ballot.nacks if nack.index > index)
        context.store_ballot(replace(context.ballot, nacks=left, divergent_index=diverged))
        if diverged:
            context.report("state_diverged", index=diverged)

    def on_snapshot_installed(self, message: fx.SnapshotInstalled) -> None:
        """Follow the leader again: the disk holds the snapshot (S3)."""
        self.applier.rejoin.on_installed(message)

    # --- messages that concern two components -------------------------------------------------

    def on_follow(self, link: int, uuid: str, message: Follow) -> None:
        """Begin a stream; the follower then needs no snapshot, and the leader counts its ACKs."""
        if not self.relays.on_follow(link, uuid, message):
            return
        self.snapshots.release(uuid)
        is_registered = self.context.configuration.by_uuid(uuid) is not None
        if self.leader is not None and is_registered:
            self.leader.on_follow(uuid, message.log_index)

    def on_ack(self, uuid: str, message: Ack) -> None:
        """Count an ACK of a stream that is open; its term must be this leader's (T2)."""
        is_counted = self.relays.on_ack(uuid, message) and message.term == self.context.term
        if self.leader is not None and is_counted:
            self.leader.on_ack(uuid, message)

    def on_snapshot_request(self, link: int, uuid: str, message: SnapshotRequest) -> None:
        """Send a chunk of the spaces that the receiver subscribed to."""
        self.snapshots.on_request(link, uuid, message, self.relays.list_of(link))

    # --- time and links -----------------------------------------------------------------------

    def on_link_up(self, link: fx.LinkUp) -> None:
        self.context.links[link.link] = ReplicaLink(
            link.link, link.peer_uuid, link.is_mine, link.level
        )
        self.election.on_link_up(link.peer_uuid)
        self.applier.on_link_up(link.peer_uuid)
        if self.leader is not None:
            self.leader.greet(link.link)

    def on_link_down(self, number: int) -> None:
        link = self.context.links.pop(number, None)
        if link is None:
            return
        self.relays.on_link_down(number)
        self.applier.on_link_down(number)
        self.election.on_link_down(link.peer_uuid)

    def tick(self) -> None:
        assert self.context.is_leading == (self.leader is not None), "set by the transitions only"
        if self.leader is not None:
            if self.leader.is_read_only and self.election.may_lead():
                self.election.is_read_only = False
                self.leader.become_writable()
            self.leader.tick()
        self.election.tick()
        self.applier.tick()

    def finish_step(self) -> None:
        """Write the log and send rows once for all events of a step (group commit, fan-out)."""
        self.context.flush_log()
        self.relays.pump()
