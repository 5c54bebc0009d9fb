"""Rows as Parquet. Columns have the type of the field if Parquet has it, and text otherwise.

Unsigned and integer fields are 64 bit integers, number and double are double precision; booleans,
strings and bytes are themselves. Each other field is text as in CSV, and so are the fields after
the format in `_rest`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qsync_cli.data.fields import (
    REST,
    FieldError,
    rest_of,
    rest_of_text,
    row_of_record,
    text_of,
    value_of_native,
    value_of_text,
)
from qsync_cli.data.records import OnDone, Read, RecordReader
from qsync_cli.data.values import json_of
from qsync_cli.failure import Failure, FailureReason, cause_of, install_command
from qsync_client import Field, Row, Space

try:
    import pyarrow
    import pyarrow.parquet
except ModuleNotFoundError as absent:
    raise Failure(
        FailureReason.NOT_INSTALLED,
        f"Parquet needs pyarrow: run {install_command('parquet')}, or use --format jsonl",
    ) from absent

GROUP_ROWS = 20_000
GROUP_BYTES = 32 << 20
_TYPES = {
    "unsigned": pyarrow.uint64(),
    "integer": pyarrow.int64(),
    "number": pyarrow.float64(),
    "double": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "string": pyarrow.string(),
    "varbinary": pyarrow.binary(),
}


class ParquetWriter:
    """A Parquet file under construction, in groups of rows."""

    def __init__(self, path: Path, space: Space) -> None:
        self._space = space
        columns = [
            pyarrow.field(field.name, _TYPES.get(field.type, pyarrow.string()),
                          metadata={"qsync.type": field.type})
            for field in space.fields
        ]  # fmt: skip
        self._schema = pyarrow.schema([*columns, pyarrow.field(REST, pyarrow.string())])
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[list[Any]] = []
        self._bytes = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows.

        Raises:
            Failure: a value does not fit its column.
        """
        for row in rows:
            cells = [
                self._cell(field, row[number] if number < len(row) else None)
                for number, field in enumerate(self._space.fields)
            ]
            rest = rest_of(row, self._space)
            self._rows.append([*cells, rest or None])
            self._bytes += sum(len(one) for one in cells if isinstance(one, str | bytes)) + 64
        if len(self._rows) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = []
        for column, values in zip(self._schema, columns, strict=True):
            try:
                arrays.append(pyarrow.array(values, column.type))
            except (pyarrow.ArrowException, OverflowError, ValueError) as error:
                raise Failure(
                    FailureReason.FAILED,
                    f"a value of field {column.name} does not fit in Parquet: {error}; export "
                    "with --format jsonl",
                ) from error
        self._file.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()
        self._bytes = 0

    @staticmethod
    def _cell(field: Field, value: object) -> Any:
        if value is None or field.type in ("string", "boolean", "unsigned", "integer"):
            return value
        if field.type in ("number", "double"):
            if isinstance(value, float) or (isinstance(value, int) and float(value) == value):
                return float(value)
            raise Failure(
                FailureReason.FAILED,
                f"the value {json_of(value)} of field {field.name} is no double precision number: "
                "export with --format jsonl",
            )
        return value if field.type == "varbinary" else text_of(field, value)


def read_rows(path: Path, space: Space, done: OnDone) -> RecordReader:
    """Yield the rows of a Parquet file. See `files.read_rows`."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise Failure(FailureReason.INVALID, f"cannot read {path}: {cause_of(error)}") from error
    with file:
        total = max(file.metadata.num_rows, 1)
        number = 0
        for records in _records(file, path):
            for record in records:
                number += 1
                done(number / total)
                yield _read(number, record, space)


def _records(file: "pyarrow.parquet.ParquetFile", path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the records in groups. Raises Failure."""
    try:
        for batch in file.iter_batches(1000):
            yield batch.to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # in a damaged page
        raise Failure(FailureReason.INVALID, f"cannot read {path}: {cause_of(error)}") from error


def _read(number: int, record: dict[str, Any], space: Space) -> Read:
    rest = record.get(REST)
    try:
        if isinstance(rest, str):
            record = {**record, REST: rest_of_text(rest)}
        row = row_of_record(space, record, _value)
    except FieldError as error:
        return Read(number, None, error)
    return Read(number, row)


def _value(field: Field, value: object) -> Any:
    if isinstance(value, str) and field.type != "string":
        return value_of_text(field, value)
    if isinstance(value, float) and field.type in ("unsigned", "integer") and value.is_integer():
        value = int(value)
    return value_of_native(field, value)
