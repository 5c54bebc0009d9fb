"""Facts as rows of a table, from Spark's workers to the driver.

The table of all kinds has the fields of a `RowFact` as columns, which are null for facts about
files and blocks, and for each kind a column with its own fields. Copies of rows have a table of
their own: there are as many as rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa

from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.facts.kinds import BASES, KINDS, FileFact, RowCopy, RowFact

F = TypeVar("F", bound=FileFact)

_TYPES = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary(),
}  # fmt: skip


def name_of(kind: type[FileFact]) -> str:
    """Return the name of a kind in the column `fact`, and of the column of its own fields."""
    name = kind.__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")


def _arrow_of(annotation: object) -> pa.DataType:
    """Return the type of a field: a number, text or bytes, possibly None, or a tuple of such."""
    if annotation in _TYPES:
        return _TYPES[annotation]
    first = get_args(annotation)[0]
    return pa.list_(_arrow_of(first)) if get_origin(annotation) is tuple else _arrow_of(first)


class FactCodec(NamedTuple):
    """The form of one kind in the table."""

    kind: type[FileFact]
    shared: int  # number of fields that are columns
    own: list[pa.Field]
    values_of: Callable[[Any], tuple[Any, ...]]


def _codec_of(kind: type[FileFact]) -> FactCodec:
    hints = get_type_hints(kind)
    base = next(one for one in kind.__mro__ if one in BASES)
    shared = len(fields(base))
    names = [one.name for one in fields(kind)]
    own = [pa.field(name, _arrow_of(hints[name])) for name in names[shared:]]
    return FactCodec(kind, shared, own, attrgetter(*names))


SHARED = [pa.field(one.name, _TYPES[get_type_hints(RowFact)[one.name]]) for one in fields(RowFact)]
_CODECS = {name_of(kind): _codec_of(kind) for kind in KINDS}
_NAMES = {kind: name_of(kind) for kind in KINDS}
FACTS = pa.schema(
    [
        pa.field("fact", pa.string()),
        *SHARED,
        *(pa.field(name, pa.struct(one.own)) for name, one in _CODECS.items() if one.own),
    ]
)
FACTS_SQL = sql_of(FACTS)
COPIES = pa.schema([*SHARED, *_codec_of(RowCopy).own])
COPIES_SQL = sql_of(COPIES)


class Facts:
    """A collector of the facts of one part, as Arrow batches."""

    def __init__(self) -> None:
        self._facts: list[FileFact] = []

    def add(self, fact: FileFact) -> None:
        self._facts.append(fact)

    @property
    def is_full(self) -> bool:
        return len(self._facts) >= ROWS_MAX

    def clear(self) -> None:
        self._facts = []

    def take(self) -> pa.RecordBatch:
        facts, self._facts = self._facts, []
        return table_of(facts)


def table_of(facts: list[FileFact]) -> pa.RecordBatch:
    """Return facts as rows of the schema `FACTS`."""
    rows = []
    for fact in facts:
        name = _NAMES[type(fact)]
        codec = _CODECS[name]
        values = codec.values_of(fact)
        shared = [*values[: codec.shared], *[None] * (len(SHARED) - codec.shared)]
        own = dict(zip((one.name for one in codec.own), values[codec.shared :], strict=True))
        rows.append((name, *shared, *(own if one == name else None for one in _OWN)))
    return batch_of(rows, FACTS)


_OWN = FACTS.names[1 + len(SHARED) :]


def facts_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[FileFact]:
    """Yield the facts in rows of the schema `FACTS`, which are nested dicts."""
    for row in rows:
        codec = _CODECS[row["fact"]]
        shared = [row[one.name] for one in SHARED[: codec.shared]]
        own = row[row["fact"]] if codec.own else {}
        yield codec.kind(*shared, *(_plain(own[one.name]) for one in codec.own))


def copies_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[RowCopy]:
    """Yield the copies in rows of the schema `COPIES`."""
    for row in rows:
        yield RowCopy(*(_plain(row[name]) for name in COPIES.names))


def _plain(value: object) -> Any:
    """Return a value of a frozen record: Spark returns bytearrays, and lists for tuples."""
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(_plain(one) for one in value) if isinstance(value, list) else value


class FactList:
    """The facts that the driver lists, in the order of the log."""

    def __init__(self, facts: Iterable[FileFact]) -> None:
        self._facts = sorted(facts, key=lambda fact: fact.order)

    def __iter__(self) -> Iterator[FileFact]:
        return iter(self._facts)

    def of(self, kind: type[F], file_kind: str = "") -> list[F]:
        """Return the facts of a kind, of all files or of the files of one kind."""
        return [
            fact
            for fact in self._facts
            if isinstance(fact, kind) and file_kind in ("", fact.file_kind)
        ]

    def extend(self, facts: Iterable[FileFact]) -> None:
        """Append facts, after those of the log."""
        self._facts += facts
