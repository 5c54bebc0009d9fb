"""Events of one key after another: what a snapshot says held against what the log made (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from qsync_node.format.keys import DELETE, INSERT, REPLACE, UPDATE, Key
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_spark.audit.events import BASE, CHECK, UNKNOWN
from qsync_spark.batches import batch_of, sql_of
from qsync_spark.catalogue import KEYS, Catalogue
from qsync_spark.operations import Impossible, Unsupported, apply_operations

ODD = pa.schema(
    [
        pa.field("space", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("index", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("is_known", pa.bool_()),
        pa.field("text", pa.string()),
    ]
)
ODD_SQL = sql_of(ODD)


@dataclass(slots=True)
class Fold:
    """One key, event after event. `fields` None: there is no such tuple now.

    What overwrites a tuple is decoded when it is asked for: most is overwritten before that.
    """

    catalogue: Catalogue
    snapshots: list[tuple[int, str]]  # (index, file), rising
    oldest: dict[str, int] = field(default_factory=dict)  # see `oldest_requests`
    space: int = 0
    key: bytes = b""
    _fields: list[Any] | None = None
    _body: bytes | None = None  # that makes `_fields`, not decoded yet
    _why_unknown: str = ""
    since: int = 0  # index of the last change
    next_snapshot: int = 0
    there: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    odd: list[tuple[Any, ...]] = field(default_factory=list)

    def begin(self, space: int, key: bytes) -> None:
        self.space, self.key = space, key
        self._set(None)
        self.since, self.next_snapshot = 0, 0
        self.there = {}

    @property
    def fields(self) -> list[Any] | None:
        self._decode()
        return self._fields

    @property
    def why_unknown(self) -> str:
        self._decode()
        return self._why_unknown

    def clear(self) -> None:
        """There is no such tuple any more."""
        self._set(None)

    def _set(self, fields: list[Any] | None, body: bytes | None = None, why: str = "") -> None:
        self._fields, self._body, self._why_unknown = fields, body, why

    def _decode(self) -> None:
        body = self._body
        if body is not None:
            try:
                self._set(unpack(body)[Key.TUPLE])
            except (*BAD_MSGPACK, KeyError) as error:
                self._set(None, why=str(error) or type(error).__name__)

    def take(self, index: int, op: int, body: bytes, file: str, offset: int) -> None:
        while self.next_snapshot < len(self.snapshots):
            at = self.snapshots[self.next_snapshot][0]
            if at > index or (at == index and op == CHECK):
                break
            if at == index:
                break  # changes at the snapshot's own index come before its tuples
            self._compare()
        if op == CHECK:
            self.there[file] = (body, offset)
            return
        self._clear(index)
        self.since = index
        if op in (REPLACE, INSERT, BASE):
            self._set(None, body)
        elif op == DELETE:
            self._set(None)
        elif op == UNKNOWN:
            self._set(self.fields, why="a row names no primary key")
        else:
            self._update(op, body)

    def end(self) -> None:
        while self.next_snapshot < len(self.snapshots):
            self._compare()

    def _clear(self, before: int) -> None:
        """A truncation or drop between the last change and `before` took the tuple away."""
        for at in self.catalogue.clears.get(self.space, ()):
            if self.since < at < before:
                self._set(None)

    def _update(self, op: int, body: bytes) -> None:
        names = self.catalogue.names.get(self.space, {})
        fields, why = self.fields, self.why_unknown
        try:
            request = unpack(body)
            base = request.get(Key.INDEX_BASE, 0)
            if op == UPDATE:
                if fields is not None:
                    fields = apply_operations(fields, request[Key.TUPLE], base, names, False)
            elif fields is None:
                fields = request[Key.TUPLE]
            else:
                fields = apply_operations(fields, request[Key.OPS], base, names, True)
        except (Unsupported, Impossible, KeyError, *BAD_MSGPACK) as error:
            why = str(error) or type(error).__name__
        self._set(fields, why=why)

    def _compare(self) -> None:
        at, file = self.snapshots[self.next_snapshot]
        self.next_snapshot += 1
        self._clear(at + 1)
        found = self.there.pop(file, None)
        if found is not None and self._body == found[0]:
            return  # the same bytes
        if self.why_unknown:
            self._odd(at, file, 0, False, self.why_unknown)
        elif found is None:
            if self.fields is not None and not self._is_forgotten(file):
                self._odd(at, file, 0, True, "the snapshot lacks a tuple that the log made")
        elif self.fields is None:
            self._odd(
                at, file, found[1], True, "the snapshot has a tuple that the log did not make"
            )
        elif repr(unpack(found[0])[Key.TUPLE]) != repr(self.fields):
            self._odd(at, file, found[1], True, "the snapshot has another tuple than the log")

    def _is_forgotten(self, file: str) -> bool:
        """Requests are forgotten oldest first, each when a newer one comes (T9)."""
        return self.space == KEYS and self.since < self.oldest.get(file, 0)

    def _odd(self, at: int, file: str, offset: int, is_known: bool, text: str) -> None:
        self.odd.append((self.space, self.key, at, file, offset, is_known, text))


def fold_events(
    batches: Iterator[pa.RecordBatch],
    catalogue: Catalogue,
    snapshots: list[tuple[int, str]],
    oldest: dict[str, int],
) -> Iterator[pa.RecordBatch]:
    """Events sorted by (space, key, index, op) to what is odd about snapshots."""
    fold = Fold(catalogue, snapshots, oldest)
    is_open = False
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns[:7]]
        for space, key, index, op, body, file, offset in zip(*columns, strict=True):
            if not is_open or space != fold.space or key != fold.key:
                if is_open:
                    fold.end()
                fold.begin(space, key)
                is_open = True
            fold.take(index, op, body, file, offset)
        if fold.odd:
            yield batch_of(fold.odd, ODD)
            fold.odd = []
    if is_open:
        fold.end()
    yield batch_of(fold.odd, ODD)
