"""The disk of a simulated broker: the production storage, in virtual time, on a disk with faults.

Batches are those of production (`DiskQueue`). A batch is applied at the end of its time. A crash
before interrupts it at any call of the file system. Each start checks the state that the storage
recovers: that after the last batch that was reported as durable, or after the one under way.
"""

import hashlib
import zlib
from collections.abc import Callable
from random import Random

from qsync_broker.disk import attempt
from qsync_broker.disk_queue import RETRY_S, DiskQueue, FailedTask, RetryTask, StoredTask
from qsync_broker.holdings import RecoveredHoldings
from qsync_broker.operations import NO_SUM, SpoolKey, SpoolOperation
from qsync_broker.recovered import recovered_journals
from qsync_broker.storage.errors import StorageDamaged
from qsync_broker.storage.log import PREFIX
from qsync_broker.storage.storage import SpoolStorage, StorageSettings
from qsync_sim.journals.clock import SECOND
from qsync_sim.journals.files import FileFault, FilePowerLoss, SimFiles
from qsync_sim.journals.states import NO_STATES, States, keys_of

DIRECTORY = "/data"
SETTINGS = StorageSettings(segment_bytes=4_000, inline_bytes=3_000, flush_threads=1, open_files=4)
"""Small, so that schedules begin new segments, flush files, and close descriptors."""
CALLS_MAX = 6
"""An interruption meets one of this number of calls of a batch or recovery."""


class SimBrokerDisk:
    """The disk of one broker, and the storage that its process has opened.

    Attributes:
        slow_ns: additional time of each batch.
        is_failing: whether many writes fail.
        is_flush_failing: whether flushes fail, until the process ends.
        space_problem: why the disk takes no further content, or "".
        is_busy: whether a batch with operations is under way.
        trace: a checksum of all calls of the file system: equal schedules have equal ones.
        on_stored: gets the token of each batch that is durable.
        on_failed: gets the reason if nothing can be written any more.
    """

    def __init__(self, rng: Random, after: Callable[[int, Callable[[], None]], None]) -> None:
        self.slow_ns = 0
        self.is_failing = False
        self.is_flush_failing = False
        self.space_problem = ""
        self.is_busy = False
        self.trace = 0
        self.on_stored: Callable[[int], None] = lambda token: None
        self.on_failed: Callable[[str], None] = lambda reason: None
        self._rng = rng
        self._after = after
        self._run = 0
        self._calls_left: int | None = None  # before the fault that interrupts
        self._interrupted = ""  # a part of the paths of these calls
        self._interruption: FileFault = "power"
        self.wipe()

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does. No process uses it."""
        self._files = SimFiles(self._rng.randrange(1 << 32))
        self._files.on_call = self._on_call
        self._storage: SpoolStorage | None = None
        self._queue = DiskQueue()
        self._batch: list[SpoolOperation] = []
        self._is_retrying = False
        self._durable = NO_STATES
        self._allowed = [self._durable]

    # --- processes ----------------------------------------------------------------------------

    def open(self) -> list[RecoveredHoldings]:
        """Return the journals as a broker finds them at its start.

        Sometimes the power fails again during the recovery, or a call fails and the process ends.

        Raises:
            AssertionError: the storage has lost or changed something.
        """
        self._queue, self._is_retrying = DiskQueue(), False
        while True:
            rng = self._files.rng
            if rng.random() < 0.2:
                self._interrupt(rng.choice(("power", "power_after", "fail")))
            try:
                self._storage = SpoolStorage.open(DIRECTORY, SETTINGS, self._files)
                break
            except StorageDamaged as error:
                raise AssertionError(f"a crash has damaged the storage: {error}") from error
            except (FilePowerLoss, OSError):
                self._end(is_power=rng.random() < 0.5)
            finally:
                self._calls_left = None
        self._check_recovered(self._storage)
        return recovered_journals(self._storage)

    def crash(self, is_power: bool = False) -> None:
        """End the process, and interrupt the batch that is under way.

        Args:
            is_power: whether the machine loses power, and with it all that is not flushed.
        """
        self._run += 1
        if self.is_busy and self._storage is not None:
            self._interrupt("power")
            try:
                self._attempt(self._storage)
            except FilePowerLoss:
                pass
            finally:
                self._calls_left = None
        self.is_busy = self.is_flush_failing = False
        self._end(is_power)

    def _end(self, is_power: bool) -> None:
        self._storage = None
        if is_power:
            self._files.crash()
        else:
            self._files.kill()

    # --- writing ------------------------------------------------------------------------------

    def submit(self, token: int, operations: list[SpoolOperation]) -> None:
        """Queue operations."""
        self._queue.submit(token, operations)
        if not self._is_retrying:
            self._next()

    def _next(self) -> None:
        batch = self._queue.next_batch()
        if batch is not None:
            self._batch = batch
            self.is_busy = bool(batch)
            self._allowed = [self._durable, self._durable.after(batch)]
            run, time_ns = self._run, self._rng.randrange(50_000, 3_000_000) + self.slow_ns
            self._after(time_ns, lambda: self._finish(run))

    def _finish(self, run: int) -> None:
        """Apply the batch, unless its process has ended."""
        if run != self._run or self._storage is None:
            return
        outcome = self._attempt(self._storage)
        self.is_busy = False
        match outcome:
            case StoredTask(token):
                self._durable = self._allowed[-1]
                self._allowed = [self._durable]
                self._check_contents()
                self.on_stored(token)
                if run == self._run:
                    self._next()
            case RetryTask():
                self._is_retrying = True
                self._after(int(RETRY_S * SECOND), lambda: self._repeat(run))
            case FailedTask(reason):
                self.on_failed(reason)

    def _repeat(self, run: int) -> None:
        if run == self._run:
            self._is_retrying = False
            self._next()

    def _attempt(self, storage: SpoolStorage) -> StoredTask | RetryTask | FailedTask:
        failure = attempt(storage, self._batch)
        self._note_calls()
        if failure is not None and not isinstance(failure.error, OSError):
            raise AssertionError(f"the storage refuses {self._batch}") from failure.error
        return self._queue.on_result(failure)

    def _note_calls(self) -> None:
        self.trace = zlib.crc32(repr(self._files.calls).encode(), self.trace)
        self._files.calls.clear()

    # --- faults -------------------------------------------------------------------------------

    def _interrupt(self, fault: FileFault) -> None:
        """Let one of the next calls of the file system fail, often a write or flush of the log."""
        rng = self._files.rng
        self._interrupted = rng.choice(("", PREFIX))
        self._calls_left = rng.randrange(2 if self._interrupted else CALLS_MAX)
        self._interruption = fault

    def _on_call(self, call: str, path: str) -> FileFault | None:
        rng = self._files.rng
        if self._calls_left is not None and self._interrupted in path:
            self._calls_left -= 1
            if self._calls_left < 0:
                return self._interruption
        if self._storage is None:  # it recovers
            return None
        if self.is_flush_failing and call in ("sync", "sync_dir") and rng.random() < 0.5:
            return "fail"
        if self.is_failing and call in ("write", "create", "rename") and rng.random() < 0.5:
            return rng.choice(("fail", "full"))
        return None

    # --- reading ------------------------------------------------------------------------------

    def read(self, key: SpoolKey, begin: int, end: int) -> bytes:
        """Return the bytes of a spool between two offsets, fewer if it does not have them."""
        if self._storage is None:
            return b""
        try:
            return self._storage.read(key, begin, end - begin)
        except FileNotFoundError:
            return b""

    def has(self, journal: str, begin: int, end: int) -> bool:
        """Return whether all bytes between two offsets are durable, even without a process."""
        return self._durable.covers(journal, begin, end)

    # --- checks -------------------------------------------------------------------------------

    def _check_recovered(self, storage: SpoolStorage) -> None:
        recovered = storage.recovered
        assert not recovered.lost, f"confirmed bytes are lost: {recovered.lost}"
        found = States.of(recovered)
        assert found in self._allowed, f"the storage recovers {found}, not one of {self._allowed}"
        for completed, problem in storage.verify_completed():
            assert problem is None, f"{completed} is damaged: {problem}"
        self._durable = found
        self._allowed = [found]

    def _check_contents(self) -> None:
        """Check that the files of the batch's spools have the right bytes."""
        for key in keys_of(self._batch):
            expected = self._durable.end_of(key)
            if expected is not None:
                end, checksum = expected
                data = self.read(key, key.begin, end)
                found = hashlib.sha1(data).digest() if end > key.begin else NO_SUM
                assert found == checksum, f"the sum of {key} up to {end} does not fit its content"
