"""Rows as tuples into an Arrow batch: Spark refuses a batch that deviates from its schema.

Each schema is defined once, as Arrow's; Spark's schema is derived from it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

ROWS_MAX = 8192
SMALL_BYTES = 256 << 10  # smaller batches wait for others
_SQL = {
    pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean", pa.int32(): "int",
    pa.int64(): "bigint", pa.float64(): "double",
}  # fmt: skip


_SCHEMAS: dict[str, pa.Schema] = {}
"""The schemas by their DDL."""


def sql_of(schema: pa.Schema) -> str:
    """Return the same columns as Spark's DDL."""
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in sql_types(schema).items())
    _SCHEMAS[ddl] = schema
    return ddl


def schema_of(ddl: str) -> pa.Schema:
    """Return the schema for which `sql_of` returned this DDL."""
    return _SCHEMAS[ddl]


def sql_types(schema: pa.Schema) -> dict[str, str]:
    """Return the Spark type of each column."""
    return {field.name: _sql_type(field.type) for field in schema}


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{one.name}`: {_sql_type(one.type)}' for one in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    return _SQL[kind]


def batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Together:
    """Merges small batches of one schema: each batch costs Spark as much as many rows."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.nbytes >= SMALL_BYTES:
                yield batch
            elif batch.num_rows:
                self._held.append(batch)
                self._bytes += batch.nbytes
                if self._bytes >= SMALL_BYTES:
                    yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._held:
            yield pa.concat_batches(self._held)
        self._held, self._bytes = [], 0
