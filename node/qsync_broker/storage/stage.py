"""A batch in preparation: the bytes to write, the files to flush, and the record to append."""

from qsync_broker.operations import (
    Buffer,
    CommitAppend,
    Copied,
    Drop,
    Roll,
    SetAside,
    SpoolKey,
    WriteContent,
)
from qsync_broker.storage.catalogue import CatalogueView, SpoolCatalogue, journal_of
from qsync_broker.storage.records import SpoolRecord, plain


class StagedRun:
    """Contiguous bytes to write from the journal offset `offset`."""

    __slots__ = ("end", "offset", "parts")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.end = offset
        self.parts: list[Buffer] = []

    def append(self, data: Buffer, size: int) -> None:
        self.parts.append(data)
        self.end += size


class SpoolStage:
    """The effect of operations that are not durable yet.

    Attributes:
        view: the state after the operations.
        runs: the bytes to write before the record, by spool.
        late_runs: the bytes to write after the record, because recorded bytes are at their offsets.
        records, contents: the record of the log, and the bytes that it includes.
        inlined: spools with bytes in the record, and their number.
        external: spools whose file must be flushed before the record is written.
        rolled, removed, set_aside: spools whose files are truncated, deleted or renamed afterwards.

    Collections of spools are dicts: their order is that of the operations in every process.
    """

    def __init__(self, catalogue: SpoolCatalogue, inline_bytes: int) -> None:
        self.view = CatalogueView(catalogue)
        self.runs: dict[SpoolKey, list[StagedRun]] = {}
        self.late_runs: dict[SpoolKey, list[StagedRun]] = {}
        self.records: list[SpoolRecord] = []
        self.contents: list[bytes] = []
        self.inlined: dict[SpoolKey, int] = {}
        self.external: dict[SpoolKey, None] = {}
        self.rolled: dict[SpoolKey, None] = {}
        self.removed: dict[SpoolKey, None] = {}
        self.set_aside: dict[SpoolKey, None] = {}
        self._catalogue = catalogue
        self._inline_bytes = inline_bytes
        # The content of this batch that is not committed yet: contiguous, up to its end.
        self._pending: dict[SpoolKey, _Pending] = {}

    def content(self, operation: WriteContent) -> None:
        """Add content.

        Raises:
            ValueError: the content leaves a gap or overwrites committed bytes.
        """
        key, offset, data = operation
        size = len(data)
        self.view.write(key, offset, size)
        recorded = self._catalogue.end_of(key)
        is_late = key in self.late_runs or (recorded is not None and offset < recorded)
        runs = (self.late_runs if is_late else self.runs).setdefault(key, [])
        if not runs or runs[-1].end != offset:
            runs.append(StagedRun(offset))
        runs[-1].append(data, size)
        pending = self._pending.get(key)
        if pending is None or not pending.rewind(offset):
            pending = self._pending[key] = _Pending(offset)
        pending.append(data, size, None if is_late else self._inline_bytes)

    def operation(self, operation: CommitAppend | Roll | Copied | Drop | SetAside) -> None:
        """Add any operation except content.

        Raises:
            ValueError: the operation contradicts the state.
        """
        match operation:
            case CommitAppend():
                self._commit(operation)
                return
            case Roll(completed):
                self._pending.pop(completed, None)
                self.rolled[completed] = None
                self.removed[completed] = None  # it stays if it is not empty
            case Copied(spool):
                self._pending.pop(spool.key, None)
                self.external[spool.key] = None
                self.rolled[spool.key] = None  # a copy that failed before may have left more bytes
            case Drop(key):
                self._forget(key)
                self.removed[key] = None
            case SetAside(key):
                self._forget(key)
                self.set_aside[key] = None
        self.view.apply(operation)
        self.records.append(plain(operation))

    def _commit(self, operation: CommitAppend) -> None:
        state = operation.state
        spool = self.view.open_spool(journal_of(state.key))
        former = state.end if spool is None else spool.state.end
        self.view.commit(state)
        size = state.end - former
        if size < 0:
            self._pending.pop(state.key, None)
        included = None
        if size > 0:
            pending = self._pending.get(state.key)
            inlined = self.inlined.get(state.key, 0)
            is_late = state.key in self.late_runs
            if pending is not None and (is_late or inlined + size <= self._inline_bytes):
                included = pending.take(former, state.end)
            if included is None:
                assert not is_late, "the content of late runs is in this batch"
                self.external[state.key] = None
            else:
                self.inlined[state.key] = inlined + size
                self.contents.append(included)
        self.records.append(plain(operation, 0 if included is None else size))

    def _forget(self, key: SpoolKey) -> None:
        """Write no bytes to a spool that is removed."""
        self._pending.pop(key, None)
        self.runs.pop(key, None)
        self.late_runs.pop(key, None)
        self.inlined.pop(key, None)
        self.external.pop(key, None)


class _Pending:
    """Contiguous uncommitted content, kept as long as it is small enough for a record."""

    __slots__ = ("_parts", "_start", "end")

    def __init__(self, offset: int) -> None:
        self._start = offset
        self.end = offset
        self._parts: list[Buffer] = []

    def rewind(self, offset: int) -> bool:
        """Forget the content from `offset`. Return False if the content before it is unknown."""
        if offset == self.end:
            return True
        if not self._start <= offset < self.end:
            return False
        self._parts = [b"".join(self._parts)[: offset - self._start]]
        self.end = offset
        return True

    def append(self, data: Buffer, size: int, size_max: int | None) -> None:
        """Add content. Above `size_max`, only the place of the content is kept."""
        if size_max is not None and self.end + size - self._start > size_max:
            self._parts.clear()
            self._start = self.end + size
        else:
            self._parts.append(data)
        self.end += size

    def take(self, start: int, end: int) -> bytes | None:
        """Return the bytes [start, end) and forget them; None if some are missing."""
        if start < self._start or end > self.end:
            return None
        data = b"".join(self._parts)
        taken = data[start - self._start : end - self._start]
        self._parts = [data[end - self._start :]]
        self._start = end
        return taken
