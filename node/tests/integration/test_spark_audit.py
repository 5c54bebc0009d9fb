"""The audit and the data source with a real Spark session.

`test_spark_damage.py` covers many kinds of damage; here, judgements pass through Spark's joins.
"""

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.archive.reader import load_archive
from qsync_node.format.keys import INSERT, UPDATE, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow
from qsync_node.format.walk import space_of
from qsync_sim.world import World
from qsync_spark.audit.ledger import LedgerError, read_ledger
from qsync_spark.audit.run import STEPS, audit
from qsync_spark.audit.scan import list_facts, scan
from qsync_spark.facts.kinds import RepeatedRow
from qsync_spark.progress import ProgressStep, StepReporter
from qsync_spark.report.findings import AuditResult
from qsync_spark.report.page import write_report
from qsync_spark.source import register
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import (
    acknowledged_writes,
    changed_by_another_index,
    ledger_line,
    missing_row,
    nop_everywhere,
    snapshot_off_by_one,
)
from qsync_testing.archives.plain_audit import plain_audit
from qsync_testing.archives.simulated import archived_runs, is_eventful

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

LATE_WRITES = 8
"""Acknowledged writes after the newest snapshot: tests change some of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of a schedule with failovers, rollbacks and enough late writes."""
    copies = tmp_path_factory.mktemp("copies")

    def is_wanted(world: World, archive: Path) -> bool:
        if not is_eventful(world, archive):
            return False
        return len(acknowledged_writes(Copy(archive, copies / archive.name, 5))) >= LATE_WRITES

    return next(archived_runs(tmp_path_factory.mktemp("archives"), is_wanted, 1))


def run(spark: "SparkSession", folder: Path, ledger: Path | None = None) -> AuditResult:
    archive = load_archive(f"file://{folder}")
    return audit(spark, archive, "sim", None if ledger is None else str(ledger), 0.0)


def test_an_undamaged_archive_passes_and_reports(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    result = run(spark, folder)
    assert result.verdict == "Passed", result.document()
    plain = plain_audit(folder)
    assert result.counts == plain.counts
    page = Path(write_report(result, str(tmp_path / "report"))).read_text()
    assert "Passed" in page
    assert page.count('class="chart"') == 5
    assert "http" not in page.replace("http-equiv", ""), "the page is whole in itself"
    assert "<script" not in page
    said = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert said["proofs"]["5"]["verdict"] == "NotApplicable"


def test_an_audit_reports_its_progress(session: "SparkSession", folder: Path) -> None:
    said: list[ProgressStep] = []
    archive = load_archive(f"file://{folder}")
    result = audit(session, archive, "sim", None, 0.0, said.append)
    assert list(dict.fromkeys(one.step for one in said)) == [
        name for name in STEPS if name != "counting copies"
    ]
    assert [one.done for one in said] == sorted(one.done for one in said)
    passes = {one.step: one.rows_total for one in said if one.rows_total}
    assert passes == dict.fromkeys(("reading", "replaying"), result.counts["memberRows"])
    assert all(one.rows <= one.rows_total for one in said)


def test_rows_of_a_pass_never_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the reading stage is followed by another one, the new stage has done nothing yet."""
    shares = iter([0.25, 0.0, 0.5, 0.1])
    said: list[ProgressStep] = []
    is_over = threading.Event()

    def share(spark: object) -> float:
        if not said:
            return 0.0
        found = next(shares, None)
        if found is None:
            is_over.set()
        return found or 0.0

    monkeypatch.setattr("qsync_spark.progress.POLL_EVERY_S", 0.0)
    monkeypatch.setattr("qsync_spark.progress.share_done", share)
    no_session: Any = None  # `share` replaces the only use of a session
    with StepReporter(no_session, said.append, ("one", "two"), frozenset({0}), 200) as watch:
        watch.begin(0)
        assert is_over.wait(60)
        watch.begin(1)
    assert [(one.step, one.rows, one.rows_total) for one in said] == [
        ("one", 0, 200), ("one", 50, 200), ("one", 100, 200), ("two", 0, 0),
    ]  # fmt: skip


def test_spark_finds_what_the_plain_audit_finds(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    for plant in (missing_row, snapshot_off_by_one):
        planted = plant(Copy(folder, tmp_path / plant.__name__, 5))
        result = run(spark, tmp_path / plant.__name__)
        assert result.violations == plain_audit(tmp_path / plant.__name__).violations
        assert [one.proofs for one in result.violations] == [planted.proofs]
        assert result.violation_count == 1


def test_an_acknowledged_write_that_is_gone(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    planted, row = nop_everywhere(Copy(folder, tmp_path / "copy", 5))
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger_line(row))
    assert run(session, folder, ledger).verdict == "Passed"
    result = run(session, tmp_path / "copy", ledger)
    assert [one.proofs for one in result.violations] == [planted.proofs]
    ledger.write_text('{"id": 1, "outcome": "committed"}\n{"outcome": "committed"}\n')
    with pytest.raises(LedgerError, match="line 2 has no key: add"):
        run(session, folder, ledger)


def test_row_and_name_of_a_line_are_compared_and_deletions_are_not_searched(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 5)
    _, row = nop_everywhere(copy)  # the row that it replaces is in `folder`
    space, fields = space_of(row.body), unpack(row.body)[Key.TUPLE]
    ledger = tmp_path / "ledger.jsonl"
    whole: dict[str, Any] = {"id": fields[0], "space": space, "outcome": "committed"}
    lines = [
        {**whole, "row": fields},
        {**whole, "id": 10**9, "row": [10**9, "never written"]},
        {**whole, "id": 10**9 + 1, "op": "delete"},
        {**whole, "id": 10**9 + 2, "value": "never written", "op": "update"},
    ]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, _ = judged(run(session, folder, ledger))
    assert found == ["the write of 1000000000 was acknowledged, but it is not in the log"]
    ledger.write_text(json.dumps({**whole, "row": [fields[0], "never written"]}) + "\n")
    found, _ = judged(run(session, folder, ledger))
    assert len(found) == 1
    ledger.write_text(json.dumps({**whole, "space": "never created"}) + "\n")
    with pytest.raises(LedgerError, match='line 1 names the space "never created", which is not'):
        run(session, folder, ledger)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the ledger has no line"),
        ('{"id": 1000000000, "outcome": "refused"}\n', "the ledger records no committed write"),
        ('{"id": 1, "outcome": "committed", "op": "update"}\n', "no committed INSERT, REPLACE"),
    ],
)
def test_ledger_without_an_acknowledged_write_proves_nothing(
    session: "SparkSession", folder: Path, tmp_path: Path, text: str, message: str
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(text)
    result = run(session, folder, ledger)
    assert (result.verdict, result.proofs[6]) == ("Incomplete", "Incomplete")
    (gap,) = [gap for gap in result.gaps if gap.proofs == [6]]
    assert message in gap.message
    assert "proves nothing about acknowledged writes" in gap.message


def test_update_whose_line_has_no_op_is_no_lost_write(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    """The log has an UPDATE of the key at that time, so the line may be one of an update."""
    copy = Copy(folder, tmp_path / "copy", 5)
    member = copy.full_members()[0]
    row = next(
        row for entry in member.of_kind(SEGMENT) for row in copy.rows(member, entry)
        if row.type == UPDATE and space_of(row.body) >= 512
    )  # fmt: skip
    key = unpack(row.body)[Key.KEY][0]
    line = {
        "id": key, "row": [key, "never inserted"], "space": space_of(row.body),
        "outcome": "committed", "started": row.timestamp - 0.1, "ended": row.timestamp + 0.1,
    }  # fmt: skip
    ledger = tmp_path / "ledger.jsonl"

    at_another_time = {"started": row.timestamp - 60, "ended": row.timestamp - 50}
    lines = [{**line, **at_another_time}, {**line, "id": 10**9}, line]
    ledger.write_text("".join(json.dumps(one) + "\n" for one in lines))
    found, gaps = judged(run(session, folder, ledger))
    assert found == [
        f"the write of {lost} was acknowledged, but it is not in the log" for lost in (key, 10**9)
    ]
    assert any('a line of an update needs `"op": "update"`' in gap for gap in gaps), gaps
    assert any("the first is line 3, key" in gap for gap in gaps), gaps


def line_of(key: int, ended: float, space: int | None = None) -> str:
    """Return a ledger line of a write that a client saw committed and no log holds."""
    place = {} if space is None else {"space": space}
    return json.dumps({"id": key, "outcome": "committed", "started": 0.0, "ended": ended, **place})


def judged(result: AuditResult) -> tuple[list[str], list[str]]:
    """Return the messages of proof 6: its violations and its gaps."""
    found = [one.message for one in result.violations if one.proofs == [6]]
    return found, [gap.message for gap in result.gaps if gap.proofs == [6]]


def test_refused_write_is_excused_only_by_a_line_of_its_space_and_value(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    rows = {
        unpack(row.body)[Key.TUPLE][0]: row
        for row in acknowledged_writes(Copy(folder, tmp_path / "copy", 5))
    }
    lines, violated = [], []
    for number, (key, row) in zip(range(4), rows.items(), strict=False):
        space, value = space_of(row.body), unpack(row.body)[Key.TUPLE][1]
        refused = {"id": key, "space": space, "value": value, "outcome": "refused"}
        unknown = {**refused, "outcome": "unknown"}
        other, is_violated = (
            ({**unknown, "value": "another value"}, True),
            ({**unknown, "space": space + 1}, True),
            (unknown, False),
            ({"id": key, "outcome": "unknown"}, False),
        )[number]
        lines += [refused, other]
        violated += [key] * is_violated
    assert len(lines) == 8
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, _ = judged(run(session, folder, ledger))
    assert [re.findall(r"write of (\d+)", message) for message in found] == [
        [str(key)] for key in violated
    ]


def test_a_ledger_of_before_the_archive_is_not_known(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    """The archive starts late: it has no rows from before its first snapshot."""
    copy = Copy(folder, tmp_path / "copy", 5)
    every = [entry for one in copy.manifests.values() for entry in one.of_kind(SNAPSHOT)]
    first = min(e.last_index for e in every if e.last_index > min(e.last_index for e in every))
    for manifest in copy.manifests.values():
        manifest.files = [
            e for e in manifest.files
            if e.last_index > first or (e.kind == SNAPSHOT and e.last_index == first)
        ]  # fmt: skip
        copy.save(manifest)
    kept = [entry for one in copy.manifests.values() for entry in one.of_kind(SEGMENT)]
    begins, ends = min(e.timestamp_min for e in kept), max(e.timestamp_max for e in kept)
    ledger = tmp_path / "ledger.jsonl"
    lines = line_of(10**9 + 1, begins - 1), line_of(10**9, (begins + ends) / 2)
    ledger.write_text("".join(f"{line}\n" for line in lines))
    found, unknown = judged(run(session, copy.folder, ledger))
    assert found == ["the write of 1000000000 was acknowledged, but it is not in the log"]
    assert unknown == ["1 committed writes are older than the archive"]


def test_a_ledger_of_spaces_that_are_not_replayed_is_not_known(
    session: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    """A row of a space without a known primary key may or may not be the write."""
    copy = Copy(folder, tmp_path / "copy", 5)
    _, row = nop_everywhere(copy)
    strange = 4000
    body = pack({int(Key.SPACE_ID): strange, int(Key.TUPLE): [1, "a"]})
    copy.everywhere(
        lambda one: LogRow(INSERT, one.replica_id, one.lsn, one.timestamp, body, flags=one.flags),
        row.replica_id, row.lsn,
    )  # fmt: skip
    known = space_of(row.body)
    ledger = tmp_path / "ledger.jsonl"
    spaces = None, strange, known
    lines = [line_of(10**9 + number, 0.1, space) for number, space in enumerate(spaces)]
    ledger.write_text("".join(f"{line}\n" for line in lines))
    found, unknown = judged(run(session, copy.folder, ledger))
    assert found == ["the write of 1000000002 was acknowledged, but it is not in the log"]
    assert unknown == [f"2 committed writes may be in spaces that are not replayed ({strange})"]


def test_a_line_of_a_ledger_has_its_number_for_every_reader(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has several partitions, and line numbers continue across their borders."""
    ledger = tmp_path / "ledger.jsonl"
    lines = [json.dumps({"id": n, "outcome": "committed"}) for n in range(2000)]
    ledger.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("qsync_spark.audit.lines.PIECE_BYTES", 16 << 10)
    found = read_ledger(spark, str(ledger))
    assert found.rdd.getNumPartitions() > 2
    rows = found.collect()
    assert {row["line"]: row["shown"] for row in rows} == {n: str(n) for n in range(2000)}


def test_a_list_that_was_cut_is_incomplete(
    spark: "SparkSession", folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver lists a bounded number of anomalies and reports these; later ones are unknown."""
    copy = Copy(folder, tmp_path / "copy", 5)
    member = copy.full_members()[0]
    for entry in list(member.of_kind("segment")):
        rows = copy.rows(member, entry)
        copy.rewrite(member, entry, [twice for row in rows for twice in (row, row)])
    facts = scan(spark, load_archive(f"file://{copy.folder}"), b"")
    listed, cut = list_facts(facts, 5)
    facts.unpersist()
    assert cut > 0
    repeated = listed.of(RepeatedRow)
    assert repeated
    assert all(row.index < cut for row in repeated)
    monkeypatch.setattr("qsync_spark.audit.scan.list_facts.__defaults__", (5,))
    result = run(spark, copy.folder)
    assert result.proofs[2] == "Violated"
    assert [g.after for g in result.gaps if "too many anomalous rows" in g.message] == [cut - 1]
    assert all(one.index < cut for one in result.violations if one.proofs == [2])


def test_a_space_of_which_nothing_is_known_is_open(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    copy = Copy(folder, tmp_path / "copy", 5)
    space, at = changed_by_another_index(copy)
    result, plain = run(spark, copy.folder), plain_audit(copy.folder)
    assert result.verdict == "Incomplete", result.violations
    assert [gap.message for gap in result.gaps] == [gap.message for gap in plain.gaps]
    assert any(f"space {space} is not replayed from index {at}:" in g.message for g in plain.gaps)


def test_the_archive_is_a_table(spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
    register(spark)
    url = f"file://{folder}"
    rows = spark.read.format("qsync.wal").load(url)
    some = rows.where("replica_id = 1 and lsn between 10 and 12 and kind = 'segment'").collect()
    copy = Copy(folder, tmp_path / "whole", 1)
    held = [
        row
        for member in copy.manifests.values()
        for entry in member.of_kind("segment")
        for row in copy.rows(member, entry)
        if row.replica_id == 1 and 10 <= row.lsn <= 12
    ]
    assert sorted({row["lsn"] for row in some}) == [10, 11, 12]
    assert len(some) == len(held)
    assert all(row["damage"] is None for row in some)
    plain = plain_audit(folder)
    # The filter of a query must not apply to the next query of the same table.
    assert rows.where("kind = 'segment'").count() == plain.counts["memberRows"]
    late = rows.where("timestamp > 1e12").count()
    assert late == 0
    everything = rows.count()
    assert everything > plain.counts["memberRows"]
    third = rows.where("lsn = 3")
    assert third.union(rows.where("lsn = 3 or term >= 0")).count() == everything + third.count()
    few = spark.read.format("qsync.wal").schema("body binary, lsn long, kind string").load(url)
    some_columns = few.where("lsn between 10 and 12 and kind = 'segment'").collect()
    assert sorted(map(tuple, some_columns)) == sorted(
        (row["body"], row["lsn"], row["kind"])
        for row in rows.where("lsn between 10 and 12 and kind = 'segment'").collect()
    )
    for schema in ("lsn long, bodies binary", "lsn int"):
        with pytest.raises(Exception, match="the table lacks the column"):
            spark.read.format("qsync.wal").schema(schema).load(url).collect()
    assert (
        spark.read.format("qsync.snap").load(url).select("file").distinct().count()
        == (plain.counts["snapshots"])
    )
    uuid = some[0]["member"]
    for options, condition in (
        ({"lsn": "10..12", "kind": "segment"}, "lsn between 10 and 12 and kind = 'segment'"),
        ({"lsn": "10.."}, "lsn >= 10"),
        ({"term": "..1"}, "term <= 1"),
        ({"space_id": "0", "index": "5..900"}, "space_id = 0 and index between 5 and 900"),
        ({"member": uuid, "timestamp": "1970-01-01T00:00:00Z.."}, f"member = '{uuid}'"),
        ({"timestamp": "99999999999.."}, "false"),
    ):
        chosen = spark.read.format("qsync.wal").options(**options).load(url)
        wanted = sorted(rows.where(condition).select("file", "offset", "lsn").collect())
        assert sorted(chosen.select("file", "offset", "lsn").collect()) == wanted, options
    with pytest.raises(Exception, match="invalid lsn 'ten': specify a value"):
        spark.read.format("qsync.wal").option("lsn", "ten").load(url).collect()
    copy = Copy(folder, tmp_path / "copy", 3)
    manifest = copy.full_members()[0]
    entry = manifest.of_kind("segment")[0]
    path = copy.folder / manifest.instance_uuid / entry.name
    path.write_bytes(path.read_bytes()[: entry.size // 2])
    damaged = spark.read.format("qsync.wal").load(f"file://{copy.folder}")
    found = damaged.where("damage is not null").collect()
    assert [row["file"] for row in found] == [f"{manifest.instance_uuid}/{entry.name}"]
    assert 0 < found[0]["offset"] <= entry.size // 2
    chosen = spark.read.format("qsync.wal").option("lsn", "1..").load(f"file://{copy.folder}")
    assert chosen.where("damage is not null").count() == 1
