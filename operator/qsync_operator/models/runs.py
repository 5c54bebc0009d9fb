"""QsyncAudit and QsyncCompaction: one run each, made by the schedule or by hand."""

from typing import Literal

from pydantic import Field

from qsync_operator.models.base import Duration, SpecModel, StatusModel
from qsync_operator.models.cluster import NAME_PATTERN, Metadata
from qsync_operator.models.spec import SparkSpec

RunPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Cancelled"]
RunConditionType = Literal["Complete", "Failed"]


class RunSpec(SpecModel):
    """Which cluster's archive is read, and how large the Spark application is."""

    cluster: str = Field(pattern=NAME_PATTERN, max_length=40)
    deadline: Duration = "6h"
    spark: SparkSpec | None = None


class AuditSpec(RunSpec):
    """What an audit proves; without a choice, everything since the last audit."""

    full: bool = False


class CompactionSpec(RunSpec):
    """What a compaction folds; without a choice, what is sealed and older than the retention."""

    dry_run: bool = False


class RunCondition(StatusModel):
    """Of type Complete or Failed, in the form that `kubectl wait` knows."""

    type: RunConditionType
    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Violation(StatusModel):
    """One proof that failed: which, and where."""

    proof: str
    message: str
    location: str = ""


class RunStatus(StatusModel):
    """How far a run is and what it found."""

    phase: RunPhase = "Pending"
    message: str = ""
    observed_generation: int = 0
    application_id: str = ""
    task_hosts: list[str] = Field(default_factory=list, max_length=1000)
    step: str = ""
    steps_done: int = 0
    steps_total: int = 0
    started_at: str = ""
    finished_at: str = ""
    duration_milliseconds: int = 0
    report: str = ""
    counts: dict[str, int] = Field(default_factory=dict, max_length=64)
    conditions: list[RunCondition] = Field(default_factory=list, max_length=8)


class AuditStatus(RunStatus):
    """The verdict, and the first twenty violations; the report has them all."""

    verdict: Literal["", "Passed", "Violated", "Incomplete"] = ""
    violations: list[Violation] = Field(default_factory=list, max_length=20)


class CompactionStatus(RunStatus):
    """What was folded."""

    snapshot: str = ""
    bytes_before: int = 0
    bytes_after: int = 0


class QsyncAudit(SpecModel):
    """One audit of a cluster's archive."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncAudit"]
    metadata: Metadata
    spec: AuditSpec
    status: AuditStatus = Field(default_factory=AuditStatus)


class QsyncCompaction(SpecModel):
    """One compaction of a cluster's archive."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncCompaction"]
    metadata: Metadata
    spec: CompactionSpec
    status: CompactionStatus = Field(default_factory=CompactionStatus)
