"""The filesystem interface of the log: two small protocols and their real implementation.

The log uses only operations that can be simulated: reads, appends, flushes, renames, truncations
and removals. The simulator's disk implements the same protocols and loses unflushed data.

A failed or short write or flush is reported once and never retried here (D4). After a failed fsync
the kernel may have marked the lost pages clean, so a later successful fsync proves nothing. A flush
of a file that was deleted proves nothing either: no restart will find its bytes.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from qsync_node.storage.errors import DiskError, DiskFull

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_FULL_MARGIN_BYTES = 1 << 20


class File(Protocol):
    """An open, append-only file."""

    def append(self, data: bytes | Sequence[bytes]) -> None:
        """Append all of `data`.

        Raises:
            DiskError, DiskFull: the append failed, and part of `data` may have been appended.
        """

    def sync(self) -> None:
        """Make contents and size durable."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Operations on files. Errors are DiskError, DiskFull, and FileNotFoundError."""

    def listdir(self, directory: str) -> list[str]: ...

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes: ...

    def size(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def create(self, path: str) -> File:
        """Create a file, which must not exist."""

    def open_append(self, path: str) -> File: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def truncate(self, path: str, size: int) -> None: ...

    def sync_dir(self, directory: str) -> None: ...

    def makedirs(self, directory: str) -> None: ...

    def free_bytes(self, directory: str) -> int: ...


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}"


@contextlib.contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = DiskFull if error.errno in _FULL_ERRNOS else DiskError
        raise kind(f"{what}: {error}") from error


class OsFile:
    """A descriptor opened for appending."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, flags: int) -> None:
        with _disk_errors(f"open {path}"):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o640)
        self._path = path

    def append(self, data: bytes | Sequence[bytes]) -> None:
        parts = [data] if isinstance(data, bytes) else data
        if len(parts) > 1000:
            parts = [b"".join(parts)]
        wanted = sum(map(len, parts))
        with _disk_errors(f"write {self._path}"):
            written = os.writev(self._fd, parts)
            if written == wanted:
                return
            # A short write of a regular file means that the disk is full or faulty.
            stat = os.fstatvfs(self._fd)
        is_full = stat.f_bavail * stat.f_frsize < wanted - written + _FULL_MARGIN_BYTES
        kind = DiskFull if is_full else DiskError
        raise kind(f"write {self._path}: {written} bytes of {wanted} were written")

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            # Never DiskFull, for any errno: part of the write may already be lost.
            raise DiskError(f"fdatasync {self._path}: {error}") from error
        if os.fstat(self._fd).st_nlink == 0:
            raise DiskError(f"fdatasync {self._path}: the file was deleted")

    def close(self) -> None:
        with _disk_errors(f"close {self._path}"):
            os.close(self._fd)


class OsFileSystem:
    """The filesystem of the operating system."""

    def listdir(self, directory: str) -> list[str]:
        with _disk_errors(f"list {directory}"):
            return sorted(os.listdir(directory))

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        with _disk_errors(f"read {path}"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if size < 0:
                    size = max(os.fstat(fd).st_size - offset, 0)
                return _read_exactly(fd, offset, size)
            finally:
                os.close(fd)

    def size(self, path: str) -> int:
        with _disk_errors(f"stat {path}"):
            return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def create(self, path: str) -> File:
        return OsFile(path, os.O_CREAT | os.O_EXCL)

    def open_append(self, path: str) -> File:
        return OsFile(path, 0)

    def rename(self, source: str, target: str) -> None:
        with _disk_errors(f"rename {source}"):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        with _disk_errors(f"remove {path}"):
            os.unlink(path)

    def truncate(self, path: str, size: int) -> None:
        with _disk_errors(f"truncate {path}"):
            os.truncate(path, size)

    def sync_dir(self, directory: str) -> None:
        with _disk_errors(f"open {directory}"):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            # As in `OsFile.sync`: never DiskFull.
            raise DiskError(f"fsync {directory}: {error}") from error
        finally:
            os.close(fd)

    def makedirs(self, directory: str) -> None:
        with _disk_errors(f"make {directory}"):
            os.makedirs(directory, exist_ok=True)

    def free_bytes(self, directory: str) -> int:
        with _disk_errors(f"statvfs {directory}"):
            stat = os.statvfs(directory)
            return stat.f_bavail * stat.f_frsize


def _read_exactly(fd: int, offset: int, size: int) -> bytes:
    """Return up to `size` bytes from `offset`, fewer only at the end of the file."""
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = os.pread(fd, size - got, offset + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class DirectoryLock:
    """A lock that admits one process to a data directory until the process ends (D8)."""

    __slots__ = ("_fd",)

    def __init__(self, directory: str) -> None:
        path = join(directory, "lock")
        with _disk_errors(f"open {path}"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise DiskError(f"{directory} is in use by another process ({error})") from error

    def release(self) -> None:
        os.close(self._fd)


def lock_directory(directory: str) -> DirectoryLock:
    """Lock `directory`.

    Raises:
        DiskError: another process holds the lock.
    """
    return DirectoryLock(directory)
