"""One data directory: the facade that the WAL thread and the simulator drive.

It is synchronous and blocking, built on a `FileSystem`, without threads, clocks or random numbers.
One thread at a time calls `write`, `rewind`, `store_ballot`, `rotate`, `install_snapshot`, removals
and `clean_stop`. `read` and `write_snapshot` may run concurrently, each in another thread.

    00000000000000000012.xlog   segments         ballot   term, vote and similar facts (D2)
    00000000000000000012.snap   snapshots        clean    the last stop was clean (D3)
    rollback/                   truncated rows   lock     held by the process (D8)
    newest                      the name of the newest segment (D7)
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from qsync_node.format.batch import LogBatch
from qsync_node.format.vclock import VClock, is_equal, signature
from qsync_node.format.xlog import is_log_file_name
from qsync_node.storage.ahead import forget_ahead, note_ahead
from qsync_node.storage.atomic import put_file
from qsync_node.storage.ballot import BALLOT_NAME, store_ballot
from qsync_node.storage.checkpoint import SnapshotWriter, write_snapshot
from qsync_node.storage.errors import DiskError, DiskFull
from qsync_node.storage.files import FileSystem, join
from qsync_node.storage.recovery import CLEAN_NAME, Recovered, clean_mark, recover
from qsync_node.storage.rewind import ROLLBACK_DIRECTORY, RewindReport, rewind
from qsync_node.storage.wal import SegmentLimits, Wal, create_segment

__all__ = ["Recovered", "RewindReport", "SegmentLimits", "SegmentRange", "Storage"]


class SegmentRange(NamedTuple):
    """A segment that contains the rows after `after_index` up to `last_index`."""

    path: str
    after_index: int
    last_index: int


class Storage:
    """The log, the ballot and the snapshots of one instance."""

    def __init__(self, wal: Wal, snapshot_index: int) -> None:
        self._wal = wal
        self._snapshot_index = snapshot_index  # of the newest snapshot, 0 without one
        self._ahead_index = 0  # of a noted snapshot that the log has not reached
        self._ahead_lock = threading.Lock()  # checkpoints are written beside the log

    # -- opening and closing ---------------------------------------------------------------------

    @staticmethod
    def exists(fs: FileSystem, directory: str) -> bool:
        """Return whether the directory contains a log, which `open` must then recover.

        Each file with such a suffix counts: a member whose files were renamed does not begin again.
        """
        return fs.exists(directory) and any(
            name.endswith((".xlog", ".snap")) for name in fs.listdir(directory)
        )

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: str,
        instance_uuid: str,
        limits: SegmentLimits | None = None,
        ballot: bytes = b"",
    ) -> "Storage":
        """Create an empty log, after its ballot: a log without one does not start (D2)."""
        assert not cls.exists(fs, directory), f"{directory} already contains a log"
        fs.makedirs(join(directory, ROLLBACK_DIRECTORY))
        fs.sync_dir(directory)
        head, slash, _ = directory.rpartition("/")
        fs.sync_dir(head or slash or ".")
        store_ballot(fs, directory, ballot)
        segment = create_segment(fs, directory, instance_uuid, {}, None)
        return cls(Wal(fs, directory, instance_uuid, limits or SegmentLimits(), [segment], {}), 0)

    @classmethod
    def open(
        cls, fs: FileSystem, directory: str, limits: SegmentLimits | None = None
    ) -> tuple["Storage", Recovered]:
        """Recover a directory.

        Raises:
            CorruptionError: the directory is damaged, and a person must act.
        """
        wal, recovered = recover(fs, directory, limits or SegmentLimits())
        index = recovered.snapshot.index if recovered.snapshot is not None else 0
        return cls(wal, index), recovered

    def clean_stop(self) -> None:
        """Write end marker and clean mark, so that the next start copies no segment (D3)."""
        wal = self._wal
        wal.check_usable()
        wal.seal()
        put_file(wal.fs, wal.directory, CLEAN_NAME, [clean_mark(wal.segments[-1], wal.last_index)])
        wal.close()

    def close(self) -> None:
        """Close the files without a mark: the next start treats this as a crash."""
        self._wal.close()

    # -- the log ---------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return self._wal.failed

    @property
    def instance_uuid(self) -> str:
        return self._wal.instance_uuid

    @property
    def last_index(self) -> int:
        return self._wal.last_index

    @property
    def vclock(self) -> VClock:
        return dict(self._wal.vclock)

    @property
    def first_available_index(self) -> int:
        return self._wal.first_available_index

    @property
    def snapshot_index(self) -> int:
        """Return the index of the newest snapshot; 0 without one."""
        return self._snapshot_index

    def segments(self) -> list[SegmentRange]:
        """Return the segments on disk, oldest first; all except the last are complete."""
        return [
            SegmentRange(segment.path, segment.start_index, segment.end_index)
            for segment in list(self._wal.segments)  # other threads call this while the log grows
        ]

    def free_bytes(self) -> int:
        return self._wal.fs.free_bytes(self._wal.directory)

    def check_files(self) -> None:
        """Check that the files of this instance still exist, by one listing of the directory.

        The caller removes no files meanwhile. A read may be under way, and is not awaited.

        Raises:
            DiskError: a file or the directory is missing.
        """
        wal = self._wal
        wanted = [BALLOT_NAME, *(segment.path.rpartition("/")[2] for segment in wal.segments)]
        try:
            names = set(wal.fs.listdir(wal.directory))
        except FileNotFoundError:
            raise DiskError(f"the data directory {wal.directory} is gone") from None
        missing = [name for name in wanted if name not in names]
        if missing:
            raise DiskError(f"{join(wal.directory, missing[0])} is gone")

    def write(self, batches: Sequence[LogBatch]) -> None:
        """Write one block with one writev and one fdatasync.

        Raises:
            DiskFull: no part was written; retry later.
            DiskError: `failed` is set; restart from disk.
        """
        self._wal.write(batches)
        if self._ahead_index and self._wal.last_index >= self._ahead_index:
            self._catch_up()

    def _catch_up(self) -> None:
        """Delete the note: the log has reached the snapshot. Unflushed rows do not count."""
        wal = self._wal
        if not wal.limits.is_synced:
            return
        with self._ahead_lock:
            if wal.last_index < self._ahead_index:
                return  # a checkpoint has noted a later one meanwhile
            self._ahead_index = 0
            try:
                forget_ahead(wal.fs, wal.directory)
            except DiskError:
                wal.failed = True
                raise

    def read(self, after_index: int, bytes_max: int) -> list[LogBatch]:
        """Return durable rows after `after_index`.

        Returns:
            whole blocks until they reach `bytes_max`; empty at the end of the log.

        Raises:
            NotInLog: the rows were removed.
        """
        return self._wal.read(after_index, bytes_max)

    def rotate(self) -> None:
        """Start a new segment, so that the rows before it can be removed or archived."""
        self._wal.rotate()

    def rewind(self, after_index: int, first_cut_term: int) -> RewindReport:
        """Save the rows after `after_index` under `rollback/`, and truncate the log (L6)."""
        return rewind(self._wal, after_index, first_cut_term)

    def remove_segments_before(self, index: int) -> int:
        """Remove segments whose rows end at or before `index` and are in a snapshot (S5)."""
        return self._wal.remove_segments_before(min(index, self._snapshot_index))

    # -- ballot and snapshots --------------------------------------------------------------------

    def store_ballot(self, contents: bytes) -> None:
        """Store the ballot durably, in every wal_mode (D2)."""
        self._wal.check_usable()
        try:
            store_ballot(self._wal.fs, self._wal.directory, contents)
        except DiskFull:
            raise
        except DiskError:
            self._wal.failed = True
            raise

    def begin_snapshot(self, vclock: Mapping[int, int], timestamp: float = 0.0) -> SnapshotWriter:
        wal = self._wal
        return SnapshotWriter(wal.fs, wal.directory, wal.instance_uuid, vclock, timestamp)

    def write_snapshot(
        self, vclock: Mapping[int, int], bodies: Iterable[bytes], timestamp: float = 0.0
    ) -> str:
        """Write a checkpoint of the confirmed state at `vclock` and return its path."""
        wal, index = self._wal, signature(vclock)
        if index > wal.last_index or not wal.limits.is_synced:
            with self._ahead_lock:
                # A newer one may be on its way: this checkpoint must not hide its note.
                noted = max(self._ahead_index, index)
                note_ahead(wal.fs, wal.directory, noted)
                self._ahead_index = noted
        writer = self.begin_snapshot(vclock, timestamp)
        write_snapshot(writer, bodies)
        self._snapshot_index = max(self._snapshot_index, index)
        return writer.path

    def install_snapshot(
        self, vclock: Mapping[int, int], bodies: Iterable[bytes], timestamp: float = 0.0
    ) -> str:
        """Replace the local state by the snapshot of another member (S3).

        `rewind` must already have truncated a tail that does not belong to the snapshot's history.
        A log that reaches the snapshot stays. A log that ends before it is removed, but only once
        the snapshot is durable.
        """
        self._wal.check_usable()
        index = signature(vclock)
        if index <= self.last_index and index >= self.first_available_index:
            mine = self._wal.vclock_at(index)
            assert is_equal(mine, vclock), f"S3: the log is at {mine}, the snapshot at {vclock}"
        path = self.write_snapshot(vclock, bodies, timestamp)
        if index > self.last_index:
            self._wal.replace_all(vclock)
            self._catch_up()
        return path

    def remove_snapshots_before(self, index: int) -> int:
        """Remove snapshots older than `index`, but never the newest. Return their number."""
        wal = self._wal
        limit = min(index, self._snapshot_index)
        removed = 0
        for name in sorted(wal.fs.listdir(wal.directory)):
            if is_log_file_name(name, "snap") and int(name.split(".")[0]) < limit:
                wal.fs.remove(join(wal.directory, name))
                removed += 1
        if removed:
            wal.fs.sync_dir(wal.directory)
        return removed
