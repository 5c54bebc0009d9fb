"""The state after the records of all segments, and the content that only the log has durably.

Content in a record is written to the file of its spool without a flush. Recovery therefore writes
it again, unless a later record has discarded or replaced it.
"""

from itertools import pairwise
from typing import NamedTuple

from qsync_broker.operations import CompletedSpool, Copied, Drop, Roll, SpoolKey
from qsync_broker.storage.catalogue import CatalogueView, SpoolCatalogue, journal_of
from qsync_broker.storage.errors import StorageDamaged
from qsync_broker.storage.files import Files, join
from qsync_broker.storage.frames import StoredFrame, StoredFrameError
from qsync_broker.storage.log import PREFIX, CommitSegment, read_segment
from qsync_broker.storage.records import (
    Included,
    OpenRecord,
    SpoolRecord,
    decode_records,
    restore,
)


class ReplayPiece(NamedTuple):
    """Content of a spool in the segment `number`."""

    offset: int
    data: memoryview
    number: int

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class SpoolReplay:
    """The effect of the records so far."""

    def __init__(self) -> None:
        self.catalogue = SpoolCatalogue()
        self.pieces: dict[SpoolKey, list[ReplayPiece]] = {}

    def segment(self, segment: CommitSegment) -> None:
        """Apply the records of a segment.

        Raises:
            StorageDamaged: a record contradicts the earlier ones.
        """
        self.catalogue = SpoolCatalogue()
        for frame in segment.frames:
            try:
                self._frame(frame, segment.header.number)
            except ValueError as error:
                raise StorageDamaged(segment.path, frame.position, str(error)) from error

    def _frame(self, frame: StoredFrame, number: int) -> None:
        view = CatalogueView(self.catalogue)
        position = 0
        for record in decode_records(frame.meta):
            if isinstance(record, OpenRecord | CompletedSpool):
                restore(self.catalogue, record)
            else:
                size = record.size if isinstance(record, Included) else 0
                self._apply(view, record, frame.contents[position : position + size], number)
                position += size
        view.merge()

    def _apply(
        self, view: CatalogueView, record: SpoolRecord, data: memoryview, number: int
    ) -> None:
        match record:
            case Included(state, size):
                if (spool := view.open_spool(journal_of(state.key))) is not None:
                    self._trim(state.key, min(spool.state.end, state.end))
                view.commit(state, written=state.end)
                if size:
                    self.pieces.setdefault(state.key, []).append(
                        ReplayPiece(state.end - size, data, number)
                    )
            case Roll():
                self._trim(record.completed, record.completed_end)
                view.roll(record)
            case Copied(spool):
                view.copied(spool, written=spool.end)
            case Drop(key):
                self.pieces.pop(key, None)
                view.drop(key)

    def _trim(self, key: SpoolKey, end: int) -> None:
        """Discard content from `end`."""
        pieces = self.pieces.get(key)
        while pieces and pieces[-1].end > end:
            last = pieces.pop()
            if last.offset < end:
                pieces.append(last._replace(data=last.data[: end - last.offset]))


def read_log(files: Files, directory: str, names: list[str]) -> list[CommitSegment]:
    """Read all segments, oldest first.

    Raises:
        StorageDamaged: a segment is missing, or damaged before its last record.
    """
    segments = []
    for name in names:
        if not name.startswith(PREFIX):
            continue
        path = join(directory, name)
        try:
            segments.append(read_segment(files, path))
        except StoredFrameError as error:
            raise StorageDamaged(path, error.position, error.why) from error
    for former, following in pairwise(segments):
        if following.header.number != former.header.number + 1:
            raise StorageDamaged(following.path, 0, "the segment before this one is missing")
        if former.damage is not None:
            raise StorageDamaged(former.path, former.damage.position, former.damage.why)
    return segments
