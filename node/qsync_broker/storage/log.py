"""The commit log: segments that all journals of a broker share.

One `append` is one frame, one write and one flush, for any number of journals. A crash can
therefore damage only the last frame of the last segment. A segment begins with the whole state, and
it gets its name only once this state is durable. Older segments are kept as long as they have the
only durable copy of some content.

After a failed write, the segment is truncated to its last durable byte, and the batch can be
repeated. After a failed flush, or if the truncation fails, nothing is written until the directory
is reopened.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from qsync_broker.storage.catalogue import SpoolCatalogue
from qsync_broker.storage.files import Files, Handle, join
from qsync_broker.storage.frames import (
    HEADER_BYTES,
    Header,
    StoredFrame,
    StoredFrameError,
    decode_header,
    encode_frame,
    encode_header,
    find_frame,
    frames,
)
from qsync_broker.storage.health import Health
from qsync_broker.storage.records import SpoolRecord, encode_records, state_records

PREFIX = "commits-"
IN_PROGRESS = ".inprogress"
SALT_BYTES = 8


class OlderSegment(NamedTuple):
    """A segment before the current one."""

    path: str
    size: int


class Current(NamedTuple):
    """The segment that receives frames. `state_end` is the end of its whole state."""

    header: Header
    path: str
    handle: Handle
    state_end: int


def segment_name(number: int) -> str:
    return f"{PREFIX}{number:016x}"


class CommitLog:
    """The segments of one directory."""

    def __init__(
        self, files: Files, directory: str, health: Health, current: Current, end: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._health = health
        self._current = current
        self._end = end  # of the last durable frame
        self.older: list[OlderSegment] = []

    @property
    def number(self) -> int:
        return self._current.header.number

    @property
    def new_bytes(self) -> int:
        """Return the bytes in the current segment after the state at its beginning."""
        return self._end - self._current.state_end

    @property
    def used_bytes(self) -> int:
        return self._end + sum(one.size for one in self.older)

    def append(self, records: list[SpoolRecord], contents: Sequence[bytes]) -> None:
        """Write one frame durably.

        Raises:
            OSError: the frame is not part of the log.
        """
        current = self._current
        meta = encode_records(records)
        parts = encode_frame(current.header.salt, self._end, meta, contents)
        try:
            current.handle.write(parts, self._end)
        except OSError:
            self._take_back()
            raise
        with self._health.flushing():
            current.handle.sync()
        self._end += sum(map(len, parts))

    def _take_back(self) -> None:
        """Remove the remains of a refused write.

        No flush is needed. The next frame begins at the same position, and a frame that a crash
        brings back was not reported as refused for any other batch.
        """
        with self._health.flushing():
            self._current.handle.truncate(self._end)

    def rotate(self, catalogue: SpoolCatalogue) -> None:
        """Continue in a new segment, which begins with the state of `catalogue`."""
        former = OlderSegment(self._current.path, self._end)
        number = self.number + 1
        current, end = create_segment(self._files, self._directory, self._health, number, catalogue)
        self._current.handle.close()
        self._current, self._end = current, end
        self.older.append(former)

    def remove_older(self) -> None:
        """Remove all segments except the current one.

        The oldest is removed first, with a flush of the directory after each, so that a crash
        leaves contiguous segments.
        """
        while self.older:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self.older[0].path)
            with self._health.flushing():
                self._files.sync_dir(self._directory)
            del self.older[0]

    def close(self) -> None:
        self._current.handle.close()


def create_segment(
    files: Files, directory: str, health: Health, number: int, catalogue: SpoolCatalogue
) -> tuple[Current, int]:
    """Create a durable segment that begins with the whole state. Return it with its end."""
    state = list(state_records(catalogue))
    header = Header(number, os.urandom(SALT_BYTES), len(state))
    path = join(directory, segment_name(number))
    temporary = path + IN_PROGRESS
    handle = files.open(temporary, is_new=True)
    try:
        try:
            handle.truncate(0)
            handle.write([encode_header(header)], 0)
            end = HEADER_BYTES
            for records in state:
                parts = encode_frame(header.salt, end, encode_records(records), ())
                handle.write(parts, end)
                end += sum(map(len, parts))
            handle.sync()
        finally:
            handle.close()
        files.rename(temporary, path)
    except OSError:
        # Frees the space on a full disk. No flush of an existing file failed, so that the log
        # stays usable.
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    # A crash after a failed flush may leave the new segment or not: refuse frames in either.
    with health.flushing():
        files.sync_dir(directory)
        return Current(header, path, files.open(path), end), end


class CommitSegment(NamedTuple):
    """A segment as recovery reads it.

    Attributes:
        state_end: the end of the whole state at the beginning.
        end: the end of the last valid frame.
        damage: the first invalid frame, if the last bytes are invalid.
    """

    path: str
    header: Header
    frames: list[StoredFrame]
    state_end: int
    end: int
    damage: StoredFrameError | None


def read_segment(files: Files, path: str) -> CommitSegment:
    """Read the frames of a segment, up to the first invalid one.

    Raises:
        FrameError: the header is invalid, or a valid frame follows an invalid one.
    """
    data = files.view(path)
    header = decode_header(data)
    found: list[StoredFrame] = []
    damage = None
    end = HEADER_BYTES
    try:
        for frame in frames(data, header.salt):
            found.append(frame)
            end = frame.end
    except StoredFrameError as error:
        if (later := find_frame(data, header.salt, error.position)) is not None:
            why = f"{error.why}, and a valid record follows at {later}"
            raise StoredFrameError(error.position, why) from None
        damage = error
    if len(found) < header.state_frames:
        # The whole state was durable before the segment had its name: this is no torn record.
        raise StoredFrameError(end, "the state at the beginning of the segment is incomplete")
    state_end = found[header.state_frames - 1].end if header.state_frames else HEADER_BYTES
    return CommitSegment(path, header, found, state_end, end, damage)


def rewrite_tail(files: Files, segment: CommitSegment, health: Health) -> Handle:
    """Return the last segment for appending, with a durable last frame.

    A frame after the last successful flush can be in the page cache only, even as clean pages if
    that flush has failed. Writing the same bytes makes the next flush effective. All earlier frames
    were flushed, because a frame is only written after a successful flush of the former one.
    """
    handle = files.open(segment.path)
    if segment.damage is not None:
        handle.truncate(segment.end)
    start = segment.frames[-1].position if segment.frames else 0
    handle.write([handle.read(start, segment.end - start)], start)
    with health.flushing():
        handle.sync()
    return handle
