"""The disk operations of a simulated process: a driver of `storage/scheduler.py` in virtual time.

Each lane of the production's scheduler performs one task at a time, as the threads do: writes that
queue up behind one another go to the disk together, and ballots, reads and checkpoints continue
beside them.
A task is taken at the beginning of its delay, as a thread takes it, and has its effect at the end.
A checkpoint takes long, and draws its rows while the state changes.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from random import Random
from typing import Any, Protocol

from qsync_node.consensus import effects as fx
from qsync_node.storage.errors import DiskError
from qsync_node.storage.rewind import read_saved_rows
from qsync_node.storage.scheduler import AnyLane, ArchiveFloor, DiskTask, Scheduler
from qsync_node.storage.storage import Storage
from qsync_sim.disk import PowerLoss, SimDisk
from qsync_sim.timeline import Timeline

JOINED = 0.8
"""Probability with which a write joins the one before it."""
STORAGE_CALLS = 6
"""Disk calls of a task whose number is not known yet."""
WRITES_AT_ONCE = 4
"""Of a checkpoint, between two measurements of how slow the disk is."""


class Disks:
    """Properties of all disks of a schedule.

    Attributes:
        calls: the most disk calls of a task so far, by its type.
        spread: of the time of a task, relative to the delay of its disk.
        checkpoint_delays: writes of the longest checkpoint.
        lost_starts: probability that the power is lost during a start.
    """

    def __init__(self) -> None:
        self.calls: dict[type[Any], int] = {}
        self.spread = 1.0
        self.checkpoint_delays = 1
        self.lost_starts = 0.0

    def note_calls(self, task: type[Any], calls: int) -> None:
        """Note how many disk calls a task took, for power losses at any of them."""
        if calls > self.calls.get(task, 0):
            self.calls[task] = calls


class TaskOwner(Protocol):
    """An instance, as the disk operations of its process use it (shell.py)."""

    name: str
    rng: Random
    disk: SimDisk
    disk_delay_ns: int
    lag_ns: int
    fail_next_write: str
    ballot_on_disk: bytes

    def step(self, inputs: list[Any]) -> None: ...


class DiskTasks:
    """The tasks of one process run.

    Attributes:
        scheduler: the scheduler of production.
        under_way: the task of each lane that has one.
        checkpoint: the one under way.
        write_since_ns: when the write began that is under way, 0 without one.
    """

    def __init__(
        self,
        owner: TaskOwner,
        storage: Storage,
        timeline: Timeline,
        disks: Disks,
        on_broken: Callable[[], None],
    ) -> None:
        """Begin without a task.

        Args:
            owner: the instance.
            storage: its files.
            timeline: the clock.
            disks: properties of all disks.
            on_broken: is called when the process must restart, because a write failed (D4).
        """
        self.scheduler = Scheduler(lambda: owner.rng.random() < JOINED)
        self.under_way: dict[AnyLane, DiskTask] = {}
        self.checkpoint: fx.WriteSnapshot | None = None
        self.write_since_ns = 0
        self._owner = owner
        self._storage = storage
        self._timeline = timeline
        self._disks = disks
        self._on_broken = on_broken
        self._is_ended = False

    def submit(self, effect: fx.Effect) -> None:
        """Queue an effect of the core."""
        if type(effect) is fx.WriteSnapshot:
            self._begin_checkpoint(effect)
            return
        lane = self.scheduler.lane_of(effect)
        lane.submit(effect)
        self._run(lane)

    def seal(self) -> None:
        """Begin a new segment, so that the rows before it can be archived."""
        self.scheduler.log.seal()
        self._run(self.scheduler.log)

    def allow(self, floor: ArchiveFloor) -> None:
        """Permit the removal of archived files only, and perform removals that waited (S5)."""
        self.scheduler.log.allow(floor)
        self._run(self.scheduler.log)

    # --- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """End with the process: nothing has an effect any more."""
        self._is_ended = True

    def finish(self) -> None:
        """Finish all tasks except a checkpoint, and write the clean mark (D3)."""
        with suppress(DiskError):
            lanes: list[AnyLane] = [
                self.scheduler.log,
                self.scheduler.ballots,
                self.scheduler.reads,
            ]
            for lane in lanes:
                task = self.under_way.pop(lane, None) or lane.next_task()
                while task is not None:
                    lane.perform(self._storage, task)
                    task = lane.next_task()
            if not self._storage.failed:
                self._storage.clean_stop()

    def lose_power(self) -> None:
        """Cut the power during some of the tasks under way, each at any of its disk calls."""
        if self.checkpoint is not None and self._owner.rng.random() < 0.3:
            self._tear(self.scheduler.checkpoints, self.checkpoint)
        for lane, task in list(self.under_way.items()):
            if self._owner.rng.random() < 0.7:
                self._tear(lane, task)

    def _tear(self, lane: AnyLane, task: DiskTask) -> None:
        """Cut the power at one of the disk calls of a task."""
        disk = self._owner.disk
        self._timeline.count(f"power lost during {type(task).__name__}")
        calls = self._disks.calls.get(type(task), STORAGE_CALLS)
        disk.on_call = power_cut(self._owner.rng, calls)
        with suppress(PowerLoss, DiskError):
            lane.perform(self._storage, task)
        disk.on_call = None

    # --- lanes --------------------------------------------------------------------------------

    def _delay(self) -> int:
        owner, spread = self._owner, self._disks.spread
        return owner.lag_ns + int(owner.disk_delay_ns * (1 + spread * (owner.rng.random() - 0.5)))

    def _run(self, lane: AnyLane) -> None:
        """Take the lane's next task, unless one is under way, and perform it after a delay."""
        if lane.has_task and lane not in self.under_way:
            self._perform_after(lane, self._delay())

    def _perform_after(self, lane: AnyLane, delay_ns: int) -> None:
        task = lane.next_task()
        assert task is not None, "a lane without tasks is not run"
        self.under_way[lane] = task
        if type(task) is fx.WriteLog:
            self.write_since_ns = self._timeline.now_ns
        self._timeline.after(delay_ns, partial(self._perform, lane, task))

    def _perform(self, lane: AnyLane, task: DiskTask) -> None:
        if self._is_ended:
            return
        del self.under_way[lane]
        outcome = lane.on_result(task, self._result_of(lane, task))
        if outcome.broken:
            self._on_broken()
            return
        if outcome.inputs:
            self._owner.step(outcome.inputs)
        if self._is_ended:
            return
        if outcome.retry_after_s:
            self._timeline.after(int(outcome.retry_after_s * 1e9), partial(self._retry, lane))
        else:
            self._run(lane)

    def _retry(self, lane: AnyLane) -> None:
        if not self._is_ended:
            self._run(lane)

    def _result_of(self, lane: AnyLane, task: DiskTask) -> object:
        """Perform a task with the faults that wait for it; return its result or its error."""
        disk = self._owner.disk
        if type(task) is fx.WriteLog:
            self.write_since_ns = 0
            self._prepare_write(task)
        elif type(task) is fx.WriteSnapshot:
            self.checkpoint = None
        before = disk.calls
        removed = b""
        if type(task) is fx.Rewind:
            removed = _rows_after(self._storage, task.after_index)
        try:
            result = lane.perform(self._storage, task)
        except DiskError as error:
            return error
        finally:
            disk.on_call = None
        self._disks.note_calls(type(task), disk.calls - before)
        if removed:
            self._check_saved(result, removed)
        if type(task) is fx.StoreBallot:
            self._owner.ballot_on_disk = task.data
        return result

    def _check_saved(self, report: fx.Rewound, removed: bytes) -> None:
        """Check that a truncation has saved the rows that it removed (L6)."""
        owner = self._owner
        if not report.file or read_saved_rows(owner.disk, report.file) != removed:
            self._timeline.fail(f"L6: {owner.name} has not saved {len(removed)} bytes of rows")

    def _prepare_write(self, task: fx.WriteLog) -> None:
        owner, last = self._owner, self._storage.last_index
        first = task.batches[0].first_index
        assert first > last, f"{owner.name} writes {first} twice"
        fault = owner.fail_next_write
        if not fault or first > last + 1:
            return
        owner.fail_next_write = ""

        def hook(call: str, path: str) -> Any:
            if fault == "flush":
                return "fail" if call == "sync" else None
            return fault if call in ("append", "sync") else None

        owner.disk.on_call = hook

    # --- checkpoints --------------------------------------------------------------------------

    def _begin_checkpoint(self, effect: fx.WriteSnapshot) -> None:
        writes, most = 1, self._disks.checkpoint_delays
        if most > 1:
            drawn = list(islice(effect.bodies, self._owner.rng.randrange(40)))
            effect = effect._replace(bodies=chain(drawn, effect.bodies))
            writes = self._owner.rng.randint(1, most)
        self.checkpoint = effect
        self._continue_checkpoint(effect, writes)

    def _continue_checkpoint(self, effect: fx.WriteSnapshot, writes: int) -> None:
        """Wait for the next writes of a checkpoint, as long as the disk takes at that time.

        A disk that was slow when the checkpoint began does not slow what follows its recovery.
        """
        if self._is_ended:
            return
        now = min(writes, WRITES_AT_ONCE)
        if now == writes:
            self.scheduler.checkpoints.submit(effect)
            self._perform_after(self.scheduler.checkpoints, now * self._delay())
            return
        rest = partial(self._continue_checkpoint, effect, writes - now)
        self._timeline.after(now * self._delay(), rest)


def power_cut(rng: Random, calls: int) -> Callable[[str, str], Any]:
    """Return a hook that cuts the power at one of the next `calls` disk calls, or after them."""
    left = rng.randrange(calls + 1)

    def hook(call: str, path: str) -> Any:
        nonlocal left
        left -= 1
        return "power" if left < 0 else None

    return hook


def _rows_after(storage: Storage, index: int) -> bytes:
    return b"".join(batch.data for batch in storage.read(index, 1 << 62))
