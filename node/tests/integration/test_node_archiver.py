"""The archiver's thread over real files: its reports, and errors that do not end it (S6)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from qsync_node.archive.manifest import SEGMENT, FileEntry, decode_manifest
from qsync_node.archive.uploader import Shipping, UploadOperation
from qsync_node.consensus.history import TermStart
from qsync_node.server.archiver import Archiver
from qsync_node.server.config import ArchiveConfig, NodeConfig
from qsync_node.server.disk import Disk
from qsync_node.server.logs import Log
from qsync_node.storage.storage import SegmentRange, Storage
from qsync_testing.archives.segments import SET_UUID, UUID, rows_file
from qsync_testing.processes import wait_until

CONFIRMED = 6


class Place:
    """A data directory with two sealed segments and one that is not, and an archive beside it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.archive = folder / "archive"
        (self.data / "rollback").mkdir(parents=True)
        self.segments = []
        for first, count in ((1, 3), (4, 2), (6, 1)):
            path = self.data / f"{first - 1:020d}.xlog"
            path.write_bytes(rows_file(first, count))
            self.segments.append(SegmentRange(str(path), first - 1, first + count - 1))

    def archiver(self) -> Archiver:
        config = NodeConfig(
            directory=self.data,
            name="n0",
            replicaset_uuid=SET_UUID,
            secret="a long secret",
            archive=ArchiveConfig(url=f"file://{self.archive}"),
        )
        # The parts of storage and disk that an archiver uses.
        storage = cast(Storage, SimpleNamespace(segments=lambda: self.segments))
        disk = cast(Disk, SimpleNamespace(allow=lambda floor: None, seal=lambda: None))
        return Archiver(config, UUID, storage, disk, Log("n0", "error"))

    def archived(self) -> list[int]:
        """Return the last index of each archived segment."""
        return [entry.last_index for entry in self._entries() if entry.kind == SEGMENT]

    def sources(self) -> list[str]:
        """Return the local name of each archived file."""
        return [entry.source for entry in self._entries()]

    def _entries(self) -> list[FileEntry]:
        manifest = self.archive / UUID / "manifest.json"
        if not manifest.exists():
            return []
        return decode_manifest(manifest.read_bytes(), str(manifest)).files


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def archiver(place: Place) -> Iterator[Archiver]:
    running = place.archiver()
    yield running
    running.stop()


def observed(archiver: Archiver, condition: Callable[[], bool]) -> Callable[[], bool]:
    """Return a condition that shows the archiver the state of the node again, as a loop does."""

    def check() -> bool:
        archiver.observe(CONFIRMED, [TermStart(1, 1, 1)])
        return condition()

    return check


def test_damaged_segment_is_reported_and_later_ones_are_not_archived(
    place: Place, archiver: Archiver
) -> None:
    """A restore would end at the gap, while the archive seemed complete."""
    path = Path(place.segments[0].path)
    sound = path.read_bytes()
    path.write_bytes(sound[:-20] + bytes((sound[-20] ^ 1,)) + sound[-19:])
    wait_until("the damage is reported", observed(archiver, lambda: bool(archiver.error)), 60)
    assert path.name in archiver.error
    assert archiver.failures
    assert place.archived() == []
    path.write_bytes(sound)
    wait_until("both are archived", observed(archiver, lambda: place.archived() == [3, 5]), 60)
    wait_until("the error is gone", observed(archiver, lambda: archiver.error == ""), 60)


@pytest.mark.parametrize("name", ["old.snap", "0.snap", "rollback/copy.xlog", "rollback/1.2.xlog"])
def test_foreign_file_is_not_archived(place: Place, archiver: Archiver, name: str) -> None:
    """A person may have put a copy there, with any name."""
    (place.data / name).write_bytes(rows_file(1, 3))
    wait_until("both are archived", observed(archiver, lambda: place.archived() == [3, 5]), 60)
    assert place.sources() == [Path(one.path).name for one in place.segments[:2]]
    assert archiver.failures == 0


def test_error_of_a_decision_is_reported_and_does_not_end_the_thread(
    place: Place, archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Shipping.on_done
    is_broken = True

    def fail(self: Shipping, operation: UploadOperation, *rest: object) -> None:
        if is_broken:
            raise ValueError("an unexpected name")
        decide(self, operation, *rest)  # type: ignore[arg-type]  # the arguments of `on_done`

    monkeypatch.setattr(Shipping, "on_done", fail)
    wait_until("the error is reported", observed(archiver, lambda: bool(archiver.error)), 60)
    assert "an unexpected name" in archiver.error
    is_broken = False
    wait_until("both are archived", observed(archiver, lambda: place.archived() == [3, 5]), 60)


def test_idle_archiver_waits(
    place: Place, archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that asks without a pause holds the interpreter's lock half of the time (G1)."""
    wait_until("both are archived", observed(archiver, lambda: place.archived() == [3, 5]), 60)
    time.sleep(1)  # the pass that observed this ends
    asked = 0
    ask = Shipping.next_operation

    def count(self: Shipping, now_s: float) -> UploadOperation | None:
        nonlocal asked
        asked += 1
        return ask(self, now_s)

    monkeypatch.setattr(Shipping, "next_operation", count)
    time.sleep(0.5)  # nothing may happen meanwhile
    assert asked <= 2
