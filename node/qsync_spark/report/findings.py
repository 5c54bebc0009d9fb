"""The result of an audit: a verdict, violations with their positions, and unknown ranges (pure).

A violation is one row of the log, with all proofs that it breaks and all members concerned. A gap
is a range. Both name file and offset if they have one.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, VIOLATED, INCOMPLETE, NOT_APPLICABLE = "Passed", "Violated", "Incomplete", "NotApplicable"
SHOWN_MAX = 20

PROOFS = {
    1: "no replica lacks, reorders or adds a row",
    2: "no gap and no repetition in LSN, index or term",
    3: "every confirmed row had its quorum, and none was rolled back",
    4: "every confirmed row can be replayed, and every snapshot equals the replay of the log",
    5: (
        "every fragment of a journal matches its name, none is missing, and every append that a "
        "ledger records as acknowledged is present once"
    ),
    6: (
        "every INSERT, REPLACE and UPSERT that a ledger records as committed is in the log, "
        "and none that it records as refused"
    ),
}


@dataclass(slots=True)
class AuditViolation:
    """One row and its problem. `lsn` 0: the violation does not concern a row of the log."""

    proofs: list[int]
    problem: str
    message: str
    members: list[str]
    replica_id: int = 0
    lsn: int = 0
    term: int = 0
    index: int = 0
    file: str = ""
    offset: int = 0


@dataclass(slots=True)
class Gap:
    """These proofs cannot judge `(after, last]` of `member` (all members if empty)."""

    proofs: list[int]
    message: str
    member: str = ""
    after: int = 0
    last: int = 0
    file: str = ""
    offset: int = 0


@dataclass(slots=True)
class AuditResult:
    """The contents of a report. `counts` are of rows, files and the like."""

    cluster: str
    archive: str
    replicaset_uuid: str
    violations: list[AuditViolation] = field(default_factory=list)
    violation_count: int = 0
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    has_ledger: bool = False
    has_journals: bool = False
    audited_index: int = 0
    audited_time: float = 0.0
    started_at: float = 0.0
    seconds: float = 0.0
    hosts: list[str] = field(default_factory=list)
    engine: str = ""  # "process" or "spark"
    plots: dict[str, Any] = field(default_factory=dict)

    @property
    def proofs(self) -> dict[int, str]:
        """Return the verdict of each proof."""
        broken = {proof for one in self.violations for proof in one.proofs}
        open_ones = {proof for one in self.gaps for proof in one.proofs}
        found = {}
        for proof in PROOFS:
            if not {5: self.has_journals, 6: self.has_ledger}.get(proof, True):
                found[proof] = NOT_APPLICABLE
            elif proof in broken:
                found[proof] = VIOLATED
            else:
                found[proof] = INCOMPLETE if proof in open_ones else PASSED
        return found

    @property
    def verdict(self) -> str:
        """Return the verdict. Violated overrides Incomplete: a known error remains one."""
        said = set(self.proofs.values())
        for verdict in (VIOLATED, INCOMPLETE):
            if verdict in said:
                return verdict
        return PASSED

    def document(self) -> dict[str, Any]:
        """Return the JSON for tools."""
        return {
            "verdict": self.verdict,
            "cluster": self.cluster,
            "archive": self.archive,
            "replicasetUuid": self.replicaset_uuid,
            "proofs": {str(n): {"proof": PROOFS[n], "verdict": v} for n, v in self.proofs.items()},
            "counts": self.counts,
            "auditedIndex": self.audited_index,
            "auditedTime": self.audited_time,
            "violationCount": self.violation_count,
            "violations": [asdict(one) for one in self.violations[:SHOWN_MAX]],
            "incomplete": [asdict(one) for one in self.gaps[:SHOWN_MAX]],
            "notes": self.notes,
            "startedAt": self.started_at,
            "seconds": round(self.seconds, 3),
            "hosts": self.hosts,
            "engine": self.engine,
        }


def merge_violations(found: Iterable[AuditViolation]) -> list[AuditViolation]:
    """Return one violation per row, with the proofs, members and problems of all findings."""
    by_row: dict[tuple[int, int] | int, AuditViolation] = {}
    key: tuple[int, int] | int
    for number, one in enumerate(found):
        is_cut = ".rollback." in one.file  # its LSNs were reused
        key = (one.replica_id, one.lsn) if one.lsn and not is_cut else number
        known = by_row.get(key)
        if known is None:
            by_row[key] = one
            continue
        known.proofs = sorted({*known.proofs, *one.proofs})
        known.members = sorted({*known.members, *one.members})
        if one.problem not in known.problem:
            known.problem += f"; {one.problem}"
            known.message += f"; {one.message}"
    return sorted(by_row.values(), key=lambda one: (one.index, one.replica_id, one.lsn))
