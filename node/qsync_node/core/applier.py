"""The receiving side: follow a leader, truncate divergent rows and acknowledge durable ones.

Theory. A follower that learns of its term's leader sends SUBSCRIBE and receives the leader's
history of terms. It finds the last common point (L5) and truncates its log back to it if necessary
(L6). If the leader no longer has the next rows, the follower fetches a snapshot (S3). Only then
does it ask for rows. From that moment its log is *matched*: every row in it is in the leader's log.
It acknowledges nothing before (T2), and takes rows on no other stream (E4).

An anonymous replica does the same with any member and gets confirmed rows only (L8). It may ask for
some of the spaces only. If they were configured by name, an empty replica first fetches the schema
to learn their ids (spaces.py).

States: IDLE -> COMPARING -> (CUTTING ->) (FETCHING -> INSTALLING ->) FOLLOWING. A connection error
leads back to IDLE and a retry; a contradiction of the logs leads to SPLIT_BRAIN.

Invariants

  A1  Rows are appended only in FOLLOWING, contiguously, after a row of the same term as the
      leader's.
  A2  An ACK is sent only in FOLLOWING and only when the ballot of its term is durable. It names
      the greatest durable index that is matched (T2, D2).
  A3  The log is never truncated below the confirmed index: that is SPLIT_BRAIN (L4).
  A4  The confirmed index of a heartbeat or of Rows counts only in FOLLOWING. While the local log
      ends before it, the follower confirms up to the newest CONFIRM row in its log and no further.
      The announced index proves that earlier rows are decided, not that they are kept (T3).
  A5  A NACK is stored before the row is written, and never for an acknowledged row (T7).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from qsync_node.core import effects as fx
from qsync_node.core.ballot import Nack
from qsync_node.core.entries import Entry, Kind, read_entries
from qsync_node.core.history import History, SplitBrain, common_point
from qsync_node.core.messages import (
    Ack,
    Follow,
    Heartbeat,
    HeartbeatReply,
    Histories,
    Refusal,
    Rows,
    Subscribe,
)
from qsync_node.core.registering import Registering
from qsync_node.core.rejoin import Rejoin
from qsync_node.core.spaces import SCHEMA_ONLY
from qsync_node.core.stage import State
from qsync_node.format.batch import LogBatch

if TYPE_CHECKING:
    from qsync_node.core.replica import Replica

CONFIRM_PART_ROWS = 64
"""Rows confirmed between two checks of the work that they cost."""


class Applier:
    """Follower state machine with one source at a time."""

    def __init__(self, replica: "Replica") -> None:
        self.replica = replica
        self.state = State.IDLE
        self.source_uuid = ""
        self.link = 0
        self.subscription = 0
        self.retry_at_ns = 0
        self.reconsidered_at_ns = 0
        self.since_ns = 0
        self.announced_index = 0  # the newest confirmed index that the source announced
        self.recorded_index = 0  # the greatest position of a CONFIRM row that is durable here
        self.histories: Histories | None = None
        self.refused = ""
        self.floor_index = 0
        self.is_confirm_due = False
        self.rejoin = Rejoin(self)
        self.registering = Registering(self)

    @property
    def is_replacing_log(self) -> bool:
        """Whether a truncation or a snapshot is being written; the replica must not stand (V4)."""
        return self.state in (State.CUTTING, State.INSTALLING)

    @property
    def is_anonymous(self) -> bool:
        return self.replica.settings.role == "anonymous"

    # --- finding a source ---------------------------------------------------------------------

    def stop(self) -> None:
        """End the stream of the current term or source.

        A truncation or an installation that is under way continues.
        """
        if self.is_replacing_log:
            self.source_uuid = ""
            self.histories = None
            return
        self.become(State.IDLE)
        self.source_uuid = ""

    def restart(self) -> None:
        self.stop()
        self.retry_at_ns = 0

    def become(self, state: State) -> None:
        self.state = state
        self.since_ns = self.replica.now_ns

    def on_leader_known(self) -> None:
        self.retry_at_ns = 0
        if not self.is_anonymous:
            self._connect()

    def on_link_up(self, uuid: str) -> None:
        if uuid == self.replica.election.leader_uuid or self.is_anonymous:
            self.retry_at_ns = 0

    def on_link_down(self, link: int) -> None:
        if link == self.link and self.state is not State.IDLE and not self.is_replacing_log:
            self.retry_later()

    def retry_later(self) -> None:
        replica = self.replica
        self.become(State.IDLE)
        self.source_uuid = ""
        wait = replica.settings.heartbeat_ns
        self.retry_at_ns = replica.now_ns + wait // 2 + replica.rng.randrange(wait)

    def tick(self) -> None:
        replica = self.replica
        if replica.leader is not None or replica.split_brain or replica.is_disk_full:
            return
        if self.state is State.IDLE and replica.now_ns >= self.retry_at_ns:
            self._connect()
        if self.is_anonymous:
            self._consider_better_source()
        stuck = replica.now_ns - self.since_ns > 2 * replica.settings.election_timeout_ns
        if self.state in (State.COMPARING, State.FETCHING) and stuck:
            self.retry_later()
        self.registering.tick()
        replica.doubt.tick()

    def _source(self) -> str:
        replica = self.replica
        if not self.is_anonymous:
            return replica.election.leader_uuid
        best = self._best_sources()
        return replica.rng.choice(best) if best else ""

    def _best_sources(self) -> list[str]:
        """Return the members to follow: the leader, else registered ones, else anonymous ones.

        Anonymous replicas that follow each other in a circle receive nothing, so each prefers a
        registered member.
        """
        replica = self.replica
        linked = sorted({link.peer_uuid for link in replica.links.values()})
        if replica.election.leader_uuid in linked and not self._is_leader_outdated():
            return [replica.election.leader_uuid]
        configuration = replica.limbo.configuration
        registered = [uuid for uuid in linked if configuration.by_uuid(uuid) is not None]
        return registered or linked

    def _is_leader_outdated(self) -> bool:
        """Return whether rows of a later term arrived before the heartbeat of its leader.

        This happens at anonymous replicas only, which follow any member. The leader that they know
        is then not the newest one, and lacks confirmed rows without contradicting them.
        """
        return self.replica.tail.last_term > self.replica.term

    def _consider_better_source(self) -> None:
        """Leave a source when a better one is connected, once per heartbeat interval."""
        replica = self.replica
        if self.state is not State.FOLLOWING or replica.now_ns < self.reconsidered_at_ns:
            return
        self.reconsidered_at_ns = replica.now_ns + replica.settings.heartbeat_ns
        if self.source_uuid not in self._best_sources():
            self.retry_later()

    def _connect(self) -> None:
        """Subscribe to the source: the leader of this term, or any member for an anonymous replica.

        A SUBSCRIBE acknowledges nothing (T2).
        """
        replica = self.replica
        if replica.leader is not None or replica.split_brain or replica.is_disk_full:
            return
        if self.is_replacing_log:
            return
        uuid = self._source()
        link = replica.link_to(uuid) if uuid else None
        if link is None or uuid == replica.uuid:
            self.retry_at_ns = replica.now_ns + replica.settings.heartbeat_ns
            return
        self.source_uuid, self.link = uuid, link.number
        self.subscription += 1
        self.become(State.COMPARING)
        self.rejoin.settle_list()
        subscription, term = self.subscription, replica.term
        spaces = list(SCHEMA_ONLY if self.rejoin.is_learning_spaces else replica.ballot.spaces)

        def subscribe() -> None:
            if self.subscription == subscription and self.state is State.COMPARING:
                replica.send(link.number, Subscribe(subscription, term, self.is_anonymous, spaces))

        replica.when_settled(subscribe)

    def on_heartbeat(self, link: int, uuid: str, message: Heartbeat) -> None:
        """Record that the leader of a term is alive and answer its heartbeat (E2-E5)."""
        replica = self.replica
        if message.term > replica.term:
            replica.take_up(message.term)
        if message.term < replica.term:
            replica.send(link, HeartbeatReply(replica.term, 0, False))
            return
        if replica.leader is not None:
            assert uuid == replica.uuid, f"two leaders of term {replica.term}"
        known = replica.election.leader_uuid
        replica.election.on_leader_heard(uuid)
        self.floor_index = message.floor_index
        if known != uuid:
            self.on_leader_known()
        can_take_writes = replica.election.may_lead() and not replica.is_space_low
        reply = HeartbeatReply(message.term, message.sequence, can_take_writes)

        def answer() -> None:
            if replica.term == message.term and not replica.is_write_path_hung():
                replica.send(link, reply)

        replica.when_settled(answer)
        if self.state is State.FOLLOWING and uuid == self.source_uuid:
            self._confirm_to(message.confirmed_index)
            self._acknowledge()

    def on_refusal(self, link: int, message: Refusal) -> None:
        """Retry later after a refusal (loading, not leading, a gap).

        If this instance was removed, an administrator has to decide (M5).
        """
        replica = self.replica
        if message.subscription != self.subscription or link != self.link:
            return
        if message.term > replica.term:
            replica.take_up(message.term)
        self.refused = message.reason
        replica.report("subscription_refused", code=message.code, reason=message.reason)
        if not self.is_replacing_log:
            self.retry_later()

    # --- comparing and truncating -------------------------------------------------------------

    def on_histories(self, link: int, message: Histories) -> None:
        replica = self.replica
        if self.state is not State.COMPARING or message.subscription != self.subscription:
            return
        if link != self.link:
            return
        if message.term > replica.term and not self.is_anonymous:
            replica.take_up(message.term)
            return
        self.histories = message
        self.refused = ""
        tail = replica.tail
        if not replica.has_origin:
            self.rejoin.fetch(0)
            return
        theirs = History(message.starts)
        try:
            common = common_point(tail.history, tail.last_index, theirs, message.last_index)
        except SplitBrain as contradiction:
            replica.on_split_brain(str(contradiction))
            return
        if common < replica.limbo.confirmed_index:
            self._judge_shorter_log(common, message)
            return
        if common < tail.last_index:
            self._cut(common)
            return
        self._go_on(common)

    def _judge_shorter_log(self, common: int, message: Histories) -> None:
        """Handle a source that lacks rows which are confirmed here (A3).

        The source lags, unless it is this term's leader: then it contradicts this log (L4).
        """
        replica = self.replica
        if message.is_leader and message.term == replica.term and not self._is_leader_outdated():
            replica.on_split_brain(
                f"the leader of term {message.term} lacks rows that are confirmed on this "
                f"member: common index {common}, confirmed index "
                f"{replica.limbo.confirmed_index}"
            )
        else:
            self.retry_later()

    def _cut(self, after_index: int) -> None:
        replica = self.replica
        first_cut_term = replica.tail.term_at(after_index + 1)
        rows = replica.tail.last_index - after_index
        replica.flush_log()
        self.become(State.CUTTING)
        replica.forget_behind(after_index)
        self._drop_nacks_behind(after_index)
        replica.out.append(fx.Rewind(replica.tail.epoch, after_index, first_cut_term))
        replica.report("rewind", after_index=after_index, rows=rows)

    def _drop_nacks_behind(self, index: int) -> None:
        replica = self.replica
        left = tuple(nack for nack in replica.ballot.nacks if nack.index <= index)
        if left != replica.ballot.nacks:
            replica.store_ballot(replace(replica.ballot, nacks=left))

    def on_rewound(self, message: fx.Rewound) -> None:
        replica = self.replica
        if message.epoch != replica.tail.epoch or self.state is not State.CUTTING:
            return
        replica.tail.durable_index = replica.tail.last_index
        replica.cut_rows += message.rows
        replica.report("rewound", rows=message.rows, file=message.file)
        if self.histories is None or not self.source_uuid:
            self.become(State.IDLE)
            self.retry_at_ns = 0
            return
        self._go_on(replica.tail.last_index)

    def _go_on(self, common: int) -> None:
        """Follow from the common point, or fetch a snapshot when the rows after it are gone."""
        histories = self.histories
        assert histories is not None
        if common + 1 < histories.first_available_index:
            self.rejoin.fetch(common)
            return
        self._follow(common)

    def _follow(self, index: int) -> None:
        replica = self.replica
        self.become(State.FOLLOWING)
        self.refused = ""
        self.announced_index = 0
        self.recorded_index = 0
        subscription, term, link = self.subscription, replica.term, self.link

        def follow() -> None:
            if self.subscription == subscription and self.state is State.FOLLOWING:
                if replica.term == term:
                    replica.send(
                        link, Follow(subscription, term, index, replica.tail.term_at(index))
                    )

        replica.when_settled(follow)
        replica.report("following", source=self.source_uuid, index=index, term=term)

    # --- rows ---------------------------------------------------------------------------------

    def on_rows(self, link: int, message: Rows) -> None:
        replica = self.replica
        if self.state is not State.FOLLOWING or message.subscription != self.subscription:
            return
        if link != self.link or (message.term != replica.term and not self.is_anonymous):
            return
        if not self.is_anonymous:
            replica.election.on_leader_heard(self.source_uuid)
        tail = replica.tail
        if message.previous_index != tail.last_index:
            self.retry_later()
            return
        if message.previous_term != tail.last_term and tail.last_index > 0:
            self.retry_later()
            return
        for batch in message.batches:
            if not self._take(batch):
                return
        if message.batches:
            # The new rows go to disk first; rows that they confirm are applied meanwhile.
            self.announced_index = max(self.announced_index, message.confirmed_index)
            self.is_confirm_due = self._goal() > replica.limbo.confirmed_index
        else:
            self._confirm_to(message.confirmed_index)

    def _take(self, batch: LogBatch) -> bool:
        """Append one batch; return False when the stream must end."""
        replica = self.replica
        try:
            entries = read_entries(batch, replica.tail.last_term)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            replica.report("bad_rows", index=batch.first_index, reason=str(error))
            replica.out.append(fx.CloseLink(self.link, f"received rows do not decode: {error}"))
            self.retry_later()
            return False
        return all(self._take_entry(entry) for entry in entries)

    def _take_entry(self, entry: Entry) -> bool:
        replica = self.replica
        if not self._continues(entry):
            index = entry.batch.first_index
            replica.report("bad_rows", index=index, reason="the rows do not continue the log")
            self.retry_later()
            return False
        decision = entry.decision
        if decision is not None and decision.first <= replica.limbo.confirmed_index:
            if decision.first < decision.at:
                replica.on_split_brain(
                    f"{entry.kind.name} at index {decision.at} rolls back rows from index "
                    f"{decision.first}, which are confirmed on this member"
                )
                return False
        if not replica.machine.can_apply(entry):
            self._nack(entry)
        replica.append(entry)
        return True

    def _continues(self, entry: Entry) -> bool:
        tail, batch = self.replica.tail, entry.batch
        rows = batch.last_index - batch.first_index + 1
        if batch.first_index != tail.last_index + 1:
            return False
        if entry.kind is Kind.PROMOTE:
            if entry.term <= tail.last_term:
                return False
            if entry.term > self.replica.term and not self.is_anonymous:
                return False
        return batch.last_lsn == tail.vclock.get(batch.replica_id, 0) + rows

    def _nack(self, entry: Entry) -> None:
        """Record that this row is on the local disk but not in the local state (A5)."""
        replica = self.replica
        index = entry.batch.first_index
        if any(nack.term == replica.term and nack.index <= index for nack in replica.ballot.nacks):
            return
        nack = Nack(replica.term, index)
        replica.store_ballot(replace(replica.ballot, nacks=(*replica.ballot.nacks, nack)))
        replica.report("nack", index=index, term=replica.term)

    def on_written(self, entries: list[Entry]) -> None:
        """Process durable rows: take note of CONFIRM rows, confirm and acknowledge (T3, T2)."""
        for entry in entries:
            if entry.kind is Kind.CONFIRM:
                self.recorded_index = max(self.recorded_index, entry.position)
        if self.state is State.FOLLOWING:
            self._confirm()
        self._acknowledge()

    def confirm_due(self) -> None:
        """Resume a confirmation that waited for rows to reach the disk, or for the next step."""
        self.is_confirm_due = False
        if self.state is State.FOLLOWING:
            self._confirm()

    def _confirm_to(self, announced_index: int) -> None:
        self.announced_index = max(self.announced_index, announced_index)
        self._confirm()

    def _goal(self) -> int:
        """Return the index that messages or rows of the leader prove to be confirmed (T3)."""
        if self.announced_index > self.replica.tail.last_index:
            return self.recorded_index
        return self.announced_index

    def _confirm(self) -> None:
        """Raise the confirmed index, with a bounded amount of work in each step (A4, T3, G1).

        The cost of a row is known only after it has been applied, so a long range is confirmed in
        short parts.
        """
        replica = self.replica
        limbo, settings = replica.limbo, replica.settings
        goal = self._goal()
        latest_index = replica.doubt.latest_index()
        if latest_index is not None:
            goal = min(goal, latest_index)
        if goal <= limbo.confirmed_index:
            return
        self.is_confirm_due = False
        while self.state is State.FOLLOWING and limbo.confirmed_index < goal:
            rows = min(CONFIRM_PART_ROWS, replica.confirm_rows_left)
            if rows <= 0 or replica.machine.work() >= settings.work_per_step:
                self.is_confirm_due = True
                return
            index = limbo.step_towards(goal, rows)
            replica.doubt.before_confirm(index)
            index = replica.machine.confirmable(index)
            if index <= limbo.confirmed_index:
                self.is_confirm_due = index < goal
                return
            replica.confirm(index)

    def _acknowledge(self) -> None:
        """Send an ACK; it is a level, sent after writes and with heartbeats (A2)."""
        replica = self.replica
        if self.state is not State.FOLLOWING or not replica.is_settled:
            if self.state is State.FOLLOWING:
                replica.when_settled(self._acknowledge)
            return
        tail = replica.tail
        index = tail.durable_index
        nack = replica.ballot.nack_in(replica.term)
        replica.send(
            self.link,
            Ack(
                self.subscription,
                replica.term,
                index,
                tail.term_at(index),
                nack,
                replica.limbo.confirmed_index,
            ),
        )
