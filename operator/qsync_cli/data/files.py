"""Files of rows: CSV with a header, JSON lines, and Parquet.

Writers and readers hold a bounded number of rows. Writers of text continue at a position of an
interrupted file.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Protocol

from qsync_cli.data import extensions
from qsync_cli.data.fields import (
    REST,
    FieldError,
    named_fields,
    rest_of,
    rest_of_text,
    row_of_record,
    text_of,
    value_of_text,
)
from qsync_cli.data.records import OnDone, Read, RecordReader
from qsync_cli.data.values import json_of
from qsync_cli.failure import Failure, FailureReason, cause_of
from qsync_client import Row, Space

RECORD_CHARACTERS_MAX = 16 << 20
"""Size of a record of CSV, whose cells need several times as much memory. A tuple has 1 MiB."""
LINE_BYTES_MAX = 64 << 20


class FileFormat(StrEnum):
    """Formats of `--format`."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


def format_of(path: Path | None, chosen: FileFormat | None) -> FileFormat:
    """Return the chosen format, or the one of the file's name.

    Raises:
        Failure: the name has no known suffix.
    """
    if chosen is not None:
        return chosen
    if path is None:
        return FileFormat.jsonl
    suffix = path.suffix.lower().lstrip(".")
    known = {"csv": FileFormat.csv, "jsonl": FileFormat.jsonl, "ndjson": FileFormat.jsonl,
             "parquet": FileFormat.parquet, "pq": FileFormat.parquet}  # fmt: skip
    if suffix not in known:
        raise Failure(
            FailureReason.INVALID,
            f"the format of {path} is unknown: add --format csv, jsonl or parquet",
        )
    return known[suffix]


# --- writing ------------------------------------------------------------------------------------


class RowWriter(Protocol):
    """A file of rows under construction."""

    def write(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


class TextWriter:
    """A file of CSV or JSON lines, or standard output."""

    def __init__(
        self, file: IO[bytes], space: Space, chosen: FileFormat, has_rest: bool | None
    ) -> None:
        """Create a writer.

        Args:
            file: where to write.
            space: the space of the rows.
            chosen: csv or jsonl.
            has_rest: whether the header of the interrupted CSV file has the column `REST`; None
                for a new file, whose header follows from its first rows.
        """
        self.has_rest = has_rest
        self._file = file
        self._space = space
        self._chosen = chosen

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows.

        Raises:
            Failure: a row has fields that the header of the CSV file lacks.
        """
        text = self._csv(rows) if self._chosen is FileFormat.csv else self._lines(rows)
        self._file.write(text.encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        self.write([])
        self._file.flush()

    def _lines(self, rows: Sequence[Row]) -> str:
        return "".join(json_of(named_fields(row, self._space)) + "\n" for row in rows)

    def _csv(self, rows: Sequence[Row]) -> str:
        fields = self._space.fields
        output = _CsvLines()
        lines = csv.writer(output)
        width = len(fields)
        if self.has_rest is None:
            self.has_rest = any(len(row) > width for row in rows)
            lines.writerow([*(field.name for field in fields), *([REST] if self.has_rest else ())])
        for row in rows:
            if len(row) > width and not self.has_rest:
                raise Failure(
                    FailureReason.FAILED,
                    f"the row {json_of(list(row))[:80]} has fields after the format: export with "
                    "--format jsonl",
                )
            cells = [
                text_of(field, row[number] if number < len(row) else None)
                for number, field in enumerate(fields)
            ]
            lines.writerow([*cells, *([rest_of(row, self._space)] if self.has_rest else ())])
        return "".join(output.lines)


class _CsvLines:
    """Lines that end with a line feed, and cells with a carriage return in quotes.

    The writer of the standard library quotes only the characters of its own line end.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line.removesuffix("\r\n") + "\n")


# --- reading ------------------------------------------------------------------------------------


def read_rows(path: Path, chosen: FileFormat, space: Space, done: OnDone) -> RecordReader:
    """Yield the rows of a file; "-" is standard input.

    Raises:
        Failure: the file cannot be read, or its header names unknown fields.
    """
    if chosen is FileFormat.parquet:
        from qsync_cli.data import parquet  # noqa: PLC0415  # pyarrow is optional and slow

        yield from parquet.read_rows(path, space, done)
        return
    try:
        if str(path) == "-":
            yield from _read_text(sys.stdin.buffer, chosen, space, lambda: None)
            return
        with path.open("rb") as file:
            size = max(path.stat().st_size, 1)
            yield from _read_text(file, chosen, space, lambda: done(file.tell() / size))
    except OSError as error:
        raise Failure(FailureReason.INVALID, f"cannot read {path}: {cause_of(error)}") from error


def _read_text(
    file: IO[bytes], chosen: FileFormat, space: Space, advance: Callable[[], None]
) -> RecordReader:
    if chosen is FileFormat.jsonl:
        for number, line in enumerate(_bounded_lines(file), 1):
            advance()
            if line.strip():
                yield _json_row(number, line, space)
        return
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    csv.field_size_limit(RECORD_CHARACTERS_MAX)
    records = _RecordLines(text)
    lines = csv.reader(records)
    try:
        header = next(lines, None)
        if header is None:
            return
        _check_header(header, space)
        records.begin()
        for cells in lines:
            records.begin()
            advance()
            if cells:
                yield _csv_row(lines.line_num, header, cells, space)
    except csv.Error as error:
        raise Failure(
            FailureReason.INVALID, f"the file is no CSV from line {lines.line_num}: {error}"
        ) from error
    finally:
        text.detach()


class _RecordLines:
    """The lines of a CSV file. Those of one record, which quotes may join, have a bounded size."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Begin another record."""
        self._left = RECORD_CHARACTERS_MAX
        self._first = self._number + 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line.

        Raises:
            Failure: the record is too long for memory.
        """
        line = self._text.readline(self._left + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._left -= len(line)
        if self._left < 0:
            raise Failure(
                FailureReason.INVALID,
                f"line {self._first} has more than {RECORD_CHARACTERS_MAX >> 20} MiB of cells: "
                "write one row in each line, and close each quotation mark",
            )
        return line


def _bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        Failure: a line is too long for memory; the file may have no line breaks at all.
    """
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise Failure(
                FailureReason.INVALID,
                f"line {number} has more than {LINE_BYTES_MAX >> 20} MiB: write one row in each "
                "line",
            )
        yield line


def _json_row(number: int, line: bytes, space: Space) -> Read:
    try:
        text = line.decode("utf-8", "surrogateescape")
        record = json.loads(text, object_hook=extensions.value_of_object)
        if not isinstance(record, dict | list):
            raise FieldError("", "the line is neither a JSON object nor an array")
        return Read(number, row_of_record(space, record))
    except FieldError as error:
        return Read(number, None, error)
    except (ValueError, RecursionError) as error:
        return Read(number, None, FieldError("", f"the line is no JSON: {error}"))


def _check_header(header: list[str], space: Space) -> None:
    known = [field.name for field in space.fields]
    unknown = [name for name in header if name not in known and name != REST]
    if unknown or len(set(header)) < len(header):
        raise Failure(
            FailureReason.INVALID,
            f"the first line of the CSV file must name fields of {space.name} "
            f"({', '.join(known)}): it is {', '.join(header)[:200]}",
        )


def _csv_row(number: int, header: list[str], cells: list[str], space: Space) -> Read:
    if len(cells) != len(header):
        message = f"the line has {len(cells)} columns, and the header has {len(header)}"
        return Read(number, None, FieldError("", message))
    record: dict[str, Any] = dict(zip(header, cells, strict=True))
    try:
        if REST in record:
            record[REST] = rest_of_text(record[REST])
        row = row_of_record(space, record, lambda field, text: value_of_text(field, text or ""))
        return Read(number, row)
    except FieldError as error:
        return Read(number, None, error)
