"""Spools, their states, and the operations that a batch applies to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hashlib import _Hash

Buffer = bytes | bytearray | memoryview

NO_SUM = bytes(20)
"""The checksum of an empty spool."""


class SpoolKey(NamedTuple):
    """A spool: `journal_id` is the create revision of the journal, `begin` a journal offset."""

    journal: str
    journal_id: int
    begin: int


class Publication(NamedTuple):
    """Content that a transaction has published to a journal."""

    sequence: int
    content: bytes


class SpoolState(NamedTuple):
    """The open spool of a journal after a commit.

    Attributes:
        key: the spool.
        epoch: the epoch in which the broker was last synchronised (J4).
        end: the journal offset after the last committed byte.
        sum: the SHA-1 of the bytes [begin, end); `NO_SUM` for an empty spool.
        registers: opaque to the storage.
        confirmed: the offset, at most `end`, up to which all peers have confirmed (J8).
        codec: the compression codec of the fragment.
        first_append: the time of the first append in unix seconds; 0 without one.
    """

    key: SpoolKey
    epoch: int
    end: int
    sum: bytes
    registers: bytes
    confirmed: int
    codec: int
    first_append: int


class CompletedSpool(NamedTuple):
    """A spool that waits for its upload. It is never empty and never changes."""

    key: SpoolKey
    end: int
    sum: bytes
    codec: int
    first_append: int


class WriteContent(NamedTuple):
    """Bytes at a journal offset, which a later `CommitAppend` includes."""

    key: SpoolKey
    offset: int
    data: Buffer


class CommitAppend(NamedTuple):
    """The new state of a journal's open spool. A smaller end discards the bytes after it."""

    state: SpoolState


class Roll(NamedTuple):
    """Complete the open spool at `completed_end` and begin the empty spool `state`.

    An empty spool is removed instead. Bytes after `completed_end` are discarded.
    """

    completed: SpoolKey
    completed_end: int
    completed_sum: bytes
    state: SpoolState


class Copied(NamedTuple):
    """Add a spool that was copied from another broker; `WriteContent` has written its bytes."""

    spool: CompletedSpool


class Drop(NamedTuple):
    """Delete a completed spool, or an open one with its journal."""

    key: SpoolKey


class SetAside(NamedTuple):
    """Remove a damaged spool from the records and rename its file to `*.damaged`."""

    key: SpoolKey


SpoolOperation = WriteContent | CommitAppend | Roll | Copied | Drop | SetAside
Batch = Sequence[SpoolOperation]


class HistoryEntry(NamedTuple):
    """A commit of an open spool; `hash` is the SHA-1 object after the bytes [begin, end)."""

    end: int
    sum: bytes
    registers: bytes
    hash: "_Hash"


class RecoveredSpool(NamedTuple):
    """An open spool after a restart.

    Attributes:
        state: the last commit whose bytes are on disk.
        history: the last commit at or before `state.confirmed` and all later ones, oldest first.
    """

    state: SpoolState
    history: tuple[HistoryEntry, ...]


class RecoveredSpools(NamedTuple):
    """The contents of a data directory.

    Attributes:
        open: the open spools.
        completed: the spools that wait for their upload, not verified yet.
        lost: (journal, reason) of each open spool whose bytes the disk has damaged.
    """

    open: list[RecoveredSpool]
    completed: list[CompletedSpool]
    lost: list[tuple[str, str]]
