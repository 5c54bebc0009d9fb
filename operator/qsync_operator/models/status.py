"""QsyncCluster.status: what tools and people read. It changes only with a changelog line."""

from typing import Literal

from pydantic import Field

from qsync_operator.models.base import StatusModel

Role = Literal["leader", "follower", "async", "anonymous", "joining", "down"]


class MemberStatus(StatusModel):
    """One member; `pid` and `directory` exist only where members are local processes."""

    name: str
    role: Role = "down"
    address: str = ""
    admin_address: str = ""
    replica_id: int = 0
    uuid: str = ""
    term: int = 0
    last_term: int = 0
    signature: int = 0
    lag: int = 0
    fenced: bool = False
    message: str | None = None
    pid: int | None = None
    directory: str | None = None


class LastRun(StatusModel):
    """The last audit or compaction that ended."""

    name: str = ""
    verdict: str = ""
    started_at: str = ""
    finished_at: str = ""
    violations: int = 0
    report: str = ""


class LastFailover(StatusModel):
    """The last time another member took over, and what it cost."""

    from_: str = Field(default="", validation_alias="from", serialization_alias="from")
    to: str = ""
    reason: str = ""
    at: str = ""
    unavailable_milliseconds: float = 0
    rolled_back_rows: int = 0


class Condition(StatusModel):
    """A fact with its sentence, in the form that `kubectl wait` knows."""

    type: Literal["Ready", "Available", "Progressing", "Degraded", "SplitBrain"]
    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class ClusterStatus(StatusModel):
    """All of it; every number is what the nodes said when they were last asked."""

    phase: str = "Pending"
    observed_generation: int = 0
    leader: str = ""
    term: int = 0
    quorum: int = 0
    confirmed_signature: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    replicaset_uuid: str = Field(
        default="", validation_alias="replicasetUUID", serialization_alias="replicasetUUID"
    )
    members: list[MemberStatus] = Field(default_factory=list)
    last_failover: LastFailover | None = None
    last_audit: LastRun | None = None
    last_compaction: LastRun | None = None
    warnings: list[str] = Field(default_factory=list)
    conditions: list[Condition] = Field(default_factory=list)

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"
