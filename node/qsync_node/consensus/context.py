"""The state that the components of consensus share.

One replica has one `Context`: who it is, the time of the step, its ballot, the end of its log, its
connections and the effects of the step. Components read it, append rows to its log, replace its
ballot and send messages through it. Changes that concern more than one component are `Transitions`.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.encoding import TransactionRows, encode_transactions
from qsync_node.consensus.entries import Entry, EntryKind, decision_of
from qsync_node.consensus.history import History, TermStart
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.membership import Configuration
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.consensus.tail import Tail
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import FLAG_WAIT_ACK, Type
from qsync_node.histogram import Histogram

ROW_TYPES = {
    EntryKind.PROMOTE: Type.RAFT_PROMOTE,
    EntryKind.CONFIRM: Type.RAFT_CONFIRM,
    EntryKind.ROLLBACK: Type.RAFT_ROLLBACK,
}


class ReplicaLink:
    """An authenticated connection to one peer."""

    __slots__ = ("is_mine", "level", "number", "peer_uuid")

    def __init__(self, number: int, peer_uuid: str, is_mine: bool, level: int) -> None:
        self.number = number
        self.peer_uuid = peer_uuid
        self.is_mine = is_mine
        self.level = level


class _AfterBallot:
    """A reaction that waits until a ballot is durable."""

    __slots__ = ("sequence", "then")

    def __init__(self, sequence: int, then: Callable[[], None]) -> None:
        self.sequence = sequence
        self.then = then


class Context:
    """Identity, clock, ballot, log, connections and effects of one replica.

    Attributes:
        uuid: this instance.
        settings: its settings.
        rng: source of random waits.
        now_ns: monotonic clock of the step, in nanoseconds.
        wall_s: wall clock of the step, in seconds.
        ballot: term, vote and NACKs; `is_settled` states whether the disk has them.
        tail: the end of the log, durable or not.
        limbo: the rows after the confirmed index.
        links: connections by number.
        out: the effects of the step, in order.
        is_leading: whether a leader's term is in progress here.
        is_relay_due: whether followers may receive more at the end of the step.
        confirm_rows_left: rows that the step may still confirm (G1).
        to_write: batches that the step hands to the log.
        unwritten: entries that the log has not reported as durable, in order.
        write_started_ns: when the oldest of them was handed over.
        cut_rows: rows that this process truncated from its log; all are kept in files (L6).
        split_brain: the contradiction that stopped this replica, or empty (L4).
        unsupported_level: the cluster's feature level that stopped this replica, or 0 (P2).
        quorum_waits: time from the local flush of own synchronous batches to their confirmation.
        is_disk_full: whether a log write failed for lack of space (D5).
        is_space_low: whether free space is below the mark.
    """

    def __init__(self, uuid: str, settings: ConsensusSettings, rng: Random, ballot: Ballot) -> None:
        self.uuid = uuid
        self.settings = settings
        self.rng = rng
        self.ballot = ballot
        self.now_ns = 0
        self.wall_s = 0.0
        self.tail = Tail({}, History(), 1, settings.tail_cache_bytes)
        self.limbo = Limbo(0, {}, Configuration())
        self.links: dict[int, ReplicaLink] = {}
        self.out: list[fx.Effect] = []
        self.is_leading = False
        self.is_relay_due = False
        self.confirm_rows_left = 0
        self.to_write: list[LogBatch] = []
        self.unwritten: deque[Entry] = deque()
        self.write_started_ns = 0
        self.cut_rows = 0
        self.split_brain = ""
        self.unsupported_level = 0
        self.quorum_waits = Histogram()
        self.is_disk_full = False
        self.is_space_low = False
        self.ballot_sequence = 0
        self._stored_sequence = 0
        self._after_ballot: deque[_AfterBallot] = deque()
        self._after_ballot_kinds: dict[str, _AfterBallot] = {}

    # --- identity and configuration -----------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The members by this replica's log, pending rows included (M2)."""
        return self.limbo.configuration

    @property
    def confirmed_configuration(self) -> Configuration:
        """The members at the confirmed index."""
        return self.limbo.confirmed_configuration

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
    def is_anonymous(self) -> bool:
        """Whether this replica follows without ever registering."""
        return self.settings.role == "anonymous"

    @property
    def is_voting(self) -> bool:
        return self.uuid in self.voter_uuids()

    def voter_uuids(self) -> tuple[str, ...]:
        """Return the voters, by this replica's own log or by the forced configuration (E1, E11)."""
        if self.ballot.forced_voters:
            return self.ballot.forced_voters
        return self.limbo.configuration.voter_uuids

    @property
    def is_stopped(self) -> bool:
        """Whether this replica takes no part until an administrator acts (L4, P2)."""
        return bool(self.split_brain or self.unsupported_level)

    @property
    def stop_reason(self) -> str:
        """The reason why this replica takes no part, or ""."""
        if self.split_brain:
            return f"Split-Brain discovered: {self.split_brain}"
        if self.unsupported_level:
            return (
                f"the cluster has feature level {self.unsupported_level}, and this member supports "
                f"level {self.settings.level}: upgrade the member"
            )
        return ""

    def is_removed(self, uuid: str) -> bool:
        return uuid in self.limbo.confirmed_configuration.removed

    # --- time ---------------------------------------------------------------------------------

    def begin_step(self, now_ns: int, wall_s: float) -> None:
        """Set the clocks of a step and the number of rows that it may confirm."""
        assert now_ns >= self.now_ns, "the clock of timers is monotonic"
        self.now_ns, self.wall_s = now_ns, wall_s
        self.confirm_rows_left = self.settings.confirm_rows_max

    def is_write_path_hung(self) -> bool:
        """Return whether a log write hangs: it has taken longer than a lease (E5).

        The disk then counts as dead.
        """
        return (
            bool(self.unwritten)
            and self.now_ns - self.write_started_ns > self.settings.election_timeout_ns
        )

    # --- messages -----------------------------------------------------------------------------

    def link_to(self, uuid: str, silent_link: int = 0) -> ReplicaLink | None:
        """Return a connection to `uuid`, preferably one that this node opened, or None.

        Args:
            uuid: the instance.
            silent_link: number of a connection to use only if there is no other.
        """
        found: ReplicaLink | None = None
        for link in self.links.values():
            is_better = link.is_mine and link.number != silent_link
            if link.peer_uuid == uuid and (
                found is None or found.number == silent_link or is_better
            ):
                found = link
        return found

    def send(self, link: int, message: PeerMessage) -> None:
        self.out.append(fx.Send(link, message))

    def send_to(self, uuid: str, message: PeerMessage) -> bool:
        """Send a message to an instance; return whether it is connected."""
        link = self.link_to(uuid)
        if link is None:
            return False
        self.out.append(fx.Send(link.number, message))
        return True

    def send_by_all(self, uuid: str, message: PeerMessage) -> bool:
        """Send a message by each connection to an instance; return whether there is one.

        One connection may be lost silently (E12).
        """
        numbers = [link.number for link in self.links.values() if link.peer_uuid == uuid]
        self.out.extend(fx.Send(number, message) for number in numbers)
        return bool(numbers)

    def report(self, event: str, **fields: object) -> None:
        self.out.append(fx.Report(event, fields))

    # --- ballot -------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether the ballot in memory is the ballot on disk."""
        return self._stored_sequence == self.ballot_sequence

    def store_ballot(self, ballot: Ballot) -> None:
        """Replace the ballot, in memory now and on disk later (D2)."""
        before = self.ballot
        assert ballot.term >= before.term, "D2: the term never falls"
        assert ballot.term > before.term or before.vote in ("", ballot.vote), "E1: one vote a term"
        self.ballot = ballot
        self.ballot_sequence += 1
        self.out.append(fx.StoreBallot(self.ballot_sequence, ballot.encode()))

    def when_settled(self, then: Callable[[], None], kind: str = "") -> None:
        """Run `then` once the ballot in memory is durable.

        Args:
            then: the reaction.
            kind: if it is given, only the last reaction of this kind waits for a ballot. A full
                disk may take none for days, while the leader sends heartbeats.
        """
        if self.is_settled:
            then()
            return
        sequence = self.ballot_sequence
        known = self._after_ballot_kinds.get(kind) if kind else None
        if known is not None and known.sequence == sequence:
            known.then = then
            return
        waiting = _AfterBallot(sequence, then)
        self._after_ballot.append(waiting)
        if kind:
            self._after_ballot_kinds[kind] = waiting

    def on_ballot_stored(self, sequence: int) -> None:
        assert sequence <= self.ballot_sequence, "D2: only submitted ballots are stored"
        self._stored_sequence = max(self._stored_sequence, sequence)
        while self._after_ballot and self._after_ballot[0].sequence <= self._stored_sequence:
            self._after_ballot.popleft().then()

    # --- log ----------------------------------------------------------------------------------

    def append_rows(
        self, transactions: list[TransactionRows], flags: int, kind: EntryKind = EntryKind.USER
    ) -> Entry:
        """Append whole transactions as one batch of this leader's rows (L8, L9)."""
        replica_id = self.replica_id
        assert self.is_leading, "L1: only the leader of a term writes rows"
        assert replica_id > 0, "no row of replica 0 is ever in the log"
        lsn = self.tail.vclock.get(replica_id, 0)
        data, count = encode_transactions(transactions, replica_id, lsn + 1, self.wall_s, flags)
        first = self.tail.last_index + 1
        batch = LogBatch(first, first + count - 1, replica_id, lsn + count, data)
        entry = Entry(batch, self.term, kind)
        entry.is_own = True
        if kind is EntryKind.USER:
            entry.wait_ack = bool(flags & FLAG_WAIT_ACK)
        self.append(entry)
        return entry

    def append_control(self, kind: EntryKind, body: bytes, position: int) -> Entry:
        """Append a PROMOTE, CONFIRM or ROLLBACK row, alone in its batch."""
        replica_id = self.replica_id
        assert self.is_leading, "L1: only the leader of a term decides"
        lsn = self.tail.vclock.get(replica_id, 0) + 1
        row = (int(ROW_TYPES[kind]), body, None)
        data, _ = encode_transactions([[row]], replica_id, lsn, self.wall_s, 0)
        index = self.tail.last_index + 1
        entry = Entry(LogBatch(index, index, replica_id, lsn, data), self.term, kind)
        entry.is_own = True
        entry.position = position
        entry.decision = decision_of(kind, position, index)
        self.append(entry)
        return entry

    def append(self, entry: Entry) -> None:
        """Hand one entry to the log; `LogWritten` reports when it is durable."""
        assert entry.term <= self.term or self.is_anonymous, "D2: the ballot is not older"
        if entry.kind is EntryKind.PROMOTE:
            start = TermStart(entry.term, entry.batch.replica_id, entry.batch.first_index)
            self.tail.history.append(start)
        self.tail.append(entry.batch)
        self.limbo.append(entry)
        if not self.unwritten:
            self.write_started_ns = self.now_ns
        self.unwritten.append(entry)
        self.to_write.append(entry.batch)
        self.is_relay_due = True

    def is_decision_in_flight(self) -> bool:
        """Return whether the local write of a PROMOTE or ROLLBACK is not durable yet (E6)."""
        decisions = self.limbo.decisions
        return bool(decisions) and decisions[-1].at > self.tail.durable_index

    def flush_log(self) -> None:
        """Write all rows of the step at once (group commit)."""
        if self.to_write:
            self.out.append(fx.WriteLog(self.tail.epoch, self.to_write))
            self.to_write = []

    def forget_unwritten(self) -> None:
        """Drop the rows that the log has not reported as durable."""
        self.unwritten.clear()
        self.to_write.clear()

    def take_written(self, last_index: int) -> list[Entry]:
        """Take note of a write and return the entries that are durable now (D6)."""
        self.tail.written(last_index)
        self.write_started_ns = self.now_ns
        written: list[Entry] = []
        while self.unwritten and self.unwritten[0].batch.last_index <= last_index:
            entry = self.unwritten.popleft()
            entry.written_at = self.now_ns
            written.append(entry)
        self.is_relay_due = True  # a follower may wait for rows that are only in the file
        return written
