"""The common basis of an audit's proofs: members, voters, decisions and coverage.

The context is built from the facts of one pass over all files, and from the manifests.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from qsync_node.archive.manifest import SEGMENT, Manifest
from qsync_node.archive.reader import Archive
from qsync_node.format.keys import Key
from qsync_node.format.mp import unpack
from qsync_spark.audit.catalogue import SystemChange
from qsync_spark.audit.compare import Expectation
from qsync_spark.audit.coverage import Coverage, CoverageSteps, IndexRange, cover, merge
from qsync_spark.audit.decisions import AuditedDecision, covering, effective
from qsync_spark.audit.manifests import end_read, misdescribed, stated_end
from qsync_spark.audit.membership import (
    AuditedConfiguration,
    MembershipChange,
    configurations,
    memberships,
)
from qsync_spark.audit.primary_keys import trusted_keys
from qsync_spark.audit.scan import (
    damage_of,
    list_facts,
    one_of_each,
    scan,
    takes_confirmed,
)
from qsync_spark.audit.snapshots import (
    Basis,
    damaged_snapshots,
    first_snapshot,
    name_of_space,
    read_basis,
)
from qsync_spark.decode.blocks import new_secret
from qsync_spark.decode.schema_rows import SPACE
from qsync_spark.facts.kinds import DecisionRow, MemberRow, SchemaRow
from qsync_spark.facts.table import FactList

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BITS = 62  # of a mask of instances, which Spark stores as a signed 64-bit number


@dataclass(slots=True)
class AuditContext:
    """The common basis of the proofs."""

    archive: Archive
    facts: "DataFrame"
    listed: FactList
    coverage: dict[str, Coverage]
    configurations: list[AuditedConfiguration]
    registered: dict[str, tuple[str, list[IndexRange]]]
    decisions: list[AuditedDecision]
    expected: Expectation
    end: int
    snapshot: tuple[int, str] | None
    indexes: dict[int, list[Any]]  # see `trusted_keys`
    schema_changes: list[SystemChange]
    origin: int = 0  # the index at which this replica set was restored from another archive
    end_read: int = 0  # greatest index that a file contains; manifests may state a greater `end`
    cut: int = 0  # from this index the list of anomalies is incomplete; 0: it is complete
    hidden: list[str] = field(default_factory=list)  # instances without a bit in the masks
    secret: bytes = b""  # see `RowHash`
    spaces: dict[str, set[int]] = field(default_factory=dict)  # ids that had a name
    defined: frozenset[int] = frozenset()  # spaces of the first snapshot
    # Ranges that proofs 1 and 2 found wrong: the replay reads those rows from another member.
    unusable: dict[str, list[IndexRange]] = field(default_factory=dict)

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


def build_context(spark: "SparkSession", archive: Archive) -> AuditContext:
    secret = new_secret()
    facts = scan(spark, archive, secret)
    listed, cut = list_facts(facts)
    listed.extend(misdescribed(archive, listed))
    coverage = _coverage_of(archive, listed)
    end = max(one.end for one in coverage.values())
    decisions = _decisions_of(listed, coverage)
    damaged = damaged_snapshots(listed)
    snapshot = first_snapshot(archive, damaged)
    start, basis = 0, Basis()
    indexes: dict[int, list[Any]] = {}
    if snapshot is not None:
        start, basis = snapshot[0], read_basis(spark, archive, snapshot[1])
        indexes = trusted_keys(archive, listed, snapshot, basis.indexes, damaged)
    changes = _member_changes(listed, coverage, decisions)
    found = configurations(start, basis.members, [c for c in changes if c.at > start])
    registered = memberships(found, end)
    uuids = sorted({*coverage, *registered})
    uuids.sort(key=lambda uuid: -_last_known(uuid, coverage, registered))
    expected = _expectation_of(uuids[:BITS], coverage, found, end)
    logged = [
        SystemChange(one.index, one.row_type, one.space, one.body, one.time)
        for one in one_of_each(listed.of(SchemaRow, SEGMENT), coverage)
    ]
    schema_changes = in_order(basis.changes, logged, start)
    spaces = _spaces_of(basis, schema_changes, decisions)
    context = AuditContext(
        archive, facts, listed, coverage, found, registered, decisions, expected, end, snapshot,
        indexes, schema_changes, basis.origin, end_read(archive, listed), cut, uuids[BITS:],
        secret, spaces, frozenset((*basis.indexes, *(number for _, number in basis.spaces))),
    )  # fmt: skip
    if cut:
        for uuid in coverage:
            context.distrust(uuid, cut - 1, end)
    return context


def in_order(
    basis: list[SystemChange], logged: list[SystemChange], start: int
) -> list[SystemChange]:
    """Return all changes of the schema in their order.

    Args:
        basis: tuples of the first snapshot.
        logged: rows of the log, in their order. The first file may begin before the snapshot.
        start: index of the snapshot.
    """
    earlier = [one for one in logged if one.at <= start]
    return [*earlier, *basis, *logged[len(earlier) :]]


def _spaces_of(
    basis: Basis, changes: list[SystemChange], decisions: list[AuditedDecision]
) -> dict[str, set[int]]:
    """Return the ids of each name, from the first snapshot and the log."""
    named = list(basis.spaces)
    for one in changes:
        if one.space == SPACE and covering(one.at, decisions) is None:
            named += name_of_space(unpack(one.body).get(Key.TUPLE) or [])
    found: dict[str, set[int]] = {}
    for name, number in named:
        found.setdefault(name, set()).add(number)
    return found


def _coverage_of(archive: Archive, listed: FactList) -> dict[str, Coverage]:
    damage = damage_of(listed)
    return {
        manifest.instance_uuid: cover(
            _with_true_ends(manifest),
            [one for one in damage if one.member == manifest.instance_uuid],
            archive.changes.floor,
        )
        for manifest in archive.members
    }


def _with_true_ends(manifest: Manifest) -> Manifest:
    """Return a manifest whose files end where their clocks do, if it states a greater index."""
    files = [
        entry if entry.last_index == (end := stated_end(entry)) else replace(entry, last_index=end)
        for entry in manifest.files
    ]
    return replace(manifest, files=files)


def _decisions_of(listed: FactList, coverage: dict[str, Coverage]) -> list[AuditedDecision]:
    # A decision over confirmed rows is a violation without effect: the rows stay confirmed.
    rows = one_of_each(
        (
            one
            for one in listed.of(DecisionRow, SEGMENT)
            if one.first < one.index and not takes_confirmed(one, listed)
        ),
        coverage,
    )
    return effective(AuditedDecision(one.first, one.index) for one in rows)


def _member_changes(
    listed: FactList, coverage: dict[str, Coverage], decisions: list[AuditedDecision]
) -> list[MembershipChange]:
    changes = []
    for row in one_of_each(listed.of(MemberRow, SEGMENT), coverage):
        taken_by = covering(row.index, decisions)
        until = taken_by.at if taken_by is not None else 0
        changes.append(MembershipChange(row.index, row.row_type, row.body, until))
    return changes


def _expectation_of(
    uuids: list[str], coverage: dict[str, Coverage], found: list[AuditedConfiguration], end: int
) -> Expectation:
    """Return the instances that should have each row. `found` are the configurations in order."""
    bits = {uuid: number for number, uuid in enumerate(uuids)}
    nothing = Coverage("")
    of = [coverage.get(uuid, nothing) for uuid in uuids]
    voting: list[list[IndexRange]] = [[] for _ in uuids]
    for number, configuration in enumerate(found):
        last = found[number + 1].index - 1 if number + 1 < len(found) else end
        first = configuration.index - 1 if number else 0
        for uuid in configuration.voters():
            if uuid in bits:
                voting[bits[uuid]].append((first, last))
    return Expectation(
        bits,
        CoverageSteps.of([one.rows for one in of]),
        CoverageSteps.of([one.covered for one in of]),
        CoverageSteps.of([merge(one) for one in voting]),
    )


def _last_known(
    uuid: str, coverage: dict[str, Coverage], registered: dict[str, tuple[str, list[IndexRange]]]
) -> int:
    """Return the last index at which an instance was a member or archived a row."""
    _, ranges = registered.get(uuid, ("", []))
    ends = [last for _, last in ranges]
    return max([*ends, coverage[uuid].end if uuid in coverage else 0], default=0)
