"""Scheduling of disk operations: the next task of each lane, and the consequences of its result.

The decisions are here, without threads, clocks and I/O. A driver submits the core's effects. For
each lane, it asks for the next task, performs it with the storage, and reports the result. Threads
drive the lanes in production (server/disk.py), virtual time in the simulator (qsync_sim/shell.py).

    lane         tasks                                   order
    -----------  --------------------------------------  -------------------------------------------
    log          writes, truncations, snapshots that     as submitted; adjacent writes of one epoch
                 replace the log, removals, new          are joined to one write and flush (D6)
                 segments
    ballots      ballots                                 the newest one replaces those that wait
    reads        rows for slow followers                 as submitted
    checkpoints  checkpoints                             as submitted

A lane has one task under way at a time, and no lane waits for another: a slow write of the log does
not delay term and vote (E6), and a follower is served during a checkpoint.

    result of a task                   consequence
    ---------------------------------  -------------------------------------------------------------
    success                            inputs for the core
    a log write fails                  `LogFailed`; later writes are passed over, because rows
                                       before them are missing (D4, D5)
    a ballot finds the disk full       it waits, or a newer one in its place: no promise relies on a
                                       ballot that is not stored (D5)
    a read is of rows that are gone    the core sends a snapshot
    a checkpoint fails                 the core knows; the log continues
    a file of the log is gone          the process run ends
    any other failure                  the process run ends: only the disk is trusted (D4)
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

from qsync_node.consensus import effects as fx
from qsync_node.format.batch import LogBatch
from qsync_node.format.row import RowError
from qsync_node.storage.errors import CorruptionError, DiskError, DiskFull, NotInLog
from qsync_node.storage.storage import Storage

FULL_RETRY_S = 0.25


class Seal(NamedTuple):
    """A request for a new segment, so that the rows before it can be archived."""


class CheckFiles(NamedTuple):
    """A request to check that all files of the log still exist."""


class ArchiveFloor(NamedTuple):
    """The progress of the archive, which limits removals (S5).

    Segments after `log_index` stay, and snapshots from `snapshot_index`, if it is not None. If a
    snapshot has replaced the log since, the new log begins after `log_start`: its snapshot stays.
    """

    log_index: int
    snapshot_index: int | None
    log_start: int


class TaskResult(NamedTuple):
    """The consequences of a task, for its driver.

    Attributes:
        inputs: inputs for the core.
        broken: why the process run has to end, or "".
        retry_after_s: time after which the lane has its next task, if nothing is submitted before.
    """

    inputs: list[fx.Input]
    broken: str = ""
    retry_after_s: float = 0.0


NOTHING = TaskResult([])

LogTask = fx.WriteLog | fx.Rewind | fx.InstallSnapshot | fx.RemoveSegments | Seal | CheckFiles
LogResult = fx.LogWritten | fx.Rewound | fx.SnapshotInstalled | fx.SegmentsRemoved | None
DiskTask = LogTask | fx.StoreBallot | fx.ReadLog | fx.WriteSnapshot

TaskT = TypeVar("TaskT")
TaskResultT = TypeVar("TaskResultT")


class Lane(ABC, Generic[TaskT, TaskResultT]):
    """A queue of tasks, of which one is under way at a time."""

    name: str

    @abstractmethod
    def submit(self, effect: TaskT) -> None:
        """Queue an effect of the core."""

    @property
    @abstractmethod
    def has_task(self) -> bool:
        """Whether `next_task` returns one."""

    @abstractmethod
    def next_task(self) -> TaskT | None:
        """Take the next task, or return None if there is none."""

    @abstractmethod
    def perform(self, storage: Storage, task: TaskT) -> TaskResultT:
        """Perform a task, which may take long, and return its result.

        Raises:
            DiskError, CorruptionError: the task has failed.
        """

    @abstractmethod
    def on_result(self, task: TaskT, result: TaskResultT | Exception) -> TaskResult:
        """Take the result of `perform`, or the error that it has raised."""


AnyLane = Lane[Any, Any]
"""A lane, for a driver that performs the tasks of all of them."""


class QueueLane(Lane[TaskT, TaskResultT]):
    """A lane whose tasks are performed as submitted."""

    def __init__(self) -> None:
        self._queue: deque[TaskT] = deque()

    def submit(self, effect: TaskT) -> None:
        self._queue.append(effect)

    @property
    def has_task(self) -> bool:
        return bool(self._queue)

    def next_task(self) -> TaskT | None:
        return self._queue.popleft() if self._queue else None


class LogLane(QueueLane[LogTask, LogResult]):
    """Changes of the log, in the order in which the core has decided them."""

    name = "wal"

    def __init__(self, may_join: Callable[[], bool] = lambda: True) -> None:
        """`may_join` returns whether a write joins the one before it; tests vary the result."""
        super().__init__()
        self._may_join = may_join
        self._floor: ArchiveFloor | None = None  # None: no archive
        self._removal_index = 0  # up to which the core last permitted removals
        self._submitted_once: set[type] = set()  # tasks that wait or are under way
        self.writes = 0
        self.batches = 0

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and submit a removal that waited (S5)."""
        before, self._floor = self._floor, floor
        if before is not None and before != floor and self._removal_index:
            self.submit(fx.RemoveSegments(self._removal_index))

    def check_files(self) -> None:
        """Submit a check of the files, unless one waits: a hung disk collects no checks."""
        self._submit_once(CheckFiles())

    def seal(self) -> None:
        """Submit the begin of a new segment, unless one waits."""
        self._submit_once(Seal())

    def _submit_once(self, task: CheckFiles | Seal) -> None:
        if type(task) not in self._submitted_once:
            self._submitted_once.add(type(task))
            self.submit(task)

    def next_task(self) -> LogTask | None:
        first = super().next_task()
        if not isinstance(first, fx.WriteLog):
            return first
        batches = list(first.batches)
        while (following := self._next_write(first.epoch)) is not None:
            batches += following.batches
        indexes = pairwise(batches)
        assert all(b.first_index == a.last_index + 1 for a, b in indexes), "W2: writes are in order"
        return fx.WriteLog(first.epoch, batches)

    def _next_write(self, epoch: int) -> fx.WriteLog | None:
        """Take the next task if it is a write that joins one of the epoch."""
        following = self._queue[0] if self._queue else None
        if not isinstance(following, fx.WriteLog) or following.epoch != epoch:
            return None
        if not self._may_join():
            return None
        self._queue.popleft()
        return following

    def perform(self, storage: Storage, task: LogTask) -> LogResult:
        if isinstance(task, fx.WriteLog):
            return self._write(storage, task)
        if isinstance(task, fx.Rewind):
            report = storage.rewind(task.after_index, task.first_cut_term)
            return fx.Rewound(task.epoch, report.rows, report.file or "")
        if isinstance(task, fx.InstallSnapshot):
            storage.install_snapshot(task.vclock, task.bodies)
            self._remove_snapshots(storage, task.log_index)
            return fx.SnapshotInstalled(task.epoch)
        if isinstance(task, Seal):
            with suppress(DiskFull):  # the next check retries
                storage.rotate()
            return None
        if isinstance(task, CheckFiles):
            storage.check_files()
            return None
        return self._remove(storage, task.log_index)

    def _write(self, storage: Storage, task: fx.WriteLog) -> fx.LogWritten | None:
        if task.batches[0].first_index > storage.last_index + 1:
            return None  # queued after a failed write, whose failure covers it (D4, D5)
        storage.write(task.batches)
        assert storage.last_index == task.batches[-1].last_index, "D1: reported rows are on disk"
        return fx.LogWritten(task.epoch, task.batches[-1].last_index)

    def _remove(self, storage: Storage, log_index: int) -> fx.SegmentsRemoved:
        # In this order: `allow` in between submits the removal again.
        self._removal_index = max(self._removal_index, log_index)
        floor = self._floor
        index = log_index if floor is None else min(log_index, floor.log_index)
        assert floor is None or index <= floor.log_index, "S5: only archived files are removed"
        storage.remove_segments_before(index)
        self._remove_snapshots(storage, storage.snapshot_index)
        return fx.SegmentsRemoved(storage.first_available_index + 1)

    def _remove_snapshots(self, storage: Storage, index: int) -> None:
        floor = self._floor
        if floor is not None:
            if floor.snapshot_index is not None:
                index = min(index, floor.snapshot_index)
            if floor.log_start < storage.first_available_index:
                index = min(index, storage.first_available_index)
        storage.remove_snapshots_before(index)

    def on_result(self, task: LogTask, result: LogResult | Exception) -> TaskResult:
        self._submitted_once.discard(type(task))
        if isinstance(task, fx.WriteLog) and isinstance(result, fx.LogWritten):
            self.writes += 1
            self.batches += len(task.batches)
        if not isinstance(result, Exception):
            return TaskResult([result]) if result is not None else NOTHING
        if isinstance(task, fx.WriteLog):
            return TaskResult([fx.LogFailed(task.epoch, isinstance(result, DiskFull), str(result))])
        return TaskResult([], f"{type(task).__name__} failed: {type(result).__name__}: {result}")


class BallotLane(Lane[fx.StoreBallot, None]):
    """Ballots. The newest one that waits contains the others."""

    name = "ballot"

    def __init__(self) -> None:
        self._newest: fx.StoreBallot | None = None
        self.is_full = False  # a ballot waits for space

    def submit(self, effect: fx.StoreBallot) -> None:
        newest = self._newest
        assert newest is None or newest.sequence < effect.sequence, "D2: a ballot has all before it"
        self._newest = effect

    @property
    def has_task(self) -> bool:
        return self._newest is not None

    def next_task(self) -> fx.StoreBallot | None:
        task, self._newest = self._newest, None
        return task

    def perform(self, storage: Storage, task: fx.StoreBallot) -> None:
        storage.store_ballot(task.data)

    def on_result(self, task: fx.StoreBallot, result: Exception | None) -> TaskResult:
        if isinstance(result, DiskFull):
            self.is_full = True
            self._newest = self._newest or task
            return TaskResult([], retry_after_s=FULL_RETRY_S)
        if isinstance(result, Exception):
            return TaskResult([], f"cannot store the ballot: {result}")
        self.is_full = False
        return TaskResult([fx.BallotStored(task.sequence)])


class ReadLane(QueueLane[fx.ReadLog, list[LogBatch] | None]):
    """Reads of the log for followers that are too slow for the rows in memory."""

    name = "reader"

    def perform(self, storage: Storage, task: fx.ReadLog) -> list[LogBatch] | None:
        try:
            return storage.read(task.after_index, task.bytes_max)
        except (NotInLog, RowError):
            # RowError: the reader's position is inside a transaction, where no replica stops.
            return None

    def on_result(self, task: fx.ReadLog, result: list[LogBatch] | Exception | None) -> TaskResult:
        if isinstance(result, Exception):
            return TaskResult([], str(result))
        return TaskResult([fx.LogRead(task.reader, result)])


class CheckpointLane(QueueLane[fx.WriteSnapshot, None]):
    """Checkpoints, each of which may take minutes."""

    name = "checkpoint"

    def perform(self, storage: Storage, task: fx.WriteSnapshot) -> None:
        storage.write_snapshot(task.vclock, task.bodies)

    def on_result(self, task: fx.WriteSnapshot, result: Exception | None) -> TaskResult:
        if isinstance(result, CorruptionError):
            return TaskResult([], f"the checkpoint failed: {result}")
        reason = str(result) if isinstance(result, DiskError) else ""
        return TaskResult([fx.SnapshotWritten(task.log_index, reason)])


class Scheduler:
    """The lanes of one member."""

    def __init__(self, may_join: Callable[[], bool] = lambda: True) -> None:
        self.log = LogLane(may_join)
        self.ballots = BallotLane()
        self.reads = ReadLane()
        self.checkpoints = CheckpointLane()
        self.lanes: tuple[AnyLane, ...] = (self.log, self.ballots, self.reads, self.checkpoints)

    def lane_of(self, effect: fx.Effect | DiskTask) -> AnyLane:
        """Return the lane that performs an effect."""
        kind = type(effect)
        if kind is fx.StoreBallot:
            return self.ballots
        if kind is fx.ReadLog:
            return self.reads
        if kind is fx.WriteSnapshot:
            return self.checkpoints
        return self.log
