"""Lines of ledgers: JSON Lines or Parquet, read in pieces by Spark's tasks (data path)."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from io import BufferedReader
from itertools import accumulate, islice
from socket import gethostname
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from qsync_client.ledger import LINE_BYTES_MAX
from qsync_node.archive.location import first_line, read_range
from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.places import PlaceError, RangeFile, StoredFile, find_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = ".parquet"
PIECE_BYTES = 8 << 20
BUFFER_BYTES = 1 << 20
_TIMES = ("started", "ended", "time")
COUNTS = pa.schema([pa.field("piece", pa.int64()), pa.field("lines", pa.int64())])
COUNTS_SQL = sql_of(COUNTS)
PIECES_SQL = sql_of(pa.schema([pa.field("piece", pa.int64())]))


@dataclass(frozen=True, slots=True)
class LinePiece:
    """The input of one task: a range of bytes of a ledger, or of row groups of a Parquet file."""

    file: StoredFile
    start: int
    end: int


def read_lines(
    spark: "SparkSession",
    place: str,
    row_of: Callable[[int, bytes | dict[str, Any]], tuple[Any, ...]],
    schema: pa.Schema,
) -> "DataFrame":
    """Return a row for each line, from a path or URL that every executor can read.

    Args:
        spark: the session.
        place: path or URL of a file, or of a folder of Parquet files.
        row_of: returns the row for the number of a line, and its text or its columns.
        schema: schema of the rows.

    Raises:
        PlaceError: the ledger cannot be read.
    """
    pieces = [piece for file in find_files(place, PARQUET) for piece in pieces_of(file)]
    numbers = spark.sparkContext.parallelize([(n,) for n in range(len(pieces))], len(pieces) or 1)
    planned = spark.createDataFrame(numbers, PIECES_SQL)
    starts = [0]
    if len(pieces) > 1:

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                (found,) = batch.columns
                counts = [(n, sum(1 for _ in lines_of(pieces[n]))) for n in found.to_pylist()]
                yield batch_of(counts, COUNTS)

        counted = dict(map(tuple, planned.mapInArrow(count, COUNTS_SQL).collect()))
        starts = [0, *accumulate(counted[n] for n in range(len(pieces)))]

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (found,) = batch.columns
            for number in found.to_pylist():
                lines = enumerate(lines_of(pieces[number]), starts[number])
                rows = (row_of(line, text) for line, text in lines)
                while some := list(islice(rows, ROWS_MAX)):
                    yield batch_of(some, schema)

    return planned.mapInArrow(parse, sql_of(schema))


def pieces_of(file: StoredFile) -> list[LinePiece]:
    if not file.key.endswith(PARQUET):
        starts = range(0, max(file.size, 1), PIECE_BYTES)
        return [LinePiece(file, start, min(start + PIECE_BYTES, file.size)) for start in starts]
    with _parquet(file) as table:
        groups = table.num_row_groups
    return [LinePiece(file, n, n + 1) for n in range(groups)]


def lines_of(piece: LinePiece) -> Iterator[bytes | dict[str, Any]]:
    """Yield the lines that begin in the piece, or its rows. Raises PlaceError."""
    file = piece.file
    if file.key.endswith(PARQUET):
        with _parquet(file) as table:
            groups = list(range(piece.start, piece.end))
            for batch in table.iter_batches(ROWS_MAX, groups):
                for row in batch.to_pylist():
                    yield {name: _as_json(name, v) for name, v in row.items() if v is not None}
        return
    # The byte before the piece reveals whether a line begins there. The last line may continue.
    before = max(piece.start - 1, 0)
    end = min(piece.end + LINE_BYTES_MAX, file.size)
    try:
        data = read_range(file.url, file.key, before, end)
    except OSError as error:
        raise PlaceError(
            f"cannot read {file.url}/{file.key} on {gethostname()}: {first_line(error)}; "
            "specify the ledger by a URL that every executor can read, such as "
            "s3://BUCKET/ledger.jsonl"
        ) from error
    at = data.find(b"\n") + 1 if piece.start else 0
    if piece.start and not at:
        return
    while at < piece.end - before:
        stop = data.find(b"\n", at)
        if stop < 0 and end == file.size and not _is_json(data[at:]):
            return  # its writer was killed: the outcome of this line is not known
        stop = len(data) if stop < 0 else stop
        yield data[at:stop]
        at = stop + 1


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _as_json(name: str, value: object) -> object:
    """Return the JSON form of a column's value: times are numbers, and values keep all digits."""
    if name not in _TIMES:
        return _value_as_json(value)
    if isinstance(value, datetime):
        return _with_zone(value).timestamp()
    return float(value) if isinstance(value, Decimal) else value


def _value_as_json(value: object) -> object:
    """Return the JSON form of a value, which `value_of_json` decodes."""
    if isinstance(value, list):
        return [_value_as_json(one) for one in value]
    if isinstance(value, dict):
        return {name: _value_as_json(one) for name, one in value.items()}
    if isinstance(value, Decimal):
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole else {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$datetime": _with_zone(value).isoformat()}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    return {"$uuid": str(value)} if isinstance(value, UUID) else value


def _with_zone(moment: datetime) -> datetime:
    """Return a time in UTC if it has no zone: that of the machine must not change a ledger."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@contextmanager
def _parquet(file: StoredFile) -> Iterator[pq.ParquetFile]:
    """Yield the opened file. Raises PlaceError if it is not Parquet or cannot be read."""
    try:
        with (
            BufferedReader(RangeFile(file), BUFFER_BYTES) as source,
            pq.ParquetFile(source) as table,
        ):
            yield table
    except (OSError, pa.ArrowException) as error:
        raise PlaceError(
            f"cannot read the ledger {file.url}/{file.key}: {first_line(error)}; check the file"
        ) from error
