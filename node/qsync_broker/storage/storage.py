"""The spools of a broker's journals, on disk.

Theory. A batch becomes durable by one record in the commit log, which all journals share, so that
one flush serves all of them. Small content is part of the record and is also written to the file of
its spool, without a flush. The file of larger content is flushed before the record is written. A
record in the log therefore always has its bytes on disk, here or there.

A batch is one record, and so wholly durable or not at all. If a batch discards recorded bytes and
has other bytes at their offsets, the file is written after the record. Otherwise, a crash could
leave a commit whose bytes are overwritten. Such a record includes content of any size.

When the log begins a new segment, some files contain bytes that only older segments have durably.
The following batches flush these files little by little. The older segments are removed
once all of them are durable.

One thread calls `apply`. Any thread may read.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qsync_broker.operations import Batch, CompletedSpool, SpoolKey, WriteContent
from qsync_broker.storage.files import Files, OsFiles, join
from qsync_broker.storage.health import Health
from qsync_broker.storage.recovery import problem_of, recover
from qsync_broker.storage.spools import SpoolFiles
from qsync_broker.storage.stage import SpoolStage, StagedRun

SPOOLS = "spools"
FLUSHES_PER_BATCH_MIN = 4


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of one data directory.

    Attributes:
        segment_bytes: the log begins a new segment after this number of bytes.
        inline_bytes: a record includes at most this number of bytes of a spool.
        flush_threads: the number of files that are flushed at a time.
        open_files: the number of descriptors that are kept open.
    """

    segment_bytes: int = 64 << 20
    inline_bytes: int = 64 << 10
    flush_threads: int = 4
    open_files: int = 500


def _discard(keys: dict[SpoolKey, None], gone: Iterable[SpoolKey]) -> None:
    for key in gone:
        keys.pop(key, None)


class SpoolStorage:
    """An open data directory. `recovered` is its state at the start."""

    def __init__(self, files: Files, directory: str, settings: StorageSettings) -> None:
        self._settings = settings
        self._health = Health()
        spools_directory = join(directory, SPOOLS)
        files.makedirs(spools_directory)
        self._lock = files.lock(directory)
        self._spools = SpoolFiles(
            files, spools_directory, self._health, settings.flush_threads, settings.open_files
        )
        try:
            files.sync_dir(directory)
            opened = recover(files, directory, self._spools, self._health)
        except BaseException:
            self._spools.close()
            self._lock.release()
            raise
        self._log = opened.log
        self._catalogue = opened.catalogue
        self.recovered = opened.recovered
        # Spools with content that only the log has durably, by segment.
        self._in_current = opened.in_current
        self._in_older = opened.in_older
        self._garbage: dict[SpoolKey, None] = {}
        # Completed spools of earlier process runs, whose checksums were not compared yet.
        self._unverified = {completed.key for completed in self.recovered.completed}
        self._damaged: dict[SpoolKey, str] = {}

    @classmethod
    def open(
        cls, directory: str, settings: StorageSettings | None = None, files: Files | None = None
    ) -> "SpoolStorage":
        """Open a data directory, which is created if it does not exist.

        Raises:
            OSError: another process uses the directory, or an operation on a file failed.
            StorageDamaged: the log is damaged; a person must act.
        """
        return cls(files or OsFiles(), directory, settings or StorageSettings())

    @property
    def has_failed(self) -> bool:
        """Return whether a flush has failed, after which the directory must be reopened."""
        return bool(self._health.failed)

    # -- writing ---------------------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        """Apply the operations in their order. All of them are durable when this returns.

        Uncommitted content is the exception: it is durable with its commit.

        Raises:
            OSError: nothing of the batch may be regarded as durable. It can be repeated, unless a
                flush has failed: then all batches are refused until the directory is reopened.
            ValueError: an operation contradicts the state; nothing was changed.
        """
        self._health.check()
        if self._log.new_bytes >= self._settings.segment_bytes:
            self._rotate()
        used = self._log.used_bytes
        stage = SpoolStage(self._catalogue, self._settings.inline_bytes)
        for operation in batch:
            if isinstance(operation, WriteContent):
                stage.content(operation)
            else:
                stage.operation(operation)
        self._record(stage)
        self._flush_older(self._log.used_bytes - used)

    def _record(self, stage: SpoolStage) -> None:
        """Make the changes of a stage durable, then visible in memory."""
        self._write(stage.runs)
        if stage.external:
            self._spools.flush(stage.external)
        for key in stage.set_aside:
            # Before the record: a file without a record would be deleted at the next start.
            self._spools.set_aside(key)
        if stage.records:
            self._log.append(stage.records, stage.contents)
        if stage.late_runs:
            # The record is durable: only a recovery can repeat a failed write.
            with self._health.flushing():
                self._write(stage.late_runs)
        stage.view.merge()
        self._in_current |= dict.fromkeys(stage.inlined)
        _discard(self._in_current, (key for key in stage.external if key not in stage.late_runs))
        _discard(self._in_older, stage.external)
        self._tidy(stage)

    def _write(self, runs: dict[SpoolKey, list[StagedRun]]) -> None:
        for key, runs_of_spool in runs.items():
            for run in runs_of_spool:
                self._spools.write(key, run.offset, run.parts)

    def _tidy(self, stage: SpoolStage) -> None:
        """Remove the bytes that the recorded batch discards.

        A failure is no failure of the batch. The next start truncates and deletes again.
        """
        _discard(self._in_current, stage.set_aside)
        _discard(self._in_older, stage.set_aside)
        for key in stage.rolled:
            completed = self._catalogue.completed.get(key)
            if completed is not None:
                with contextlib.suppress(OSError):
                    self._spools.truncate(key, completed.end)
        self._garbage |= stage.removed
        for key in list(self._garbage):
            del self._garbage[key]
            if key in self._catalogue or key in self._catalogue.copies:
                continue
            self._unverified.discard(key)  # another copy of these bytes is not damaged
            self._damaged.pop(key, None)
            _discard(self._in_current, [key])
            _discard(self._in_older, [key])
            try:
                self._spools.remove(key)
            except OSError:
                self._garbage[key] = None

    # -- segments --------------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Begin a new segment of the log."""
        if self._log.older:
            self._spools.flush(self._in_older)
            self._in_older.clear()
            self._log.remove_older()
        self._log.rotate(self._catalogue)
        self._in_older, self._in_current = self._in_current, {}

    def _flush_older(self, recorded_bytes: int) -> None:
        """Flush some files of the older segments, and remove these once all files are durable.

        The share of the files is twice the share of the new segment that this batch has filled, so
        that a rotation seldom has to wait. The batch is durable already: a failure ends later ones.
        """
        if not self._log.older:
            return
        share = 2 * recorded_bytes * (len(self._in_older) + len(self._in_current))
        count = FLUSHES_PER_BATCH_MIN + share // self._settings.segment_bytes
        keys = [key for key, _ in zip(self._in_older, range(count), strict=False)]
        with contextlib.suppress(OSError):
            self._spools.flush(keys)
            _discard(self._in_older, keys)
            if not self._in_older:
                self._log.remove_older()

    # -- reading ---------------------------------------------------------------------------------

    def read(self, key: SpoolKey, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a spool from the journal offset `offset`.

        The file can have uncommitted bytes after the spool's end: the caller knows that end.

        Raises:
            FileNotFoundError: the spool does not exist.
        """
        try:
            return self._spools.read(key, offset, size)
        except FileNotFoundError:
            if key in self._catalogue:
                return b""
            raise

    def path_of(self, key: SpoolKey) -> str:
        """Return the path of a spool's file. Journal offset `key.begin` is its first byte.

        An empty spool has no file. An open descriptor of the file stays valid after a `Drop`.
        """
        return self._spools.path_of(key)

    def is_suspect(self, key: SpoolKey) -> bool:
        """Return whether `problem_of` is to be asked before the bytes of a spool are used."""
        return key in self._unverified or key in self._damaged

    def problem_of(self, key: SpoolKey) -> str | None:
        """Return why the bytes of a spool are damaged, or None.

        A completed spool of an earlier process run is read once and compared with its checksum. If
        it is damaged, its file is renamed to `*.damaged`: the next start finds that it is missing.
        Only one thread may call this at a time.

        Raises:
            OSError: the file cannot be read.
        """
        if key in self._unverified:
            completed = self._catalogue.completed.get(key)
            found = problem_of(completed, self._spools) if completed is not None else None
            if found is not None and key in self._catalogue.completed:
                self._damaged[key] = found
                self._spools.hide(key)
            self._unverified.discard(key)
        return self._damaged.get(key)

    def verify_completed(self) -> Iterator[tuple[CompletedSpool, str | None]]:
        """Yield each completed spool, with the reason if its bytes are damaged.

        This may run in another thread than `apply`. The caller removes a damaged spool with
        `SetAside`.
        """
        for completed in list(self._catalogue.completed.values()):
            problem = problem_of(completed, self._spools)
            if completed.key in self._catalogue.completed:
                yield completed, problem

    @property
    def used_bytes(self) -> int:
        """Return the size of all spools and of the log, without files that were set aside."""
        return self._spools.used_bytes + self._log.used_bytes

    def close(self) -> None:
        """Close all files. Everything that `apply` has returned for is durable already."""
        self._log.close()
        self._spools.close()
        self._lock.release()
