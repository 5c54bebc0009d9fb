"""Ledgers and reports in a folder and in an object store, which speaks S3's protocol."""

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qsync_spark.audit import lines as ledger
from qsync_spark.places import PlaceError, find_files, put_files
from qsync_testing.object_server import object_server, used_by_this_process

SUFFIX = ledger.PARQUET


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield a place for files: a folder, or a prefix in a bucket, that does not exist yet."""
    if request.param == "folder":
        yield str(tmp_path / "a folder" / "x")
        return
    # A process opens a store once for each URL, so each test has its own bucket.
    bucket = tmp_path.name.replace("_", "-")
    with object_server(**{bucket: tmp_path}) as server, used_by_this_process(server):
        yield f"s3://{bucket}/x"


def lines_at(path: str) -> list[object]:
    return [
        line for file in find_files(path, SUFFIX) for piece in ledger.pieces_of(file)
        for line in ledger.lines_of(piece)
    ]  # fmt: skip


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_every_line_is_read_once_wherever_a_ledger_is_cut(
    place: str, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"%d" % (7**n) for n in range(30)]
    put_files(place, {"ledger.jsonl": b"\n".join(lines) + end})
    for size in (1, 2, 3, 5, 17, 100, 10_000):
        monkeypatch.setattr(ledger, "PIECE_BYTES", size)
        assert lines_at(f"{place}/ledger.jsonl") == lines, size


def test_a_line_without_an_end_takes_bounded_memory(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_files(place, {"ledger.jsonl": b"x" * 1000})
    monkeypatch.setattr(ledger, "PIECE_BYTES", 100)
    monkeypatch.setattr(ledger, "LINE_BYTES_MAX", 200)
    assert lines_at(f"{place}/ledger.jsonl") == [b"x" * 300]


def test_a_parquet_ledger_is_a_file_or_a_folder(place: str) -> None:
    rows = [{"id": n, "outcome": "committed"} for n in range(5)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*rows, {"id": None}]), sink, row_group_size=2)
    put_files(f"{place}/ledger.parquet", {"part-0.parquet": sink.getvalue(), "_SUCCESS": b""})
    wanted = [*rows, {}]  # a line of JSON has no empty fields
    assert lines_at(f"{place}/ledger.parquet") == wanted
    assert lines_at(f"{place}/ledger.parquet/part-0.parquet") == wanted
    put_files(place, {"broken.parquet": b"no table"})
    with pytest.raises(PlaceError, match=r"cannot read .*broken\.parquet"):
        lines_at(f"{place}/broken.parquet")


def test_a_place_that_is_not_there_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="nothing: not found"):
        find_files(f"{place}/nothing", SUFFIX)
    with pytest.raises(PlaceError, match="cannot read"):
        find_files("nonsense://there/ledger", SUFFIX)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlaceError, match="cannot write"):
        put_files(str(tmp_path / "file" / "report"), {"a": b""})
