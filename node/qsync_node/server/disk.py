"""The disk threads: one for each lane of the scheduler (log/scheduler.py).

A thread asks its lane for a task, performs it, and delivers the result to the event loop. It
survives every exception. An unexpected one, such as a `MemoryError`, ends the process run:
`on_broken` restarts the member from disk. A thread that ended silently would leave the member
running without votes, checkpoints or rows for its followers.
"""

import threading
import time
from collections.abc import Callable, Iterator

from qsync_node.consensus import effects as fx
from qsync_node.histogram import Histogram
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.scheduler import AnyLane, ArchiveFloor, DiskTask, Scheduler
from qsync_node.storage.storage import Storage

Deliver = Callable[[list[fx.Input]], None]
"""A function that passes inputs to the event loop. The threads call it."""


class Worker(threading.Thread):
    """The thread of one lane.

    The lock guards the lane, whose queue the event loop fills. `perform` runs without it.
    """

    def __init__(
        self,
        lane: AnyLane,
        perform: Callable[[DiskTask], object],
        deliver: Deliver,
        on_broken: Callable[[str], None],
    ) -> None:
        super().__init__(name=lane.name, daemon=True)
        self._lane = lane
        self._perform = perform
        self._deliver = deliver
        self._on_broken = on_broken
        self._ready = threading.Condition()
        self._is_submitted = False  # since the last task was taken
        self._retry_after_s = 0.0
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def change(self, change: Callable[[], None]) -> None:
        """Change the lane's queue, and wake the thread."""
        with self._ready:
            change()
            self._is_submitted = True
            self._ready.notify()

    def stop(self) -> None:
        """Finish the queued tasks, then end. A task that waits for space does not delay the end."""
        self.ask_to_stop()
        self.join()

    def ask_to_stop(self) -> None:
        with self._ready:
            self._is_stopping = True
            self._ready.notify()

    def run(self) -> None:
        while True:
            try:
                if not self._work():
                    return
            except _Stopped:
                continue  # the next turn ends
            except Exception as error:  # noqa: BLE001  # any failure is reported: see above
                self._retry_after_s = 0.0
                self._on_broken(f"the {self.name} thread failed: {type(error).__name__}: {error}")

    def _work(self) -> bool:
        """Perform the next task, and return whether there was one: if not, the thread ends."""
        task = self._wait_for_task()
        if task is None:
            return False
        result: object
        try:
            result = self._perform(task)
        except (DiskError, CorruptionError) as error:
            result = error
        with self._ready:
            outcome = self._lane.on_result(task, result)
            self._retry_after_s = outcome.retry_after_s
        if outcome.inputs:
            self._deliver(outcome.inputs)
        if outcome.broken:
            self._on_broken(outcome.broken)
        return True

    def _wait_for_task(self) -> DiskTask | None:
        with self._ready:
            if self._retry_after_s and not self._is_submitted:
                if not self._is_stopping:
                    self._ready.wait(self._retry_after_s)
                if self._is_stopping and not self._is_submitted:
                    return None
            while True:
                self._is_submitted = False
                task = self._lane.next_task()
                if task is not None or self._is_stopping:
                    return task
                self._ready.wait()


class Disk:
    """Performs the core's disk effects on a `Storage`."""

    def __init__(
        self,
        storage: Storage,
        deliver: Deliver,
        on_broken: Callable[[str], None],
        flushes: Histogram | None = None,
    ) -> None:
        """Start the threads.

        Args:
            storage: the data directory.
            deliver: passes inputs to the event loop.
            on_broken: ends the process run.
            flushes: receives the duration of each write of the log with its flush.
        """
        self.storage = storage
        self._flushes = flushes or Histogram()
        self.scheduler = scheduler = Scheduler()
        self._workers: dict[AnyLane, Worker] = {}
        for lane in scheduler.lanes:
            perform = self._performer(lane)
            self._workers[lane] = Worker(lane, perform, deliver, on_broken)
        for worker in self._workers.values():
            worker.start()

    def _performer(self, lane: AnyLane) -> Callable[[DiskTask], object]:
        def perform(task: DiskTask) -> object:
            if isinstance(task, fx.WriteLog):
                return self._timed_write(lane, task)
            if isinstance(task, fx.WriteSnapshot):
                task = task._replace(bodies=self._until_stopped(task.bodies))
            return lane.perform(self.storage, task)

        return perform

    def _timed_write(self, lane: AnyLane, task: fx.WriteLog) -> object:
        begun_ns = time.monotonic_ns()
        result = lane.perform(self.storage, task)
        self._flushes.observe((time.monotonic_ns() - begun_ns) * 1e-9)
        return result

    @property
    def writes(self) -> int:
        """Return the number of flushed writes of the log."""
        return self.scheduler.log.writes

    @property
    def batches(self) -> int:
        """Return the number of batches in these writes."""
        return self.scheduler.log.batches

    @property
    def is_full(self) -> bool:
        """Whether a ballot waits for space."""
        return self.scheduler.ballots.is_full

    def take(self, effect: fx.Effect) -> None:
        """Queue an effect for its thread."""
        self._submit(self.scheduler.lane_of(effect), effect)

    def seal(self) -> None:
        """Begin a new segment, so that the rows before it can be archived."""
        log = self.scheduler.log
        self._workers[log].change(log.seal)

    def check_files(self) -> None:
        """Check on the thread of the log that its files still exist."""
        log = self.scheduler.log
        self._workers[log].change(log.check_files)

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and perform removals that waited (S5)."""
        log = self.scheduler.log
        self._workers[log].change(lambda: log.allow(floor))

    def _submit(self, lane: AnyLane, effect: fx.Effect | DiskTask) -> None:
        self._workers[lane].change(lambda: lane.submit(effect))

    def stop(self) -> None:
        """Finish all queued work except a checkpoint, and end all threads."""
        self._workers[self.scheduler.checkpoints].ask_to_stop()
        for worker in self._workers.values():
            worker.stop()

    def _until_stopped(self, bodies: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bodies until the worker stops, and then abort the checkpoint.

        A restart therefore does not wait for a checkpoint.

        Raises:
            _Stopped: the worker is stopping.
        """
        worker = self._workers[self.scheduler.checkpoints]
        for body in bodies:
            if worker.is_stopping:
                raise _Stopped
            yield body


class _Stopped(Exception):  # noqa: N818  # nothing failed
    """The process run ends during a checkpoint."""
