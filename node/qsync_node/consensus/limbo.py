"""The limbo: the queue of log entries that are not yet confirmed.

Theory. Every batch enters the limbo when it is handed to the log. It leaves in one of three ways.
It is confirmed (the leader of the current term knows the quorum), rolled back (a confirmed decision
covers it) or truncated (this log followed another one). The confirmed index only rises. It passes a
decision in one step together with the rows that the decision covers (T5). Nothing here knows why an
index is confirmed: the leader counts, all others receive the index (T3).

Invariants

  B1  Entries are contiguous; the first one begins right after the confirmed index.
  B2  The confirmed index only rises, and only to the end of a transaction.
  B3  Nothing at or before the confirmed index is ever covered, truncated or confirmed again
      (L3, T5).
  B4  The confirmed vclock, configuration and owner are those at the confirmed index.
  B5  The configuration in force is the confirmed one plus every pending `_cluster` row that no
      effective decision *in the log* covers. It follows a decision when that is appended, not when
      it is confirmed (M2). Otherwise two changes made from one base could differ by two voters,
      and their majorities need not overlap.

Sources: seeds (txn_limbo), replication.md T1-T6 and M2; Raft dissertation, section 4.1.
"""

from collections import deque
from collections.abc import Iterator

from qsync_node.consensus.decisions import Decision, clamp, effective, is_covered, spans
from qsync_node.consensus.entries import Entry, EntryKind, configuration_after, split_entry
from qsync_node.consensus.membership import Configuration


class Limbo:
    """Queue of unconfirmed entries, oldest first."""

    __slots__ = (
        "_memberships",
        "bytes",
        "configuration",
        "confirmed_configuration",
        "confirmed_index",
        "confirmed_vclock",
        "decisions",
        "entries",
        "rollback_count",
        "rolled_back_rows",
    )

    def __init__(
        self, confirmed_index: int, vclock: dict[int, int], configuration: Configuration
    ) -> None:
        assert confirmed_index == sum(vclock.values()), "B4: the index is the signature"
        self.entries: deque[Entry] = deque()
        self.decisions: list[Decision] = []
        self.confirmed_index = confirmed_index
        self.confirmed_vclock = dict(vclock)
        self.confirmed_configuration = configuration
        self.configuration = configuration  # in force (B5)
        self._memberships: list[Entry] = []  # pending, oldest first
        self.bytes = 0
        self.rollback_count = 0
        self.rolled_back_rows = 0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last_index(self) -> int:
        return self.entries[-1].batch.last_index if self.entries else self.confirmed_index

    def append(self, entry: Entry) -> None:
        assert entry.batch.first_index == self.last_index + 1, (
            f"B1: {entry} after {self.last_index}"
        )
        assert not self.entries or entry.term >= self.entries[-1].term, "L1: terms never fall"
        self.entries.append(entry)
        self.bytes += len(entry.batch.data)
        if entry.kind is EntryKind.MEMBERSHIP:
            self._memberships.append(entry)
            self.configuration = configuration_after(entry.rows, self.configuration)
        decision = entry.decision
        if decision is not None:
            assert decision.first > self.confirmed_index, f"B3: {entry} covers a confirmed row"
            # One entry may hold several batches of the leader; a decision may cover only some.
            self._split_at(decision.first - 1)
            self.decisions.append(decision)
            self._derive_configuration()

    def _derive_configuration(self) -> None:
        """Set the configuration in force after decisions or entries changed (B5)."""
        covering = effective(self.decisions)
        configuration = self.confirmed_configuration
        for entry in self._memberships:
            if not is_covered(entry.batch.last_index, covering):
                configuration = configuration_after(entry.rows, configuration)
        self.configuration = configuration

    @property
    def has_pending_membership(self) -> bool:
        """Whether a `_cluster` row, or the decision that covers it, awaits confirmation (M2)."""
        return bool(self._memberships)

    def clamp(self, index: int) -> int:
        """Return the greatest valid confirmed index if every row up to `index` has its quorum."""
        return clamp(index, self.decisions) if self.decisions else index

    def step_towards(self, index: int, rows_max: int) -> int:
        """Return a valid confirmed index on the way to `index`.

        It is about `rows_max` rows further. A transaction, or the rows that a decision covers,
        cannot be divided and may exceed that (G1, L8, T5).
        """
        limit = self.confirmed_index + rows_max
        if index <= limit:
            return index
        entry = next(entry for entry in self.entries if entry.batch.last_index >= limit)
        end = entry.transaction_end(limit)
        for span in spans(self.decisions):
            if span.first <= end < span.at:
                before = span.first - 1
                end = before if before > self.confirmed_index else span.at
        return min(end, index)

    def confirm(self, index: int) -> tuple[list[Entry], list[Entry]]:
        """Raise the confirmed index.

        Returns:
            The entries that took effect and the entries that a decision removed, in log order.
        """
        assert index > self.confirmed_index, (
            f"B2: {index} does not rise above {self.confirmed_index}"
        )
        assert not self.decisions or not any(
            decision.first <= index < decision.at for decision in effective(self.decisions)
        ), f"T5: {index} is inside a decision"
        taken: list[Entry] = []
        removed: list[Entry] = []
        passed = [decision for decision in self.decisions if decision.at <= index]
        covering = effective(passed) if passed else []
        entries = self.entries
        vclock = self.confirmed_vclock
        self._split_at(index)
        while entries and entries[0].batch.last_index <= index:
            entry = entries.popleft()
            batch = entry.batch
            self.bytes -= len(batch.data)
            vclock[batch.replica_id] = batch.last_lsn
            self.confirmed_index = batch.last_index
            if covering and is_covered(batch.last_index, covering):
                removed.append(entry)
            else:
                taken.append(entry)
                if entry.kind is EntryKind.MEMBERSHIP:
                    self.confirmed_configuration = configuration_after(
                        entry.rows, self.confirmed_configuration
                    )
        assert self.confirmed_index == index, f"B2: {index} is inside {entries[0]}"
        assert sum(vclock.values()) == index, "B4: the index is the signature of the clock"
        if passed:
            self.decisions = self.decisions[len(passed) :]
        if removed:
            self.rollback_count += 1
            self.rolled_back_rows += sum(rows_in(entry) for entry in removed)
        if self._memberships and self._memberships[0].batch.last_index <= index:
            self._memberships = [e for e in self._memberships if e.batch.last_index > index]
            self._derive_configuration()
        return taken, removed

    def cut(self, after_index: int) -> list[Entry]:
        """Discard every entry after `after_index` and return them, newest first."""
        assert after_index >= self.confirmed_index, "B3: a confirmed row is never cut"
        cut: list[Entry] = []
        self._split_at(after_index)
        while self.entries and self.entries[-1].batch.last_index > after_index:
            entry = self.entries.pop()
            self.bytes -= len(entry.batch.data)
            cut.append(entry)
        assert self.last_index == after_index, f"B1: {after_index} is inside {cut[-1]}"
        while self.decisions and self.decisions[-1].at > after_index:
            self.decisions.pop()
        while self._memberships and self._memberships[-1].batch.last_index > after_index:
            self._memberships.pop()
        assert self.entries or not self.bytes, "T11: bytes of discarded rows are not counted"
        self._derive_configuration()
        return cut

    def _split_at(self, index: int) -> None:
        """Make `index` the end of an entry: recovery may have joined separate batches."""
        for position, entry in enumerate(self.entries):
            batch = entry.batch
            if batch.first_index > index:
                return
            if batch.first_index <= index < batch.last_index:
                head, tail = split_entry(entry, index)
                self.entries[position] = head
                self.entries.insert(position + 1, tail)
                return

    def vclock_at(self, index: int) -> dict[int, int]:
        """Return the vclock after the entry that ends at `index`."""
        vclock = dict(self.confirmed_vclock)
        for entry in self.entries:
            if entry.batch.last_index > index:
                break
            vclock[entry.batch.replica_id] = entry.batch.last_lsn
        return vclock

    def is_longer_than(self, entries_max: int, bytes_max: int) -> bool:
        """Return whether the queue has more entries or bytes than that (T11)."""
        return len(self.entries) > entries_max or self.bytes > bytes_max

    def surviving(self) -> Iterator[Entry]:
        """Yield the pending entries that no decision in the log covers."""
        covering = effective(self.decisions) if self.decisions else []
        for entry in self.entries:
            if not covering or not is_covered(entry.batch.last_index, covering):
                yield entry

    def oldest_wait_ns(self, now_ns: int) -> int:
        """Return how long the oldest entry has been durable here without a quorum (T11)."""
        oldest = self.entries[0] if self.entries else None
        if oldest is None or not oldest.is_own or not oldest.written_at:
            return 0
        return now_ns - oldest.written_at

    def first_timed_out(self, now_ns: int, timeout_ns: int, not_before_ns: int) -> Entry | None:
        """Return this leader's first entry that has waited for ACKs longer than allowed (T4)."""
        for entry in self.surviving():
            if not entry.is_clients_write or not entry.wait_ack:
                continue
            if entry.written_at == 0:
                return None
            if max(entry.written_at, not_before_ns) + timeout_ns > now_ns:
                return None
            return entry
        return None


def rows_in(entry: Entry) -> int:
    return entry.batch.last_index - entry.batch.first_index + 1
