"""QsyncAudit and QsyncCompaction: one run each, made by the schedule or by hand."""

from typing import Annotated, Literal

from pydantic import Field, WrapValidator

from qsync_operator.models.base import Duration, SpecModel, StatusModel, lenient
from qsync_operator.models.cluster import NAME_PATTERN, Metadata
from qsync_operator.models.conditions import BaseCondition
from qsync_operator.models.spec import SparkSpec

RunPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Cancelled"]
RunConditionType = Literal["Complete", "Failed"]


class RunSpec(SpecModel):
    """Which cluster's archive is read, and how large the Spark application is."""

    cluster: str = Field(pattern=NAME_PATTERN, max_length=40)
    """Whose archive is read."""
    deadline: Duration = "6h"
    """After which the run is ended."""
    spark: SparkSpec | None = None
    """How large it is; without it as the cluster says."""
    ttl: Duration = "30d"
    """How long a run that was made by hand is kept after it ended; its report stays in the
    archive."""


class AuditSpec(RunSpec):
    """An audit proves all that the archive holds."""


class CompactionSpec(RunSpec):
    """A compaction folds all that is confirmed in the archive."""

    dry_run: bool = False
    """Say what would be folded."""


class RunCondition(BaseCondition):
    """Of type Complete or Failed."""

    type: RunConditionType
    """What it is about."""


class Violation(StatusModel):
    """One proof that failed: which, and where."""

    proof: str
    """Which one."""
    message: str
    """What is wrong."""
    location: str = ""
    """In which file, and where in it."""


class RunStatus(StatusModel):
    """How far a run is and what it found."""

    phase: RunPhase = "Pending"
    """How far it is."""
    message: str = ""
    """In a sentence."""
    observed_generation: int = 0
    """Of the specification that this is about."""
    application_id: str = ""
    """Spark's own."""
    task_hosts: list[str] = Field(default_factory=list, max_length=1000)
    """Machines on which its tasks ran."""
    step: str = ""
    """What it does now."""
    steps_done: int = 0
    """How many steps are behind it."""
    steps_total: int = 0
    """How many steps there are."""
    rows_done: int = 0
    """How many rows of this step's pass over the log are behind it."""
    rows_total: int = 0
    """How many rows its pass has; 0 where it makes none."""
    started_at: str = ""
    """When it began."""
    finished_at: str = ""
    """When it ended."""
    duration_milliseconds: int = 0
    """How long it took."""
    report: str = ""
    """Where the report is."""
    counts: dict[str, int] = Field(default_factory=dict, max_length=64)
    """What was read and checked."""
    conditions: list[RunCondition] = Field(default_factory=list, max_length=8)
    """Complete and Failed."""


class AuditStatus(RunStatus):
    """The verdict, and the first twenty violations; the report has them all."""

    verdict: Literal["", "Passed", "Violated", "Incomplete"] = ""
    """What it found."""
    violations: list[Violation] = Field(default_factory=list, max_length=20)
    """The first twenty."""


class CompactionStatus(RunStatus):
    """What was folded."""

    snapshot: str = ""
    """Which one it wrote."""
    bytes_before: int = 0
    """Of the segments that were folded."""
    bytes_after: int = 0
    """Of what they became."""


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
