"""The files of spools, named by a digest of the journal, and the cache of their descriptors.

A journal's name never becomes part of a path: it contains slashes, and it may be longer than a file
name. Only one thread writes; any thread reads.
"""

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from qsync_broker.operations import Buffer, SpoolKey
from qsync_broker.storage.files import Files, Handle, join
from qsync_broker.storage.health import Health

SUFFIX = ".spool"
DAMAGED = ".damaged"


def spool_name(key: SpoolKey) -> str:
    digest = hashlib.sha256(f"{key.journal_id}:{key.journal}".encode()).hexdigest()[:32]
    return f"{digest}-{key.begin:016x}{SUFFIX}"


class _Open:
    """A cached descriptor and the number of its users."""

    __slots__ = ("handle", "is_stale", "users")

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.users = 0
        self.is_stale = False


class SpoolFiles:
    """The files below one directory."""

    def __init__(
        self, files: Files, directory: str, health: Health, threads: int, open_files: int
    ) -> None:
        self._files = files
        self.directory = directory
        self._health = health
        self._open_files = open_files
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, _Open] = OrderedDict()
        self._pool = ThreadPoolExecutor(threads, "spool-flush") if threads > 1 else None
        # A former process run may have left names that it did not flush.
        self._has_new_names = True
        self._sizes: dict[str, int] = {}
        self.used_bytes = 0

    # -- names and sizes -------------------------------------------------------------------------

    def path_of(self, key: SpoolKey) -> str:
        return join(self.directory, spool_name(key))

    def __contains__(self, key: SpoolKey) -> bool:
        return spool_name(key) in self._sizes

    def note_size(self, name: str, size: int) -> None:
        self.used_bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def size_of(self, key: SpoolKey) -> int:
        return self._sizes.get(spool_name(key), 0)

    def _forget(self, name: str) -> None:
        self.used_bytes -= self._sizes.pop(name, 0)
        with self._lock:
            entry = self._cache.pop(name, None)
            if entry is not None:
                self._retire(entry)

    # -- descriptors -----------------------------------------------------------------------------

    @staticmethod
    def _retire(entry: _Open) -> None:
        """Close a descriptor once it has no user. The caller has the lock."""
        entry.is_stale = True
        if not entry.users:
            entry.handle.close()

    @contextlib.contextmanager
    def _handle(self, name: str, is_new: bool = False) -> Iterator[Handle]:
        """Provide a descriptor that no other thread closes.

        A descriptor with unflushed bytes may be closed: the kernel reports a failed write-back to
        the next descriptor of the file, as long as the file's inode is in memory.
        """
        with self._lock:
            entry = self._cache.get(name)
            if entry is None:
                entry = _Open(self._files.open(join(self.directory, name), is_new))
                self._cache[name] = entry
                while len(self._cache) > self._open_files:
                    self._retire(self._cache.popitem(last=False)[1])
            else:
                self._cache.move_to_end(name)
            entry.users += 1
        try:
            yield entry.handle
        finally:
            with self._lock:
                entry.users -= 1
                if entry.is_stale and not entry.users:
                    entry.handle.close()

    # -- contents --------------------------------------------------------------------------------

    def read(self, key: SpoolKey, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from the journal offset `offset`."""
        with self._handle(spool_name(key)) as handle:
            return handle.read(offset - key.begin, size)

    def write(self, key: SpoolKey, offset: int, parts: Sequence[Buffer]) -> None:
        """Write `parts` from the journal offset `offset`, without a flush."""
        name = spool_name(key)
        is_new = name not in self._sizes
        with self._handle(name, is_new) as handle:
            if is_new:
                self._has_new_names = True
                self.note_size(name, 0)
            start = offset - key.begin
            end = start + sum(map(len, parts))
            # Also after a failure: part of the bytes may be in the file.
            self.note_size(name, max(self._sizes[name], end))
            handle.write(parts, start)

    def truncate(self, key: SpoolKey, end: int) -> None:
        name = spool_name(key)
        if self._sizes.get(name, 0) > end - key.begin:
            with self._handle(name) as handle:
                handle.truncate(end - key.begin)
            self.note_size(name, end - key.begin)

    def flush(self, keys: Collection[SpoolKey]) -> None:
        """Make the contents and the names of files durable.

        Raises:
            OSError: a flush failed; the storage must be reopened.
        """
        names = [name for name in map(spool_name, keys) if name in self._sizes]
        with self._health.flushing():
            if self._has_new_names:
                self._files.sync_dir(self.directory)
                self._has_new_names = False
            if self._pool is None or len(names) == 1:
                for name in names:
                    self._sync(name)
            else:
                for _ in self._pool.map(self._sync, names):
                    pass

    def _sync(self, name: str) -> None:
        with self._handle(name) as handle:
            handle.sync()

    # -- removal ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self._sizes)

    def remove(self, key: SpoolKey) -> None:
        self.remove_name(spool_name(key))

    def remove_name(self, name: str) -> None:
        if name in self._sizes:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(join(self.directory, name))
            self._forget(name)

    def set_aside(self, key: SpoolKey) -> None:
        """Rename a damaged file, so that a person can examine it."""
        name = spool_name(key)
        if name not in self._sizes:
            return
        self._rename(name)
        self._forget(name)
        with self._health.flushing():
            self._files.sync_dir(self.directory)

    def hide(self, key: SpoolKey) -> None:
        """Rename a damaged file like `set_aside`, in any thread; a crash may undo it."""
        with contextlib.suppress(OSError):
            self._rename(spool_name(key))

    def _rename(self, name: str) -> None:
        existing = set(self._files.listdir(self.directory))
        target = name + DAMAGED
        number = 1
        while target in existing:
            number += 1
            target = f"{name}.{number}{DAMAGED}"
        self._files.rename(join(self.directory, name), join(self.directory, target))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        with self._lock:
            for entry in self._cache.values():
                self._retire(entry)
            self._cache.clear()
