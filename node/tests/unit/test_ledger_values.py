"""Lines of an audit's ledger: which row of the log each one asks for."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgpack import ExtType

from qsync_node.format.keys import INSERT, UPSERT, Key
from qsync_node.format.mp import pack
from qsync_spark.audit.events import EVENTS
from qsync_spark.audit.json_values import normal_value, value_of_json
from qsync_spark.audit.key_values import normal_key
from qsync_spark.audit.ledger import LEDGER, operation_of, writes_of
from qsync_spark.audit.lines import lines_of, pieces_of
from qsync_spark.decode.batches import batch_of
from qsync_spark.places import find_files

if TYPE_CHECKING:
    from collections.abc import Mapping

DECIMAL = ExtType(1, b"\x02" + bytes.fromhex("999c"))
UUID = uuid.UUID("0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11")
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp()).to_bytes(8, "little")


SPACES = {"orders": {512}, "twice": {513, 514}}


def line(fields: "Mapping[str, Any]") -> dict[str, Any]:
    """Return the columns of a line."""
    return dict(zip(LEDGER.names, operation_of(dict(fields), 0, SPACES), strict=True))


def write(fields: list[Any], op: int = INSERT) -> dict[str, Any]:
    """Return the columns of a row of the log whose key is its first field."""
    key = pack([normal_key(fields[0])])
    event = (512, key, 9, op, pack({Key.TUPLE: fields}), None, None, 0.0)
    (batch,) = writes_of(iter([batch_of([event], EVENTS)]))
    (row,) = batch.to_pylist()
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize(
    ("shown", "stored"),
    [
        ({"$decimal": "9.99"}, DECIMAL),
        ({"$uuid": str(UUID)}, ExtType(2, UUID.bytes)),
        ({"$datetime": "2026-01-31T12:00:00+00:00"}, ExtType(4, SECONDS)),
        ({"$datetime": "2026-01-31T13:00+01:00"}, ExtType(4, SECONDS + b"\0\0\0\0\x3c\0\0\0")),
        ({"$bytes": "AAE="}, b"\0\1"),
        ({"$extension": [9, "AAE="]}, ExtType(9, b"\0\1")),
        (7, 7.0),
        (7.0, 7),
        ({"$decimal": "7.00"}, 7),
        ({"a": [1.0, {"$uuid": str(UUID)}]}, {"a": [1, ExtType(2, UUID.bytes)]}),
    ],
)  # fmt: skip
def test_value_of_a_line_equals_the_stored_one(shown: object, stored: object) -> None:
    assert normal_value(value_of_json(shown)) == normal_value(stored)
    asked = line({"id": 1, "row": [1, shown], "value": shown, "outcome": "committed"})
    found = write([1, stored])
    assert (asked["whole"], asked["value"]) == (found["whole"], found["value"])
    if not isinstance(shown, dict) or "a" not in shown:
        assert line({"id": shown, "outcome": "committed"})["key"] == write([stored])["key"]


def test_whole_row_of_a_line_is_compared() -> None:
    asked = line({"id": 1, "row": [1, "ada", "tea"], "outcome": "committed"})
    assert asked["whole"] == write([1, "ada", "tea"])["whole"]
    assert asked["whole"] != write([1, "ada", "milk"])["whole"]
    assert asked["whole"] == write([1, "ada", "tea"], UPSERT)["whole"], "the tuple it inserts"


@pytest.mark.parametrize(("op", "is_asked"), [("delete", False), ("update", False), ("put", True)])
def test_deletions_and_updates_are_not_searched(op: str, is_asked: bool) -> None:
    assert line({"id": 1, "op": op, "outcome": "committed"})["asked"] is is_asked


@pytest.mark.parametrize(
    ("times", "started", "ended"),
    [
        ({"started": 5, "ended": 7.5}, 5.0, 7.5),
        ({"started": 5}, 5.0, 5.0),
        ({"ended": 7}, 0.0, 7.0),
    ],
)
def test_write_ends_when_its_outcome_was_known(
    times: dict[str, float], started: float, ended: float
) -> None:
    """The end decides whether the archive must contain the write."""
    found = line({"id": 1, "outcome": "committed", **times})
    assert (found["started"], found["ended"]) == (started, ended)


@pytest.mark.parametrize("space", ["orders", 512, "512"])
def test_space_of_a_line_is_a_name_or_an_id(space: object) -> None:
    assert line({"id": 1, "space": space, "outcome": "committed"})["space"] == 512


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "not a JSON object"),
        ({"id": 1, "outcome": ["committed"]}, "use one of committed, rolled back"),
        ({"id": 1, "outcome": "committed", "row": 3}, "a row that is not an array"),
        ({"id": 1, "outcome": "committed", "space": "none"}, '"none", which is not in the archive'),
        ({"id": 1, "outcome": "committed", "started": "noon"}, 'the invalid time "noon": use'),
        ({"id": 1, "outcome": "committed", "op": "updated"}, 'the op "updated": use one of'),
        ({"outcome": "committed"}, "has no key: add `id` or `key`"),
        ({"id": 1, "outcome": "committed", "space": "twice"}, "which had the ids 513, 514"),
        ({"id": {"$decimal": "x"}, "outcome": "committed"}, "a value that cannot be read"),
        ({"id": {"$uuid": "x"}, "outcome": "committed"}, ""),
    ],
)
def test_invalid_line_has_a_problem(fields: dict[str, Any], text: str) -> None:
    problem = operation_of(fields, 0, SPACES)[-1]
    assert problem is not None
    assert text in problem


@pytest.mark.parametrize("rest", ["", "\n"])
def test_only_an_incomplete_last_line_is_left_out(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "ledger.jsonl"
    whole = json.dumps({"id": 1, "outcome": "committed"})

    def read(text: str) -> list[str]:
        file.write_text(text)
        (found,) = find_files(str(file), ".parquet")
        lines = [one for piece in pieces_of(found) for one in lines_of(piece)]
        return [one.decode() for one in lines if isinstance(one, bytes)]

    assert read(f"{whole}\n{whole}{rest}") == [whole, whole]
    cut = whole[:-5]
    assert read(f"{whole}\n{cut}{rest}") == ([whole, cut] if rest else [whole])


def test_decimals_are_those_of_the_wire() -> None:
    assert value_of_json({"$decimal": str(Decimal("9.99"))}) == DECIMAL


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test on a machine outside of UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("moment", [MOMENT, MOMENT.replace(tzinfo=None)])
def test_times_of_parquet_without_a_zone_are_utc(tmp_path: Path, moment: datetime) -> None:
    columns = {"key": 1, "started": moment, "ended": Decimal("1769860800.5"), "row": [moment]}
    (found,) = rows_of_parquet(tmp_path, columns)
    assert found["started"] == MOMENT.timestamp()
    assert found["ended"] == 1769860800.5
    assert value_of_json(found["row"][0]) == ExtType(4, SECONDS + bytes(8))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Decimal(2**64 - 1), 2**64 - 1),
        (Decimal("9.99"), DECIMAL),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_values_of_parquet_are_those_of_json(tmp_path: Path, value: object, wanted: object) -> None:
    """Numbers beyond 53 bits keep all digits."""
    (found,) = rows_of_parquet(tmp_path, {"key": value, "value": [value], "outcome": "committed"})
    asked = line(found)
    assert asked["problem"] is None
    assert asked["key"] == pack([normal_key(wanted)])
    assert normal_value(value_of_json(found["value"])) == [normal_value(wanted)]


def rows_of_parquet(folder: Path, columns: dict[str, object]) -> list[dict[str, Any]]:
    pq.write_table(pa.Table.from_pylist([columns]), folder / "ledger.parquet")
    (file,) = find_files(str(folder / "ledger.parquet"), ".parquet")
    found = [one for piece in pieces_of(file) for one in lines_of(piece)]
    return [one for one in found if isinstance(one, dict)]
