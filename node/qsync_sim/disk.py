"""A simulated disk that loses unflushed data.

It implements `qsync_node.storage.files.FileSystem` in memory, and keeps two states of all: the
one that a process sees (the page cache) and the one that survives a power loss. Contents become
durable with `File.sync`, directory entries with `sync_dir`; a rename is one entry change, atomic
like the journal of a real filesystem, but entry changes that were not flushed survive or vanish one
by one.

After a power loss, the first unflushed appends of a file survive. The next one is lost, or survives
up to some byte, or has its full length with sectors that read as zeros. A piece of a block of less
than eight bytes in its last sector is truncated rather than zeroed, because no reader could
distinguish it from sound data (rule D7).

A failed flush leaves the bytes in the page cache and marks them clean, as Linux does: they can be
read, no later flush of the file makes them durable, and a power loss leaves zeros in their place.

Faults are injected by a hook that sees every call. Randomness comes from the caller.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Literal

from qsync_node.format.xlog import SECTOR_BYTES, ZERO_RUN_BYTES
from qsync_node.storage.errors import DiskError, DiskFull

DiskFault = Literal["fail", "full", "short", "power", "power_after"]
MIN_DAMAGED_BYTES = 64
DiskHook = Callable[[str, str], DiskFault | None]


class PowerLoss(BaseException):
    """The machine lost power during a call. A BaseException, so that the node cannot catch it."""


class _Append:
    __slots__ = ("data", "is_lost")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.is_lost = False


class _Truncate:
    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class _Inode:
    """A file: its visible content, its durable content and the unflushed operations."""

    __slots__ = ("durable", "pending", "seen")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.pending: list[_Append | _Truncate] = []

    def append(self, data: bytes) -> None:
        self.seen += data
        self.pending.append(_Append(data))

    def truncate(self, size: int) -> None:
        _resize(self.seen, size)
        self.pending.append(_Truncate(size))

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.durable, operation)
        # Bytes whose flush failed once stay different in cache and on disk.
        self.pending.clear()

    def fail_sync(self) -> None:
        for operation in self.pending:
            if isinstance(operation, _Append):
                operation.is_lost = True

    def lose_power(self, rng: Random) -> None:
        survivors = rng.randint(0, len(self.pending))
        for operation in self.pending[:survivors]:
            _apply(self.durable, operation)
        if survivors < len(self.pending):
            torn = self.pending[survivors]
            if isinstance(torn, _Append) and torn.data:
                self.durable += _tear(torn.data, len(self.durable), rng)
        self.pending.clear()
        self.seen = bytearray(self.durable)


def _resize(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


def _apply(content: bytearray, operation: _Append | _Truncate) -> None:
    if isinstance(operation, _Truncate):
        _resize(content, operation.size)
    else:
        content += bytes(len(operation.data)) if operation.is_lost else operation.data


def _tear(data: bytes, offset: int, rng: Random) -> bytes:
    """Return the part of an append at `offset` that survives a power loss."""
    if rng.random() < 0.5:
        return data[: rng.randint(0, len(data) - 1)]
    sectors = list(_sectors(len(data), offset))
    if sectors[-1][1] - sectors[-1][0] < ZERO_RUN_BYTES:
        data = data[: sectors.pop()[0]]
    torn = bytearray(data)
    lost = [sector for sector in sectors if rng.random() < 0.5]
    for start, end in lost or sectors[-1:]:
        torn[start:end] = bytes(end - start)
    return bytes(torn)


def _sectors(size: int, offset: int) -> Iterator[tuple[int, int]]:
    """Return (start, end) of the sectors that an append of `size` bytes at `offset` touches."""
    start = 0
    while start < size:
        end = min(start + SECTOR_BYTES - (start + offset) % SECTOR_BYTES, size)
        yield start, end
        start = end


class _Directory:
    """The visible names, the durable names and the unflushed changes."""

    __slots__ = ("durable", "pending", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.pending: list[dict[str, _Inode | _Directory | None]] = []

    def change(self, entries: dict[str, "_Inode | _Directory | None"]) -> None:
        _change(self.seen, entries)
        self.pending.append(entries)

    def sync(self) -> None:
        self.durable = dict(self.seen)
        self.pending.clear()

    def lose_power(self, rng: Random) -> None:
        is_in_order = rng.random() < 0.5
        for entries in self.pending:
            if rng.random() < 0.5:
                _change(self.durable, entries)
            elif is_in_order:
                break
        self.pending.clear()
        self.seen = dict(self.durable)
        for _, node in sorted(self.seen.items()):
            node.lose_power(rng)


def _change(
    names: dict[str, _Inode | _Directory], entries: dict[str, _Inode | _Directory | None]
) -> None:
    for name, node in entries.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    """An open file of a SimDisk; dead after a crash."""

    __slots__ = ("_disk", "_incarnation", "_inode", "_is_open", "_path")

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._incarnation = disk.incarnation
        self._is_open = True
        disk.open_files += 1

    def append(self, data: bytes | Sequence[bytes]) -> None:
        whole = data if isinstance(data, bytes) else b"".join(data)
        fault = self._enter("append")
        free = self._disk.capacity_bytes - self._disk.used_bytes
        if fault is None and len(whole) > free:
            self._write(whole[: max(free, 0)])
            raise DiskFull(f"write {self._path}: no space")
        if fault in ("short", "full"):
            self._write(whole[: len(whole) // 2])
            kind = DiskFull if fault == "full" else DiskError
            raise kind(f"write {self._path}: injected {fault}")
        if fault == "fail":
            raise DiskError(f"write {self._path}: injected failure")
        self._write(whole)
        self._disk.leave(fault)

    def _write(self, data: bytes) -> None:
        if data:
            self._inode.append(data)
            self._disk.used_bytes += len(data)

    def sync(self) -> None:
        fault = self._enter("sync")
        if fault in ("fail", "short", "full"):
            self._inode.fail_sync()
            raise DiskError(f"fdatasync {self._path}: injected failure")
        self._inode.sync()
        self._disk.leave(fault)

    def close(self) -> None:
        """Close the file; this never fails and flushes nothing."""
        assert self._is_open, f"{self._path} is closed twice"
        self._is_open = False
        if self._incarnation == self._disk.incarnation:
            self._disk.open_files -= 1

    def _enter(self, call: str) -> DiskFault | None:
        assert self._is_open, f"{self._path} is closed"
        if self._incarnation != self._disk.incarnation:
            raise DiskError(f"{self._path} was open before the crash")
        return self._disk.enter(call, self._path)


class SimDisk:
    """One machine's disk. `on_call` may inject a fault into any call that changes something."""

    def __init__(self, capacity_bytes: int = 1 << 62) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.incarnation = 0
        self.open_files = 0  # of the process that runs
        self.calls = 0  # that change something
        self.on_call: DiskHook | None = None
        self._root = _Directory()
        self._is_off = False

    # -- crashes ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process; the page cache survives."""
        self.incarnation += 1
        self.open_files = 0
        self._is_off = False

    def crash(self, rng: Random) -> None:
        """Lose power: unflushed data is lost or torn."""
        self.kill()
        self._root.lose_power(rng)
        self.used_bytes = sum(len(inode.seen) for inode in _inodes(self._root))

    def enter(self, call: str, path: str) -> DiskFault | None:
        """Begin a call that changes something; raise PowerLoss after a crash."""
        if self._is_off:
            raise PowerLoss
        self.calls += 1
        fault = self.on_call(call, path) if self.on_call is not None else None
        if fault == "power":
            self._is_off = True
            raise PowerLoss
        return fault

    def leave(self, fault: DiskFault | None) -> None:
        if fault == "power_after":
            self._is_off = True
            raise PowerLoss

    def _change(self, call: str, path: str) -> DiskFault | None:
        fault = self.enter(call, path)
        if fault in ("fail", "short") or (fault == "full" and call == "sync_dir"):
            raise DiskError(f"{call} {path}: injected failure")
        if fault == "full":
            raise DiskFull(f"{call} {path}: no space")
        return fault

    def damage(self, rng: Random) -> None:
        """Change a bit of a file at rest, on the medium and thus in every later read.

        The last quarter of a file is spared: damage there is a torn write to any reader (D7).
        """
        files = [inode for inode in _inodes(self._root) if len(inode.durable) >= MIN_DAMAGED_BYTES]
        if files:
            inode = rng.choice(files)
            position = rng.randrange(len(inode.durable) * 3 // 4)
            for content in (inode.durable, inode.seen):
                if position < len(content):
                    content[position] ^= 1 << rng.randrange(8)

    # -- FileSystem ------------------------------------------------------------------------------

    def _directory(self, path: str) -> _Directory:
        node: _Inode | _Directory = self._root
        for name in path.split("/"):
            if name not in ("", "."):
                found = node.seen.get(name) if isinstance(node, _Directory) else None
                if found is None:
                    raise FileNotFoundError(path)
                node = found
        if not isinstance(node, _Directory):
            raise FileNotFoundError(path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name

    def _inode(self, path: str) -> _Inode:
        directory, name = self._parent(path)
        node = directory.seen.get(name)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(path)
        return node

    def listdir(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).seen)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        content = self._inode(path).seen
        return bytes(content[offset:] if size < 0 else content[offset : offset + size])

    def size(self, path: str) -> int:
        return len(self._inode(path).seen)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.seen or not name

    def create(self, path: str) -> SimFile:
        directory, name = self._parent(path)
        if name in directory.seen:
            raise DiskError(f"create {path}: it exists")
        fault = self._change("create", path)
        inode = _Inode()
        directory.change({name: inode})
        self.leave(fault)
        return SimFile(self, path, inode)

    def open_append(self, path: str) -> SimFile:
        return SimFile(self, path, self._inode(path))

    def rename(self, source: str, target: str) -> None:
        directory, name = self._parent(source)
        other, new_name = self._parent(target)
        assert directory is other, "a rename stays in its directory"
        inode = self._inode(source)
        fault = self._change("rename", source)
        replaced = directory.seen.get(new_name)
        if isinstance(replaced, _Inode):
            self.used_bytes -= len(replaced.seen)
        directory.change({name: None, new_name: inode})
        self.leave(fault)

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        inode = self._inode(path)
        fault = self._change("remove", path)
        directory.change({name: None})
        self.used_bytes -= len(inode.seen)
        self.leave(fault)

    def truncate(self, path: str, size: int) -> None:
        inode = self._inode(path)
        fault = self._change("truncate", path)
        self.used_bytes += size - len(inode.seen)
        inode.truncate(size)
        self.leave(fault)

    def sync_dir(self, directory: str) -> None:
        node = self._directory(directory)
        fault = self._change("sync_dir", directory)
        node.sync()
        self.leave(fault)

    def makedirs(self, directory: str) -> None:
        node = self._root
        for name in directory.split("/"):
            if name in ("", "."):
                continue
            found = node.seen.get(name)
            if found is None:
                found = _Directory()
                fault = self._change("makedirs", directory)
                node.change({name: found})
                self.leave(fault)
            assert isinstance(found, _Directory), directory
            node = found

    def free_bytes(self, directory: str) -> int:
        return max(self.capacity_bytes - self.used_bytes, 0)


def _inodes(directory: _Directory) -> Iterator[_Inode]:
    for node in directory.seen.values():
        if isinstance(node, _Directory):
            yield from _inodes(node)
        else:
            yield node
