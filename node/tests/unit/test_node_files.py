"""Writes to the operating system that fail in part, and its count of free bytes."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from qsync_node.storage.errors import DiskError, DiskFull
from qsync_node.storage.files import OsFileSystem

ROOM = 1 << 30


@pytest.mark.parametrize(("free", "is_full"), [(0, True), (ROOM, False)])
def test_write_of_a_part_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_full: bool
) -> None:
    def write_half(fd: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        return os.write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "writev", write_half)
    monkeypatch.setattr(
        os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=free, f_bfree=ROOM, f_frsize=1)
    )
    file = OsFileSystem().create(str(tmp_path / "file"))
    with pytest.raises(DiskError, match="4 bytes of 8 were written") as caught:
        file.append([b"four", b"more"])
    assert isinstance(caught.value, DiskFull) is is_full
    file.close()


def test_bytes_that_are_reserved_for_root_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = SimpleNamespace(f_bavail=3, f_bfree=ROOM, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda directory: cast(os.statvfs_result, stat))
    assert OsFileSystem().free_bytes("/") == 3 * 4096


@pytest.mark.parametrize(
    ("cause", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_exceeded_quota_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: int, is_full: bool
) -> None:
    def refuse(fd: int, parts: Sequence[bytes]) -> int:
        raise OSError(cause, os.strerror(cause))

    monkeypatch.setattr(os, "writev", refuse)
    file = OsFileSystem().create(str(tmp_path / "file"))
    with pytest.raises(DiskError) as caught:
        file.append([b"four"])
    assert isinstance(caught.value, DiskFull) is is_full
    file.close()


def test_flush_of_a_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    OsFileSystem().sync_dir(str(tmp_path))
    targets = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert os.path.realpath(tmp_path) not in targets


@pytest.mark.parametrize("cause", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_failed_flush_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: int
) -> None:
    """A part of the write may already be lost, so the process run must end (D4)."""

    def refuse(fd: int) -> None:
        raise OSError(cause, os.strerror(cause))

    file = OsFileSystem().create(str(tmp_path / "file"))
    file.append(b"four")
    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(DiskError, match="fdatasync") as caught:
        file.sync()
    assert not isinstance(caught.value, DiskFull)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskError, match="fsync") as caught:
        OsFileSystem().sync_dir(str(tmp_path))
    assert not isinstance(caught.value, DiskFull)
    file.close()


def test_read_continues_where_the_system_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux returns at most 2 GiB per call; a shorter result would look like a torn tail (D7)."""
    path = str(tmp_path / "file")
    file = OsFileSystem().create(path)
    data = bytes(range(250)) * 4
    file.append(data)
    file.close()
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: whole(fd, min(size, 300), offset))
    assert OsFileSystem().read(path) == data
    assert OsFileSystem().read(path, 10, 700) == data[10:710]
