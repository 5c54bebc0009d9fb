"""Proof 5 of the audit: fragments of journals in a store, against a ledger of appends."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qsync_broker.codecs import Codec
from qsync_broker.ledger import LedgerAppend
from qsync_broker.spec import JournalSpec
from qsync_node.archive.reader import load_archive
from qsync_spark.audit.context import build_context
from qsync_spark.audit.journals import prove_fragments
from qsync_spark.audit.ledger import LedgerError
from qsync_spark.audit.run import audit
from qsync_spark.audit.specifications import archived_specs, specs_in_snapshot
from qsync_spark.compaction.run import Wish, compact
from qsync_spark.journals.catalogue import JournalsError, decode_journals
from qsync_spark.report.findings import INCOMPLETE, NOT_APPLICABLE, PASSED, AuditResult
from qsync_spark.report.page import write_report
from qsync_testing.archives.simulated import change_journals, journal_archive
from qsync_testing.brokers.stores import CODECS, JOURNAL, JournalStore, make_store
from qsync_testing.object_server import ObjectServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def persisted(tmp_path_factory: pytest.TempPathFactory) -> dict[Codec, Path]:
    folders = {}
    for codec in CODECS:
        folders[codec] = tmp_path_factory.mktemp(codec.name)
        make_store(folders[codec], codec)
    return folders


@pytest.fixture(params=["file", "s3"])
def server(request: pytest.FixtureRequest) -> ObjectServer | None:
    if request.param == "file":
        return None
    server: ObjectServer = request.getfixturevalue("object_store")
    spark: SparkSession = request.getfixturevalue("spark")
    spark.sparkContext.environment.update(server.environment)  # of its workers
    return server


@pytest.fixture
def store(
    persisted: dict[Codec, Path], tmp_path: Path, server: ObjectServer | None
) -> JournalStore:
    return JournalStore(persisted[Codec.GZIP], tmp_path, server)


def prove(spark: "SparkSession", store: JournalStore, lag_allowed_s: float = 0.0) -> AuditResult:
    result = AuditResult("events", "", "")
    prove_fragments(spark, store.specs(), [str(store.ledger)], lag_allowed_s, result)
    assert result.violation_count == len(result.violations)
    return result


def acknowledged(begin: int, content: bytes) -> LedgerAppend:
    """Return the line of a ledger for content at an offset."""
    return LedgerAppend(
        JOURNAL, begin, begin + len(content), hashlib.sha1(content).digest(), time.time()
    )


def found(result: AuditResult) -> list[tuple[str, str, int]]:
    """Return code, object and offset of each violation."""
    return sorted(
        (one.problem, one.file.rpartition("/")[2], one.offset) for one in result.violations
    )


@pytest.mark.parametrize("codec", [*CODECS, Codec.GZIP_OFFLOAD_DECOMPRESSION])
def test_archive_of_real_brokers_has_no_finding(
    session: "SparkSession",
    persisted: dict[Codec, Path],
    tmp_path: Path,
    server: ObjectServer | None,
    codec: Codec,
) -> None:
    if codec in persisted:
        store = JournalStore(persisted[codec], tmp_path, server)
    elif server is None:
        return  # a folder cannot state the encoding of an object, so brokers do not persist to it
    else:
        make_store(tmp_path / "made", codec, server)
        store = JournalStore(tmp_path / "made", tmp_path, server)
    result = prove(session, store)
    assert (found(result), result.gaps) == ([], [])
    assert result.counts["fragments"] == len(store.fragments()) >= 10
    assert result.counts["ledgerAppends"] == len(store.appends()) > 20
    assert result.proofs[5] == PASSED


# --- planted damage -------------------------------------------------------------------------------


def flipped_byte(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    content = bytearray(store.content(one))
    content[len(content) // 2] ^= 1
    place = store.path(one)
    temporary = store.put(one.begin, bytes(content), Codec.GZIP)
    (store.folder / temporary).replace(place)
    offset = one.begin + len(content) // 2
    (append,) = [a for a in store.appends() if a.begin <= offset < a.end]
    return [
        ("append differs", place.name, append.begin),
        ("fragment checksum differs", place.name, one.begin),
    ]


def flipped_stored_byte(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    data = bytearray(store.path(one).read_bytes())
    data[len(data) // 2] ^= 1
    store.path(one).write_bytes(data)
    return [("fragment damaged", store.path(one).name, one.begin)]


def truncated_fragment(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    os.truncate(store.path(one), store.path(one).stat().st_size // 2)
    return [("fragment damaged", store.path(one).name, one.begin)]


def short_content(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    last = next(a for a in store.appends() if a.end == one.end)
    content = store.content(one)[: last.begin - one.begin]
    store.path(one).unlink()
    path = store.put(one.begin, content, Codec.GZIP, end=one.end)
    return [("fragment length differs", path.rpartition("/")[2], one.begin)]


def missing_fragment(store: JournalStore) -> list[tuple[str, str, int]]:
    one, after = store.fragments()[3:5]
    store.path(one).unlink()
    lines = [n for n, a in enumerate(store.appends(), 1) if one.begin <= a.begin < one.end]
    missing = [("append missing", "ledger.jsonl", line) for line in lines]
    return sorted([*missing, ("fragment missing", store.path(after).name, one.begin)])


def wrong_sum_in_name(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    name = store.path(one).name.replace(one.sum.hex(), "0" * 40)
    store.path(one).rename(store.path(one).with_name(name))
    return [("fragment checksum differs", name, one.begin)]


def wrong_codec(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    name = store.path(one).with_suffix(".sz").name
    store.path(one).rename(store.path(one).with_name(name))
    return [("fragment damaged", name, one.begin)]


def unknown_codec(store: JournalStore) -> list[tuple[str, str, int]]:
    one = store.fragments()[3]
    expected = missing_fragment(store)
    name = f"{one.path.rpartition('/')[2].removesuffix('.gz')}.lz4"
    (store.folder / JOURNAL / name).write_bytes(b"content")
    return sorted([*expected, ("fragment codec unknown", name, 0)])


def lost_append(store: JournalStore) -> list[tuple[str, str, int]]:
    """Let a fragment have zeros at the offsets of an append."""
    one = store.fragments()[3]
    lost = [a for a in store.appends() if one.begin <= a.begin < one.end][2]
    content = bytearray(store.content(one))
    begin, end = lost.begin - one.begin, lost.end - one.begin
    content[begin:end] = bytes(end - begin)
    store.path(one).unlink()
    path = store.put(one.begin, bytes(content), Codec.GZIP)
    return [("append differs", path.rpartition("/")[2], lost.begin)]


def doubled_append(store: JournalStore) -> list[tuple[str, str, int]]:
    """Let the last fragment repeat an append before one that the ledger names."""
    one = store.fragments()[-1]
    again = next(a for a in store.appends() if one.begin <= a.begin < one.end)
    last = b"the last append"
    content = store.content(one)
    content += content[again.begin - one.begin : again.end - one.begin] + last
    store.path(one).unlink()
    path = store.put(one.begin, content, Codec.GZIP)
    store.write([*store.appends(), acknowledged(one.begin + len(content) - len(last), last)])
    return [("append doubled", path.rpartition("/")[2], one.end)]


def offsets_acknowledged_twice(store: JournalStore) -> list[tuple[str, str, int]]:
    appends = store.appends()
    store.write([*appends, appends[7]._replace(sum=bytes(20))])
    return [("appends overlap", "ledger.jsonl", len(appends) + 1)]


def copies_that_differ(store: JournalStore) -> list[tuple[str, str, int]]:
    """Add the fragment of another broker, which has other bytes at the same offsets."""
    one, after = store.fragments()[3:5]
    content = bytearray(store.content(one) + store.content(after))
    last = [a for a in store.appends() if one.begin <= a.begin < one.end][-1]
    content[last.begin - one.begin] ^= 1
    part = bytes(content[100:])
    path = store.put(one.begin + 100, part, Codec.SNAPPY)
    return [
        ("append differs", path.rpartition("/")[2], last.begin),
        ("fragments disagree", path.rpartition("/")[2], one.begin + 100),
    ]


PLANTED = (
    flipped_byte,
    flipped_stored_byte,
    truncated_fragment,
    short_content,
    missing_fragment,
    wrong_sum_in_name,
    wrong_codec,
    unknown_codec,
    lost_append,
    doubled_append,
    offsets_acknowledged_twice,
    copies_that_differ,
)


@pytest.mark.parametrize("plant", PLANTED)
def test_damage_is_named(
    session: "SparkSession",
    store: JournalStore,
    plant: Callable[[JournalStore], list[tuple[str, str, int]]],
) -> None:
    expected = plant(store)
    result = prove(session, store)
    assert found(result) == expected
    assert all(JOURNAL in one.message for one in result.violations)


# --- other states of a store ----------------------------------------------------------------------


def test_overlaps_with_equal_bytes_are_no_finding(
    session: "SparkSession", store: JournalStore
) -> None:
    one, two, three = store.fragments()[3:6]
    content = b"".join(map(store.content, (one, two, three)))
    store.put(one.begin, content, Codec.ZSTANDARD)
    store.put(one.begin + 50, content[50:-50], Codec.NONE)
    store.put(one.begin + 100, content[100:300], Codec.SNAPPY)
    result = prove(session, store)
    assert (found(result), result.gaps) == ([], [])


def test_recently_persisted_fragment_may_be_ahead_of_an_earlier_one(
    session: "SparkSession", store: JournalStore
) -> None:
    one = store.fragments()[3]
    appends = [a for a in store.appends() if not one.begin <= a.begin < one.end]
    store.write(appends)
    store.path(one).unlink()
    assert [code for code, *_ in found(prove(session, store))] == ["fragment missing"]
    result = prove(session, store, 3600.0)
    assert found(result) == []
    assert [gap.offset for gap in result.gaps] == [one.begin]


def test_appends_that_are_not_persisted_are_incomplete(
    session: "SparkSession", store: JournalStore
) -> None:
    head = store.fragments()[-1].end
    last = store.appends()[-1]
    newer = [last._replace(begin=head, end=head + 5), last._replace(journal="b/journal")]
    store.write([*store.appends(), *newer])
    result = prove(session, store)
    assert found(result) == []
    assert [gap.file for gap in result.gaps] == [JOURNAL, "b/journal"]
    assert f"end after {head}" in result.gaps[0].message
    assert "is no archived journal" in result.gaps[1].message


def test_ledger_without_an_acknowledged_append_proves_nothing(
    session: "SparkSession", store: JournalStore
) -> None:
    store.write([])
    result = prove(session, store)
    assert found(result) == []
    assert ["proves nothing about appends" in gap.message for gap in result.gaps] == [True]


def test_deleted_fragments_are_explained_by_the_retention_only(
    session: "SparkSession", store: JournalStore
) -> None:
    first, second = store.fragments()[:2]
    store.path(first).unlink()
    store.write([one._replace(time=time.time() - 7200) for one in store.appends()])
    result = prove(session, store)
    assert {code for code, *_ in found(result)} == {"append missing"}
    assert [gap.message for gap in result.gaps] == [
        f"{JOURNAL}: no fragment has the bytes before {second.begin}, although the journal has no"
        " retention"
    ]
    store.describe(retention="1h")
    result = prove(session, store)
    assert (found(result), result.gaps) == ([], [])
    assert len(result.notes) == 2
    store.describe(retention="3h")
    assert {code for code, *_ in found(prove(session, store))} == {"append missing"}


@pytest.mark.parametrize("is_after", [False, True])
def test_equal_append_outside_the_range_of_the_ledgers_is_no_finding(
    session: "SparkSession", store: JournalStore, is_after: bool
) -> None:
    """A user appends a file again with a ledger, or again without one."""
    content, begin = b"the same file", store.fragments()[-1].end
    for offset in (begin, begin + len(content)):
        store.put(offset, content, Codec.GZIP)
    store.write([acknowledged(begin if is_after else begin + len(content), content)])
    result = prove(session, store)
    assert (found(result), result.gaps) == ([], [])


def test_second_attempt_after_an_unknown_outcome_is_not_doubled(
    session: "SparkSession", store: JournalStore
) -> None:
    doubled_append(store)
    assert [code for code, *_ in found(prove(session, store))] == ["append doubled"]
    one = store.fragments()[-1]
    again = next(a for a in store.appends() if one.begin <= a.begin < one.end)
    unknown = again._replace(begin=-1, end=again.end - again.begin - 1)
    store.write([*store.appends(), unknown])
    assert found(prove(session, store)) == []


def test_unreadable_input_is_incomplete_or_refused(
    session: "SparkSession", store: JournalStore
) -> None:
    store.ledger.write_text(store.ledger.read_text() + "{}\n")
    with pytest.raises(LedgerError, match=r"line \d+ has no journal"):
        prove(session, store)
    store.write([])
    store.describe(stores=[f"{store.url.removesuffix('/')}-absent/"])
    assert "cannot be listed" in prove(session, store).gaps[0].message
    for text, cause in (("{", "not valid JSON"), ("{}", "no names"), ('{"error": "no"}', "no")):
        with pytest.raises(JournalsError, match=cause):
            decode_journals(text.encode(), "journals.json")


# --- the whole audit ------------------------------------------------------------------------------


def test_audit_contains_the_proof_and_its_report_names_the_damage(
    session: "SparkSession", store: JournalStore, tmp_path: Path
) -> None:
    """The journals and their stores are those of the archived rows."""
    journal_archive(tmp_path / "log", {JOURNAL: store.spec})
    archive = load_archive(f"file://{tmp_path}/log")
    sound = audit(session, archive, "sim", None, 0.0, appends=[str(store.ledger)])
    assert (sound.verdict, sound.gaps) == (PASSED, [])
    assert sound.counts["journals"] == 1
    assert sound.counts["fragments"] == len(store.fragments())
    truncated_fragment(store)
    result = audit(session, archive, "sim", None, 0.0)
    page = Path(write_report(result, str(tmp_path / "report"))).read_text()
    assert "cannot be decompressed" in page
    document = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert {n: one["verdict"] for n, one in document["proofs"].items()} == {
        "1": "Passed",
        "2": "Passed",
        "3": "Passed",
        "4": "Passed",
        "5": "Violated",
        "6": "NotApplicable",
    }


def test_journals_are_those_at_the_end_of_the_archive(
    spark: "SparkSession", store: JournalStore, tmp_path: Path
) -> None:
    """An edit after the newest snapshot counts, and so does a deletion."""
    newer = {"fragment": {"stores": [store.url], "retention": "1h"}}
    gone: dict[str, Any] = {"fragment": {"stores": []}}
    log = tmp_path / "log"
    world = journal_archive(log, {JOURNAL: store.spec, "b/gone": gone})
    url = f"file://{log}"

    def specs() -> list[JournalSpec]:
        result = AuditResult("sim", "", "")
        found = archived_specs(spark, build_context(spark, load_archive(url)), result)
        assert result.gaps == []
        return found

    assert [one.name for one in specs()] == [JOURNAL, "b/gone"]
    assert compact(spark, url, Wish("sim", lag_allowed_s=0.0)).verdict == PASSED
    made = load_archive(url).compactions[0]
    snapshot = f"{made.folder}/{made.snapshot.name}"
    assert specs_in_snapshot(spark, load_archive(url), snapshot) == specs()
    change_journals(world, log, {JOURNAL: newer, "b/gone": None, "c/new": gone})
    (first, second) = specs()
    assert (first.name, first.fragment.retention_ns) == (JOURNAL, 3600 * 10**9)
    assert second.name == "c/new"
    assert [one.name for one in specs_in_snapshot(spark, load_archive(url), snapshot)] == [
        JOURNAL, "b/gone",
    ]  # fmt: skip


def test_ledger_of_a_cluster_without_journals_is_incomplete(
    session: "SparkSession", store: JournalStore, tmp_path: Path
) -> None:
    journal_archive(tmp_path / "log", {}, are_spaces_there=False)
    archive = load_archive(f"file://{tmp_path}/log")
    assert audit(session, archive, "sim", None, 0.0).proofs[5] == NOT_APPLICABLE
    result = audit(session, archive, "sim", None, 0.0, appends=[str(store.ledger)])
    assert result.proofs[5] == INCOMPLETE
    assert "is no archived journal" in result.gaps[0].message


def test_compaction_merges_the_fragments_of_archived_journals(
    spark: "SparkSession", store: JournalStore, tmp_path: Path
) -> None:
    spec = {"fragment": {"stores": [store.url], "length": 16 << 10}}
    journal_archive(tmp_path / "log", {JOURNAL: spec})
    url, before = f"file://{tmp_path}/log", store.fragments()
    wish = Wish("sim", lag_allowed_s=0.0, merges_fragments=True)
    dry = compact(spark, url, replace(wish, is_dry_run=True))
    assert store.fragments() == before
    outcome = compact(spark, url, wish)
    assert outcome.fragments == dry.fragments
    assert outcome.fragments is not None
    assert outcome.fragments.merged > outcome.fragments.written > 0
    assert len(store.fragments()) == len(before) + outcome.fragments.written
    assert audit(spark, load_archive(url), "sim", None, 0.0).verdict == PASSED
    # A later run deletes the sources, also if no row is confirmed since.
    old_s = time.time() - 2 * 86_400
    for one in store.fragments():
        os.utime(store.path(one), (old_s, old_s))
    second = compact(spark, url, wish)
    assert second.fragments is not None
    assert second.fragments.removed == outcome.fragments.merged
    assert second.name == ""
