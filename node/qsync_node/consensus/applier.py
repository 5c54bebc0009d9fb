"""The receiving side: follow a leader, truncate divergent rows and acknowledge durable ones.

Theory. A follower that learns of its term's leader sends SUBSCRIBE and receives the leader's
history of terms. It finds the last common point (L5) and truncates its log back to it if necessary
(L6). If the leader no longer has the next rows, the follower fetches a snapshot (S3). Only then
does it ask for rows. From that moment its log is *matched*: every row in it is in the leader's log.
It acknowledges nothing before (T2), and takes rows on no other stream (E4).

An anonymous replica does the same with any member and gets confirmed rows only (L8). It may ask for
some of the spaces only. If they were configured by name, an empty replica first fetches the schema
to learn their ids (spaces.py).

Invariants

  A1  Rows are appended only in FOLLOWING, contiguously, after a row of the same term as the
      leader's.
  A2  An ACK is sent only in FOLLOWING and only when the ballot of its term is durable. It names
      the greatest durable index that is matched (T2, D2), or a smaller one (confirming.py, T11).
  A3  The log is never truncated below the confirmed index: that is SPLIT_BRAIN (L4).
  A4  The confirmed index of a heartbeat or of Rows counts only in FOLLOWING (confirming.py, T3).
  A5  A NACK is stored before the row is written, and never for an acknowledged row (T7).
"""

from dataclasses import replace

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Nack
from qsync_node.consensus.confirming import Confirming
from qsync_node.consensus.context import Context
from qsync_node.consensus.election import Election
from qsync_node.consensus.entries import Entry, EntryKind, read_entries
from qsync_node.consensus.filtering import SCHEMA_ONLY
from qsync_node.consensus.history import History, SplitBrain, common_point
from qsync_node.consensus.interfaces import StateMachine, Transitions
from qsync_node.consensus.messages import (
    Ack,
    Follow,
    Heartbeat,
    HeartbeatReply,
    Histories,
    Refusal,
    Rows,
    Subscribe,
)
from qsync_node.consensus.registering import Registering
from qsync_node.consensus.rejoin import Rejoin
from qsync_node.consensus.repair import StateRepair
from qsync_node.consensus.source import Source, SourceState
from qsync_node.format.batch import LogBatch

QUIET_ELECTION_TIMEOUTS = 4
"""Election timeouts without rows, after which an anonymous replica tries another source."""


class Applier:
    """Follower state machine with one source at a time."""

    def __init__(
        self,
        context: Context,
        source: Source,
        election: Election,
        repair: StateRepair,
        machine: StateMachine,
        transitions: Transitions,
    ) -> None:
        self.context = context
        self.source = source
        self.election = election
        self.repair = repair
        self.machine = machine
        self.transitions = transitions
        self.reconsidered_at_ns = 0
        self.floor_index = 0
        self.confirming = Confirming(context, source, repair, machine, transitions)
        self.rejoin = Rejoin(context, source, repair, machine, transitions)
        self.registering = Registering(context, source, election)

    # --- finding a source ---------------------------------------------------------------------

    def on_leader_known(self) -> None:
        self.source.retry_at_ns = 0
        if not self.context.is_anonymous:
            self._connect()

    def on_link_up(self, uuid: str) -> None:
        if uuid == self.election.leader_uuid or self.context.is_anonymous:
            self.source.retry_at_ns = 0

    def on_link_down(self, link: int) -> None:
        source = self.source
        if link != source.link or source.state is SourceState.IDLE:
            return
        if source.is_replacing_log:
            source.stop()  # the truncation continues, but nothing follows it over this link
        else:
            source.retry_later()

    def tick(self) -> None:
        context = self.context
        if context.is_leading or context.is_stopped or context.is_disk_full:
            return
        if self.source.state is SourceState.IDLE and context.now_ns >= self.source.retry_at_ns:
            self._connect()
        is_anonymous = context.is_anonymous
        if is_anonymous:
            self.election.forget_removed_leader()
            self._consider_better_source()
        stuck = context.now_ns - self.source.since_ns > 2 * context.settings.election_timeout_ns
        if self.source.state in (SourceState.COMPARING, SourceState.FETCHING) and stuck:
            self.source.silent_link = self.source.link
            self.source.retry_later()
        if not is_anonymous:
            self.registering.tick()
        self.repair.tick()

    def _choose_source(self) -> str:
        context = self.context
        if not context.is_anonymous:
            return self.election.leader_uuid
        best = self._best_sources()
        others = [uuid for uuid in best if uuid != self.source.quiet_uuid]
        self.source.quiet_uuid = ""
        return context.rng.choice(others or best) if best else ""

    def _best_sources(self) -> list[str]:
        """Return the members to follow: the leader, else registered ones, else anonymous ones.

        A leader whose heartbeats no longer arrive may have a successor that this member does not
        reach. Anonymous replicas that follow each other in a circle receive nothing, so each
        prefers a registered member.
        """
        context = self.context
        if self.election.hears_leader() and not self._is_leader_outdated():
            return [self.election.leader_uuid]
        linked = sorted({link.peer_uuid for link in context.links.values()})
        configuration = context.configuration
        registered = [uuid for uuid in linked if configuration.by_uuid(uuid) is not None]
        return registered or linked

    def _is_leader_outdated(self) -> bool:
        """Return whether rows of a later term arrived before the heartbeat of its leader.

        This happens at anonymous replicas only, which follow any member. The leader that they know
        is then not the newest one, and lacks confirmed rows without contradicting them.
        """
        return self.context.tail.last_term > self.context.term

    def _consider_better_source(self) -> None:
        """Leave a source when a better one is connected, once per heartbeat interval.

        A source that sends no rows may have lost its own connection to the leader: another one of
        the same rank is then tried.
        """
        context, source = self.context, self.source
        if source.state is not SourceState.FOLLOWING or context.now_ns < self.reconsidered_at_ns:
            return
        self.reconsidered_at_ns = context.now_ns + context.settings.heartbeat_ns
        best = self._best_sources()
        quiet_ns = QUIET_ELECTION_TIMEOUTS * context.settings.election_timeout_ns
        is_quiet = len(best) > 1 and context.now_ns - source.since_ns > quiet_ns
        if is_quiet:
            source.quiet_uuid = source.uuid
        if is_quiet or source.uuid not in best:
            source.retry_later()

    def _connect(self) -> None:
        """Subscribe to the source: the leader of this term, or any member for an anonymous replica.

        A SUBSCRIBE acknowledges nothing (T2).
        """
        context = self.context
        if context.is_leading or context.is_stopped or context.is_disk_full:
            return
        if self.source.is_replacing_log:
            return
        uuid = self._choose_source()
        link = context.link_to(uuid, self.source.silent_link) if uuid else None
        if link is None or uuid == context.uuid:
            self.source.retry_at_ns = context.now_ns + context.settings.heartbeat_ns
            return
        self.source.uuid, self.source.link = uuid, link.number
        self.source.subscription += 1
        self.source.become(SourceState.COMPARING)
        self.rejoin.settle_list()
        subscription, term = self.source.subscription, context.term
        spaces = list(SCHEMA_ONLY if self.rejoin.is_learning_spaces else context.ballot.spaces)

        def subscribe() -> None:
            if (
                self.source.subscription == subscription
                and self.source.state is SourceState.COMPARING
            ):
                context.send(
                    link.number, Subscribe(subscription, term, self.context.is_anonymous, spaces)
                )

        context.when_settled(subscribe, "subscribe")

    def on_heartbeat(self, link: int, uuid: str, message: Heartbeat) -> None:
        """Record that the leader of a term is alive and answer its heartbeat (E2-E5)."""
        context = self.context
        if message.term > context.term:
            self.transitions.adopt_term(message.term)
        if message.term < context.term:
            context.send(link, HeartbeatReply(context.term, 0, False))
            return
        if context.is_leading:
            assert uuid == context.uuid, f"two leaders of term {context.term}"
        known = self.election.leader_uuid
        self.election.on_leader_heard(uuid)
        self.floor_index = message.floor_index
        if known != uuid:
            self.on_leader_known()
        can_take_writes = self.election.may_lead() and not context.is_space_low
        reply = HeartbeatReply(message.term, message.sequence, can_take_writes)

        def answer() -> None:
            if context.term == message.term and not context.is_write_path_hung():
                context.send(link, reply)

        context.when_settled(answer, "heartbeat")
        if self.source.state is SourceState.FOLLOWING and uuid == self.source.uuid:
            self.confirming.announce(message.confirmed_index)
            self.confirming.advance()
            self._acknowledge()

    def on_refusal(self, link: int, message: Refusal) -> None:
        """Retry later after a refusal (loading, not leading, a gap).

        If this instance was removed, an administrator has to decide (M5).
        """
        context = self.context
        if message.subscription != self.source.subscription or link != self.source.link:
            return
        if message.term > context.term:
            self.transitions.adopt_term(message.term)
        self.source.refused = message.reason
        context.report("subscription_refused", code=message.code, reason=message.reason)
        if not self.source.is_replacing_log:
            self.source.retry_later()

    # --- comparing and truncating -------------------------------------------------------------

    def on_histories(self, link: int, message: Histories) -> None:
        context = self.context
        if not self.source.is_answer(link, message.subscription, SourceState.COMPARING):
            return
        if message.term > context.term and not context.is_anonymous:
            self.transitions.adopt_term(message.term)
            return
        self.source.histories = message
        self.source.refused = ""
        tail = context.tail
        if not context.has_origin:
            self.rejoin.fetch(0)
            return
        theirs = History(message.starts)
        try:
            common = common_point(tail.history, tail.last_index, theirs, message.last_index)
        except SplitBrain as contradiction:
            self.transitions.on_split_brain(str(contradiction))
            return
        if common < context.limbo.confirmed_index:
            self._judge_shorter_log(common, message)
            return
        if common < tail.last_index:
            if not message.is_leader and not context.is_anonymous:
                # It led this term before a restart, and its disk lacks the row that registers this
                # member: its log decides nothing (L4).
                self.source.retry_later()
                return
            self._cut(common)
            return
        self._go_on(common)

    def _judge_shorter_log(self, common: int, message: Histories) -> None:
        """Handle a source that lacks rows which are confirmed here (A3).

        The source lags, unless it is this term's leader: then it contradicts this log (L4).
        """
        context = self.context
        if message.is_leader and message.term == context.term and not self._is_leader_outdated():
            self.transitions.on_split_brain(
                f"the leader of term {message.term} lacks rows that are confirmed on this "
                f"member: common index {common}, confirmed index "
                f"{context.limbo.confirmed_index}"
            )
        else:
            self.source.retry_later()

    def _cut(self, after_index: int) -> None:
        context = self.context
        assert after_index >= context.limbo.confirmed_index, "A3: confirmed rows are never cut"
        first_cut_term = context.tail.term_at(after_index + 1)
        rows = context.tail.last_index - after_index
        context.flush_log()
        self.source.become(SourceState.CUTTING)
        self.transitions.forget_behind(after_index)
        self._drop_nacks_behind(after_index)
        context.out.append(fx.Rewind(context.tail.epoch, after_index, first_cut_term))
        context.report("rewind", after_index=after_index, rows=rows)

    def _drop_nacks_behind(self, index: int) -> None:
        context = self.context
        left = tuple(nack for nack in context.ballot.nacks if nack.index <= index)
        if left != context.ballot.nacks:
            context.store_ballot(replace(context.ballot, nacks=left))

    def on_rewound(self, message: fx.Rewound) -> None:
        context = self.context
        if message.epoch != context.tail.epoch or self.source.state is not SourceState.CUTTING:
            return
        context.tail.durable_index = context.tail.last_index
        context.cut_rows += message.rows
        context.report("rewound", rows=message.rows, file=message.file)
        if self.source.histories is None or not self.source.uuid:
            self.source.become(SourceState.IDLE)
            self.source.retry_at_ns = 0
            return
        self._go_on(context.tail.last_index)

    def _go_on(self, common: int) -> None:
        """Follow from the common point, or fetch a snapshot when the rows after it are gone."""
        histories = self.source.histories
        assert histories is not None
        if common + 1 < histories.first_available_index:
            self.rejoin.fetch(common)
            return
        self._follow(common)

    def _follow(self, index: int) -> None:
        context = self.context
        assert index == context.tail.last_index, "A1: the log ends at the common point"
        self.source.become(SourceState.FOLLOWING)
        self.source.refused = ""
        if self.rejoin.loader is not None:
            self.rejoin.begin_again()  # this source still has the rows: no state is needed
        self.confirming.begin()
        subscription, term, link = self.source.subscription, context.term, self.source.link

        def follow() -> None:
            if (
                self.source.subscription == subscription
                and self.source.state is SourceState.FOLLOWING
            ):
                if context.term == term:
                    context.send(
                        link, Follow(subscription, term, index, context.tail.term_at(index))
                    )

        context.when_settled(follow, "follow")
        context.report("following", source=self.source.uuid, index=index, term=term)

    # --- rows ---------------------------------------------------------------------------------

    def on_rows(self, link: int, message: Rows) -> None:
        context = self.context
        if not self.source.is_answer(link, message.subscription, SourceState.FOLLOWING):
            return
        if message.term != context.term and not context.is_anonymous:
            return
        if not context.is_anonymous:
            self.election.on_leader_heard(self.source.uuid)
        self.source.since_ns = context.now_ns
        tail = context.tail
        if message.previous_index != tail.last_index:
            self.source.retry_later()
            return
        if message.previous_term != tail.last_term and tail.last_index > 0:
            self.source.retry_later()
            return
        for batch in message.batches:
            if not self._take(batch):
                return
        self.confirming.announce(message.confirmed_index)
        if message.batches:
            # The new rows go to disk first; rows that they confirm are applied meanwhile.
            self.confirming.postpone()
        else:
            self.confirming.advance()

    def _take(self, batch: LogBatch) -> bool:
        """Append one batch; return False when the stream must end."""
        context = self.context
        try:
            entries = read_entries(batch, context.tail.last_term)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            context.report("bad_rows", index=batch.first_index, reason=str(error))
            reason = f"received rows do not decode: {error}"
            context.out.append(fx.CloseLink(self.source.link, reason))
            self.source.retry_later()
            return False
        return all(self._take_entry(entry) for entry in entries)

    def _take_entry(self, entry: Entry) -> bool:
        context = self.context
        if not self._continues(entry):
            index = entry.batch.first_index
            context.report("bad_rows", index=index, reason="the rows do not continue the log")
            self.source.retry_later()
            return False
        decision = entry.decision
        if decision is not None and decision.first <= context.limbo.confirmed_index:
            if decision.first < decision.at:
                self.transitions.on_split_brain(
                    f"{entry.kind.name} at index {decision.at} rolls back rows from index "
                    f"{decision.first}, which are confirmed on this member"
                )
                return False
        if not self.machine.can_apply(entry):
            self._nack(entry)
        context.append(entry)
        if entry.kind is EntryKind.MEMBERSHIP:
            return not self.transitions.stop_at_unsupported_level()
        return True

    def _continues(self, entry: Entry) -> bool:
        tail, batch = self.context.tail, entry.batch
        rows = batch.last_index - batch.first_index + 1
        if batch.first_index != tail.last_index + 1:
            return False
        if entry.kind is EntryKind.PROMOTE:
            if entry.term <= tail.last_term:
                return False
            if entry.term > self.context.term and not self.context.is_anonymous:
                return False
        return batch.last_lsn == tail.vclock.get(batch.replica_id, 0) + rows

    def _nack(self, entry: Entry) -> None:
        """Record that this row is on the local disk but not in the local state (A5)."""
        context = self.context
        index = entry.batch.first_index
        if any(nack.term == context.term and nack.index <= index for nack in context.ballot.nacks):
            return
        nack = Nack(context.term, index)
        context.store_ballot(replace(context.ballot, nacks=(*context.ballot.nacks, nack)))
        context.report("nack", index=index, term=context.term)

    def on_written(self, entries: list[Entry]) -> None:
        """Process durable rows: take note of CONFIRM rows, confirm and acknowledge (T3, T2)."""
        self.confirming.on_written(entries)
        if self.source.state is SourceState.FOLLOWING:
            self.confirming.advance()
        self._acknowledge()

    def confirm_due(self) -> None:
        """Resume a confirmation that waited for rows to reach the disk, or for the next step."""
        self.source.is_confirm_due = False
        if self.source.state is SourceState.FOLLOWING:
            self.confirming.advance()
            if self.confirming.is_ack_due():
                self._acknowledge()

    def _acknowledge(self) -> None:
        """Send an ACK; it is a level, sent after writes and with heartbeats (A2)."""
        context = self.context
        if self.source.state is not SourceState.FOLLOWING or not context.is_settled:
            if self.source.state is SourceState.FOLLOWING:
                context.when_settled(self._acknowledge, "acknowledge")
            return
        assert not context.is_leading, "A2: a leader counts its own copy itself"
        tail = context.tail
        index = self.confirming.acknowledge()
        nack = context.ballot.nack_in(context.term)
        context.send(
            self.source.link,
            Ack(
                self.source.subscription,
                context.term,
                index,
                tail.term_at(index),
                nack,
                context.limbo.confirmed_index,
            ),
        )
