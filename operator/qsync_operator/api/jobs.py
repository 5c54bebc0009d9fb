"""QsyncAudit and QsyncCompaction: one job each, created by the schedule or by a user."""

from typing import Annotated, Literal

from pydantic import Field, WrapValidator

from qsync_operator.api.base import Duration, SpecModel, StatusModel, lenient
from qsync_operator.api.cluster import Metadata
from qsync_operator.api.conditions import BaseCondition
from qsync_operator.api.patterns import NAME_PATTERN, URL_PATTERN
from qsync_operator.api.spec import SparkSpec

RunPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Cancelled"]
TERMINAL: tuple[RunPhase, ...] = ("Succeeded", "Failed", "Cancelled")
Verdict = Literal["", "Passed", "Violated", "Incomplete"]
LedgerUrl = Annotated[str, Field(pattern=URL_PATTERN, max_length=1024)]
RunConditionType = Literal["Complete", "Failed"]


class RunSpec(SpecModel):
    """Cluster, deadline and size of one audit or compaction."""

    cluster: str = Field(pattern=NAME_PATTERN, max_length=40)
    """Cluster whose archive is read."""
    deadline: Duration = "6h"
    """Time after which the operator cancels the job."""
    spark: SparkSpec | None = None
    """Size of the Spark application. The default is that of the cluster."""
    ttl: Duration = "30d"
    """Time after its end for which a manual job is kept. Its report stays in the archive."""


class AuditSpec(RunSpec):
    """Specification of an audit of the whole archive."""

    append_ledgers: list[LedgerUrl] = Field(default_factory=list, max_length=64)
    """URLs of ledgers of appends to journals, such as `s3://bucket/orders/audits/appends.jsonl`.
    Name those of all writers of a journal."""


class CompactionSpec(RunSpec):
    """Specification of a compaction of all confirmed rows of the archive."""

    dry_run: bool = False
    """Whether the compaction only reports the rows that it would fold."""
    merge_fragments: bool = False
    """Whether small persisted fragments of journals are merged, too."""


class RunCondition(BaseCondition):
    """One condition of an audit or compaction."""

    type: RunConditionType
    """Aspect that the condition describes."""


class Violation(StatusModel):
    """One violated proof and its location."""

    proof: str
    """Proof that is violated."""
    message: str
    """Description of the violation."""
    location: str = ""
    """File and position."""


class Proof(StatusModel):
    """One proof of an audit."""

    number: int
    """Number of the proof in docs/spark.md."""
    verdict: Literal["Passed", "Violated", "Incomplete", "NotApplicable"]
    """Verdict of the proof. It is not applicable without journals (5) or a ledger (6)."""


class RunStatus(StatusModel):
    """Progress and result of an audit or compaction."""

    phase: RunPhase = "Pending"
    """Phase of the job."""
    message: str = ""
    """Description of the phase."""
    observed_generation: int = 0
    """Generation of the specification that this status describes."""
    application_id: str = ""
    """Spark's id of the application."""
    task_hosts: list[str] = Field(default_factory=list, max_length=1000)
    """Machines on which tasks ran."""
    step: str = ""
    """Current step."""
    steps_done: int = 0
    """Number of finished steps."""
    steps_total: int = 0
    """Number of steps."""
    rows_done: int = 0
    """Rows that the current pass over the log has processed."""
    rows_total: int = 0
    """Rows of the current pass, or 0 if the step makes none."""
    started_at: str = ""
    """Time of the start."""
    finished_at: str = ""
    """Time of the end."""
    duration_milliseconds: int = 0
    """Duration."""
    report: str = ""
    """Location of the report."""
    counts: dict[str, int] = Field(default_factory=dict, max_length=64)
    """Numbers of rows and files that were read and checked."""
    conditions: list[RunCondition] = Field(default_factory=list, max_length=8)
    """Complete and Failed."""


class AuditStatus(RunStatus):
    """Verdict and first twenty violations. The report contains all violations."""

    verdict: Verdict = ""
    """Verdict of the audit."""
    proofs: list[Proof] = Field(default_factory=list, max_length=16)
    """Verdict of each proof."""
    violations: list[Violation] = Field(default_factory=list, max_length=20)
    """The first twenty violations."""


class CompactionStatus(RunStatus):
    """Result of a compaction."""

    snapshot: str = ""
    """Snapshot that the compaction wrote."""
    bytes_before: int = 0
    """Size of the folded segments."""
    bytes_after: int = 0
    """Size of the result."""


class QsyncAudit(SpecModel):
    """One audit of a cluster's archive."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncAudit"]
    metadata: Metadata
    spec: AuditSpec
    status: Annotated[AuditStatus, WrapValidator(lenient)] = Field(default_factory=AuditStatus)


class QsyncCompaction(SpecModel):
    """One compaction of a cluster's archive."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncCompaction"]
    metadata: Metadata
    spec: CompactionSpec
    status: Annotated[CompactionStatus, WrapValidator(lenient)] = Field(
        default_factory=CompactionStatus
    )
