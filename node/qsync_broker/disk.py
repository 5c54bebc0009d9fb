"""The disk thread of a broker: it carries out the batches of a `DiskQueue`.

If a batch fails, for example because the disk is full, the thread retries it until it succeeds:
clients wait, and nothing is lost. After a failed flush, or an operation that contradicts the
spools, nothing may be written again, and the process must restart.
"""

import logging
import threading
from collections.abc import Callable

from qsync_broker.disk_queue import (
    RETRY_S,
    DiskFailure,
    DiskQueue,
    FailedTask,
    RetryTask,
    StoredTask,
)
from qsync_broker.operations import SpoolOperation
from qsync_broker.storage.storage import SpoolStorage

log = logging.getLogger("qsync.broker")


def attempt(storage: SpoolStorage, batch: list[SpoolOperation]) -> DiskFailure | None:
    """Apply a batch, and return why that failed, or None."""
    if not batch:
        return None
    try:
        storage.apply(batch)
    except OSError as error:
        return DiskFailure(error, is_final=storage.has_failed)
    except Exception as error:  # noqa: BLE001  # no broker may run without its disk thread
        return DiskFailure(error, is_final=True)
    return None


class BrokerDisk:
    """The thread, and its queue."""

    def __init__(
        self,
        storage: SpoolStorage,
        on_stored: Callable[[int], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Start the thread.

        Args:
            storage: the spools.
            on_stored: called in the thread with the greatest token of each finished batch.
            on_failed: called in the thread if nothing can be written any more.
        """
        self._storage = storage
        self._on_stored = on_stored
        self._on_failed = on_failed
        self._condition = threading.Condition()
        self._queue = DiskQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def submit(self, token: int, operations: list[SpoolOperation]) -> None:
        """Queue operations."""
        with self._condition:
            self._queue.submit(token, operations)
            self._condition.notify()

    def stop(self) -> None:
        """Finish the queued operations, and end the thread."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            failure = attempt(self._storage, batch)
            if failure is not None and not isinstance(failure.error, OSError):
                log.error("an operation contradicts the spools on disk", exc_info=failure.error)
            with self._condition:
                outcome = self._queue.on_result(failure)
            match outcome:
                case StoredTask(token):
                    self._on_stored(token)
                case RetryTask(error):
                    log.error("writing spools failed: %s; free or repair the disk; retrying", error)
                    if self._is_stopped_within(RETRY_S):
                        return
                case FailedTask(reason):
                    self._on_failed(reason)
                    return

    def _take(self) -> list[SpoolOperation] | None:
        """Wait for the next batch; return None if the thread ends."""
        with self._condition:
            while (batch := self._queue.next_batch()) is None and not self._is_stopping:
                self._condition.wait()
            return batch

    def _is_stopped_within(self, seconds: float) -> bool:
        """Wait, and return whether the thread must end. New operations do not end the wait."""
        with self._condition:
            return self._condition.wait_for(lambda: self._is_stopping, seconds)
