"""The thread that uploads files to the archive, and its interface to the rest of the node.

Twice a second, the event loop passes the confirmed index and the history of terms. It also seals
the last segment if its oldest row has waited for `archive.interval`. This thread does all I/O,
waits and retries. A child process decodes rows (`describe_main`). While the archive is
unavailable, no data is lost and no request is blocked: local files stay, and `status` reports the
error.

A node that restarts within its process does not wait for a running upload, so a thread can outlive
its archiver. Its list of files is then older than its successor's, and a manifest written from it
would omit files that are no longer local. Two rules prevent that. A stopped thread writes no
manifest, and the successor's thread reads the manifest only after the earlier thread has ended.
"""

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from qsync_node.archive.describer import Describer
from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import ROLLBACK, FileEntry
from qsync_node.archive.store import ArchiveStore
from qsync_node.archive.uploader import (
    ArchiveView,
    Describe,
    ListFiles,
    LoadManifest,
    PutFile,
    PutManifest,
    ReadChanges,
    Sealing,
    Shipping,
    UploadOperation,
)
from qsync_node.archive.uploads import Contents, Upload, own_contents
from qsync_node.consensus.history import TermStart
from qsync_node.errors import QsyncError
from qsync_node.server.config import NodeConfig
from qsync_node.server.disk import Disk
from qsync_node.server.logs import Log
from qsync_node.storage.rewind import ROLLBACK_DIRECTORY
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import SegmentRange, Storage

POLL_EVERY_S = 0.5
STOP_PATIENCE_S = 5.0
TURN_CHECK_S = 0.1
_SAMPLES_MAX = 4096


_turns: dict[Path, threading.Lock] = {}
"""One lock per data directory: one archiver thread at a time in this process."""


class Archiver:
    """The archiver of one instance, for one incarnation of the node."""

    def __init__(
        self, config: NodeConfig, uuid: str, storage: Storage, disk: Disk, log: Log
    ) -> None:
        assert config.archive is not None, "created only with an archive"
        self._settings = config.archive
        self._config = config
        self._uuid = uuid
        self._storage = storage
        self._disk = disk
        self._log = log
        self._store: ArchiveStore | None = None
        self._describer = Describer()
        self._shipping = Shipping()
        self._sealing = Sealing(self._settings.interval)
        self._floor: ArchiveFloor | None = None  # the last one passed to the disk
        self._ready = threading.Condition()
        self._is_stopping = False
        self._waiting: deque[tuple[float, int]] = deque()  # (time, confirmed index) not archived
        self.error = ""
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)
        self._thread.start()

    # --- the event loop's side ------------------------------------------------------------------

    def observe(self, confirmed_index: int, starts: list[TermStart], seal_up_to: int = 0) -> None:
        """Pass the state of the node to the thread. The event loop calls this twice a second.

        Args:
            confirmed_index: the last confirmed index.
            starts: the history of terms.
            seal_up_to: index of rows that must not wait; a segment with such rows is sealed now.
        """
        segments = self._storage.segments()
        if self._sealing.is_due(segments[-1], time.monotonic_ns(), seal_up_to):
            self._disk.seal()
        if confirmed_index > max(self.archived_index, self._newest_waiting()):
            if len(self._waiting) >= _SAMPLES_MAX:
                self._waiting = deque(list(self._waiting)[::2])
            self._waiting.append((time.monotonic(), confirmed_index))
        with self._ready:
            self._shipping.observe(ArchiveView(segments, confirmed_index, starts))
            self._ready.notify()

    @property
    def archived_index(self) -> int:
        """The last index whose rows, and all before, are archived."""
        return self._shipping.archived_index

    @property
    def uploads(self) -> int:
        """Number of files that this process run has archived."""
        return self._shipping.uploads

    def _newest_waiting(self) -> int:
        return self._waiting[-1][1] if self._waiting else 0

    def status(self, confirmed_index: int) -> dict[str, Any]:
        manifest = self._shipping.manifest
        files = manifest.files if manifest is not None else []
        return {
            "url": without_secrets(self._settings.url),
            "archived_index": self.archived_index,
            "lag_rows": max(confirmed_index - self.archived_index, 0),
            "lag_seconds": round(self._lag_s(), 3),
            "files": len(files),
            "bytes": sum(entry.size for entry in files),
            "archived_at": max((entry.archived_at for entry in files), default=0.0),
            "error": self.error,
        }

    def _lag_s(self) -> float:
        while self._waiting and self._waiting[0][1] <= self.archived_index:
            self._waiting.popleft()
        return time.monotonic() - self._waiting[0][0] if self._waiting else 0.0

    def stop(self) -> None:
        with self._ready:
            self._is_stopping = True
            self._ready.notify()
        self._thread.join(STOP_PATIENCE_S)

    # --- the thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        turn = _turns.setdefault(self._config.directory, threading.Lock())
        while not turn.acquire(timeout=TURN_CHECK_S):
            if self._is_stopping:
                return
        try:
            self._ship()
        finally:
            turn.release()

    def _ship(self) -> None:
        try:
            while (operation := self._next()) is not None:
                try:
                    self._succeed(operation, self._perform(operation))
                except (QsyncError, OSError) as error:
                    self._fail(str(error))
                except Exception as error:  # noqa: BLE001  # the node keeps running and reports it
                    self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._describer.close()

    def _next(self) -> UploadOperation | None:
        """Wait for the next operation, and return it; None when the archiver stops."""
        with self._ready:
            while not self._is_stopping:
                operation = self._shipping.next_operation(time.monotonic())
                if operation is not None:
                    return operation
                self._describer.close()  # it is not needed for some time
                self._ready.wait(self._shipping.pause_s(time.monotonic()) or None)
        return None

    def _succeed(self, operation: UploadOperation, result: object) -> None:
        if self._is_stopping:
            return  # a stored file is found under its own name by the successor
        # Without the lock: planning takes long with many files, and `observe` must not wait for it.
        self._shipping.on_done(operation, result, time.monotonic(), time.time())
        floor = self._shipping.floor
        if floor is not None and floor != self._floor:
            self._disk.allow(floor)
            self._floor = floor
        if isinstance(operation, PutManifest):
            added = operation.added
            self._log("archived", file=added.name, rows=added.rows, bytes=added.size)
        if self._shipping.is_idle:
            self.error = ""

    def _fail(self, reason: str) -> None:
        self._shipping.on_failed(time.monotonic())
        self.failures += 1
        is_new, self.error = reason != self.error, reason
        if is_new:
            self._log("archive_failed", reason=reason)

    def _perform(self, operation: UploadOperation) -> Any:
        """Perform an operation, and return its result.

        Raises:
            ArchiveError: the archive is unavailable, or contains other content.
        """
        if self._store is None:
            self._store = ArchiveStore(
                self._settings.url, self._config.replicaset_uuid, self._uuid, self._config.name
            )
        match operation:
            case LoadManifest():
                return self._store.load()
            case ListFiles(segments):
                return self._contents(segments)
            case ReadChanges():
                return self._store.changes()
            case Describe(upload, start_term):
                return self._describe(upload, start_term)
            case PutFile(entry, path):
                self._store.put_file(entry, path)
            case PutManifest(manifest):
                self._store.put_manifest(manifest)
        return None

    def _describe(self, upload: Upload, start_term: int) -> FileEntry | None:
        try:
            return self._describer.describe(upload, start_term)
        except ArchiveError:
            if upload.kind == ROLLBACK or Path(upload.path).exists():
                raise
            return None  # a newer snapshot has replaced the file

    def _contents(self, segments: list[SegmentRange]) -> Contents:
        directory = self._config.directory
        rollbacks = sorted((directory / ROLLBACK_DIRECTORY).glob("*.xlog"))
        return own_contents(
            segments,
            [str(path) for path in sorted(directory.glob("*.snap"))],
            [(str(path), path.stat().st_size) for path in rollbacks],
        )


def without_secrets(url: str) -> str:
    """Return `url` without its user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
