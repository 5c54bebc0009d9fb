"""The disk threads: one each for log operations, ballots, readers and checkpoints.

One thread performs log writes, truncations, installations and removals in the order in which the
core requests them. It merges queued writes into one `writev` and one `fdatasync` (D6). Ballots have
a separate thread, so that a slow log write never delays term and vote (E6). So have reads for slow
followers: none of them waits for a checkpoint, which may take minutes.

A thread survives every exception. An unexpected one, such as a `MemoryError`, ends the process run:
`on_broken` restarts the member from disk. A thread that ended silently would leave the member
running without votes, checkpoints or rows for its followers.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from qsync_node.core import effects as fx
from qsync_node.format.batch import LogBatch
from qsync_node.format.row import RowError
from qsync_node.log.errors import CorruptionError, DiskError, DiskFull, NotInLog
from qsync_node.log.storage import Storage

FULL_RETRY_S = 0.25
Deliver = Callable[[list[Any]], None]
"""A function that passes inputs to the event loop. The threads call it."""


class Worker(threading.Thread):
    """One thread with one queue. `on_broken` receives an exception that `perform` raises."""

    def __init__(
        self, name: str, perform: Callable[["deque[Any]"], None], on_broken: Callable[[str], None]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._queue: deque[Any] = deque()
        self._ready = threading.Condition()
        self._perform = perform
        self._on_broken = on_broken
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def put(self, item: Any) -> None:
        with self._ready:
            self._queue.append(item)
            self._ready.notify()

    def wait_for_more(self, timeout_s: float) -> "deque[Any] | None":
        """Wait for further items, on this worker's thread.

        Returns:
            the items queued within `timeout_s` seconds, or None if the worker is stopping.
        """
        with self._ready:
            if not self._queue and not self._is_stopping:
                self._ready.wait(timeout_s)
            if self._is_stopping:
                return None
            items, self._queue = self._queue, deque()
            return items

    def stop(self) -> None:
        """Finish the queued items, then end."""
        self.ask_to_stop()
        self.join()

    def ask_to_stop(self) -> None:
        with self._ready:
            self._is_stopping = True
            self._ready.notify()

    def run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._is_stopping:
                    self._ready.wait()
                if not self._queue:
                    return
                items, self._queue = self._queue, deque()
            try:
                self._perform(items)
            except Exception as error:  # noqa: BLE001  # any failure is reported: see above
                self._on_broken(_unexpected(f"the {self.name} thread", error))


class ArchiveFloor(NamedTuple):
    """The progress of the archive, which limits removals (S5).

    Segments after `log_index` stay, and snapshots from `snapshot_index`, if it is not None.
    """

    log_index: int
    snapshot_index: int | None


class _Seal:
    """A request for a new segment, so that the rows before it can be archived."""


class Disk:
    """Performs the core's disk effects on a `Storage`."""

    def __init__(
        self, storage: Storage, deliver: Deliver, on_broken: Callable[[str], None]
    ) -> None:
        self.storage = storage
        self._deliver = deliver
        self._on_broken = on_broken
        self.writes = 0
        self.batches = 0
        self.bytes = 0
        self.is_full = False  # a ballot waits for space
        self._floor: ArchiveFloor | None = None  # None: no archive
        self._removal_index = 0  # up to which the core last permitted removals
        self._log = Worker("wal", self._perform_log, on_broken)
        self._ballots = Worker("ballot", self._perform_ballots, on_broken)
        self._readers = Worker("reader", self._perform_reads, on_broken)
        self._checkpoints = Worker("checkpoint", self._perform_checkpoints, on_broken)
        self._workers = (self._log, self._ballots, self._readers, self._checkpoints)
        for worker in self._workers:
            worker.start()

    def take(self, effect: Any) -> None:
        """Queue an effect for its thread."""
        kind = type(effect)
        if kind is fx.StoreBallot:
            self._ballots.put(effect)
        elif kind is fx.ReadLog:
            self._readers.put(effect)
        elif kind is fx.WriteSnapshot:
            self._checkpoints.put(effect)
        else:
            self._log.put(effect)

    def seal(self) -> None:
        self._log.put(_Seal())

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and perform removals that waited (S5)."""
        before, self._floor = self._floor, floor
        if before is not None and before.log_index < floor.log_index and self._removal_index:
            self._log.put(fx.RemoveSegments(self._removal_index))

    def stop(self) -> None:
        """Finish all queued work except a checkpoint, and end all threads."""
        self._checkpoints.ask_to_stop()
        for worker in self._workers:
            worker.stop()

    # --- log ----------------------------------------------------------------------------------

    def _perform_log(self, items: "deque[Any]") -> None:
        while items:
            effect = items.popleft()
            try:
                if type(effect) is fx.WriteLog:
                    self._write(effect, items)
                elif type(effect) is _Seal:
                    self._seal()
                else:
                    self._deliver([self._change(effect)])
            except Exception as error:  # noqa: BLE001  # any failure is reported: see above
                self._on_broken(_unexpected(type(effect).__name__, error))

    def _write(self, first: fx.WriteLog, items: "deque[Any]") -> None:
        batches: list[LogBatch] = list(first.batches)
        while items and type(items[0]) is fx.WriteLog and items[0].epoch == first.epoch:
            batches += items.popleft().batches
        if batches[0].first_index > self.storage.last_index + 1:
            return  # queued after a failed write, whose failure covers it (D4, D5)
        try:
            self.storage.write(batches)
        except DiskFull as error:
            self._deliver([fx.LogFailed(first.epoch, True, str(error))])
            return
        except DiskError as error:
            self._deliver([fx.LogFailed(first.epoch, False, str(error))])
            return
        self.writes += 1
        self.batches += len(batches)
        self._deliver([fx.LogWritten(first.epoch, batches[-1].last_index)])

    def _seal(self) -> None:
        with contextlib.suppress(DiskFull):  # the next check retries
            self.storage.rotate()

    def _change(self, effect: Any) -> Any:
        storage = self.storage
        if type(effect) is fx.Rewind:
            report = storage.rewind(effect.after_index, effect.first_cut_term)
            return fx.Rewound(effect.epoch, report.rows, report.file or "")
        if type(effect) is fx.InstallSnapshot:
            storage.install_snapshot(effect.vclock, effect.bodies)
            self._remove_snapshots(effect.log_index)
            return fx.SnapshotInstalled(effect.epoch)
        assert type(effect) is fx.RemoveSegments, effect
        floor = self._floor
        self._removal_index = max(self._removal_index, effect.log_index)
        index = effect.log_index if floor is None else min(effect.log_index, floor.log_index)
        storage.remove_segments_before(index)
        self._remove_snapshots(storage.snapshot_index)
        return fx.SegmentsRemoved(storage.first_available_index + 1)

    def _remove_snapshots(self, index: int) -> None:
        kept = self._floor.snapshot_index if self._floor is not None else None
        self.storage.remove_snapshots_before(index if kept is None else min(index, kept))

    # --- ballots and readers --------------------------------------------------------------------

    def _perform_ballots(self, items: "deque[Any]") -> None:
        # A ballot replaces earlier queued ones.
        last = items[-1]
        while not self._is_stored(last):
            # No promise relies on an unstored ballot: requests that need it wait for space (D5).
            newer = self._ballots.wait_for_more(FULL_RETRY_S)
            if newer is None:
                return
            last = newer[-1] if newer else last

    def _is_stored(self, ballot: fx.StoreBallot) -> bool:
        """Store a ballot, and return whether the disk had space for it.

        Any other error ends the process run.
        """
        try:
            self.storage.store_ballot(ballot.data)
        except DiskFull:
            self.is_full = True
            return False
        except DiskError as error:
            self._on_broken(f"cannot store the ballot: {error}")
            return True
        self.is_full = False
        self._deliver([fx.BallotStored(ballot.sequence)])
        return True

    def _perform_reads(self, items: "deque[Any]") -> None:
        for effect in items:
            self._read(effect)

    def _read(self, effect: fx.ReadLog) -> None:
        try:
            batches = self.storage.read(effect.after_index, effect.bytes_max)
        except (NotInLog, RowError):
            # RowError: the reader's position is inside a transaction, where no replica stops.
            self._deliver([fx.LogRead(effect.reader, None)])
            return
        except (DiskError, CorruptionError) as error:
            self._on_broken(str(error))
            return
        self._deliver([fx.LogRead(effect.reader, batches)])

    # --- checkpoints ----------------------------------------------------------------------------

    def _perform_checkpoints(self, items: "deque[Any]") -> None:
        for effect in items:
            reason = ""
            try:
                self.storage.write_snapshot(effect.vclock, self._until_stopped(effect.bodies))
            except _Stopped:
                return
            except DiskError as error:
                reason = str(error)
            self._deliver([fx.SnapshotWritten(effect.log_index, reason)])

    def _until_stopped(self, bodies: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bodies until the worker stops, and then abort the checkpoint.

        A restart therefore does not wait for a checkpoint.

        Raises:
            _Stopped: the worker is stopping.
        """
        for body in bodies:
            if self._checkpoints.is_stopping:
                raise _Stopped
            yield body


class _Stopped(Exception):  # noqa: N818  # nothing failed
    """The process run ends during a checkpoint."""


def _unexpected(what: str, error: Exception) -> str:
    return f"{what} failed: {type(error).__name__}: {error}"
