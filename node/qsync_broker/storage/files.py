"""The operations on files that the storage uses, and their implementation.

A second one, in the simulator, simulates power losses and failures. Every failure is an
`OSError`. A failed flush is never retried: the kernel may have marked the lost pages clean, so a
later successful flush proves nothing (D4).
"""

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Protocol

from qsync_broker.operations import Buffer
from qsync_node.storage.errors import DiskError
from qsync_node.storage.files import DirectoryLock

_PARTS_MAX = 1000  # below IOV_MAX


class Handle(Protocol):
    """An open file."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all of `parts` from `offset`. After an error, any part may be written."""

    def sync(self) -> None:
        """Make contents and size durable."""

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class FileLock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """A filesystem. Errors are OSError."""

    def lock(self, directory: str) -> FileLock: ...

    def makedirs(self, directory: str) -> None: ...

    def listdir(self, directory: str) -> list[str]: ...

    def open(self, path: str, is_new: bool = False) -> Handle:
        """Open a file for reading and writing. `is_new` creates it if it does not exist."""

    def size(self, path: str) -> int: ...

    def view(self, path: str) -> memoryview:
        """Return the contents of a file, read-only."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_dir(self, directory: str) -> None: ...


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}"


class OsHandle:
    """A descriptor of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o640)
        self._path = path

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        if len(parts) > _PARTS_MAX:
            parts = [b"".join(parts)]
        wanted = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, offset)
        if written == wanted:
            return
        # A signal or the limit of one call (2 GiB) can shorten a write. A full disk does, too, and
        # then the next call names the cause.
        rest = memoryview(b"".join(parts))
        while written < wanted:
            more = os.pwrite(self._fd, rest[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, "no progress", self._path)
            written += more

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)


class OsFiles:
    """The filesystem of the operating system."""

    def lock(self, directory: str) -> FileLock:
        try:
            return DirectoryLock(directory)
        except DiskError as error:
            raise OSError(errno.EBUSY, f"cannot lock {directory}: {error}") from error

    def makedirs(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)

    def listdir(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def open(self, path: str, is_new: bool = False) -> Handle:
        return OsHandle(path, os.O_CREAT if is_new else 0)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def view(self, path: str) -> memoryview:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
