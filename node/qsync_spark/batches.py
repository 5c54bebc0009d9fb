"""Rows as tuples into an Arrow batch: Spark refuses one that is not exactly of its schema."""

from typing import Any

import pyarrow as pa

ROWS_MAX = 8192


def batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
