"""The spools of a broker: the state that the commit log records, without their bytes.

`CatalogueView` applies operations on top of a `SpoolCatalogue` and changes it only with `merge`. A
batch whose record does not become durable therefore leaves no trace in memory. Recovery replays
records by the same code.

Invariants
  C1  A journal (name and id) has at most one open spool.
  C2  The commits of an open spool have rising ends, and the last one is its state.
  C3  The first commit ends at or before `confirmed`, if the spool begins there, and the second
      one ends after it. Fallbacks and rollbacks never need older commits.
  C4  A spool that is being copied is neither open nor completed. No record contains it, and the
      next start deletes its file.
"""

from collections.abc import Iterator
from typing import NamedTuple

from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    CompletedSpool,
    Copied,
    Drop,
    Roll,
    SetAside,
    SpoolKey,
    SpoolState,
)

JournalKey = tuple[str, int]


class OpenSpool(NamedTuple):
    """An open spool: its commits, oldest first, and the end of its bytes in the file."""

    commits: tuple[SpoolState, ...]
    written: int

    @property
    def state(self) -> SpoolState:
        return self.commits[-1]


def journal_of(key: SpoolKey) -> JournalKey:
    return key.journal, key.journal_id


class SpoolCatalogue:
    """The durable state: open spools by journal, completed spools by key.

    `copies` has the ends of the bytes of spools that are being copied, which is not durable.
    """

    def __init__(self) -> None:
        self.open: dict[JournalKey, OpenSpool] = {}
        self.completed: dict[SpoolKey, CompletedSpool] = {}
        self.copies: dict[SpoolKey, int] = {}

    def end_of(self, key: SpoolKey) -> int | None:
        """Return the recorded end of a spool; None for an unknown spool."""
        spool = self.open.get(journal_of(key))
        if spool is not None and spool.state.key == key:
            return spool.state.end
        completed = self.completed.get(key)
        return None if completed is None else completed.end

    def __contains__(self, key: SpoolKey) -> bool:
        return self.end_of(key) is not None

    def __iter__(self) -> Iterator[SpoolKey]:
        for spool in self.open.values():
            yield spool.state.key
        yield from self.completed


def _extended(commits: tuple[SpoolState, ...], state: SpoolState) -> tuple[SpoolState, ...]:
    """Return the commits with `state` as the last one, without those that are not needed (C3)."""
    kept = [commit for commit in commits if commit.end < state.end]
    kept.append(state)
    first = 0
    while first + 1 < len(kept) and kept[first + 1].end <= state.confirmed:
        first += 1
    return tuple(kept[first:])


def _check_state(state: SpoolState) -> None:
    begin = state.key.begin
    if not (begin <= state.end and state.confirmed <= state.end and len(state.sum) == 20):
        raise ValueError(f"invalid state of journal {state.key.journal}: {state}")
    if state.end == begin and state.sum != NO_SUM:
        raise ValueError(f"journal {state.key.journal}: an empty spool has the sum of 20 zeros")


class CatalogueView:
    """Changes on top of a catalogue. A value of None is a removed spool."""

    def __init__(self, base: SpoolCatalogue) -> None:
        self._base = base
        self.open: dict[JournalKey, OpenSpool | None] = {}
        self.completed: dict[SpoolKey, CompletedSpool | None] = {}
        self.copies: dict[SpoolKey, int | None] = {}

    def open_spool(self, journal: JournalKey) -> OpenSpool | None:
        if journal in self.open:
            return self.open[journal]
        return self._base.open.get(journal)

    def completed_spool(self, key: SpoolKey) -> CompletedSpool | None:
        if key in self.completed:
            return self.completed[key]
        return self._base.completed.get(key)

    def spool(self, key: SpoolKey) -> OpenSpool:
        """Return the open spool `key`.

        Raises:
            ValueError: the spool is not the open one of its journal.
        """
        found = self.open_spool(journal_of(key))
        if found is None or found.state.key != key:
            raise ValueError(f"journal {key.journal} has no open spool at {key.begin}")
        return found

    def write(self, key: SpoolKey, offset: int, size: int) -> None:
        """Note that the file has `size` bytes from `offset`, and none after them.

        Content before the open spool belongs to a spool that is being copied.

        Raises:
            ValueError: the bytes would leave a gap or overwrite committed bytes.
        """
        found = self.open_spool(journal_of(key))
        if found is not None and key.begin < found.state.key.begin:
            self._write_copy(key, offset, size)
            return
        spool = self.spool(key)
        if not spool.state.end <= offset <= spool.written:
            raise ValueError(
                f"journal {key.journal}: content at {offset} is outside "
                f"[{spool.state.end}, {spool.written}]"
            )
        self.open[journal_of(key)] = spool._replace(written=offset + size)

    def _write_copy(self, key: SpoolKey, offset: int, size: int) -> None:
        written = self.copies.get(key, self._base.copies.get(key)) or key.begin
        if offset not in (written, key.begin) or self.completed_spool(key) is not None:
            raise ValueError(
                f"journal {key.journal}: copied content at {offset} does not continue {written}"
            )
        self.copies[key] = offset + size

    def copied(self, spool: CompletedSpool, written: int | None = None) -> None:
        """Add a copied spool.

        Raises:
            ValueError: its bytes were not written, or a spool has its key.
        """
        key = spool.key
        if written is None:
            written = self.copies.get(key, self._base.copies.get(key)) or key.begin
        if not key.begin < spool.end <= written or self.completed_spool(key) is not None:
            raise ValueError(f"journal {key.journal}: no copy at {key.begin} ends at {spool.end}")
        self.completed[key] = spool
        self.copies[key] = None

    def commit(self, state: SpoolState, written: int | None = None) -> None:
        """Set the state of an open spool, or begin the first spool of a journal.

        Args:
            state: the new state.
            written: the end of the bytes in the file, for a replay; None to check the known one.

        Raises:
            ValueError: the state is invalid, or its bytes were not written.
        """
        _check_state(state)
        journal = journal_of(state.key)
        found = self.open_spool(journal)
        if found is None:
            self._begin(state, written)
            return
        found = self.spool(state.key)
        if written is None:
            if state.end > found.written:
                raise ValueError(
                    f"journal {state.key.journal}: content ends at {found.written}, before the "
                    f"commit at {state.end}"
                )
            written = found.written if state.end >= found.state.end else state.end
        self.open[journal] = OpenSpool(_extended(found.commits, state), written)

    def _begin(self, state: SpoolState, written: int | None) -> None:
        if written is None and state.end != state.key.begin:
            raise ValueError(f"journal {state.key.journal}: the first spool must begin empty")
        if self.completed_spool(state.key) is not None:
            raise ValueError(
                f"journal {state.key.journal}: the spool at {state.key.begin} is complete"
            )
        self.open[journal_of(state.key)] = OpenSpool((state,), state.end)

    def roll(self, roll: Roll) -> None:
        """Complete an open spool and begin an empty one.

        A broker that joins a journal with bytes begins at their end. Its empty spool was never
        stored, so it need not exist.

        Raises:
            ValueError: the new spool is not empty, or the completed one has no such bytes.
        """
        state = roll.state
        _check_state(state)
        if state.end != state.key.begin or journal_of(state.key) != journal_of(roll.completed):
            raise ValueError(f"journal {state.key.journal}: a roll begins an empty spool")
        is_first = self.open_spool(journal_of(state.key)) is None
        if not is_first or roll.completed_end > roll.completed.begin:
            self._complete(roll, self.spool(roll.completed))
        if self.completed_spool(state.key) is not None:
            raise ValueError(
                f"journal {state.key.journal}: the spool at {state.key.begin} is complete"
            )
        self.open[journal_of(state.key)] = OpenSpool((state,), state.end)

    def _complete(self, roll: Roll, spool: OpenSpool) -> None:
        if not roll.completed.begin <= roll.completed_end <= spool.state.end:
            raise ValueError(
                f"journal {roll.completed.journal}: a roll at {roll.completed_end} is outside "
                f"[{roll.completed.begin}, {spool.state.end}]"
            )
        if roll.completed_end > roll.completed.begin:
            self.completed[roll.completed] = CompletedSpool(
                roll.completed,
                roll.completed_end,
                roll.completed_sum,
                spool.state.codec,
                spool.state.first_append,
            )

    def drop(self, key: SpoolKey) -> None:
        """Remove a spool, if it exists."""
        found = self.open_spool(journal_of(key))
        if found is not None and found.state.key == key:
            self.open[journal_of(key)] = None
        if self.completed_spool(key) is not None:
            self.completed[key] = None
        self.copies[key] = None

    def apply(self, operation: CommitAppend | Roll | Copied | Drop | SetAside) -> None:
        match operation:
            case CommitAppend(state):
                self.commit(state)
            case Roll():
                self.roll(operation)
            case Copied(spool):
                self.copied(spool)
            case Drop(key) | SetAside(key):
                self.drop(key)

    def merge(self) -> None:
        """Make the changes part of the catalogue."""
        for journal, spool in self.open.items():
            if spool is None:
                self._base.open.pop(journal, None)
            else:
                self._base.open[journal] = spool
        for key, completed in self.completed.items():
            if completed is None:
                self._base.completed.pop(key, None)
            else:
                self._base.completed[key] = completed
        for key, written in self.copies.items():
            if written is None:
                self._base.copies.pop(key, None)
            else:
                self._base.copies[key] = written
        self.open.clear()
        self.completed.clear()
        self.copies.clear()
