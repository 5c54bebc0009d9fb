"""The order of the archive's operations, and what follows from failures (S5, S6)."""

from dataclasses import replace
from typing import Any

import pytest

from qsync_node.archive.compaction import ChangesFile, Merged
from qsync_node.archive.manifest import FileEntry, Manifest
from qsync_node.archive.uploader import (
    RETRY_MAX_S,
    TIDY_EVERY_S,
    ArchiveView,
    Describe,
    ListFiles,
    LoadManifest,
    ReadChanges,
    Sealing,
    Shipping,
    UploadOperation,
)
from qsync_node.archive.uploads import Contents, needed_snapshot
from qsync_node.consensus.history import TermStart
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import SegmentRange
from qsync_testing.archives.segments import SET_UUID, UUID, entry_of, rows_file

FIRST = SegmentRange("/d/00000000000000000000.xlog", 0, 3)
SECOND = SegmentRange("/d/00000000000000000003.xlog", 3, 5)
LAST = SegmentRange("/d/00000000000000000005.xlog", 5, 6)
SEGMENTS = [FIRST, SECOND, LAST]
VIEW = ArchiveView(SEGMENTS, 6, [TermStart(1, 1, 1)])
EMPTY = Manifest(SET_UUID, UUID, "n0")


def described(path: str) -> FileEntry:
    """Return the entry of a segment of `SEGMENTS`."""
    one = next(segment for segment in SEGMENTS if segment.path == path)
    name = path.rsplit("/", 1)[1]
    return entry_of(rows_file(one.after_index + 1, one.last_index - one.after_index), name)


def result_of(operation: UploadOperation, snapshots: list[str], changes: ChangesFile) -> Any:
    match operation:
        case LoadManifest():
            return replace(EMPTY)
        case ListFiles(segments):
            return Contents(segments, snapshots, [])
        case ReadChanges():
            return changes
        case Describe(upload, _):
            return None if upload.path.endswith(".snap") else described(upload.path)
    return None


def one_pass(
    shipping: Shipping,
    now_s: float = 0.0,
    fails: str = "",
    snapshots: list[str] | None = None,
    changes: ChangesFile | None = None,
) -> list[str]:
    """Perform operations until none is due; return their names."""
    done = []
    while (operation := shipping.next_operation(now_s)) is not None:
        name = type(operation).__name__
        done.append(name)
        if name == fails:
            shipping.on_failed(now_s)
        else:
            result = result_of(operation, snapshots or [], changes or ChangesFile())
            shipping.on_done(operation, result, now_s, 7.0)
    return done


UPLOAD = ["Describe", "PutFile", "PutManifest"]
OPENING = ["LoadManifest", "ListFiles", "ReadChanges"]


def test_pass_uploads_all_sealed_segments_and_then_waits() -> None:
    shipping = Shipping()
    assert one_pass(shipping) == [], "nothing before the first view"
    shipping.observe(VIEW)
    assert one_pass(shipping) == [*OPENING, *UPLOAD, *UPLOAD]
    assert (shipping.archived_index, shipping.uploads, shipping.is_idle) == (5, 2, True)
    assert shipping.floor == ArchiveFloor(5, None, 0)
    shipping.observe(VIEW)
    assert one_pass(shipping) == ["ListFiles"], "read once, tidied once per hour"
    shipping.observe(VIEW)
    assert one_pass(shipping, TIDY_EVERY_S) == ["ListFiles", "ReadChanges"]


def test_segment_that_was_merged_is_not_archived_again_while_it_is_local() -> None:
    """Its entry would be dropped each hour, and the file uploaded again."""
    shipping = Shipping()
    shipping.observe(VIEW)
    one_pass(shipping)
    both = described(SECOND.path)
    names = [described(FIRST.path).name, both.name]
    changes = ChangesFile(0, "compaction", [Merged(UUID, names, both)])
    shipping.observe(VIEW)
    done = one_pass(shipping, TIDY_EVERY_S, changes=changes)
    assert done == ["ListFiles", "ReadChanges"]
    assert shipping.archived_index == 5


def test_nothing_counts_before_its_manifest_is_stored() -> None:
    shipping = Shipping()
    shipping.observe(VIEW)
    assert one_pass(shipping, fails="PutManifest") == [*OPENING, *UPLOAD]
    assert shipping.floor == ArchiveFloor(0, None, 0)
    assert shipping.manifest == EMPTY
    assert not shipping.is_idle


@pytest.mark.parametrize(
    ("fails", "repeated"),
    [
        ("LoadManifest", OPENING),
        ("ListFiles", ["ListFiles", "ReadChanges"]),
        ("ReadChanges", ["ListFiles", "ReadChanges"]),
        ("Describe", ["ListFiles"]),
        ("PutFile", ["ListFiles"]),
        ("PutManifest", ["ListFiles"]),
    ],
)
def test_failed_pass_begins_again_with_a_new_view(fails: str, repeated: list[str]) -> None:
    shipping = Shipping()
    shipping.observe(VIEW)
    assert one_pass(shipping, fails=fails)[-1] == fails
    assert one_pass(shipping, 0.9) == [], "during the pause"
    assert one_pass(shipping, 1.0) == [], "the files may have changed"
    shipping.observe(VIEW)
    assert one_pass(shipping, 1.0) == [*repeated, *UPLOAD, *UPLOAD]


def test_pauses_double_until_a_pass_succeeds() -> None:
    shipping = Shipping()
    now_s, pauses = 0.0, []
    for _ in range(7):
        shipping.observe(VIEW)
        one_pass(shipping, now_s, fails="PutFile")
        pauses.append(shipping.pause_s(now_s))
        now_s += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, RETRY_MAX_S, RETRY_MAX_S]
    shipping.observe(VIEW)
    one_pass(shipping, now_s)
    shipping.observe(
        ArchiveView([*SEGMENTS, SegmentRange("/d/00000000000000000006.xlog", 6, 7)], 7, [])
    )
    assert one_pass(shipping, now_s, fails="Describe") == ["ListFiles", "Describe"]
    assert shipping.pause_s(now_s) == 1.0


def test_replaced_snapshot_is_left_out() -> None:
    shipping = Shipping()
    shipping.observe(VIEW)
    snapshots = ["/d/00000000000000000003.snap"]
    done = one_pass(shipping, snapshots=snapshots)
    assert done == [*OPENING, *UPLOAD, "Describe", *UPLOAD]
    assert shipping.floor == ArchiveFloor(5, 3, 0), "the segment begins with it"


def test_snapshot_that_starts_no_segment_need_not_wait_for_its_upload() -> None:
    """Else the disk would keep all of them during an outage of the archive (S5)."""
    within, start = "/d/00000000000000000004.snap", "/d/00000000000000000005.snap"
    assert needed_snapshot(Contents(SEGMENTS, [within], []), []) is None
    assert needed_snapshot(Contents(SEGMENTS, [within, start], []), []) == 5


def test_segment_is_sealed_after_its_interval_or_for_an_index() -> None:
    sealing = Sealing(10)
    assert not sealing.is_due(SegmentRange("/d/1", 5, 5), 100, 9), "it has no rows"
    assert not sealing.is_due(LAST, 100, 0)
    assert not sealing.is_due(LAST, 109, 5), "the rows up to 5 are in the segments before it"
    assert sealing.is_due(LAST, 109, 6)
    assert sealing.is_due(LAST, 110, 0)
    assert not sealing.is_due(SECOND, 110, 0), "another segment begins to wait"
