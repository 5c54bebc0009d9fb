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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from qsync_node.archive.location import ArchiveError
from qsync_node.core.history import History, TermStart
from qsync_node.errors import QsyncError
from qsync_node.format.manifest import ROLLBACK, Manifest
from qsync_node.log.archive import (
    Contents,
    archived_index,
    needed_snapshot,
    plan_uploads,
    still_named,
)
from qsync_node.log.archive_store import ArchiveStore
from qsync_node.log.rewind import ROLLBACK_DIRECTORY
from qsync_node.log.scheduler import ArchiveFloor
from qsync_node.log.storage import SegmentRange, Storage
from qsync_node.server.config import NodeConfig
from qsync_node.server.describer import Describer
from qsync_node.server.disk import Disk
from qsync_node.server.logs import Log

LOOK_EVERY_S = 0.5
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
TIDY_EVERY_S = 3600.0
STOP_PATIENCE_S = 5.0
TURN_CHECK_S = 0.1
_SAMPLES_MAX = 4096


_turns: dict[Path, threading.Lock] = {}
"""One lock per data directory: one archiver thread at a time in this process."""


class View(NamedTuple):
    """The state that the event loop passed most recently."""

    segments: list[SegmentRange]
    confirmed_index: int
    starts: list[TermStart]


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
        self._manifest: Manifest | None = None
        self._store: ArchiveStore | None = None
        self._describer = Describer()
        self._view: View | None = None
        self._ready = threading.Condition()
        self._is_stopping = False
        self._seal_seen = ("", 0.0)  # the last segment with rows, and the time of its first row
        self._waiting: deque[tuple[float, int]] = deque()  # (time, confirmed index) not archived
        self._tidy_at = 0.0
        self.archived_index = 0
        self.error = ""
        self.failures = 0
        self.uploads = 0
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)
        self._thread.start()

    # --- the event loop's side ------------------------------------------------------------------

    def look(self, confirmed_index: int, starts: list[TermStart], seal_up_to: int = 0) -> None:
        """Pass the state of the node to the thread. The event loop calls this twice a second.

        Args:
            confirmed_index: the last confirmed index.
            starts: the history of terms.
            seal_up_to: index of rows that must not wait; a segment with such rows is sealed now.
        """
        segments = self._storage.segments()
        now = time.monotonic()
        self._seal_when_due(segments[-1], now, segments[-1].after_index < seal_up_to)
        if confirmed_index > max(self.archived_index, self._newest_waiting()):
            if len(self._waiting) >= _SAMPLES_MAX:
                self._waiting = deque(list(self._waiting)[::2])
            self._waiting.append((now, confirmed_index))
        with self._ready:
            self._view = View(segments, confirmed_index, starts)
            self._ready.notify()

    def _newest_waiting(self) -> int:
        return self._waiting[-1][1] if self._waiting else 0

    def _seal_when_due(self, last: SegmentRange, now: float, must_seal: bool) -> None:
        if last.last_index == last.after_index:
            return
        if self._seal_seen[0] != last.path:
            self._seal_seen = (last.path, now)
        if must_seal or now - self._seal_seen[1] >= self._settings.interval / 1e9:
            self._disk.seal()

    def status(self, confirmed_index: int) -> dict[str, Any]:
        manifest = self._manifest
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
        wait_s = RETRY_FIRST_S
        while True:
            with self._ready:
                while self._view is None and not self._is_stopping:
                    self._ready.wait()
                view, self._view = self._view, None
                if self._is_stopping or view is None:
                    return
            try:
                try:
                    self._work(view)
                finally:
                    self._describer.close()
            except (QsyncError, OSError) as error:
                self._fail(str(error))
                with self._ready:
                    self._ready.wait_for(lambda: self._is_stopping, wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)
                continue
            except Exception as error:  # noqa: BLE001  # the node keeps running and reports it
                self._fail(f"{type(error).__name__}: {error}")
                continue
            wait_s = RETRY_FIRST_S
            self.error = ""

    def _fail(self, reason: str) -> None:
        self.failures += 1
        if reason != self.error:
            self._log("archive_failed", reason=reason)
        self.error = reason

    def _work(self, view: View) -> None:
        if self._manifest is None or self._store is None:
            self._store = ArchiveStore(
                self._settings.url, self._config.replicaset_uuid, self._uuid, self._config.name
            )
            self._manifest = self._store.load()
        manifest, store = self._manifest, self._store
        contents = self._contents(view.segments)
        if time.monotonic() >= self._tidy_at:
            self._tidy(manifest, store, contents)
        self._note_progress(contents, manifest)
        history = History(view.starts)
        for upload in plan_uploads(contents, view.confirmed_index, manifest.files):
            if self._is_stopping:
                return
            term = upload.start_term
            if term is None:
                term = history.term_at(upload.after_index)
            try:
                entry = self._describer.describe(upload, term)
            except ArchiveError:
                if upload.kind == ROLLBACK or Path(upload.path).exists():
                    raise
                continue  # a newer snapshot has replaced the file
            store.put_file(entry, upload.path)
            if self._is_stopping:
                return  # the file is in the archive under its own name; the successor finds it
            now = time.time()
            grown = [*manifest.files, replace(entry, archived_at=now)]
            store.put_manifest(replace(manifest, files=grown, updated_at=now))
            manifest.files, manifest.updated_at = grown, now
            self.uploads += 1
            self._note_progress(contents, manifest)
            self._log("archived", file=entry.name, rows=entry.rows, bytes=entry.size)

    def _tidy(self, manifest: Manifest, store: ArchiveStore, contents: Contents) -> None:
        """Drop entries of files that compactions deleted or merged. The next upload stores this."""
        self._tidy_at = time.monotonic() + TIDY_EVERY_S
        paths = [one.path for one in contents.segments]
        paths += [*contents.snapshots, *(path for path, _ in contents.rollbacks)]
        home = [Path(path).name for path in paths]
        manifest.files = still_named(manifest.files, store.changes(), home)

    def _contents(self, segments: list[SegmentRange]) -> Contents:
        directory = self._config.directory
        snapshots = [str(path) for path in sorted(directory.glob("*.snap"))]
        rollbacks: list[tuple[str, int]] = []
        for path in sorted((directory / ROLLBACK_DIRECTORY).glob("*.xlog")):
            rollbacks.append((str(path), path.stat().st_size))
        return Contents(segments, snapshots, rollbacks)

    def _note_progress(self, contents: Contents, manifest: Manifest) -> None:
        index = archived_index(contents, manifest.files)
        self._disk.allow(ArchiveFloor(index, needed_snapshot(contents, manifest.files)))
        self.archived_index = max(self.archived_index, index)


def without_secrets(url: str) -> str:
    """Return `url` without its user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
