"""`qsync.journal`: persisted bytes of journals as a table and as a stream, with a real session."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors.exceptions.base import PySparkException

from qsync_broker.codecs import Codec
from qsync_spark.journals import ranges
from qsync_spark.journals.catalogue import JournalsError
from qsync_spark.journals.content import FragmentDamagedError
from qsync_spark.journals.merging import Merge, merge
from qsync_spark.journals.ranges import OffsetRange, lines_of
from qsync_spark.journals.source import (
    SCHEMA,
    JournalSourceSettings,
    JournalStreamReader,
    journal_of,
)
from qsync_spark.session import make_session
from qsync_spark.source import register
from qsync_testing.brokers.stores import JOURNAL, JournalStore, make_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
COLUMNS = (("journal", "string"), ("begin", "bigint"), ("end", "bigint"), ("content", "binary"))


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    session = make_session("test", "local[2]")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def persisted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("persisted")
    make_store(folder, Codec.GZIP)
    return folder


class Lines:
    """A store with lines that cross fragments; the last one is incomplete."""

    def __init__(self, folder: Path, codec: Codec = Codec.ZSTANDARD) -> None:
        self.codec = codec
        self.store = JournalStore.__new__(JournalStore)
        self.store.folder = folder
        self.url = self.store.url = f"file://{folder}/"
        (folder / JOURNAL).mkdir(parents=True)
        self.content = b""

    def add(self, content: bytes) -> None:
        """Persist a fragment."""
        self.store.put(len(self.content), content, self.codec)
        self.content += content

    def fill(self, seed: int = 0) -> None:
        parts = [b"one\ntw", b"o\nthree\n", b"\nfo", b"u", b"r\n", b"five\nsix\nsev"]
        for part in parts[seed:] + parts[:seed]:
            self.add(part)


def settings(url: str, **options: str) -> JournalSourceSettings:
    return JournalSourceSettings.of({"path": url, "journals": JOURNAL, **options}, COLUMNS)


def test_table_has_all_bytes_and_offsets_of_real_brokers(
    spark: "SparkSession", persisted: Path, tmp_path: Path
) -> None:
    store = JournalStore(persisted, tmp_path)
    whole = b"".join(map(store.content, store.fragments()))

    def read(**options: Any) -> list[Any]:
        table = spark.read.format("qsync.journal").options(chunkBytes=1000, **options)
        return table.load(store.url).orderBy("journal", "begin").collect()

    for chosen in ({"journals": JOURNAL}, {"prefix": "a/"}, {"prefix": "", "partBytes": 9000}):
        rows = read(**chosen)
        assert b"".join(bytes(row["content"]) for row in rows) == whole
        assert {row["journal"] for row in rows} == {JOURNAL}
        assert all(whole[row["begin"] : row["end"]] == bytes(row["content"]) for row in rows)
    assert read(prefix="b/") == []
    part = read(journals=JOURNAL, begin=5000, end=20001)
    assert b"".join(bytes(row["content"]) for row in part) == whole[5000:20001]
    assert (part[0]["begin"], part[-1]["end"]) == (5000, 20001)
    named = spark.read.format("qsync.journal").option("journals", JOURNAL).schema("begin long")
    assert named.load(store.url).columns == ["begin"]


@pytest.mark.parametrize("part_bytes", ["1", "5", "100"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_each_line_is_in_one_range(tmp_path: Path, part_bytes: str, codec: Codec) -> None:
    for seed in range(6):
        lines = Lines(tmp_path / str(seed), codec)
        lines.fill(seed)
        found = settings(lines.url, framing="lines", partbytes=part_bytes)
        index = found.indexes()[JOURNAL]
        for begin in range(3):
            end = index.end
            parts = found.partitions_of(JOURNAL, index, begin, end, first=begin, is_end=True)
            rows = [row for one in parts for row in lines_of(OffsetRange.decode(one.text))]
            assert [row[3] for row in rows] == lines.content[begin:].splitlines()
            assert b"".join(lines.content[row[1] : row[2]] for row in rows) == lines.content[begin:]


def test_lines_of_a_table(spark: "SparkSession", tmp_path: Path) -> None:
    lines = Lines(tmp_path / "store")
    lines.fill()
    table = spark.read.format("qsync.journal").options(
        journals=JOURNAL, framing="lines", partBytes=4
    )
    rows = table.load(lines.url).orderBy("begin").collect()
    assert [bytes(row["content"]) for row in rows] == lines.content.splitlines()


class JournalStream:
    """A stream that reads available lines into Parquet, and resumes where it stopped."""

    def __init__(self, spark: "SparkSession", url: str, place: Path) -> None:
        self.spark, self.url, self.place = spark, url, place
        self.batches = 0

    def read(self, **options: Any) -> None:
        rows = self.spark.readStream.format("qsync.journal").options(framing="lines", **options)
        query = (
            rows.load(self.url)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.place / "rows"))
        )
        query.awaitTermination()
        self.batches = len(query.recentProgress)

    def seen(self) -> list[bytes]:
        rows = self.spark.read.parquet(str(self.place / "rows")).orderBy("begin").collect()
        return [bytes(row["content"]) for row in rows]


def test_stream_resumes_and_reads_each_line_once(spark: "SparkSession", tmp_path: Path) -> None:
    lines = Lines(tmp_path / "store")
    stream = JournalStream(spark, lines.url, tmp_path / "stream")
    lines.fill()
    stream.read(prefix="a/")
    complete = lines.content[: lines.content.rindex(b"\n")]
    assert stream.seen() == complete.split(b"\n")
    lines.add(b"en\neight\n")
    # Merged fragments change no offset.
    index = settings(lines.url).indexes()[JOURNAL]
    merged = merge(Merge(JOURNAL, tuple(index)[1:]))
    for one in tuple(index)[1:]:
        os.remove(lines.store.folder / one.path)
    assert merged.end == len(lines.content)
    lines.add(b"nine\n")
    stream.read(prefix="a/", maxBytesPerTrigger=1)
    assert stream.batches >= 2
    assert stream.seen() == lines.content[:-1].split(b"\n")
    stream.read(prefix="a/")
    assert stream.seen() == lines.content[:-1].split(b"\n")


def test_batch_that_is_repeated_after_a_failure_has_the_same_lines(tmp_path: Path) -> None:
    """Compute partitions of the same offsets again, after fragments were merged and added."""
    lines = Lines(tmp_path / "store")
    lines.fill()
    reader = JournalStreamReader(settings(lines.url, framing="lines"))

    def read(start: dict[str, int], end: dict[str, int]) -> list[bytes]:
        found: list[bytes] = []
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                found += batch.column("content").to_pylist()
        return found

    start, end = {JOURNAL: 9}, {JOURNAL: len(lines.content) - 6}
    before = read(start, end)
    assert before == [b"three", b"", b"four", b"five"]
    index = settings(lines.url).indexes()[JOURNAL]
    merge(Merge(JOURNAL, tuple(index)))
    lines.add(b"en\n")
    assert read(start, end) == before
    assert read({}, start) == [b"one", b"two"]
    assert read(end, {JOURNAL: len(lines.content)}) == [b"six", b"seven"]


def test_missing_bytes_are_waited_for_then_refused_or_passed_over(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "store")
    lines.fill()
    fragments = tuple(settings(lines.url).indexes()[JOURNAL])
    os.remove(lines.store.folder / fragments[2].path)
    gap = fragments[2].begin
    reader = JournalStreamReader(settings(lines.url))
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({}, limit) == {JOURNAL: gap}, "the fragment may still arrive"
    for one in fragments[3:]:
        os.utime(lines.store.folder / one.path, (0, 0))
    with pytest.raises(JournalsError, match=f"no fragment has the bytes {gap} to"):
        reader.latestOffset({}, limit)
    skipping = JournalStreamReader(settings(lines.url, onloss="skip", framing="lines"))
    end = skipping.latestOffset({}, limit)
    assert end == {JOURNAL: len(lines.content)}
    found: list[bytes] = []
    for partition in skipping.partitions({}, end):
        for batch in skipping.read(partition):
            found += batch.column("content").to_pylist()
    assert found == [b"one", b"two", b"three", b"ur", b"five", b"six"]
    # A head that the retention deleted while the stream stood before it is a loss, too.
    os.remove(lines.store.folder / fragments[0].path)
    os.remove(lines.store.folder / fragments[1].path)
    with pytest.raises(JournalsError, match="no fragment has the bytes 0 to"):
        reader.latestOffset({JOURNAL: 0}, limit)


def test_latest_and_unknown_journals(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "store")
    lines.fill()
    latest = JournalStreamReader(settings(lines.url, startingoffsets="latest"))
    assert latest.initialOffset() == {JOURNAL: len(lines.content)}
    none = JournalStreamReader(settings(lines.url, journals="a/other"))
    assert none.latestOffset({}, none.getDefaultReadLimit()) == {}
    assert journal_of("a/journal/date=2026-01-01/hour=1/name") == JOURNAL


def test_damage_and_long_lines_are_errors(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(tmp_path / "store", Codec.NONE)
    lines.fill()
    one = next(iter(settings(lines.url).indexes()[JOURNAL]))
    part = OffsetRange(JOURNAL, 0, 0, one.end, True, (one,))
    assert [row[3] for row in lines_of(part)] == [b"one", b"tw"]
    monkeypatch.setattr(ranges, "LINE_MAX", 1)
    with pytest.raises(FragmentDamagedError, match="the line at 4 has more than 1 bytes"):
        list(lines_of(part))
    path = lines.store.folder / one.path
    path.write_bytes(b"x" * path.stat().st_size)
    table = spark.read.format("qsync.journal").option("journals", JOURNAL).load(lines.url)
    with pytest.raises(PySparkException, match="does not have the SHA-1 of its name"):
        table.collect()


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"path": ""}, "the store is missing"),
        ({"journals": ""}, "either the option journals"),
        ({"prefix": "a/"}, "either the option journals"),
        ({"framing": "json"}, "invalid framing"),
        ({"begin": "-1"}, "invalid begin"),
        ({"chunkbytes": "0"}, "invalid chunkbytes"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], cause: str) -> None:
    with pytest.raises(JournalsError, match=cause):
        settings("file:///tmp/none/", **options)
    with pytest.raises(JournalsError, match="cannot be listed"):
        settings("file:///tmp/absent-store/").indexes()
    with pytest.raises(JournalsError, match="lacks the column"):
        JournalSourceSettings.of({"path": "file:///tmp/", "prefix": ""}, [("size", "bigint")])
    assert SCHEMA.names == [name for name, _ in COLUMNS]
