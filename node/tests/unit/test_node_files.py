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
