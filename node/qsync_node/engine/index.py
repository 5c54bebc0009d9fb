"""Indexes: entry keys to tuples, confirmed or layered. Data path.

`TreeIndex` and `HashIndex` hold confirmed state. A `LayerIndex` lies over another index and holds
only the differences: an entry per changed key, whose tuple is None if the key is removed. All three
implement `get`, `scan` and `put`; a statement cannot distinguish them.

A tree is a dict plus an ordered list of its keys. Point reads and writes touch only the dict and
record which keys are new (`fresh`) or removed (`stale`). The list catches up at the next ordered
read, or after `FRESH_KEYS_MAX` of either. No write therefore pays for an order that is not used,
and no read catches up with more than that. A hash keeps such a list too, for snapshots only.

A `ReadView` is the state of a confirmed index at one moment, for snapshots. Taking one copies only
the fresh keys. Copying all keys would touch every key in memory (60 ms for 700,000 keys). Sorting
them takes seconds, in calls into C that keep the interpreter lock (G1). A view therefore walks the
ordered list `VIEW_KEYS` at a time. Concurrent changes are saved into the open views: a write saves
the tuple that it replaces, and the list saves the keys that it drops. Another thread may walk a
view. The lock keeps the list unchanged while keys are read from it; the dict needs none.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from sortedcontainers import SortedList

from qsync_node.format import keys as protocol

from .fields import GREATEST
from .keydef import KeyDef

FRESH_KEYS_MAX = 2048
VIEW_KEYS = 1024
# Finding the n-th key counts the list's parts first, so walking is cheaper for near keys.
_NEAR_KEYS = 1_000

# (index id, entry key, tuple or None): one index's part of a change.
IndexPut = tuple[int, Any, bytes | None]


class KeyRange(NamedTuple):
    """Entry keys between two bounds; None is no bound."""

    low: Any
    high: Any
    is_low_open: bool
    is_high_open: bool
    is_reverse: bool


_REVERSE = frozenset({protocol.REQ, protocol.LT, protocol.LE})


def range_of(key_def: KeyDef, iterator: int, prefix: tuple[Any, ...]) -> KeyRange:
    """Return the range that an ordered iterator walks.

    Args:
        prefix: a checked search prefix of entry keys.
    """
    is_reverse = iterator in _REVERSE
    if not prefix:
        return KeyRange(None, None, False, False, is_reverse)
    if key_def.is_plain:
        first = last = prefix[0]
        is_last_open = False
    else:
        first, last = prefix, (*prefix, GREATEST)
        is_last_open = True
    if iterator in (protocol.EQ, protocol.REQ):
        return KeyRange(first, last, False, is_last_open, is_reverse)
    if iterator in (protocol.GE, protocol.ALL):
        return KeyRange(first, None, False, False, is_reverse)
    if iterator == protocol.GT:
        return KeyRange(last, None, True, False, is_reverse)
    if iterator == protocol.LE:
        return KeyRange(None, last, False, is_last_open, is_reverse)
    return KeyRange(None, first, False, True, is_reverse)


def range_after(bounds: KeyRange, entry_key: object) -> KeyRange:
    """Return the rest of a range after an entry that was already read."""
    if bounds.is_reverse:
        return bounds._replace(high=entry_key, is_high_open=True)
    return bounds._replace(low=entry_key, is_low_open=True)


def _keys_in(ordered: Any, bounds: KeyRange) -> Iterator[Any]:
    keys: Iterator[Any] = ordered.irange(
        bounds.low,
        bounds.high,
        (not bounds.is_low_open, not bounds.is_high_open),
        bounds.is_reverse,
    )
    return keys


EVERYTHING = KeyRange(None, None, False, False, False)


class ReadView:
    """The tuples of a range of an index at the moment when the view was taken, by key."""

    __slots__ = ("__weakref__", "_before", "_bounds", "_dropped", "_fresh", "_lock", "_ordered",
                 "_tuples")  # fmt: skip

    def __init__(
        self,
        tuples: dict[Any, bytes],
        ordered: object,
        fresh: Iterable[Any],
        lock: Lock,
        bounds: KeyRange,
    ) -> None:
        self._tuples = tuples  # of the index: they change
        self._ordered = ordered  # the same
        self._lock = lock
        self._bounds = bounds
        self._fresh = SortedList(fresh)  # keys that the ordered list lacked
        self._dropped: Any = SortedList()  # keys that the ordered list has lost since then
        self._before: dict[Any, bytes | None] = {}

    def save(self, key: object) -> None:
        """Keep the tuple of a key that is about to change."""
        self._before.setdefault(key, self._tuples.get(key))

    def drop(self, key: object) -> None:
        """Keep a key that the ordered list is about to drop; call this under the lock."""
        self._dropped.add(key)

    def __iter__(self) -> Iterator[bytes]:
        tuples, before = self._tuples, self._before
        last = None
        while keys := self._keys_after(last):
            last = keys[-1]
            for key in keys:
                # Read the index first: a write between the two reads has saved the same tuple.
                packed = tuples.get(key)
                if key in before:
                    packed = before[key]
                if packed is not None:
                    yield packed

    def _keys_after(self, last: object) -> list[Any]:
        """Return the next keys, possibly with keys of later tuples; [] at the end."""
        after = self._bounds if last is None else range_after(self._bounds, last)
        with self._lock:
            runs = [
                list(islice(_keys_in(keys, after), VIEW_KEYS))
                for keys in (self._ordered, self._dropped, self._fresh)
            ]
        if not (runs[1] or runs[2]):
            return runs[0]
        merged = sorted({key for run in runs for key in run})
        # The keys after the end of a full run are not known yet.
        known = [run[-1] for run in runs if len(run) == VIEW_KEYS]
        if after.is_reverse:
            return merged[bisect_left(merged, max(known)) if known else 0 :][::-1]
        return merged[: bisect_right(merged, min(known))] if known else merged


class ConfirmedIndex:
    """Confirmed entries by key, and their order for readers that need it."""

    __slots__ = ("_fresh", "_lock", "_ordered", "_stale", "_views", "key_def", "tuple_bytes",
                 "tuples")  # fmt: skip

    def __init__(self, key_def: KeyDef) -> None:
        self.key_def = key_def
        self.tuple_bytes = 0  # of a primary index, kept by the database
        self.tuples: dict[Any, bytes] = {}
        self._ordered: Any = SortedList()
        self._fresh: set[Any] = set()
        self._stale: set[Any] = set()
        self._views: list[ref[ReadView]] = []  # a view is open while it is referenced
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.tuples)

    def get(self, key: Any) -> bytes | None:
        return self.tuples.get(key)

    def put(self, key: Any, packed: bytes | None) -> None:
        tuples = self.tuples
        if self._views:
            for view in self._open_views():
                view.save(key)
        if packed is None:
            if tuples.pop(key, None) is not None:
                self._forget(key)
            return
        if key in tuples:
            tuples[key] = packed
            return
        tuples[key] = packed
        if key in self._stale:
            self._stale.remove(key)
        else:
            fresh = self._fresh
            fresh.add(key)
            if len(fresh) > FRESH_KEYS_MAX:
                self._catch_up()

    def _forget(self, key: object) -> None:
        if key in self._fresh:
            self._fresh.remove(key)
        else:
            stale = self._stale
            stale.add(key)
            if len(stale) > FRESH_KEYS_MAX:
                self._catch_up()

    def _catch_up(self) -> None:
        views = self._open_views()
        with self._lock:
            for key in self._stale:
                for view in views:
                    view.drop(key)
                self._ordered.remove(key)
            self._ordered.update(sorted(self._fresh))
        self._fresh.clear()
        self._stale.clear()

    def view(self, bounds: KeyRange = EVERYTHING) -> ReadView:
        """Return a view of the current tuples of a range."""
        view = ReadView(self.tuples, self._ordered, self._fresh, self._lock, bounds)
        self._views.append(ref(view))
        return view

    def _open_views(self) -> list[ReadView]:
        views = [view for known in self._views if (view := known()) is not None]
        if len(views) < len(self._views):
            self._views = [ref(view) for view in views]
        return views

    def dismantle(self, entries_max: int) -> bool:
        """Free some entries of an unused index; return True when none is left."""
        if self._open_views():
            return False
        for _ in range(min(entries_max, len(self.tuples))):
            self.tuples.popitem()
        for _ in range(min(entries_max, len(self._ordered))):
            self._ordered.pop()
        return not (self.tuples or self._ordered)


class TreeIndex(ConfirmedIndex):
    """Confirmed entries in the order of their keys."""

    __slots__ = ()

    def scan(self, bounds: KeyRange) -> Iterator[tuple[Any, bytes]]:
        if self._fresh or self._stale:
            self._catch_up()
        tuples = self.tuples
        for key in _keys_in(self._ordered, bounds):
            yield key, tuples[key]

    def entries(self) -> Iterator[tuple[Any, bytes]]:
        return self.scan(EVERYTHING)

    def tuples_in(self, bounds: KeyRange, offset: int) -> Iterator[bytes]:
        """Return the tuples of a range after its first `offset` ones.

        A large offset is skipped without a walk over its entries.
        """
        if self._fresh or self._stale:
            self._catch_up()
        if offset < _NEAR_KEYS:
            near = islice(_keys_in(self._ordered, bounds), offset, None)
            return map(self.tuples.__getitem__, near)
        return map(self.tuples.__getitem__, self._keys_behind(bounds, offset))

    def _keys_behind(self, bounds: KeyRange, offset: int) -> Iterator[Any]:
        ordered = self._ordered
        low, high = bounds.low, bounds.high
        start, stop = 0, len(ordered)
        if low is not None:
            start = (ordered.bisect_right if bounds.is_low_open else ordered.bisect_left)(low)
        if high is not None:
            stop = (ordered.bisect_left if bounds.is_high_open else ordered.bisect_right)(high)
        if bounds.is_reverse:
            stop -= offset
        else:
            start += offset
        if start >= stop:
            return iter(())
        keys: Iterator[Any] = ordered.islice(start, stop, bounds.is_reverse)
        return keys


class HashIndex(ConfirmedIndex):
    """Confirmed entries in arbitrary order; full keys only."""

    __slots__ = ()

    def scan(self, bounds: KeyRange) -> Iterator[tuple[Any, bytes]]:
        """Return the entries after a key in the index's order, or all entries."""
        entries = iter(self.tuples.items())
        if bounds.low is not None:
            for key, _ in entries:
                if key == bounds.low:
                    break
        return entries

    def entries(self) -> Iterator[tuple[Any, bytes]]:
        return iter(self.tuples.items())


class LayerIndex:
    """Changes over another index, or over nothing when the index itself is new in this layer."""

    __slots__ = ("_is_tree", "_ordered", "key_def", "parent", "puts")

    def __init__(self, key_def: KeyDef, parent: "IndexView | None", is_tree: bool) -> None:
        self.key_def = key_def
        self.parent = parent
        self.puts: dict[Any, IndexPut] = {}
        self._is_tree = is_tree
        self._ordered: Any = None

    def get(self, key: Any) -> bytes | None:
        put = self.puts.get(key)
        if put is not None:
            return put[2]
        parent = self.parent
        return parent.get(key) if parent is not None else None

    def put(self, key: Any, packed: bytes | None) -> None:
        self.take((-1, key, packed))

    def take(self, put: IndexPut) -> None:
        """Make the put determine the tuple of its key."""
        self.puts[put[1]] = put
        self._ordered = None

    def settle(self, put: IndexPut) -> None:
        """Drop the entry of a put that the parent now holds, unless a later put replaced it."""
        key = put[1]
        if self.puts.get(key) is put:
            del self.puts[key]
            self._ordered = None

    def clear(self) -> None:
        self.puts.clear()
        self._ordered = None

    def written_to(self) -> "IndexView":
        """Return this index or the uppermost one below it that has entries of its own."""
        index: IndexView = self
        while isinstance(index, LayerIndex) and not index.puts and index.parent is not None:
            index = index.parent
        return index

    def __len__(self) -> int:
        return sum(1 for _ in self.entries())

    def _own(self, bounds: KeyRange) -> Iterator[tuple[Any, bytes]]:
        if self._ordered is None:
            self._ordered = SortedList(self.puts)
        for key in _keys_in(self._ordered, bounds):
            packed = self.puts[key][2]
            if packed is not None:
                yield key, packed

    def scan(self, bounds: KeyRange) -> Iterator[tuple[Any, bytes]]:
        puts = self.puts
        parent = self.parent
        if not puts:
            return parent.scan(bounds) if parent is not None else iter(())
        if not self._is_tree:
            return self._scan_hash(bounds)
        if parent is None:
            return self._own(bounds)
        below = (entry for entry in parent.scan(bounds) if entry[0] not in puts)
        return merge(below, self._own(bounds), key=itemgetter(0), reverse=bounds.is_reverse)

    def _scan_hash(self, bounds: KeyRange) -> Iterator[tuple[Any, bytes]]:
        entries = self.entries()
        if bounds.low is not None:
            for key, _ in entries:
                if key == bounds.low:
                    break
        return entries

    def entries(self) -> Iterator[tuple[Any, bytes]]:
        if self._is_tree:
            yield from self.scan(EVERYTHING)
            return
        if self.parent is not None:
            for key, packed in self.parent.entries():
                if key not in self.puts:
                    yield key, packed
        for key, (_, _, own) in self.puts.items():
            if own is not None:
                yield key, own


IndexView = TreeIndex | HashIndex | LayerIndex


def holder_of(index: IndexView, fields: list[Any]) -> bytes | None:
    """Return the tuple that holds these fields' key in a unique index, or None."""
    key_def = index.key_def
    if key_def.identifies:
        return index.get(key_def.entry_key(fields))
    if key_def.has_null(fields):
        return None
    bounds = range_of(key_def, protocol.EQ, key_def.prefix_of(fields))
    for _, packed in index.scan(bounds):
        return packed
    return None
