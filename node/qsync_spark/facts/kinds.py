"""The kinds of facts that a pass over a part of a file finds, each a frozen record.

A fact is about a whole file or part (`FileFact`), about a block (`BlockFact`) or about a row
(`RowFact`). `table.py` carries facts from Spark's workers to the driver.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FileFact:
    """A fact about a file, or about a part of it."""

    member: str
    file_kind: str  # segment, snapshot or rollback
    file: str

    @property
    def order(self) -> tuple[int, int, int, str]:
        """Return the position in a list of facts of all members."""
        return 0, 0, 0, self.member


@dataclass(frozen=True, slots=True)
class BlockFact(FileFact):
    """A fact about the block at `offset`: index and term are those at its first row."""

    offset: int
    index: int
    term: int

    @property
    def order(self) -> tuple[int, int, int, str]:
        return self.index, 0, 0, self.member


@dataclass(frozen=True, slots=True)
class RowFact(BlockFact):
    """A fact about the row `lsn` of `replica_id`, in the block at `offset`."""

    replica_id: int
    lsn: int

    @property
    def order(self) -> tuple[int, int, int, str]:
        return self.index, self.replica_id, self.lsn, self.member


BASES = (FileFact, BlockFact, RowFact)


# --- files and parts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk(FileFact):
    """The rows of one replica whose LSN divided by 4,096 is `number`, as found in one part.

    `one` and `two` are the halves of the exclusive or of the hashes of the rows.
    """

    replica_id: int
    number: int
    rows: int
    one: int
    two: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class PartRead(FileFact):
    """The summary of a part. `after_index` and `last_index` are the manifest's."""

    after_index: int
    last_index: int
    rows: int
    confirms: int
    confirmed: int  # greatest position in a CONFIRM
    host: str  # that read the part
    delays: tuple[int, ...]  # number of intervals between CONFIRMs, by `DELAYS_MS`
    first_time: float | None  # None without a row
    last_time: float | None
    lsns: tuple[tuple[int, ...], ...]  # replica id, first and last LSN
    spaces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangedFile(FileFact):
    """The file deviates from its name or its manifest."""

    reason: str

    @property
    def offset(self) -> int:
        """Return 0: the deviation has no known position."""
        return 0


@dataclass(frozen=True, slots=True)
class OldestRequest(FileFact):
    """A snapshot remembers requests; the oldest was logged at `index` (T9)."""

    index: int


@dataclass(frozen=True, slots=True)
class SnapshotTerms(FileFact):
    """A snapshot has these terms, each `(term, owner, first index)`."""

    terms: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PrimaryKeys(FileFact):
    """A snapshot defines these primary keys: msgpack of their parts by space."""

    definitions: bytes


# --- blocks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage(BlockFact):
    """Rows from `index` to `last_index` are unreadable."""

    last_index: int
    is_written: bool  # the checksum is valid: the member itself wrote this block
    reason: str


@dataclass(frozen=True, slots=True)
class MisnumberedSnapshot(BlockFact):
    """A snapshot's row has a wrong number, type or time."""

    reason: str


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MissingRows(RowFact):
    """The log lacks the rows from `lsn` to `last_lsn`."""

    last_lsn: int

    @property
    def count(self) -> int:
        return self.last_lsn - self.lsn + 1


@dataclass(frozen=True, slots=True)
class NopRow(RowFact):
    """A row without effect, which no leader writes."""


@dataclass(frozen=True, slots=True)
class RepeatedRow(RowFact):
    """The log had this row already."""


@dataclass(frozen=True, slots=True)
class ReorderedRow(RowFact):
    """The row stands after rows that follow it."""


@dataclass(frozen=True, slots=True)
class ForeignRow(RowFact):
    """The row is not of `leader`, which leads the term."""

    leader: int


@dataclass(frozen=True, slots=True)
class MislabelledRow(RowFact):
    """The row's header states another label; `last_lsn` precedes it in the stated replica's log."""

    stated_replica_id: int
    stated_lsn: int
    last_lsn: int


@dataclass(frozen=True, slots=True)
class UnreadableRow(RowFact):
    """A row of the system does not decode."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConfirmRow(RowFact):
    """A CONFIRM that names no earlier row (`is_ahead`), or one in a rollback file."""

    position: int
    is_ahead: bool


@dataclass(frozen=True, slots=True)
class StatedTerm(RowFact):
    """A control row states a term that the pass over its part cannot confirm.

    It is the term of the row at `position`, or with position 0 that of the control row itself.
    """

    stated_term: int
    position: int


@dataclass(frozen=True, slots=True)
class DecisionRow(RowFact):
    """A ROLLBACK or PROMOTE, which rolls back the rows from `first` on."""

    first: int
    confirmed: int  # greatest position in an earlier CONFIRM of the part

    @property
    def content(self) -> tuple[Any, ...]:
        return self.first, self.confirmed


@dataclass(frozen=True, slots=True)
class PromoteRow(RowFact):
    """A PROMOTE. `term` is the one before it."""

    first: int
    is_back: bool  # the opened term is not a later one
    opened_term: int
    time: float

    @property
    def content(self) -> tuple[Any, ...]:
        return self.first, self.is_back


@dataclass(frozen=True, slots=True)
class SystemRow(RowFact):
    """A row that changes the members (`MemberRow`) or the schema (`SchemaRow`)."""

    row_type: int
    space: int
    time: float
    body: bytes

    @property
    def content(self) -> tuple[Any, ...]:
        return self.row_type, self.space, self.body


@dataclass(frozen=True, slots=True)
class MemberRow(SystemRow):
    """A row of `_cluster`, or of the space of removed members."""


@dataclass(frozen=True, slots=True)
class SchemaRow(SystemRow):
    """A row of a system space that the replay needs."""


@dataclass(frozen=True, slots=True)
class RowCopy(RowFact):
    """A member's copy of a row, for a comparison row by row."""

    digest: bytes


VotedRow = DecisionRow | PromoteRow | MemberRow | SchemaRow
"""Facts of rows on whose content the members vote."""

KINDS: tuple[type[FileFact], ...] = (
    Chunk, PartRead, ChangedFile, OldestRequest, SnapshotTerms, PrimaryKeys,
    Damage, MisnumberedSnapshot,
    MissingRows, NopRow, RepeatedRow, ReorderedRow, ForeignRow, MislabelledRow, UnreadableRow,
    ConfirmRow, StatedTerm, DecisionRow, PromoteRow, MemberRow, SchemaRow,
)  # fmt: skip
"""All kinds of one pass except `RowCopy`, of which there are as many as rows."""
ANOMALIES = (
    MissingRows, NopRow, RepeatedRow, ReorderedRow, ForeignRow, MislabelledRow, UnreadableRow,
    ConfirmRow, StatedTerm,
)  # fmt: skip
"""Kinds of which there may be as many as rows: the driver lists the first ones."""
