"""QsyncCluster.status: the fields that tools and users read. Changes require a changelog entry."""

from typing import Literal

from pydantic import Field

from qsync_operator.api.base import StatusModel
from qsync_operator.api.conditions import BaseCondition

MEMBERS_MAX = 1100
"""More than all registered members and readers of a specification, for those that leave."""
WARNINGS_MAX = 64
MemberRole = Literal["leader", "follower", "async", "anonymous", "joining", "down"]


class MemberStatus(StatusModel):
    """One member. `pid` and `directory` are set for local processes only."""

    name: str
    """Name of the pod or process."""
    role: MemberRole = "down"
    """Current role."""
    address: str = ""
    """Address for clients."""
    admin_address: str = ""
    """Address for orders."""
    replica_id: int = 0
    """Replica id in the configuration, or 0."""
    uuid: str = ""
    """UUID of the instance."""
    term: int = 0
    """Current term."""
    last_term: int = 0
    """Term of the last row."""
    signature: int = 0
    """Confirmed index."""
    lag: int = 0
    """Rows behind the member with the highest confirmed index."""
    fenced: bool = False
    """Whether the member is fenced."""
    message: str | None = None
    """Problem of the member."""
    pid: int | None = None
    """Process id of a local member."""
    directory: str | None = None
    """Data directory of a local member."""


class LastRun(StatusModel):
    """The last finished audit or compaction."""

    name: str = ""
    """Name of the audit or compaction."""
    verdict: str = ""
    """Verdict of the audit."""
    started_at: str = ""
    """Time of the start."""
    finished_at: str = ""
    """Time of the end."""
    violations: int = 0
    """Number of violations."""
    report: str = ""
    """Location of the report."""


class LastFailover(StatusModel):
    """The last change of leader."""

    from_: str = Field(default="", validation_alias="from", serialization_alias="from")
    """Previous leader."""
    to: str = ""
    """New leader."""
    reason: str = ""
    """Cause: ProcessEnded, Unreachable, SteppedDown, Switchover or Unsupervised."""
    at: str = ""
    """Time at which the operator observed the new leader."""
    unavailable_milliseconds: float = 0
    """Time without a member that accepted writes, as observed by the operator; 0 if not measured.
    """
    rolled_back_rows: int = 0
    """Number of rows that the previous leader had to discard."""


class Condition(BaseCondition):
    """One condition of a cluster."""

    type: Literal[
        "Ready", "Available", "Progressing", "Degraded", "Reconciled", "Stalled", "SplitBrain"
    ]
    """Aspect that the condition describes."""


class ClusterStatus(StatusModel):
    """Observed state of a cluster, from the latest answers of its members."""

    phase: str = "Pending"
    """One-word summary."""
    observed_generation: int = 0
    """Generation of the specification that this status describes."""
    leader: str = ""
    """Member that accepts writes, or empty."""
    term: int = 0
    """Highest term."""
    quorum: int = 0
    """Number of voters that must have a write on disk."""
    confirmed_signature: int = 0
    """Highest confirmed index."""
    replicas: int = 0
    """Number of voters that exist."""
    ready_replicas: int = 0
    """Number of voters that lead or follow."""
    selector: str = ""
    """Label selector of the voters, for autoscalers."""
    replicaset_uuid: str = Field(
        default="", validation_alias="replicasetUUID", serialization_alias="replicasetUUID"
    )
    """UUID of the replica set."""
    volume_size: str = ""
    """Minimum size of all volumes. `spec.storage.size` cannot be less."""
    members: list[MemberStatus] = Field(default_factory=list, max_length=MEMBERS_MAX)
    """All members."""
    last_failover: LastFailover | None = None
    """The last change of leader."""
    last_audit: LastRun | None = None
    """The last finished audit."""
    last_compaction: LastRun | None = None
    """The last finished compaction."""
    warnings: list[str] = Field(default_factory=list, max_length=WARNINGS_MAX)
    """Valid settings that are probably unintended."""
    conditions: list[Condition] = Field(default_factory=list)
    """Ready, Available, Progressing, Degraded, Reconciled and SplitBrain, and Stalled if the
    specification is unusable."""

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"
