"""Files of a compaction's tables, without a Spark session."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.archive.reader import load_archive
from qsync_spark.audit import snapshots
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.compaction import tables
from qsync_spark.compaction.tables import TableWriter
from qsync_spark.decode.batches import batch_of
from qsync_testing.archives.archive_copy import Copy

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])


def test_large_values_are_written_before_they_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "GROUP_BYTES", 1000)
    monkeypatch.setattr(tables, "ROWS_IN_GROUP", 8)
    groups: list[int] = []

    def noted(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
        if schema is SCHEMA:
            groups.append(len(rows))
        return batch_of(rows, schema)

    monkeypatch.setattr(tables, "batch_of", noted)
    writer = TableWriter(f"file://{tmp_path}", "512-t", "made/spaces/512-t", "part-0", SCHEMA)
    for number, size in enumerate([400, 400, 400, *[0] * 8, 1000, 5]):
        writer.add((number, "x" * size))
    ((_, path, _, _, rows, unknown),) = writer.finish()
    assert groups == [3, 8, 1, 1]
    assert (rows, unknown) == (13, 0)
    assert pq.read_table(tmp_path / path).column("id").to_pylist() == list(range(13))


def test_large_tuples_are_read_before_they_fill_memory(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = copy.full_members()[0]
    entry = manifest.of_kind(SNAPSHOT)[-1]
    path = copy.rewrite(manifest, entry, copy.rows(manifest, entry))  # in many blocks
    archive = load_archive(f"file://{copy.folder}")
    (part,) = [one for one in parts_of_kind(archive, SNAPSHOT) if one.key == path]
    whole = [batch for batch in snapshots.tuples_of(part) if batch.num_rows]
    monkeypatch.setattr(snapshots, "BATCH_BYTES", 1000)
    pieces = [batch for batch in snapshots.tuples_of(part) if batch.num_rows]
    assert len(whole) < len(pieces)
    assert pa.Table.from_batches(pieces) == pa.Table.from_batches(whole)
