"""Which operation of the archive is next, and what follows from its result (S5, S6).

state     operation        it succeeds, next                     it fails, next
--------  ---------------  ------------------------------------  ----------------------------------
opening   `LoadManifest`           listing                               opening, after a pause
idle      none             listing, at the next `observe`
listing   `ListFiles`      tidying if due, else shipping         listing, after a pause
tidying   `ReadChanges`    shipping                              listing, after a pause
shipping  `Describe`       storing; shipping if the file is      listing, after a pause
                           gone; idle when nothing is due
storing   `PutFile`        recording                             listing, after a pause
recording `PutManifest`    shipping                              listing, after a pause

A file is listed in the manifest only after it has been stored, and it may be removed here only
after the manifest has been stored. An operation that fails may still have been carried out: the
next pass repeats it and finds the file in place.

This module is pure. The archiver's thread (`server/archiver.py`) and the simulator perform the
operations.
"""

from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from qsync_node.archive.compaction import ChangesFile
from qsync_node.archive.manifest import FileEntry, Manifest
from qsync_node.archive.uploads import (
    Contents,
    Upload,
    archived_index,
    needed_snapshot,
    plan_uploads,
    still_named,
)
from qsync_node.consensus.history import History, TermStart
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import SegmentRange

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
TIDY_EVERY_S = 3600.0


class ArchiveView(NamedTuple):
    """The state of the node at one time: its log, its confirmed index, its history of terms."""

    segments: list[SegmentRange]
    confirmed_index: int
    starts: list[TermStart]


class LoadManifest(NamedTuple):
    """Read the manifest; the result is a `Manifest`."""


class ListFiles(NamedTuple):
    """List snapshots and truncated rows on disk; the result is a `Contents` with `segments`."""

    segments: list[SegmentRange]


class ReadChanges(NamedTuple):
    """Read the record of compactions; the result is a `ChangesFile`."""


class Describe(NamedTuple):
    """Describe a file; the result is its `FileEntry`, or None if a newer one has replaced it."""

    upload: Upload
    start_term: int


class PutFile(NamedTuple):
    """Store a file durably."""

    entry: FileEntry
    path: str


class PutManifest(NamedTuple):
    """Replace the manifest durably. Its last entry is new."""

    manifest: Manifest

    @property
    def added(self) -> FileEntry:
        """The new entry."""
        return self.manifest.files[-1]


UploadOperation = LoadManifest | ListFiles | ReadChanges | Describe | PutFile | PutManifest


class Shipping:
    """The archive of one process run.

    One thread calls all functions but `observe`, which another one may call at any time.

    Attributes:
        floor: the progress that limits removals, None before it is known.
        archived_index: the last index whose rows, and all before, are archived.
        manifest: the stored manifest, None before it has been read.
        uploads: number of stored files.
    """

    def __init__(self) -> None:
        self.floor: ArchiveFloor | None = None
        self.archived_index = 0
        self.manifest: Manifest | None = None
        self.uploads = 0
        self._next_view: ArchiveView | None = None
        self._view: ArchiveView | None = None  # of the pass under way
        self._contents: Contents | None = None
        self._due: deque[Upload] = deque()
        self._following: UploadOperation | None = None
        self._tidy_at_s = 0.0
        self._retry_at_s = 0.0
        self._retry_wait_s = RETRY_FIRST_S

    def observe(self, view: ArchiveView) -> None:
        """Take note of the newest state of the node."""
        self._next_view = view

    @property
    def is_idle(self) -> bool:
        """Whether the last pass has ended without a failure."""
        return self._following is None and self._retry_wait_s == RETRY_FIRST_S

    def pause_s(self, now_s: float) -> float:
        """Return the time until an operation may be due after a failure, in seconds."""
        return max(self._retry_at_s - now_s, 0.0)

    def next_operation(self, now_s: float) -> UploadOperation | None:
        """Return the operation to perform now, or None until the next `observe`.

        Args:
            now_s: monotonic clock.
        """
        if now_s < self._retry_at_s:
            return None
        if self._following is None:
            self._view, self._next_view = self._next_view, None
            if self._view is None:
                return None
            self._following = (
                LoadManifest() if self.manifest is None else ListFiles(self._view.segments)
            )
        return self._following

    def on_done(self, operation: UploadOperation, result: Any, now_s: float, wall_s: float) -> None:
        """Process the result of an operation.

        Args:
            operation: the one that `next_operation` returned.
            result: as the operation's class states.
            now_s: monotonic clock.
            wall_s: seconds since 1970, noted in the manifest.
        """
        match operation:
            case LoadManifest():
                self.manifest = result
                self._following = ListFiles(self._segments())
            case ListFiles():
                self._contents = result
                self._following = ReadChanges() if now_s >= self._tidy_at_s else self._begin()
            case ReadChanges():
                self._tidy(result, now_s)
                self._following = self._begin()
            case Describe(upload, _):
                self._following = (
                    self._next_upload() if result is None else PutFile(result, upload.path)
                )
            case PutFile(entry, _):
                self._following = self._record(entry, wall_s)
            case PutManifest(manifest):
                self.manifest = manifest
                self.uploads += 1
                self._note_progress()
                self._following = self._next_upload()

    def on_failed(self, now_s: float) -> None:
        """Begin again with a new view, after a pause that doubles with each failure in a row."""
        self._following = None
        self._retry_at_s = now_s + self._retry_wait_s
        self._retry_wait_s = min(self._retry_wait_s * 2, RETRY_MAX_S)

    # --- one pass -----------------------------------------------------------------------------

    def _segments(self) -> list[SegmentRange]:
        assert self._view is not None, "a pass has a view"
        return self._view.segments

    def _begin(self) -> UploadOperation | None:
        """Plan the uploads of this pass."""
        assert self._view is not None, "a pass has a view"
        assert self._contents is not None, "files are listed first"
        assert self.manifest is not None, "the manifest is read first"
        self._note_progress()
        planned = plan_uploads(self._contents, self._view.confirmed_index, self.manifest.files)
        self._due = deque(planned)
        return self._next_upload()

    def _next_upload(self) -> UploadOperation | None:
        if not self._due:
            self._retry_wait_s = RETRY_FIRST_S
            return None
        assert self._view is not None, "a pass has a view"
        upload = self._due.popleft()
        term = upload.start_term
        if term is None:
            term = History(self._view.starts).term_at(upload.after_index)
        return Describe(upload, term)

    def _record(self, entry: FileEntry, wall_s: float) -> PutManifest:
        manifest = self.manifest
        assert manifest is not None, "the manifest is read first"
        files = [*manifest.files, replace(entry, archived_at=wall_s)]
        return PutManifest(replace(manifest, files=files, updated_at=wall_s))

    def _tidy(self, changes: ChangesFile, now_s: float) -> None:
        """Drop entries of files that compactions deleted or merged. The next upload stores this."""
        assert self._contents is not None, "files are listed first"
        assert self.manifest is not None, "the manifest is read first"
        self._tidy_at_s = now_s + TIDY_EVERY_S
        contents = self._contents
        paths = [one.path for one in contents.segments]
        paths += [*contents.snapshots, *(path for path, _ in contents.rollbacks)]
        at_home = [path.rsplit("/", 1)[1] for path in paths]
        self.manifest.files = still_named(self.manifest.files, changes, at_home)

    def _note_progress(self) -> None:
        assert self._contents is not None, "files are listed first"
        assert self.manifest is not None, "the manifest is read first"
        files = self.manifest.files
        index = archived_index(self._contents, files)
        log_start = self._contents.segments[0].after_index
        self.floor = ArchiveFloor(index, needed_snapshot(self._contents, files), log_start)
        self.archived_index = max(self.archived_index, index)


class Sealing:
    """When the last segment is sealed, so that its rows can be archived."""

    def __init__(self, interval_ns: int) -> None:
        """Let no row wait for longer than `interval_ns`."""
        self._interval_ns = interval_ns
        self._path = ""  # the last segment with rows
        self._seen_ns = 0  # when it was seen first

    def is_due(self, last: SegmentRange, now_ns: int, seal_up_to: int) -> bool:
        """Return whether to seal the last segment.

        Args:
            last: the segment.
            now_ns: monotonic clock.
            seal_up_to: index of rows that must not wait.
        """
        if last.last_index == last.after_index:
            return False
        if self._path != last.path:
            self._path, self._seen_ns = last.path, now_ns
        return last.after_index < seal_up_to or now_ns - self._seen_ns >= self._interval_ns
