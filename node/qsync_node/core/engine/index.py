"""Indexes: entry keys to tuples, confirmed or layered. Data path.

`TreeIndex` and `HashIndex` hold confirmed state. A `LayerIndex` lies over another index and holds
only what differs: an entry per changed key, whose tuple is None where the key is gone. All three
answer `get`, `scan` and `put`; a statement cannot tell which it reads.

A tree is a dict plus an ordered list of its keys. Point reads and writes touch only the dict and
note which keys are new (`fresh`) or gone (`stale`); the list catches up at the next ordered read,
or after `FRESH_KEYS_MAX` keys, so that loading is one sort and no write pays for order that nobody
asked for.
"""

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from . import codes
from .fields import GREATEST
from .keydef import KeyDef

FRESH_KEYS_MAX = 8192

# (index id, entry key, tuple or None): one index's part of a change.
Put = tuple[int, Any, bytes | None]


class Range(NamedTuple):
    """Entry keys between two bounds; None is no bound."""

    low: Any
    high: Any
    is_low_open: bool
    is_high_open: bool
    is_reverse: bool


_REVERSE = frozenset({codes.REQ, codes.LT, codes.LE})


def range_of(key_def: KeyDef, iterator: int, prefix: tuple[Any, ...]) -> Range:
    """The range an ordered iterator walks, from a checked search prefix."""
    is_reverse = iterator in _REVERSE
    if not prefix:
        return Range(None, None, False, False, is_reverse)
    if key_def.is_plain:
        first = last = prefix[0]
        is_last_open = False
    else:
        first, last = prefix, (*prefix, GREATEST)
        is_last_open = True
    if iterator in (codes.EQ, codes.REQ):
        return Range(first, last, False, is_last_open, is_reverse)
    if iterator in (codes.GE, codes.ALL):
        return Range(first, None, False, False, is_reverse)
    if iterator == codes.GT:
        return Range(last, None, True, False, is_reverse)
    if iterator == codes.LE:
        return Range(None, last, False, is_last_open, is_reverse)
    return Range(None, first, False, True, is_reverse)


def range_after(bounds: Range, entry_key: Any) -> Range:
    """What is left of a range behind an entry already seen."""
    if bounds.is_reverse:
        return bounds._replace(high=entry_key, is_high_open=True)
    return bounds._replace(low=entry_key, is_low_open=True)


def _keys_in(ordered: Any, bounds: Range) -> Iterator[Any]:
    keys: Iterator[Any] = ordered.irange(
        bounds.low,
        bounds.high,
        (not bounds.is_low_open, not bounds.is_high_open),
        bounds.is_reverse,
    )
    return keys


def _sorted_tuples(tuples: dict[Any, bytes]) -> Iterator[bytes]:
    for key in sorted(tuples):
        yield tuples[key]


class TreeIndex:
    """Confirmed entries in the order of their keys."""

    __slots__ = ("_fresh", "_ordered", "_stale", "key_def", "tuples")

    def __init__(self, key_def: KeyDef) -> None:
        self.key_def = key_def
        self.tuples: dict[Any, bytes] = {}
        self._ordered: Any = SortedList()
        self._fresh: set[Any] = set()
        self._stale: set[Any] = set()

    def __len__(self) -> int:
        return len(self.tuples)

    def get(self, key: Any) -> bytes | None:
        return self.tuples.get(key)

    def put(self, key: Any, packed: bytes | None) -> None:
        tuples = self.tuples
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

    def _forget(self, key: Any) -> None:
        if key in self._fresh:
            self._fresh.remove(key)
        else:
            self._stale.add(key)

    def _catch_up(self) -> None:
        if len(self._stale) * 8 > len(self._ordered):
            self._ordered = SortedList(self.tuples)
        else:
            for key in self._stale:
                self._ordered.remove(key)
            self._ordered.update(sorted(self._fresh))
        self._fresh.clear()
        self._stale.clear()

    def copy_sorted(self) -> Iterator[bytes]:
        """The tuples by key as they are now; sorted when asked for, not now."""
        return _sorted_tuples(self.tuples.copy())

    def scan(self, bounds: Range) -> Iterator[tuple[Any, bytes]]:
        if self._fresh or self._stale:
            self._catch_up()
        tuples = self.tuples
        for key in _keys_in(self._ordered, bounds):
            yield key, tuples[key]

    def entries(self) -> Iterator[tuple[Any, bytes]]:
        return self.scan(Range(None, None, False, False, False))


class HashIndex:
    """Confirmed entries in no order worth naming; full keys only."""

    __slots__ = ("key_def", "tuples")

    def __init__(self, key_def: KeyDef) -> None:
        self.key_def = key_def
        self.tuples: dict[Any, bytes] = {}

    def __len__(self) -> int:
        return len(self.tuples)

    def get(self, key: Any) -> bytes | None:
        return self.tuples.get(key)

    def put(self, key: Any, packed: bytes | None) -> None:
        if packed is None:
            self.tuples.pop(key, None)
        else:
            self.tuples[key] = packed

    def copy_sorted(self) -> Iterator[bytes]:
        """The tuples by key, which makes snapshots of equal states equal."""
        return _sorted_tuples(self.tuples.copy())

    def scan(self, bounds: Range) -> Iterator[tuple[Any, bytes]]:
        """A hash has one range besides everything: what comes behind a key in its order."""
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
        self.puts: dict[Any, Put] = {}
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

    def take(self, put: Put) -> None:
        """Let the put decide its key from now on."""
        self.puts[put[1]] = put
        self._ordered = None

    def settle(self, put: Put) -> None:
        """The parent holds this put now; keep the entry only if a later one replaced it."""
        key = put[1]
        if self.puts.get(key) is put:
            del self.puts[key]
            self._ordered = None

    def clear(self) -> None:
        self.puts.clear()
        self._ordered = None

    def __len__(self) -> int:
        return sum(1 for _ in self.entries())

    def _own(self, bounds: Range) -> Iterator[tuple[Any, bytes]]:
        if self._ordered is None:
            self._ordered = SortedList(self.puts)
        for key in _keys_in(self._ordered, bounds):
            packed = self.puts[key][2]
            if packed is not None:
                yield key, packed

    def scan(self, bounds: Range) -> Iterator[tuple[Any, bytes]]:
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

    def _scan_hash(self, bounds: Range) -> Iterator[tuple[Any, bytes]]:
        entries = self.entries()
        if bounds.low is not None:
            for key, _ in entries:
                if key == bounds.low:
                    break
        return entries

    def entries(self) -> Iterator[tuple[Any, bytes]]:
        if self._is_tree:
            yield from self.scan(Range(None, None, False, False, False))
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
    """The tuple that holds these fields' key in a unique index, if one does."""
    key_def = index.key_def
    if key_def.identifies:
        return index.get(key_def.entry_key(fields))
    if key_def.has_null(fields):
        return None
    bounds = range_of(key_def, codes.EQ, key_def.prefix_of(fields))
    for _, packed in index.scan(bounds):
        return packed
    return None
