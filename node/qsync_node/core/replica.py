"""One replica: routes inputs to election, leader, applier and relays, and holds their shared state.

Theory. Each of the parts below handles one conversation. This file holds their common state
(ballot, end of the log, limbo, links) and the three transitions that concern all of them:

    take_up(term)      Adopt a higher term: from now on nothing of an older term is
                       acknowledged, counted or answered *committed*, whether or not it is
                       stored (D2, E4).
    become_leader()    A majority of the voters in this replica's own log voted for it (E1).
    confirm(index)     The quorum is known (leader) or was received (all others): T3, T5.

The meaning of the rows belongs to the state machine (`node.py`). The replica moves entries and
reports their outcome to the state machine.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from qsync_node.core import effects as fx
from qsync_node.core.applier import Applier
from qsync_node.core.ballot import Ballot
from qsync_node.core.doubt import Doubt
from qsync_node.core.election import Election
from qsync_node.core.encoding import Transaction, encode_transactions
from qsync_node.core.engine.database import Database
from qsync_node.core.entries import Entry, Kind, control_body, decision_of
from qsync_node.core.history import TermStart
from qsync_node.core.leader import Leader
from qsync_node.core.limbo import Limbo
from qsync_node.core.loading import StateLoader
from qsync_node.core.membership import Configuration, delete_member
from qsync_node.core.relay import Relays
from qsync_node.core.settings import Settings
from qsync_node.core.snapshots import Snapshots, View
from qsync_node.core.tail import Tail
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import Type


class StateMachine(Protocol):
    """Callbacks from the replica to its state machine, in log order and never nested."""

    def on_confirmed(self, taken: list[Entry], removed: list[Entry]) -> None: ...
    def on_written(self, entries: list[Entry]) -> None: ...
    def on_leadership_gained(self) -> None: ...
    def on_leadership_lost(self, reason: str) -> None: ...
    def on_decision_written(self) -> None: ...
    def on_acknowledged_lost(self, writes: int) -> None: ...
    def snapshot_view(self, spaces: frozenset[int] = frozenset()) -> View: ...
    def new_loader(self) -> StateLoader: ...
    def install(self, loader: StateLoader) -> Configuration: ...
    def retire(self, database: Database) -> None: ...
    def confirmable(self, index: int) -> int: ...
    def can_apply(self, entry: Entry) -> bool: ...
    def checkpoint(self) -> bool: ...
    def work(self) -> int: ...


class Link:
    """An authenticated connection to one peer."""

    __slots__ = ("is_mine", "level", "number", "peer_uuid")

    def __init__(self, number: int, peer_uuid: str, is_mine: bool, level: int) -> None:
        self.number = number
        self.peer_uuid = peer_uuid
        self.is_mine = is_mine
        self.level = level


class Replica:
    """Consensus of one instance, driven by `Node.step`; its effects accumulate in `out`."""

    def __init__(
        self, uuid: str, settings: Settings, rng: Random, machine: StateMachine, ballot: Ballot
    ) -> None:
        self.uuid = uuid
        self.settings = settings
        self.rng = rng
        self.machine = machine
        self.ballot = ballot
        self.now_ns = 0
        self.wall_s = 0.0
        self.confirm_rows_left = 0  # rows that this step may still confirm (G1)
        self.out: list[fx.Effect] = []
        self.links: dict[int, Link] = {}
        self.ballot_sequence = 0
        self.stored_sequence = 0
        self.after_ballot: deque[tuple[int, Callable[[], None]]] = deque()
        self.to_write: list[LogBatch] = []
        self.unwritten: deque[Entry] = deque()
        # Rows that this process run truncated from its log; all of them are kept in files (L6).
        self.cut_rows = 0
        self.split_brain = ""
        self.is_disk_full = False
        self.is_space_low = False
        self.write_started_ns = 0
        self.election = Election(self)
        self.applier = Applier(self)
        self.relays = Relays(self)
        self.snapshots = Snapshots(self)
        self.doubt = Doubt(self)
        self.leader: Leader | None = None
        self.tail: Tail
        self.limbo: Limbo

    # --- queries ------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.ballot.term

    @property
    def replica_id(self) -> int:
        """This instance's id in its own log, pending rows included; 0 if not registered."""
        member = self.limbo.configuration.by_uuid(self.uuid)
        return member.replica_id if member else 0

    @property
    def has_origin(self) -> bool:
        """Whether this disk holds a log (M1)."""
        return bool(self.limbo.configuration.members)

    @property
    def is_settled(self) -> bool:
        """Whether the ballot in memory is the ballot on disk."""
        return self.stored_sequence == self.ballot_sequence

    @property
    def is_voting(self) -> bool:
        return self.uuid in self.voter_uuids()

    def voter_uuids(self) -> tuple[str, ...]:
        """Return the voters, by this replica's own log or by the forced configuration (E1, E11)."""
        if self.ballot.forced_voters:
            return self.ballot.forced_voters
        return self.limbo.configuration.voter_uuids

    def link_to(self, uuid: str) -> Link | None:
        """Return a connection to `uuid`, preferably one that this node opened, or None."""
        found: Link | None = None
        for link in self.links.values():
            if link.peer_uuid == uuid and (found is None or link.is_mine):
                found = link
        return found

    def is_removed(self, uuid: str) -> bool:
        return uuid in self.limbo.confirmed_configuration.removed

    def send(self, link: int, message: Any) -> None:
        self.out.append(fx.Send(link, message))

    def send_to(self, uuid: str, message: Any) -> bool:
        link = self.link_to(uuid)
        if link is None:
            return False
        self.out.append(fx.Send(link.number, message))
        return True

    def report(self, event: str, **fields: Any) -> None:
        self.out.append(fx.Report(event, fields))

    # --- ballot -------------------------------------------------------------------------------

    def store_ballot(self, ballot: Ballot, then: Callable[[], None] | None = None) -> None:
        """Replace the ballot; run `then` once it is durable (D2)."""
        self.ballot = ballot
        self.ballot_sequence += 1
        self.out.append(fx.StoreBallot(self.ballot_sequence, ballot.encode()))
        if then is not None:
            self.after_ballot.append((self.ballot_sequence, then))

    def when_settled(self, then: Callable[[], None]) -> None:
        if self.is_settled:
            then()
        else:
            self.after_ballot.append((self.ballot_sequence, then))

    def on_ballot_stored(self, sequence: int) -> None:
        self.stored_sequence = max(self.stored_sequence, sequence)
        while self.after_ballot and self.after_ballot[0][0] <= self.stored_sequence:
            self.after_ballot.popleft()[1]()

    def take_up(self, term: int, vote: str = "") -> None:
        """Adopt `term`: from now on, send no ACK, answer or count for an older term (D2)."""
        assert term > self.ballot.term, f"D2: {term} is not above {self.ballot.term}"
        self.step_down(f"the member adopted term {term}")
        self.applier.stop()
        self.election.on_term(term)
        self.store_ballot(replace(self.ballot.in_term(term), vote=vote))

    # --- leadership ---------------------------------------------------------------------------

    def become_leader(self, keep_index: int) -> None:
        """Open this term with a PROMOTE that keeps the log up to `keep_index` (L2, E8)."""
        assert self.leader is None, "one function makes a leader, once a term"
        assert self.limbo.confirmed_index <= keep_index <= self.tail.last_index, "T5"
        assert self.tail.last_term < self.term, "L1: a term begins with its PROMOTE"
        self.election.on_won()
        owner_id = self.tail.history.owner_id
        body = control_body(
            self.term,
            owner_id,
            self.tail.vclock.get(owner_id, 0),
            keep_index,
            self.tail.term_at(keep_index),
        )
        self.leader = Leader(self, self.tail.last_index + 1)
        self.append_control(Kind.PROMOTE, body, keep_index)
        self.report("leader", term=self.term, promote_index=self.tail.last_index, kept=keep_index)
        if self.ballot.forced_voters:
            self._write_forced_configuration(self.leader)
        self.machine.on_leadership_gained()
        self.leader.send_heartbeats()

    def _write_forced_configuration(self, leader: Leader) -> None:
        """Remove the voters that were left out, in the same write as the PROMOTE (E11)."""
        rows: list[tuple[int, bytes]] = []
        for member in self.limbo.configuration.voters:
            if member.uuid not in self.ballot.forced_voters:
                rows += delete_member(member)
        if rows:
            leader.write_members(rows)

    def _end_forced_configuration(self) -> None:
        """Count by the log again once it records the forced configuration (E11)."""
        left_out = set(self.limbo.confirmed_configuration.voter_uuids)
        if left_out.issubset(self.ballot.forced_voters):
            self.store_ballot(replace(self.ballot, forced_voters=()))
            self.report("forced_configuration_confirmed")

    def step_down(self, reason: str) -> None:
        """Step down; waiting clients get *unknown* (E4, T6).

        This member never leads this term again (E7).
        """
        if self.leader is None:
            return
        self.leader = None
        self.report("step_down", term=self.term, reason=reason)
        for entry in self.limbo.entries:
            entry.is_own = False
        # A follower of this leader must not receive another leader's rows from it (E4, L8).
        self.relays.close_all(reason)
        self.election.on_leadership_lost()
        self.machine.on_leadership_lost(reason)

    # --- log ----------------------------------------------------------------------------------

    def append_rows(
        self, transactions: list[Transaction], flags: int, kind: Kind = Kind.USER
    ) -> Entry:
        """Append whole transactions as one batch of this leader's rows (L8, L9)."""
        replica_id = self.replica_id
        assert replica_id > 0, "no row of replica 0 is ever in the log"
        lsn = self.tail.vclock.get(replica_id, 0)
        data, count = encode_transactions(transactions, replica_id, lsn + 1, self.wall_s, flags)
        first = self.tail.last_index + 1
        batch = LogBatch(first, first + count - 1, replica_id, lsn + count, data)
        entry = Entry(batch, self.term, kind)
        entry.is_own = True
        if kind is Kind.USER:
            entry.wait_ack = bool(flags & 4)
        self.append(entry)
        return entry

    def append_control(self, kind: Kind, body: bytes, position: int) -> Entry:
        """Append a PROMOTE, CONFIRM or ROLLBACK row, alone in its batch."""
        row_type = {
            Kind.PROMOTE: Type.RAFT_PROMOTE,
            Kind.CONFIRM: Type.RAFT_CONFIRM,
            Kind.ROLLBACK: Type.RAFT_ROLLBACK,
        }[kind]
        replica_id = self.replica_id
        lsn = self.tail.vclock.get(replica_id, 0) + 1
        data, _ = encode_transactions(
            [[(int(row_type), body, None)]], replica_id, lsn, self.wall_s, 0
        )
        index = self.tail.last_index + 1
        entry = Entry(LogBatch(index, index, replica_id, lsn, data), self.term, kind)
        entry.is_own = True
        entry.position = position
        entry.decision = decision_of(kind, position, index)
        self.append(entry)
        return entry

    def append(self, entry: Entry) -> None:
        """Hand one entry to the log; `LogWritten` reports when it is durable."""
        if entry.kind is Kind.PROMOTE:
            start = TermStart(entry.term, entry.batch.replica_id, entry.batch.first_index)
            self.tail.history.append(start)
        self.tail.append(entry.batch)
        self.limbo.append(entry)
        if not self.unwritten:
            self.write_started_ns = self.now_ns
        self.unwritten.append(entry)
        self.to_write.append(entry.batch)
        self.relays.wake()

    def flush_log(self) -> None:
        if self.to_write:
            self.out.append(fx.WriteLog(self.tail.epoch, self.to_write))
            self.to_write = []

    def on_log_written(self, epoch: int, last_index: int) -> None:
        if epoch != self.tail.epoch:
            return
        self.tail.written(last_index)
        self.write_started_ns = self.now_ns
        written: list[Entry] = []
        while self.unwritten and self.unwritten[0].batch.last_index <= last_index:
            entry = self.unwritten.popleft()
            entry.written_at = self.now_ns
            written.append(entry)
        if self.leader is not None:
            self.leader.on_written(written)
            self.machine.on_written(written)
        else:
            self.applier.on_written(written)

    def on_log_failed(self, failure: fx.LogFailed) -> None:
        """Handle a failed log write (D4).

        The write is never retried, and no row after the last good fsync is trusted.
        """
        self.step_down(f"the log cannot be written: {failure.reason}")
        self.applier.stop()
        if not failure.is_full or failure.epoch != self.tail.epoch:
            # In an older epoch, rows are missing that a truncation or a snapshot builds on.
            self.out.append(fx.Restart(f"log write failed: {failure.reason}"))
            return
        if self.limbo.confirmed_index > self.tail.durable_index:
            # The state holds confirmed rows that this disk lacks: only the disk is trusted (E7).
            self.out.append(fx.Restart("the disk is full and lacks rows that the state contains"))
            return
        self.is_disk_full = True
        self.forget_behind(self.tail.durable_index)
        self.report("disk_full", durable_index=self.tail.durable_index)

    def on_space(self, is_low: bool) -> None:
        """Handle free space crossing the mark: a full node resumes in a new file (D5)."""
        if not is_low and self.is_disk_full:
            self.is_disk_full = False
            self.applier.restart()
        self.is_space_low = is_low

    def forget_behind(self, index: int) -> None:
        """Drop every row after `index` from memory because the disk does not hold it."""
        lost = sum(entry.answered_writes for entry in self.limbo.cut(index))
        if lost:
            self.machine.on_acknowledged_lost(lost)
        self.tail.cut(index, self.limbo.vclock_at(index))
        self.unwritten.clear()
        self.to_write.clear()
        self.relays.close_all("the log was truncated")

    # --- confirmation -------------------------------------------------------------------------

    def confirm(self, index: int) -> None:
        """Make everything up to `index` final (L3)."""
        self.confirm_rows_left -= index - self.limbo.confirmed_index
        taken, removed = self.limbo.confirm(index)
        if any(nack.index <= index for nack in self.ballot.nacks):
            self._forget_nacks(taken, index)
        if removed:
            rows = sum(e.batch.last_index - e.batch.first_index + 1 for e in removed)
            self.report("rolled_back", rows=rows, confirmed_index=index)
        self.machine.on_confirmed(taken, removed)
        self.relays.wake()
        if self.ballot.forced_voters:
            self._end_forced_configuration()
        if self.doubt.is_open and not self.election.is_caretaker:
            # A divergent state must take no writes (T7, E1).
            self.step_down("a row was confirmed that this member could not apply")

    def _forget_nacks(self, taken: list[Entry], index: int) -> None:
        """Drop the NACKs of decided rows; a confirmed one makes the state divergent (T7)."""
        doubt = self.ballot.doubt_index
        for nack in self.ballot.nacks:
            if any(e.batch.first_index <= nack.index <= e.batch.last_index for e in taken):
                doubt = max(doubt, nack.index)
        left = tuple(nack for nack in self.ballot.nacks if nack.index > index)
        self.store_ballot(replace(self.ballot, nacks=left, doubt_index=doubt))
        if doubt:
            self.report("state_in_doubt", index=doubt)

    def on_split_brain(self, reason: str) -> None:
        """Keep the files and wait for an administrator (L4).

        Meanwhile this replica gives no vote, candidacy, ACK or default read.
        """
        self.split_brain = reason
        self.step_down(reason)
        self.applier.stop()
        self.report("split_brain", reason=reason)

    # --- time and links -----------------------------------------------------------------------

    def on_link_up(self, link: fx.LinkUp) -> None:
        self.links[link.link] = Link(link.link, link.peer_uuid, link.is_mine, link.level)
        self.election.on_link_up(link.peer_uuid)
        self.applier.on_link_up(link.peer_uuid)
        if self.leader is not None:
            self.leader.greet(link.link)

    def on_link_down(self, number: int) -> None:
        link = self.links.pop(number, None)
        if link is None:
            return
        self.relays.on_link_down(number)
        self.applier.on_link_down(number)
        self.election.on_link_down(link.peer_uuid)

    def is_write_path_hung(self) -> bool:
        """Return whether a log write hangs: it has taken longer than a lease (E5).

        The disk then counts as dead.
        """
        return (
            bool(self.unwritten)
            and self.now_ns - self.write_started_ns > self.settings.election_timeout_ns
        )

    def begin_step(self, now_ns: int, wall_s: float) -> None:
        assert now_ns >= self.now_ns, "the clock of timers is monotonic"
        self.now_ns, self.wall_s = now_ns, wall_s
        self.confirm_rows_left = self.settings.confirm_rows_max

    def tick(self) -> None:
        if self.leader is not None:
            self.leader.tick()
        self.election.tick()
        self.applier.tick()

    def finish_step(self) -> None:
        """Write the log and send rows once for all events of a step (group commit, fan-out)."""
        self.flush_log()
        self.relays.pump()
