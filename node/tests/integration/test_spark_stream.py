"""`readStream` of an archive that grows and shrinks, with a real Spark session."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors.exceptions.base import PySparkException

from qsync_node.archive.compaction import (
    CHANGES_NAME,
    COMPACTION_MANIFEST,
    ChangesFile,
    Compaction,
    encode_changes,
    encode_compaction,
)
from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.reader import load_archive
from qsync_spark.compaction.merging import merge, work_of
from qsync_spark.session import make_session
from qsync_spark.source import register
from qsync_spark.source.stream import WalStreamReader
from qsync_testing.archives.archive_copy import Copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    session = make_session("test", "local[2]")
    register(session)
    yield session
    session.stop()


class LogStream:
    """A stream that reads the available rows into Parquet and resumes where it stopped."""

    def __init__(self, spark: "SparkSession", archive: Path, place: Path) -> None:
        self.spark, self.archive, self.place = spark, archive, place
        self.batches = 0

    def read(self, **options: Any) -> None:
        rows = self.spark.readStream.format("qsync.wal").options(**options)
        query = (
            rows.load(f"file://{self.archive}")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.place / "rows"))
        )
        query.awaitTermination()
        self.batches = len(query.recentProgress)

    def seen(self) -> Counter[tuple[str, int]]:
        rows = self.spark.read.parquet(str(self.place / "rows")).select("member", "index")
        return Counter((row["member"], row["index"]) for row in rows.collect())


def wanted(copy: Copy) -> Counter[tuple[str, int]]:
    return Counter(
        (uuid, index)
        for uuid, manifest in copy.manifests.items()
        for entry in manifest.of_kind(SEGMENT)
        for index in range(entry.after_index + 1, entry.last_index + 1)
    )


def drained(reader: WalStreamReader, start: dict[str, int]) -> tuple[list[Any], dict[str, int]]:
    """Read batches as Spark does, but without Spark, until there is nothing new.

    Returns:
        The (member, index) pairs, and the last offset.
    """
    seen: list[Any] = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                members, indexes = (batch.column(batch.schema.get_field_index(name)).to_pylist()
                                    for name in ("member", "index"))  # fmt: skip
                seen += zip(members, indexes, strict=True)
        start = end
    return seen, start


def test_offsets_of_a_reader(folder: Path, tmp_path: Path) -> None:
    """A reader without a session returns each row once, in the order of its member's log.

    The archive grows meanwhile, its files are merged, and it gets a floor.
    """
    copy = Copy(folder, tmp_path / "copy", 1)
    whole = {uuid: list(manifest.files) for uuid, manifest in copy.manifests.items()}
    for manifest in copy.manifests.values():
        manifest.files = manifest.files[: len(manifest.files) // 2]
        copy.save(manifest)
    url = f"file://{copy.folder}"
    reader = WalStreamReader({"path": url, "maxfilespertrigger": "1"})
    first, offsets = drained(reader, reader.initialOffset())
    assert Counter(first) == wanted(copy)
    for uuid, manifest in copy.manifests.items():
        manifest.files = whole[uuid]
        copy.save(manifest)
    everything = wanted(copy)
    # Files are merged while the stream is in the middle of them: an offset is an index.
    archive = load_archive(url)
    merged = [merge(url, member, group) for member, group in work_of(archive, 10**9)]
    (copy.folder / CHANGES_NAME).parent.mkdir()
    (copy.folder / CHANGES_NAME).write_bytes(encode_changes(ChangesFile(0, "", merged)))
    second, offsets = drained(reader, offsets)
    assert Counter([*first, *second]) == everything
    for uuid in whole:
        mine = [index for member, index in [*first, *second] if member == uuid]
        assert mine == sorted(mine)
    assert drained(reader, offsets)[0] == []
    latest = WalStreamReader({"path": url, "startingoffsets": "latest"})
    assert latest.initialOffset() == offsets
    reader.prepareForTriggerAvailableNow()
    again, end = drained(reader, {})
    assert (Counter(again), end) == (everything, offsets)
    for options, why in (
        ({}, "the archive is missing"),
        ({"path": url, "startingoffsets": "soon"}, "use one of earliest, latest"),
        ({"path": url, "maxfilespertrigger": "0"}, "at least 1"),
    ):
        with pytest.raises(ArchiveError, match=why):
            WalStreamReader(options)


def test_a_stream_resumes_at_its_offset(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    whole = {uuid: list(manifest.files) for uuid, manifest in copy.manifests.items()}
    for manifest in copy.manifests.values():
        manifest.files = manifest.files[: len(manifest.files) // 2]
        copy.save(manifest)
    stream = LogStream(spark, copy.folder, tmp_path)
    stream.read()
    assert stream.seen() == wanted(copy)
    for uuid, manifest in copy.manifests.items():
        manifest.files = whole[uuid]
        copy.save(manifest)
    stream.read(maxFilesPerTrigger=2)
    assert stream.batches > 1, "a batch reads no more files than it may"
    assert stream.seen() == wanted(copy), "every row once, of each member that archived it"
    stream.read()
    assert stream.seen() == wanted(copy)


def test_retention_that_overtook_a_stream_is_reported(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 1)
    whole = {uuid: list(manifest.files) for uuid, manifest in copy.manifests.items()}
    for manifest in copy.manifests.values():
        manifest.files = [manifest.of_kind(SEGMENT)[0]]
        copy.save(manifest)
    stream = LogStream(spark, copy.folder, tmp_path)
    stream.read()
    before = stream.seen()
    end = max(entry.last_index for files in whole.values() for entry in files)
    floor = (max(index for _, index in before) + end) // 2
    for uuid, manifest in copy.manifests.items():
        manifest.files = [entry for entry in whole[uuid] if entry.last_index > floor]
        copy.save(manifest)
    (uuid, files) = next(iter(whole.items()))
    owner = copy.manifests[uuid].replicaset_uuid
    made = Compaction(f"{floor:020d}-1-0a1b2c3d", owner, floor, 1.0, 1.0, "Passed", files[0])
    (copy.folder / made.folder).mkdir(parents=True)
    (copy.folder / made.folder / COMPACTION_MANIFEST).write_bytes(encode_compaction(made))
    (copy.folder / CHANGES_NAME).write_bytes(encode_changes(ChangesFile(floor, made.name)))
    with pytest.raises(PySparkException, match="were deleted before this stream read them"):
        stream.read()
    assert stream.seen() == before
    stream.read(onLoss="skip")
    after = stream.seen()
    assert after > before
    assert max(after.values()) == 1
    fresh = LogStream(spark, copy.folder, tmp_path / "fresh")
    (tmp_path / "fresh").mkdir()
    fresh.read()
    assert set(fresh.seen()) <= set(after)
    shutil.rmtree(copy.folder)
    with pytest.raises(PySparkException, match="does not exist: check"):
        fresh.read()
