"""Files of rows: each value returns from its file, and invalid rows are named."""

import asyncio
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pyarrow
import pyarrow.parquet
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from qsync_cli.data import exporting, files, importing, parquet
from qsync_cli.data.extensions import datetime_of, decimal_of, uuid_of
from qsync_cli.data.fields import (
    FieldError,
    named_fields,
    row_of_record,
    text_of,
    value_of_native,
    value_of_text,
)
from qsync_cli.data.files import FileFormat, TextWriter, format_of, read_rows
from qsync_cli.data.records import Read
from qsync_cli.data.values import value_of
from qsync_cli.failure import Failure
from qsync_client import (
    Committed,
    ErrorCode,
    Field,
    Index,
    InvalidArgument,
    Outcome,
    Refused,
    Row,
    Space,
    Unknown,
)

UUID = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"
SPACE = Space(
    512,
    "things",
    (
        Field("id", "unsigned"),
        Field("name", "string", True),
        Field("size", "number", True),
        Field("is_new", "boolean", True),
        Field("price", "decimal", True),
        Field("code", "uuid", True),
        Field("at", "datetime", True),
        Field("data", "varbinary", True),
        Field("tags", "array", True),
        Field("any", "any", True),
    ),
    (Index(0, "primary", "tree", True, (0,)),),
)
ROWS = [
    [1, "ann", 1.5, True, decimal_of("9.99"), uuid_of(UUID), datetime_of("2026-01-31T12:00:00Z"),
     b"\x00\xff", [1, "x", None], {"a": 1}],
    [2, "", None, None, None, None, None, None, None, None],
    [3, None, None, False, None, None, None, b"", [], "text"],
    [4, '"quoted"', 1e300, None, None, None, None, None, None, "42"],
    [5, 'a,"b"\nc', -0.5, None, None, None, None, None, None, msgpack.ExtType(6, b"\0")],
    [6, "\udcff", 3.0, None, None, None, None, None, None, ""],
    [7, "a\rb", None, None, None, None, None, None, None, "\r"],
    [8, "\r\n", None, None, None, None, None, None, None, "1" * 5000],
    [9, None, None, None, None, None, None, None, None, "[" * 100_000],
]  # fmt: skip
WIDE = [*ROWS, [*ROWS[0], "more", {"x": [1]}], [*ROWS[0], None, "last", None]]


def nothing(done: float) -> None:
    pass


def written(tmp_path: Path, rows: list[list[Any]], chosen: FileFormat) -> Path:
    path = tmp_path / f"rows.{chosen}"
    found = [Row(row, SPACE) for row in rows]
    if chosen is FileFormat.parquet:
        writer = parquet.ParquetWriter(path, SPACE)
        writer.write(found)
        writer.close()
    else:
        with path.open("wb") as file:
            text = TextWriter(file, SPACE, chosen, None)
            text.write(found)
            text.close()
    return path


def trimmed(row: list[Any]) -> list[Any]:
    while row and row[-1] is None:
        row = row[:-1]
    return row


@pytest.mark.parametrize("rows", [ROWS, WIDE])
@pytest.mark.parametrize("chosen", [FileFormat.csv, FileFormat.jsonl])
def test_rows_return_from_text(tmp_path: Path, rows: list[list[Any]], chosen: FileFormat) -> None:
    read = list(read_rows(written(tmp_path, rows, chosen), chosen, SPACE, nothing))
    assert [one.error for one in read] == [None] * len(rows)
    assert [trimmed(one.row or []) for one in read] == [trimmed(row) for row in rows]


def test_rows_return_from_parquet(tmp_path: Path) -> None:
    rows = [row for row in WIDE if row[1] != "\udcff"]  # Parquet has UTF-8 only
    path = written(tmp_path, rows, FileFormat.parquet)
    read = list(read_rows(path, FileFormat.parquet, SPACE, nothing))
    assert [trimmed(one.row or []) for one in read] == [trimmed(row) for row in rows]


def test_parquet_refuses_numbers_that_it_would_round(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="size"):
        written(tmp_path, [[1, None, 2**53 + 1]], FileFormat.parquet)


def test_short_rows_stay_short_in_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path, [[1, "a"]], FileFormat.jsonl)
    assert path.read_text() == '{"id": 1, "name": "a"}\n'
    assert [one.row for one in read_rows(path, FileFormat.jsonl, SPACE, nothing)] == [[1, "a"]]


@given(st.text())
def test_any_string_returns_from_its_text(text: str) -> None:
    for field in (Field("a", "string", True), Field("a", "string"), Field("a", "any", True)):
        assert value_of_text(field, text_of(field, text)) == text


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5,
))  # fmt: skip
def test_any_value_returns_from_its_text(value: object) -> None:
    field = Field("a", "any", True)
    if not (isinstance(value, dict) and any(name.startswith("$") for name in value)):
        assert value_of_text(field, text_of(field, value)) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("unsigned", "-1"), ("unsigned", "1.5"), ("unsigned", "x"), ("unsigned", "true"),
        ("unsigned", ""), ("integer", "1e3"), ("boolean", "1"), ("decimal", "x"), ("uuid", "1"),
        ("datetime", "soon"), ("varbinary", "?"), ("array", "{}"), ("map", "[]"),
        ("scalar", "[1]"), ("double", "1"), ("interval", "1"),
    ],
)  # fmt: skip
def test_text_of_another_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(FieldError) as refused:
        value_of_text(Field("a", kind), text)
    assert refused.value.field == "a"


def test_values_of_other_formats_are_converted() -> None:
    assert value_of_native(Field("a", "decimal"), "1.5") == decimal_of("1.5")
    assert value_of_native(Field("a", "decimal"), 3) == decimal_of("3")
    assert value_of_native(Field("a", "uuid"), UUID) == uuid_of(UUID)
    assert value_of_native(Field("a", "double"), 1) == 1.0
    with pytest.raises(FieldError):
        value_of_native(Field("a", "string"), 1)


def test_record_names_its_fields() -> None:
    assert row_of_record(SPACE, {"size": 2, "id": 1}) == [1, None, 2]
    assert row_of_record(SPACE, [1, "a"]) == [1, "a"]
    assert named_fields(Row([1, "a"], SPACE), SPACE) == {"id": 1, "name": "a"}
    with pytest.raises(FieldError, match="not nullable"):
        row_of_record(SPACE, {"name": "a"})
    with pytest.raises(FieldError, match="no such field"):
        row_of_record(SPACE, {"id": 1, "nmae": "a"})


@pytest.mark.parametrize(
    ("name", "text", "errors"),
    [
        ("a.csv", "id,name\n1,a\n-2,b\n3\n4,d\n", [(3, "id"), (4, "")]),
        ("a.jsonl", '{"id": 1}\n\n{"id": "x"}\n7\n{\n[4]\n', [(3, "id"), (4, ""), (5, "")]),
    ],
)
def test_invalid_rows_name_line_and_field(
    tmp_path: Path, name: str, text: str, errors: list[tuple[int, str]]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    read = list(read_rows(path, format_of(path, None), SPACE, nothing))
    assert [(one.line, one.error.field) for one in read if one.error is not None] == errors
    assert [(one.row or [])[0] for one in read if one.row is not None] == [1, 4]


def test_header_with_unknown_fields_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,nmae\n1,a\n")
    with pytest.raises(Failure, match="nmae"):
        list(read_rows(path, FileFormat.csv, SPACE, nothing))
    path.write_text("")
    assert list(read_rows(path, FileFormat.csv, SPACE, nothing)) == []


def test_wide_row_after_the_header_is_refused() -> None:
    writer = TextWriter(io.BytesIO(), SPACE, FileFormat.csv, None)
    writer.write([Row(ROWS[0], SPACE)])
    with pytest.raises(Failure, match="jsonl"):
        writer.write([Row(WIDE[-1], SPACE)])


# --- export -------------------------------------------------------------------------------------


class Pages:
    """A client that returns pages of three rows, and fails at one of them."""

    def __init__(self, total: int, fails_at: int = -1) -> None:
        self.total = total
        self.fails_at = fails_at

    def select(self, space: int, *, limit: int, after: bytes, **_: object) -> Outcome:
        if limit > 3:
            return Refused(int(ErrorCode.MEMORY_ISSUE), "too large")
        first = int(after or b"0")
        if self.fails_at == first:
            return Unknown("no answer")
        last = min(first + limit, self.total)
        rows = [Row([number, "n"], SPACE) for number in range(first, last)]
        return Committed(rows, position=str(last).encode())


def exported(client: Pages, path: Path, chosen: FileFormat, *, is_restart: bool = False) -> None:
    exporting._resumable(client, SPACE, path, chosen, is_restart)  # type: ignore[arg-type]  # a double


@pytest.mark.parametrize("chosen", [FileFormat.csv, FileFormat.jsonl])
def test_interrupted_export_continues(tmp_path: Path, chosen: FileFormat) -> None:
    whole, path = tmp_path / "whole", tmp_path / "rows"
    exported(Pages(20), whole, chosen)
    with pytest.raises(Failure):
        exported(Pages(20, fails_at=9), path, chosen)
    assert not path.exists()
    part = tmp_path / "rows.part"
    part.write_bytes(part.read_bytes() + b"torn")
    exported(Pages(20), path, chosen)
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rows", "whole"]


def test_part_of_another_export_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with pytest.raises(Failure):
        exported(Pages(20, fails_at=9), path, FileFormat.csv)
    with pytest.raises(Failure, match="--restart"):
        exported(Pages(20), path, FileFormat.jsonl)


def test_position_of_an_earlier_export_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, journal = tmp_path / "rows", tmp_path / "rows.part.json"
    with pytest.raises(Failure):
        exported(Pages(20, fails_at=3), path, FileFormat.csv)
    stale = journal.read_text()

    def die(path: Path, text: str) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(exporting, "replace_text", die)
        with pytest.raises(SystemExit):
            exported(Pages(20), path, FileFormat.csv, is_restart=True)
    assert not journal.exists() or journal.read_text() != stale
    exported(Pages(20), path, FileFormat.csv)
    assert len(path.read_text().splitlines()) == 21


# --- import -------------------------------------------------------------------------------------


class Expired:
    """A client whose cluster has forgotten all keys."""

    def __init__(self, present: list[Any] | None) -> None:
        self.present = present
        self.inserted: list[list[Any]] = []

    async def insert(self, space: int, row: list[Any], request_key: object = None) -> Outcome:
        if request_key is not None:
            return Unknown("expired", int(ErrorCode.KEY_EXPIRED))
        self.inserted.append(row)
        return Committed([row])

    async def get(self, space: int, key: list[Any]) -> list[Any] | None:
        return self.present


@pytest.mark.parametrize(
    ("present", "outcome", "inserted"),
    [(None, Committed, 1), ([7, "a"], Committed, 0), ([7, "b"], Refused, 0)],
)
def test_row_with_an_expired_key_is_compared(
    present: list[Any] | None, outcome: type, inserted: int
) -> None:
    state = importing.ImportState([], "things", 10, False, is_repeated=True)
    client = Expired(present)
    found = asyncio.run(importing._write(client, SPACE, Read(1, [7, "a"]), 1, state))  # type: ignore[arg-type]  # a double
    assert isinstance(found, outcome)
    assert len(client.inserted) == inserted


def test_value_that_cannot_be_sent_is_an_invalid_row() -> None:
    packing = StrictClient("\ud800")
    state = importing.ImportState([], "things", 10, False)
    rows = [Read(1, [7, "\ud800"]), Read(2, [8, "a"])]
    report = importing.ImportReport(5)
    asyncio.run(importing._send(packing, SPACE, rows, state, report))  # type: ignore[arg-type]  # a double
    assert (report.written, report.bad) == (1, 1)


class StrictClient:
    """A client that packs rows as the real one does."""

    def __init__(self, invalid: str) -> None:
        self.invalid = invalid

    async def insert(self, space: int, row: list[Any], request_key: object = None) -> Outcome:
        if self.invalid in row:
            raise InvalidArgument("the request cannot be sent: surrogates not allowed")
        return Committed([row])


def test_state_that_cannot_be_saved_is_no_failure_of_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "rows.csv.things.import"
    with pytest.raises(Failure, match=r"cannot write .*rows\.csv\.things\.import"):
        importing._save(path, importing.ImportState([], "things", 10, False))


def test_state_belongs_to_one_version_of_the_file(tmp_path: Path) -> None:
    file, path = tmp_path / "a.csv", tmp_path / "state"
    file.write_text("id\n1\n")
    state = importing.ImportState.begin(file, SPACE, 10, False)
    path.write_text(json.dumps(asdict(state)))
    assert state.resumed(path).is_repeated
    with pytest.raises(Failure, match="--restart"):
        importing.ImportState.begin(file, SPACE, 10, True).resumed(path)
    file.write_text("id\n1\n2\n")
    with pytest.raises(Failure, match="--restart"):
        importing.ImportState.begin(file, SPACE, 10, False).resumed(path)


@pytest.mark.parametrize("name", ["things", "a/b", "..", "é", "/" * 200])
def test_state_of_an_import_is_beside_its_file(tmp_path: Path, name: str) -> None:
    path = importing.state_path(tmp_path / "rows.csv", replace(SPACE, name=name))
    assert path.parent == tmp_path
    path.touch()
    other = replace(SPACE, id=SPACE.id + 1, name=f"{name}2")
    assert importing.state_path(tmp_path / "rows.csv", other) != path


def test_state_of_another_space_is_not_continued(tmp_path: Path) -> None:
    state = importing.ImportState.begin(tmp_path / "rows.csv", SPACE, 10, is_replace=False)
    path = tmp_path / "state"
    path.write_text(json.dumps(asdict(replace(state, space="512"))))
    with pytest.raises(Failure, match="use --restart"):
        state.resumed(path)


def test_batches_have_a_bounded_size() -> None:
    def rows() -> Iterator[Read]:
        for number in range(100):
            yield Read(number, [number, "x" * (1 << 20)])

    assert len(importing._batch(rows(), 50)) == 4
    assert len(importing._batch(iter([Read(1, [1])] * 9), 5)) == 5


@pytest.mark.parametrize("cell", ["5", "{}", "[1", "[" * 100_000])
def test_malformed_rest_is_an_invalid_row(cell: str, tmp_path: Path) -> None:
    header = ",".join([*(field.name for field in SPACE.fields), "_rest"])
    cells = ",".join(["1", *[""] * (len(SPACE.fields) - 1), cell])
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n{cells}\n")
    (read,) = read_rows(path, FileFormat.csv, SPACE, nothing)
    assert read.row is None
    assert read.error is not None


def test_fields_after_the_format_keep_their_nulls(tmp_path: Path) -> None:
    for chosen in FileFormat:
        path = written(tmp_path, [WIDE[-1], WIDE[-2]], chosen)
        read = list(read_rows(path, chosen, SPACE, nothing))
        assert [one.row for one in read] == [WIDE[-1], WIDE[-2]]


HOSTILE_LINES = [
    '{"id": 1, "9999999": 2}',
    '{"id": 1, "²": 2}',
    '{"id": 1, "any": {"$extension": [[], "AA=="]}}',
    '{"id": 1, "size": ' + "1" * 5000 + "}",
    '{"id": 1, "ratio": 1' + "0" * 400 + "}",
]


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_hostile_line_is_an_invalid_row(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{line}\n{{"id": 2}}\n')
    space = replace(SPACE, fields=(*SPACE.fields, Field("ratio", "double", True)))
    bad, good = read_rows(path, FileFormat.jsonl, space, nothing)
    assert bad.error is not None
    assert good.row == [2]


def test_hostile_rows_of_parquet_are_invalid_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {
        "id": [1, 2, 3],
        "price": pyarrow.array([Decimal("1" * 60), None, None], pyarrow.decimal256(76)),
        "_rest": [None, '{"$decimal": "x"}', "[5]"],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    read = list(read_rows(path, FileFormat.parquet, SPACE, nothing))
    assert [one.error.field for one in read if one.error is not None] == ["price", "_rest"]
    assert [(one.row or [])[-1] for one in read[2:]] == [5]


def test_damaged_parquet_is_no_failure_of_the_cluster(tmp_path: Path) -> None:
    path = written(tmp_path, [[number, str(number)] for number in range(3000)], FileFormat.parquet)
    content = bytearray(path.read_bytes())
    content[4:600] = bytes(596)
    path.write_bytes(content)
    with pytest.raises(Failure, match=r"cannot read .*rows\.parquet"):
        list(read_rows(path, FileFormat.parquet, SPACE, nothing))


def test_rest_of_a_json_line_must_be_an_array(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "_rest": 5}\n')
    (read,) = read_rows(path, FileFormat.jsonl, SPACE, nothing)
    assert read.error is not None
    assert read.error.field == "_rest"


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 100)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"[1]\n[{'1,' * 100}]\n")
    with pytest.raises(Failure, match="line 2 has more than"):
        list(read_rows(path, FileFormat.jsonl, SPACE, nothing))


@pytest.mark.parametrize(
    "text",
    [
        "id,name\n1," + "," * 200,
        "id,name\n1,a\n2," + "a" * 200,
        'id,name\n1,"' + "a\n" * 100,
        "id," * 100,
    ],
)
def test_endless_record_of_csv_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Cells need more memory than their text, and a quotation mark may join all lines."""
    monkeypatch.setattr(files, "RECORD_CHARACTERS_MAX", 100)
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(Failure, match=r"line \d has more than .* of cells: write one row"):
        list(read_rows(path, FileFormat.csv, SPACE, lambda _: None))


def test_size_of_each_record_of_csv_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RECORD_CHARACTERS_MAX", 40)
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n" + "".join(f'{number},"a\nb"\n' for number in range(100)))
    rows = list(read_rows(path, FileFormat.csv, SPACE, lambda _: None))
    assert len(rows) == 100
    assert not any(read.error for read in rows)


def test_deeply_nested_argument_is_wrong_usage() -> None:
    with pytest.raises(typer.BadParameter, match="has no value"):
        value_of("[" * 100_000)
