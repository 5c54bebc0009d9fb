"""Arrays and maps for update operations, opened only as far as the operations reach.

A request opens a container once. Its bytes are divided into runs of `RUN_ITEMS` items. The runs of
a large container are longer, because opening takes one call per run. A run stays bytes until an
operation touches an item in it. msgpack skips whole runs in C, so opening costs one pass over the
bytes. An operation then costs one run, however large the container is. An item is raw bytes, or the
opened container that replaced them.

`ArrayPieces` finds an item by its position with a Fenwick tree (P. M. Fenwick, 1994) over the
lengths of its runs, so that `!` and `#` move the items of one run only. `MapPieces` finds a value
by its key with a dict. A container that was opened but not changed returns its original bytes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from qsync_client.protocol.markers import ARRAY16, FIXARRAY_MAX, FIXSTR, MAP16

from .fields import MapPairs, decode_extension, invalid_msgpack
from .tuples import array_header, is_array, is_map, map_header

RUN_ITEMS = 64
_LARGE_ITEMS = 1 << 17
_LARGE_RUN_ITEMS = 256
_WINDOW_MIN = 512
_SHORT_LENGTHS = (ARRAY16, MAP16)  # a length of two bytes
_BODY = "packet body"
_HEADER_BYTES_MAX = 5


class PieceRun(NamedTuple):
    """Consecutive items that no operation has touched."""

    data: bytes
    items: int


Item = Any
"""Raw bytes, an `ArrayPieces` or a `MapPieces`; mypy does not support recursive slots."""
PieceBlock = PieceRun | list[Item]


def read_header(packed: bytes) -> tuple[int, int]:
    """Return the number of items of an array or pairs of a map, and the offset of the first one."""
    first = packed[0]
    if first < FIXSTR:
        return first & FIXARRAY_MAX, 1
    if first in _SHORT_LENGTHS:
        return int.from_bytes(packed[1:3], "big"), 3
    return int.from_bytes(packed[1:5], "big"), 5


def end_of_items(packed: bytes, at: int, count: int, window: int = _WINDOW_MIN) -> int:
    """Return the offset after `count` values that begin at `at`. One call into C skips them all.

    Args:
        window: a guess at their length in bytes; a wrong guess only costs time.
    """
    header = array_header(count)
    while True:
        unpacker = msgpack.Unpacker(max_buffer_size=len(header) + window)
        unpacker.feed(header + packed[at : at + window])
        try:
            unpacker.skip()
        except msgpack.OutOfData:
            if at + window >= len(packed):
                raise invalid_msgpack(_BODY) from None
            window *= 4
            continue
        except (ValueError, msgpack.UnpackException) as error:
            raise invalid_msgpack(_BODY) from error
        return at + int(unpacker.tell()) - len(header)


def split_items(data: bytes, count: int) -> list[bytes]:
    """Return the `count` values in `data`."""
    if count == 1:
        return [data]
    if count == len(data):
        return [data[at : at + 1] for at in range(count)]
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    items = []
    start = 0
    try:
        for _ in range(count):
            unpacker.skip()
            end = unpacker.tell()
            items.append(data[start:end])
            start = end
    except (ValueError, msgpack.UnpackException) as error:
        raise invalid_msgpack(_BODY) from error
    if start != len(data):
        raise invalid_msgpack(_BODY)
    return items


def item_of(packed: bytes, position: int) -> bytes:
    """Return the item at a position, which must exist."""
    start = end_of_items(packed, read_header(packed)[1], position)
    return packed[start : end_of_items(packed, start, 1)]


def with_item(packed: bytes, position: int, item: bytes) -> bytes:
    """Return the array with another item at a position, which must exist.

    The result has the shortest header.
    """
    count, at = read_header(packed)
    start = end_of_items(packed, at, position)
    end = end_of_items(packed, start, 1)
    return array_header(count) + packed[at:start] + item + packed[end:]


def _run_items(count: int) -> int:
    """Return the items of a run in a container of `count` items, an even number."""
    return RUN_ITEMS if count <= _LARGE_ITEMS else _LARGE_RUN_ITEMS


def _blocks_of(packed: bytes, at: int, count: int) -> list[PieceBlock]:
    if count <= RUN_ITEMS:
        return [split_items(packed[at:], count)]
    blocks: list[PieceBlock] = []
    window = _WINDOW_MIN
    run = _run_items(count)
    while count:
        taken = min(count, run)
        end = end_of_items(packed, at, taken, window)
        blocks.append(PieceRun(packed[at:end], taken))
        window = max(2 * (end - at), _WINDOW_MIN)
        at, count = end, count - taken
    if at != len(packed):
        raise invalid_msgpack(_BODY)
    return blocks


def _joined(blocks: list[PieceBlock]) -> Iterator[bytes]:
    for block in blocks:
        if isinstance(block, PieceRun):
            yield block.data
            continue
        try:
            yield b"".join(block)
        except TypeError:  # an opened container is among the items
            for item in block:
                yield item if isinstance(item, bytes) else item.join()


class ArrayPieces:
    """An array, opened as far as operations needed it."""

    __slots__ = ("_blocks", "_sums", "_top", "count", "head", "is_changed", "paths")

    def __init__(self, packed: bytes) -> None:
        self.count, at = read_header(packed)
        self.head = packed[:at]
        self.is_changed = False
        self.paths: dict[Any, Any] = {}  # of a field: the places that were changed inside
        self._blocks = _blocks_of(packed, at, self.count)
        blocks = len(self._blocks)
        self._top = 1 << (blocks.bit_length() - 1)
        sums = [0, *map(_length, self._blocks)]
        for block in range(1, blocks + 1):
            above = block + (block & -block)
            if above <= blocks:
                sums[above] += sums[block]
        self._sums = sums

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> Item:
        block, at = self._find(position)
        return self._open(block)[at]

    def __setitem__(self, position: int, item: Item) -> None:
        block, at = self._find(position)
        self._open(block)[at] = item

    def insert(self, position: int, item: Item) -> None:
        """Insert an item before the one at `position`, or at the end if there is none."""
        if position < self.count or not self.count:
            block, at = self._find(position)
        else:
            block, at = self._find(position - 1)
            at += 1
        self._open(block).insert(at, item)
        self._add(block, 1)

    def remove(self, position: int, wanted: int) -> None:
        """Remove at most `wanted` items from `position` on."""
        left = min(wanted, self.count - position)
        while left:
            block, at = self._find(position)
            length = _length(self._blocks[block])
            taken = min(left, length - at)
            if taken == length:
                self._blocks[block] = []
            else:
                del self._open(block)[at : at + taken]
            self._add(block, -taken)
            left -= taken

    def join(self) -> bytes:
        head = array_header(self.count) if self.is_changed else self.head
        return b"".join((head, *_joined(self._blocks)))

    def _find(self, position: int) -> tuple[int, int]:
        """Return the block of the item at a position, and the item's offset in the block."""
        if len(self._blocks) == 1:
            return 0, position
        block, step, sums = 0, self._top, self._sums
        while step:
            following = block + step
            if following < len(sums) and sums[following] <= position:
                block = following
                position -= sums[following]
            step >>= 1
        return min(block, len(self._blocks) - 1), position

    def _open(self, block: int) -> list[Item]:
        items = self._blocks[block]
        if isinstance(items, PieceRun):
            items = self._blocks[block] = split_items(*items)
        return items

    def _add(self, block: int, change: int) -> None:
        self.count += change
        sums = self._sums
        at = block + 1
        while at < len(sums):
            sums[at] += change
            at += at & -at


def _length(block: PieceBlock) -> int:
    return block.items if isinstance(block, PieceRun) else len(block)


class MapPieces:
    """A map, opened as far as operations needed it.

    New pairs come first, the latest before the others.
    """

    __slots__ = ("_added", "_blocks", "_next_same", "_places", "_run_pairs", "count", "head",
                 "is_changed", "paths")  # fmt: skip

    def __init__(self, packed: bytes) -> None:
        self.count, at = read_header(packed)
        self.head = packed[:at]
        self.is_changed = False
        self.paths: dict[Any, Any] = {}
        self._run_pairs = _run_items(2 * self.count) // 2
        self._blocks = _blocks_of(packed, at, 2 * self.count)
        self._next_same: dict[int, int] = {}
        self._places = self._find_keys(packed, at)
        self._added: dict[Any, tuple[bytes, Item]] = {}

    def _find_keys(self, packed: bytes, at: int) -> dict[Any, int]:
        """Return the first pair of each key. One call into C decodes all keys and values."""
        unpacker = msgpack.Unpacker(
            strict_map_key=False,
            unicode_errors="surrogateescape",
            ext_hook=decode_extension,
            object_pairs_hook=MapPairs,
            max_buffer_size=len(packed) + _HEADER_BYTES_MAX,
        )
        unpacker.feed(array_header(2 * self.count) + packed[at:])
        try:
            keys = unpacker.unpack()[::2]
        except (ValueError, msgpack.UnpackException) as error:
            raise invalid_msgpack(_BODY) from error
        last = len(keys) - 1
        try:
            places = dict(zip(reversed(keys), range(last, -1, -1), strict=True))
        except TypeError:
            places = {}
        return places if len(places) == len(keys) else self._note_same(keys)

    def _note_same(self, keys: list[Any]) -> dict[Any, int]:
        """Return the first pair of each key, and record the next pair with the same key."""
        places: dict[Any, int] = {}
        last: dict[Any, int] = {}
        for pair, key in enumerate(keys):
            try:
                if places.setdefault(key, pair) != pair:
                    self._next_same[last.get(key, places[key])] = pair
                    last[key] = pair
            except TypeError:
                continue  # an array or a map: no step of a path is equal to it
        return places

    def __contains__(self, key: object) -> bool:
        return key in self._added or key in self._places

    def __getitem__(self, key: object) -> Item:
        if key in self._added:
            return self._added[key][1]
        items, at = self._pair(self._places[key])
        return items[at + 1]

    def last_of(self, key: object) -> Item:
        """Return the last value of a key in an unchanged map: a decoded map keeps that one."""
        pair = self._places[key]
        while pair in self._next_same:
            pair = self._next_same[pair]
        items, at = self._pair(pair)
        return items[at + 1]

    def __setitem__(self, key: object, item: Item) -> None:
        if key in self._added:
            self._added[key] = (self._added[key][0], item)
            return
        items, at = self._pair(self._places[key])
        items[at + 1] = item

    def add(self, key: object, packed_key: bytes, item: bytes) -> None:
        """Add a pair whose key is not in the map."""
        self._added[key] = (packed_key, item)
        self.count += 1

    def remove(self, key: object) -> None:
        """Remove the first pair with this key; the next one with the same key replaces it."""
        self.count -= 1
        if self._added.pop(key, None) is not None:
            return
        pair = self._places.pop(key)
        items, at = self._pair(pair)
        items[at] = items[at + 1] = b""
        if pair in self._next_same:
            self._places[key] = self._next_same[pair]

    def join(self) -> bytes:
        head = map_header(self.count) if self.is_changed else self.head
        parts = [head]
        for packed_key, item in reversed(self._added.values()):
            parts.append(packed_key)
            parts.append(item if isinstance(item, bytes) else item.join())
        parts += _joined(self._blocks)
        return b"".join(parts)

    def _pair(self, pair: int) -> tuple[list[Item], int]:
        """Return the items of a pair's run, and the pair's offset in the run."""
        block, within = divmod(pair, self._run_pairs)
        items = self._blocks[block]
        if isinstance(items, PieceRun):
            items = self._blocks[block] = split_items(*items)
        return items, 2 * within


def open_container(item: Item) -> Item:
    """Return the opened container if the item is an array or a map, else the item."""
    if not isinstance(item, bytes):
        return item
    if is_array(item):
        return ArrayPieces(item)
    return MapPieces(item) if is_map(item) else item
