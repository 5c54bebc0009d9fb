"""Copied spools in the storage: durable as a whole, or deleted at the next start."""

import hashlib

import pytest

from qsync_broker.index import LocalFragment
from qsync_broker.operations import (
    CommitAppend,
    CompletedSpool,
    Copied,
    Drop,
    SetAside,
    SpoolKey,
    SpoolOperation,
    WriteContent,
)
from qsync_broker.recovered import recovered_journals
from qsync_broker.spool import Choice
from qsync_broker.storage.storage import SpoolStorage
from qsync_sim.journals.files import SimFiles
from qsync_testing.brokers.spool_model import DIRECTORY, fresh, open_small

OPEN = fresh("a/journal", 7, 100)
KEY = OPEN.key._replace(begin=10)
DATA = bytes(range(50))
COPY = CompletedSpool(KEY, 60, hashlib.sha1(DATA).digest(), 2, 9)
PARTS: list[SpoolOperation] = [WriteContent(KEY, 10, DATA[:30]), WriteContent(KEY, 40, DATA[30:])]


def joined(files: SimFiles) -> SpoolStorage:
    """Return a storage whose journal begins at 100."""
    storage = open_small(files)
    storage.apply([CommitAppend(OPEN)])
    return storage


def spools(files: SimFiles) -> list[str]:
    return files.listdir(f"{DIRECTORY}/spools")


@pytest.mark.parametrize(
    "batches", [[[*PARTS, Copied(COPY)]], [PARTS[:1], PARTS[1:], [Copied(COPY)]]]
)
def test_copied_spool_survives_a_loss_of_power(batches: list[list[SpoolOperation]]) -> None:
    files = SimFiles()
    storage = joined(files)
    for batch in batches:
        storage.apply(batch)
    assert storage.read(KEY, 15, 100) == DATA[5:]
    files.kill()
    storage = open_small(files)
    assert storage.recovered.completed == [COPY]
    assert storage.read(KEY, 10, 50) == DATA
    assert [problem for _, problem in storage.verify_completed()] == [None]


def test_unfinished_copy_is_deleted_at_the_next_start() -> None:
    files = SimFiles()
    joined(files).apply(PARTS)
    assert len(spools(files)) == 1
    files.kill()
    assert open_small(files).recovered.completed == []
    assert spools(files) == []


def test_failed_copy_is_deleted_and_begun_again() -> None:
    files = SimFiles()
    storage = joined(files)
    storage.apply([WriteContent(KEY, 10, bytes(90))])
    storage.apply([Drop(KEY), *PARTS])
    storage.apply([Copied(COPY)])
    files.kill()
    storage = open_small(files)
    assert storage.recovered.completed == [COPY]
    assert storage.read(KEY, 10, 100) == DATA


def test_copied_spool_is_in_the_next_segment() -> None:
    files = SimFiles()
    storage = joined(files)
    storage.apply([*PARTS, Copied(COPY)])
    for number in range(200):
        storage.apply([CommitAppend(fresh(f"b/{number}", 9, 0))])
    files.kill()
    assert open_small(files).recovered.completed == [COPY]


def test_copied_spool_can_be_dropped() -> None:
    files = SimFiles()
    storage = joined(files)
    storage.apply([*PARTS, Copied(COPY), Drop(KEY)])
    assert spools(files) == []
    files.kill()
    assert open_small(files).recovered.completed == []


def test_copy_of_a_damaged_spool_is_sound() -> None:
    """The journal has left this broker with its damaged file, and has come back."""
    files = SimFiles()
    joined(files).apply([*PARTS, Copied(COPY)])
    files.kill()
    (name,) = spools(files)
    files.inode(f"{DIRECTORY}/spools/{name}").seen[7] ^= 1
    storage = open_small(files)
    assert storage.problem_of(KEY) is not None
    storage.apply([Drop(KEY)])
    storage.apply([*PARTS, Copied(COPY)])
    assert storage.problem_of(KEY) is None
    assert storage.read(KEY, 10, 50) == DATA


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("does not continue 40", [PARTS[0], WriteContent(KEY, 50, b"x")]),
        ("no copy at 10 ends at 60", [PARTS[0], Copied(COPY)]),
        ("no copy at 10 ends at 60", [*PARTS, Copied(COPY), Copied(COPY)]),
        ("does not continue", [*PARTS, Copied(COPY), WriteContent(KEY, 10, b"x")]),
        ("no open spool", [WriteContent(SpoolKey("b/journal", 9, 0), 0, b"x")]),
    ],
)
def test_contradictions_are_refused(text: str, batch: list[SpoolOperation]) -> None:
    storage = joined(SimFiles())
    with pytest.raises(ValueError, match=text):
        storage.apply(batch)


def test_completed_spools_remain_when_the_open_one_is_damaged() -> None:
    """Otherwise, nothing would persist or serve them, and their copies would contradict them."""
    files = SimFiles()
    storage = joined(files)
    storage.apply([*PARTS, Copied(COPY), SetAside(OPEN.key)])
    storage.close()
    storage = open_small(files)
    (found,) = recovered_journals(storage)
    assert found.completed == (LocalFragment.of(COPY),)
    spool = found.spool
    assert (spool.epoch, spool.begin, spool.end, spool.confirmed) == (0, 60, 60, 60)
    storage.apply([spool.adopt(Choice(5, 4, 200, b"", 1, False))])
    storage.close()
    assert [one.state.key.begin for one in open_small(files).recovered.open] == [200]
