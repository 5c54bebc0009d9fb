"""The threads at the disk: what they do where there is no space."""

import threading
from typing import Any, cast

from qsync_node.core import effects as fx
from qsync_node.log.errors import DiskError, DiskFull
from qsync_node.log.storage import Storage
from qsync_node.server.disk import Disk


class FullStorage:
    """Has room for a ballot after so many tries."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.tried: list[bytes] = []
        self.is_tried = threading.Event()

    def store_ballot(self, contents: bytes) -> None:
        self.tried.append(contents)
        self.is_tried.set()
        if self.refusals:
            self.refusals -= 1
            raise DiskFull("no space")


def disk_of(storage: Any) -> tuple[Disk, list[Any], list[str], threading.Event]:
    told: list[Any] = []
    broken: list[str] = []
    heard = threading.Event()

    def deliver(inputs: list[Any]) -> None:
        told.extend(inputs)
        heard.set()

    def on_broken(reason: str) -> None:
        broken.append(reason)
        heard.set()

    return Disk(cast(Storage, storage), deliver, on_broken), told, broken, heard


def test_a_ballot_waits_for_space_and_a_newer_one_takes_its_place() -> None:
    storage = FullStorage(1)
    disk, told, broken, heard = disk_of(storage)
    disk.take(fx.StoreBallot(1, b"first"))
    assert storage.is_tried.wait(60)
    disk.take(fx.StoreBallot(2, b"second"))
    assert heard.wait(60)
    disk.stop()
    assert told == [fx.BallotStored(2)]
    assert storage.tried == [b"first", b"second"]
    assert not broken


def test_who_stops_waits_for_no_space() -> None:
    storage = FullStorage(1 << 30)
    disk, told, broken, _ = disk_of(storage)
    disk.take(fx.StoreBallot(1, b"first"))
    assert storage.is_tried.wait(60)
    disk.stop()
    assert (told, broken) == ([], [])


def test_any_other_trouble_ends_this_life() -> None:
    class Broken(FullStorage):
        def store_ballot(self, contents: bytes) -> None:
            raise DiskError("input/output error")

    disk, told, broken, heard = disk_of(Broken(0))
    disk.take(fx.StoreBallot(1, b"first"))
    assert heard.wait(60)
    disk.stop()
    assert told == []
    assert broken == ["the ballot cannot be stored: input/output error"]
