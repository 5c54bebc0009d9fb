"""A simulated disk for the spools of a broker, with writes at any offset.

It keeps two states of each file: the page cache and the bytes on disk. Flushes copy the sectors
that were written since the last flush. A power loss keeps or loses each unflushed sector and each
unflushed directory entry independently, and the size of a file is any between the two states. A
failed flush copies some sectors and marks all of them clean, as Linux does: the page cache shows
bytes that no later flush writes.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from qsync_broker.operations import Buffer
from qsync_broker.storage.files import FileLock, Handle

FileFault = Literal["fail", "full", "power", "power_after"]
FileHook = Callable[[str, str], FileFault | None]
SECTOR = 64  # small, so that small writes are torn as well


class FilePowerLoss(BaseException):
    """The machine lost power during a call. A BaseException, so that nothing catches it."""


class _BrokerInode:
    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        first = min(offset, len(self.seen)) // SECTOR
        if offset > len(self.seen):
            self.seen += bytes(offset - len(self.seen))
        self.seen[offset : offset + len(data)] = data
        self.dirty.update(range(first, (offset + len(data) - 1) // SECTOR + 1))

    def truncate(self, size: int) -> None:
        del self.seen[size:]
        self.dirty = {sector for sector in self.dirty if sector * SECTOR < size}

    def _copy(self, sectors: set[int]) -> None:
        for sector in sectors:
            piece = self.seen[sector * SECTOR : (sector + 1) * SECTOR]
            at = sector * SECTOR
            if at > len(self.durable):
                self.durable += bytes(at - len(self.durable))
            self.durable[at : at + len(piece)] = piece

    def sync(self) -> None:
        self._copy(self.dirty)
        self.dirty.clear()
        self._resize(len(self.seen))

    def _resize(self, size: int) -> None:
        del self.durable[size:]
        self.durable += bytes(size - len(self.durable))

    def fail_sync(self, rng: Random) -> None:
        self._copy({sector for sector in self.dirty if rng.random() < 0.5})
        self.dirty.clear()

    def lose_power(self, rng: Random) -> None:
        size = rng.randint(*sorted((len(self.durable), len(self.seen))))
        if rng.random() < 0.3:
            size = len(self.seen)
        self._copy({sector for sector in self.dirty if rng.random() < 0.5})
        self._resize(size)
        self.dirty.clear()
        self.seen = bytearray(self.durable)


class _BrokerDirectory:
    def __init__(self) -> None:
        self.seen: dict[str, _BrokerInode] = {}
        self.durable: dict[str, _BrokerInode] = {}
        self.pending: list[dict[str, _BrokerInode | None]] = []

    def change(self, entries: dict[str, _BrokerInode | None]) -> None:
        _change(self.seen, entries)
        self.pending.append(entries)

    def sync(self) -> None:
        for entries in self.pending:
            _change(self.durable, entries)
        self.pending.clear()

    def lose_power(self, rng: Random) -> None:
        for entries in self.pending:
            if rng.random() < 0.5:
                _change(self.durable, entries)
        self.pending.clear()
        self.seen = dict(self.durable)
        for inode in self.seen.values():
            inode.lose_power(rng)


def _change(names: dict[str, _BrokerInode], entries: dict[str, _BrokerInode | None]) -> None:
    for name, inode in entries.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class SimHandle:
    def __init__(self, disk: "SimFiles", path: str, inode: _BrokerInode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._run = disk.run
        self._is_open = True
        disk.open_handles += 1

    def _check(self) -> None:
        assert self._is_open, f"{self._path} is closed"
        if self._run != self._disk.run:
            raise OSError(errno.EBADF, "open before the crash", self._path)

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        assert offset >= 0
        return bytes(self._inode.seen[offset : offset + size])

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        self._check()
        data = b"".join(parts)
        fault = self._disk.enter("write", self._path)
        if fault in ("fail", "full"):
            self._inode.write(data[: self._disk.rng.randint(0, len(data))], offset)
            raise OSError(errno.ENOSPC if fault == "full" else errno.EIO, "injected", self._path)
        if fault == "power":
            self._inode.write(data[: self._disk.rng.randint(0, len(data))], offset)
            self._disk.lose()
        self._inode.write(data, offset)
        self._disk.leave(fault)

    def sync(self) -> None:
        self._check()
        fault = self._disk.enter("sync", self._path)
        if fault in ("fail", "full"):
            self._inode.fail_sync(self._disk.rng)
            raise OSError(errno.EIO, "injected", self._path)
        if fault == "power":
            self._disk.lose()
        self._inode.sync()
        self._disk.leave(fault)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.call("truncate", self._path)
        self._inode.truncate(size)
        self._disk.after()

    def close(self) -> None:
        assert self._is_open, f"{self._path} is closed twice"
        self._is_open = False
        self._disk.open_handles -= 1


class _SimLock:
    def __init__(self, disk: "SimFiles") -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.is_locked = False


class SimFiles:
    """One machine's disk. `on_call` may inject a fault into any call that changes something."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.run = 0
        self.open_handles = 0
        self.is_locked = False
        self.on_call: FileHook | None = None
        self.calls: list[tuple[str, str]] = []
        self.directories: dict[str, _BrokerDirectory] = {}
        self._is_off = False
        self._fault: FileFault | None = None

    # -- faults ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process; the page cache survives."""
        self.run += 1
        self.open_handles = 0
        self.is_locked = False
        self._is_off = False

    def crash(self) -> None:
        """Lose power."""
        self.kill()
        for directory in self.directories.values():
            directory.lose_power(self.rng)

    def lose(self) -> None:
        self._is_off = True
        raise FilePowerLoss

    def enter(self, call: str, path: str) -> FileFault | None:
        if self._is_off:
            raise FilePowerLoss
        self.calls.append((call, path))
        return self.on_call(call, path) if self.on_call is not None else None

    def leave(self, fault: FileFault | None) -> None:
        if fault == "power_after":
            self.lose()

    def call(self, call: str, path: str) -> None:
        """Begin a call that has no partial effect."""
        self._fault = self.enter(call, path)
        if self._fault == "power":
            self.lose()
        if self._fault in ("fail", "full"):
            code = errno.ENOSPC if self._fault == "full" and call != "sync_dir" else errno.EIO
            raise OSError(code, "injected", path)

    def after(self) -> None:
        self.leave(self._fault)

    # -- Files -----------------------------------------------------------------------------------

    def lock(self, directory: str) -> FileLock:
        if self.is_locked:
            raise OSError(errno.EBUSY, "locked", directory)
        self.is_locked = True
        return _SimLock(self)

    def makedirs(self, directory: str) -> None:
        while directory:
            self.directories.setdefault(directory, _BrokerDirectory())
            directory = directory.rpartition("/")[0]

    def _place(self, path: str) -> tuple[_BrokerDirectory, str]:
        directory, _, name = path.rpartition("/")
        return self.directories[directory], name

    def inode(self, path: str) -> _BrokerInode:
        directory, name = self._place(path)
        if name not in directory.seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return directory.seen[name]

    def listdir(self, directory: str) -> list[str]:
        return sorted(self.directories[directory].seen)

    def open(self, path: str, is_new: bool = False) -> Handle:
        directory, name = self._place(path)
        if is_new and name not in directory.seen:
            self.call("create", path)
            directory.change({name: _BrokerInode()})
            self.after()
        return SimHandle(self, path, self.inode(path))

    def size(self, path: str) -> int:
        return len(self.inode(path).seen)

    def view(self, path: str) -> memoryview:
        return memoryview(bytes(self.inode(path).seen))

    def rename(self, source: str, target: str) -> None:
        directory, name = self._place(source)
        inode = self.inode(source)
        self.call("rename", source)
        directory.change({name: None, self._place(target)[1]: inode})
        self.after()

    def remove(self, path: str) -> None:
        directory, name = self._place(path)
        self.inode(path)
        self.call("remove", path)
        directory.change({name: None})
        self.after()

    def sync_dir(self, directory: str) -> None:
        self.call("sync_dir", directory)
        self.directories[directory].sync()
        self.after()
