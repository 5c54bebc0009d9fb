"""One audit, from an archive to a result.

    scan      one pass over all files: facts (walk.py)
    ground    members, voters, decisions and coverage, from the facts and manifests
    logs      proofs 1, 2 and 3
    states    proof 4, by replaying the log (replay.py)
    ledger    proof 6
    journals  proof 5, from the stores of fragments (journals.py)

A step that finds an unknown range reports a gap, and the other steps continue.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.reading import Archive
from qsync_node.format.manifest import ROLLBACK, SEGMENT, FileEntry
from qsync_spark.audit.compare import Expectation
from qsync_spark.audit.findings import Gap, Result
from qsync_spark.audit.scan import (
    Fact,
    damage_of,
    few_of,
    files_of_nonsense,
    misdescribed,
    one_of_each,
    scan,
    takes_confirmed,
)
from qsync_spark.audit.snapshots import damaged_snapshots, first_snapshot, small_spaces
from qsync_spark.compaction.files import verify
from qsync_spark.coverage import Coverage, Range, Steps, Unknown, cover, merge, without
from qsync_spark.decisions import Decision, covering, effective
from qsync_spark.decode import new_secret
from qsync_spark.membership import Change, Configuration, configurations, memberships
from qsync_spark.progress import Progress, Watch, silence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAG_ALLOWED_S = 600.0
BITS = 62  # of a mask of instances, which Spark stores as a signed 64-bit number
STEPS = ("reading", "comparing", "counting copies", "replaying", "ledger", "journals", "report")
PASSES = frozenset({STEPS.index("reading"), STEPS.index("replaying")})


@dataclass(slots=True)
class Ground:
    """The common basis of the proofs."""

    archive: Archive
    facts: "DataFrame"
    few: list[Fact]
    coverage: dict[str, Coverage]
    configurations: list[Configuration]
    registered: dict[str, tuple[str, list[Range]]]
    decisions: list[Decision]
    expected: Expectation
    end: int
    snapshot: tuple[int, str] | None
    indexes: dict[int, list[Any]]
    ddl: list[dict[str, Any]]
    origin: int = 0  # the index at which this replica set was restored from another archive
    cut: int = 0  # from this index the list of irregularities is incomplete; 0: it is complete
    hidden: list[str] = field(default_factory=list)  # instances without a bit in the masks
    secret: bytes = b""  # see `RowHash`
    # Ranges that proofs 1 and 2 found wrong: the replay reads those rows from another member.
    unusable: dict[str, list[Range]] = field(default_factory=dict)

    def name_of(self, uuid: str) -> str:
        """Return the member's name, with the beginning of its uuid if the name is ambiguous."""
        if uuid in self.registered:
            return self.registered[uuid][0] or uuid
        return self.archive.name_of(uuid)

    def distrust(self, uuid: str, after: int, last: int) -> None:
        self.unusable.setdefault(uuid, []).append((after, last))

    def names_of(self, mask: int) -> list[str]:
        bits = self.expected.bits
        return sorted(self.name_of(uuid) for uuid, bit in bits.items() if mask >> bit & 1)

    def time_near(self, index: int) -> float:
        """Return the time of the row at `index`, to the precision of a segment; 0 if unknown."""
        times = [
            entry.timestamp_min
            for _, entry in self.archive.segments()
            if entry.after_index < index <= entry.last_index
        ]
        return min(times, default=0.0)


def lay_ground(spark: "SparkSession", archive: Archive) -> Ground:
    secret = new_secret()
    facts = scan(spark, archive, secret)
    few, cut = few_of(facts)
    few += misdescribed(archive, few)
    damage = damage_of(few)
    own = [row for row in few if row["kind"] == SEGMENT]
    coverage = {
        manifest.instance_uuid: cover(
            manifest,
            [one for one in damage if one.member == manifest.instance_uuid],
            archive.changes.floor,
        )
        for manifest in archive.members
    }
    end = max(one.end for one in coverage.values())
    # A decision over confirmed rows is a violation without effect: the rows stay confirmed.
    raw = one_of_each(
        (row for row in own if row["fact"] == "decision" and row["a"] < row["index"]
         and not takes_confirmed(row, few)),
        coverage,
    )  # fmt: skip
    decisions = effective(Decision(row["a"], row["index"]) for row in raw)
    changes = []
    for row in one_of_each((row for row in own if row["fact"] == "cluster"), coverage):
        taken_by = covering(row["index"], decisions)
        until = taken_by.at if taken_by is not None else 0
        changes.append(Change(row["index"], row["a"], bytes(row["body"]), until))
    snapshot = first_snapshot(archive, damaged_snapshots(few))
    members: dict[int, tuple[str, str, str, bool]] = {}
    indexes: dict[int, list[Any]] = {}
    sequences: list[Fact] = []
    origin = 0
    if snapshot is not None:
        members, indexes, sequences, origin = small_spaces(spark, archive, snapshot[1])
    start = snapshot[0] if snapshot is not None else 0
    found = configurations(start, members, [c for c in changes if c.at > start])
    registered = memberships(found, end)
    uuids = sorted({*coverage, *registered})
    uuids.sort(key=lambda uuid: -_last_known(uuid, coverage, registered))
    hidden, uuids = uuids[BITS:], uuids[:BITS]
    bits = {uuid: number for number, uuid in enumerate(uuids)}
    nothing = Coverage("")
    of = [coverage.get(uuid, nothing) for uuid in uuids]
    voting: list[list[Range]] = [[] for _ in uuids]
    for number, configuration in enumerate(found):
        last = found[number + 1].index - 1 if number + 1 < len(found) else end
        first = configuration.index - 1 if number else 0
        for uuid in configuration.voters():
            if uuid in bits:
                voting[bits[uuid]].append((first, last))
    expected = Expectation(
        bits,
        Steps.of([one.rows for one in of]),
        Steps.of([one.covered for one in of]),
        Steps.of([merge(one) for one in voting]),
    )
    ddl = [*sequences, *one_of_each((row for row in own if row["fact"] == "ddl"), coverage)]
    ground = Ground(archive, facts, few, coverage, found, registered, decisions, expected, end,
                    snapshot, indexes, ddl, origin, cut, hidden, secret)  # fmt: skip
    if cut:
        for uuid in coverage:
            ground.distrust(uuid, cut - 1, end)
    return ground


def _last_known(
    uuid: str, coverage: dict[str, Coverage], registered: dict[str, tuple[str, list[Range]]]
) -> int:
    """Return the last index at which an instance was a member or archived a row."""
    _, ranges = registered.get(uuid, ("", []))
    ends = [last for _, last in ranges]
    return max([*ends, coverage[uuid].end if uuid in coverage else 0], default=0)


def gaps_of(ground: Ground, lag_allowed_s: float) -> tuple[list[Gap], list[str], int]:
    """Return the ranges unknown to all proofs, notes about lag, and the index a quorum archived."""
    gaps: list[Gap] = []
    notes: list[str] = []
    newest = max((e.timestamp_max for _, e in ground.archive.segments()), default=0.0)
    if ground.snapshot is None:
        gaps.append(Gap([1, 3, 4], "no member archived a snapshot, so the voters are unknown"))
    elif ground.archive.changes.floor:
        changes = ground.archive.changes
        notes.append(
            f"rows up to index {changes.floor} were verified and deleted: the snapshot of "
            f"compaction {changes.compaction} replaces them"
        )
    elif ground.snapshot[0] != ground.origin:
        before = ground.snapshot[0]
        gaps.append(
            Gap([4], f"the archive begins at index {before}: its first snapshot is not verified",
                "", 0, before, ground.snapshot[1])
        )  # fmt: skip
    if ground.cut:
        gaps.append(Gap([1, 2, 3], "too many anomalous rows to list: the audit did not judge"
                        " the rows after them", "", ground.cut - 1, ground.end))  # fmt: skip
    for uuid in ground.hidden:
        _, ranges = ground.registered.get(uuid, ("", []))
        for after, last in merge(ranges):
            gaps.append(Gap([1, 3], f"{ground.name_of(uuid)} is not compared: the cluster had"
                            f" more than {BITS} instances", uuid, after, last))  # fmt: skip
    nonsense = files_of_nonsense(ground.few)
    for uuid, (_, ranges) in ground.registered.items():
        name = ground.name_of(uuid)
        held = ground.coverage.get(uuid)
        if held is None:
            held = Coverage(uuid)
        for one in _not_told(held.unknown, nonsense):
            gaps.append(Gap([1, 2, 3], f"{name}: {one.why}", name, one.after, one.last, one.file,
                            one.offset))  # fmt: skip
        known = merge([*held.rows, *held.covered, *((u.after, u.last) for u in held.unknown)])
        for after, last in without(merge(ranges), known):
            written_s = ground.time_near(after + 1)
            lasted_s = ground.time_near(last) - written_s
            is_removed = last < ground.end and last in (end for _, end in ranges)
            if is_removed and after >= held.end and written_s and lasted_s <= lag_allowed_s:
                # These copies left with the member; the quorum of the rows is checked elsewhere.
                span = f"{after + 1} to {last}"
                notes.append(
                    f"{name} was removed, or replaced after the loss of its volume, "
                    f"before it had archived rows {span}"
                )
                continue
            if uuid not in ground.coverage:
                gaps.append(Gap([1, 3], f"{name} has no archive", name, after, last))
                continue
            text = f"{name} has archived rows up to index {after}, other members up to {last}"
            is_newest = last == ground.end and after >= held.end and written_s > 0
            if is_newest and newest - written_s <= lag_allowed_s:
                late_s = newest - written_s
                notes.append(f"{text}: its newest rows are {late_s:.0f} s late and not audited yet")
            else:
                gaps.append(Gap([1, 3], text, name, after, last))
    return gaps, notes, _audited(ground, gaps)


def _not_told(unknown: list[Unknown], nonsense: set[str]) -> list[Unknown]:
    """Return the unknown ranges outside of these files, whose violations report the same."""
    return [one for one in unknown if one.file not in nonsense]


def _audited(ground: Ground, gaps: list[Gap]) -> int:
    """Return the greatest index with a known majority of voters; add gaps before it."""
    expected = ground.expected
    edges = sorted({*expected.rows.starts, *expected.covered.starts, *expected.voters.starts})
    edges = [edge for edge in edges if edge <= ground.end] + [ground.end + 1]
    short: list[Range] = []
    for start, following in pairwise(edges):
        voters = expected.voters.at(start)
        held = (expected.rows.at(start) | expected.covered.at(start)) & voters
        if start > 0 and held.bit_count() < voters.bit_count() // 2 + 1:
            short.append((start - 1, following - 1))
    audited = ground.end
    short = merge(short)
    if short and short[-1][1] == ground.end:
        audited = short.pop()[0]
    for after, last in short:
        gaps.append(Gap([3], "fewer than a quorum of the voters archived these rows", "", after,
                        last))  # fmt: skip
    return audited


def counts_of(ground: Ground) -> dict[str, int]:
    """Return the counts of rows, files and the like."""
    parts = [row for row in ground.few if row["fact"] == "part"]
    said = {
        kind: sum(row["a"] for row in parts if row["kind"] == kind) for kind in (SEGMENT, ROLLBACK)
    }
    # Terms whose rows were truncated count, too.
    promotes = one_of_each((row for row in ground.few if row["fact"] == "promote"), {})
    files: list[FileEntry] = [entry for m in ground.archive.owners() for entry in m.files]
    return {
        "memberRows": said[SEGMENT],
        "rolledBackFileRows": said[ROLLBACK],
        "indexes": ground.end,
        "confirms": sum(row["replica_id"] for row in parts if row["kind"] == SEGMENT),
        "promotes": len(promotes),
        "files": len(files),
        "bytes": sum(entry.size for entry in files),
        "members": len(ground.archive.members),
    }


def audit(
    spark: "SparkSession",
    archive: Archive,
    cluster: str,
    ledger: str | None = None,
    lag_allowed_s: float = LAG_ALLOWED_S,
    progress: Progress = silence,
    appends: Sequence[str] | None = (),
) -> Result:
    """Run the whole audit.

    Args:
        spark: the session.
        archive: the archive of the cluster's log.
        cluster: name for the report.
        ledger: path or URL of recorded writes, or None.
        lag_allowed_s: time in seconds by which copies may be late.
        progress: receives each step.
        appends: paths or URLs of ledgers of appends; None to leave out proof 5, whose cost is that
            of reading all fragments.

    Raises:
        ArchiveError, LedgerError: a person must repair the input first.
    """
    rows = sum(entry.rows for _, entry in archive.segments())
    with Watch(spark, progress, STEPS, PASSES, rows) as watch:
        return _audit(spark, archive, cluster, ledger, lag_allowed_s, watch, appends)


def _audit(
    spark: "SparkSession",
    archive: Archive,
    cluster: str,
    ledger: str | None,
    lag_allowed_s: float,
    watch: Watch,
    appends: Sequence[str] | None,
) -> Result:
    from qsync_spark.audit.journals import prove_journals
    from qsync_spark.audit.ledger import prove_ledger
    from qsync_spark.audit.logs import prove_logs
    from qsync_spark.audit.plots import measure
    from qsync_spark.audit.replay import prove_snapshots

    result = Result(cluster, archive.url, archive.replicaset_uuid, started_at=time.time())
    started = time.monotonic()

    watch.begin(0)
    ground = lay_ground(spark, archive)
    try:
        result.counts = counts_of(ground)
        gaps, result.notes, result.audited_index = gaps_of(ground, lag_allowed_s)
        result.gaps += gaps
        result.audited_time = max((e.timestamp_max for _, e in archive.segments()), default=0.0)
        for path in archive.foreign[:5]:
            result.notes.append(
                f"{path} is in the archive but in no manifest: the audit did not read it"
            )
        watch.begin(1)
        prove_logs(spark, ground, result)
        watch.begin(3)
        events = prove_snapshots(spark, ground, result, keeps_events=ledger is not None)
        watch.begin(4)
        if ledger is not None:
            result.has_ledger = True
            prove_ledger(spark, ground, events, ledger, result)
        check_tables(archive, result)
        watch.begin(5)
        if appends is not None:
            prove_journals(spark, ground, appends, lag_allowed_s, result)
        watch.begin(6)
        measure(ground, result)
        result.hosts = hosts_of(ground)
    finally:
        ground.facts.unpersist()
    result.seconds = time.monotonic() - started
    return result


def check_tables(archive: Archive, result: Result) -> None:
    """Add a gap for each file of a compaction that deviates from its manifest.

    Size and SHA-256 are compared; the contents of a table are not compared with the log again.
    """
    for made in archive.compactions:
        for output in made.outputs:
            if output.path == f"{made.folder}/{made.snapshot.name}":
                continue  # the walk reads it
            try:
                verify(archive.url, output)
            except ArchiveError as error:
                result.gaps.append(Gap([4], str(error), "compaction", 0, 0, output.path))


def hosts_of(ground: Ground) -> list[str]:
    """Return the machines (pods) that ran tasks."""
    return sorted({json.loads(row["text"])["host"] for row in ground.few if row["fact"] == "part"})
