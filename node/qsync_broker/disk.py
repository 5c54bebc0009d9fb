"""The disk thread of a broker: it carries out operations on spools in batches.

All operations that wait become one batch, so that one flush of the commit log serves all journals
(group commit). If a batch fails, for example because the disk is full, the thread retries it until
it succeeds: clients wait, and nothing is lost. After a failed flush, or an operation that
contradicts the spools, nothing may be written again, and the process must restart.
"""

import logging
import threading
from collections.abc import Callable

from qsync_broker.operations import Operation
from qsync_broker.storage.storage import Storage

log = logging.getLogger("qsync.broker")

RETRY_S = 1.0
BATCH_MAX = 4096


class Disk:
    """The thread, and its queue."""

    def __init__(
        self,
        storage: Storage,
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
        self._queue: list[tuple[int, list[Operation]]] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def submit(self, token: int, operations: list[Operation]) -> None:
        """Queue operations."""
        with self._condition:
            self._queue.append((token, operations))
            self._condition.notify()

    def stop(self) -> None:
        """Finish the queued operations, and end the thread."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._is_stopping:
                    self._condition.wait()
                if not self._queue:
                    return
                taken, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
            batch = [operation for _, operations in taken for operation in operations]
            if batch and not self._is_applied(batch):
                return
            self._on_stored(taken[-1][0])

    def _is_applied(self, batch: list[Operation]) -> bool:
        """Apply a batch, and return False if that is impossible or no longer wanted."""
        while True:
            try:
                self._storage.apply(batch)
                return True
            except OSError as error:
                if self._storage.has_failed:
                    self._on_failed(f"writing spools failed: {error}")
                    return False
                log.error("writing spools failed: %s; free or repair the disk; retrying", error)
                with self._condition:
                    if self._is_stopping:
                        return False
                    self._condition.wait(RETRY_S)
            except Exception as error:  # no broker may run without this thread
                log.exception("an operation contradicts the spools on disk")
                self._on_failed(f"writing spools failed: {error}")
                return False
