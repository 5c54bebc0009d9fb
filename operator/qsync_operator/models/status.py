"""QsyncCluster.status: what tools and people read. It changes only with a changelog line."""

from typing import Literal

from pydantic import Field

from qsync_operator.models.base import StatusModel
from qsync_operator.models.conditions import BaseCondition

Role = Literal["leader", "follower", "async", "anonymous", "joining", "down"]


class MemberStatus(StatusModel):
    """One member; `pid` and `directory` exist only where members are local processes."""

    name: str
    """Of its pod."""
    role: Role = "down"
    """What it is now."""
    address: str = ""
    """For clients."""
    admin_address: str = ""
    """For orders."""
    replica_id: int = 0
    """Its number in the configuration; 0 if it has none."""
    uuid: str = ""
    """Of its instance."""
    term: int = 0
    """The election epoch that it is in."""
    last_term: int = 0
    """Of its last row."""
    signature: int = 0
    """Its confirmed index."""
    lag: int = 0
    """Rows behind the one that is furthest."""
    fenced: bool = False
    """Kept from leading."""
    message: str | None = None
    """What is wrong with it."""
    pid: int | None = None
    """Of a local process."""
    directory: str | None = None
    """Of a local process."""


class LastRun(StatusModel):
    """The last audit or compaction that ended."""

    name: str = ""
    """Of the run."""
    verdict: str = ""
    """What it found."""
    started_at: str = ""
    """When it began."""
    finished_at: str = ""
    """When it ended."""
    violations: int = 0
    """How many proofs failed."""
    report: str = ""
    """Where it is."""


class LastFailover(StatusModel):
    """The last time another member took over, and what it cost."""

    from_: str = Field(default="", validation_alias="from", serialization_alias="from")
    """Who led before."""
    to: str = ""
    """Who led after."""
    reason: str = ""
    """Why: ProcessEnded, Unreachable, SteppedDown, Switchover or Unsupervised."""
    at: str = ""
    """When the new leader was seen."""
    unavailable_milliseconds: float = 0
    """How long no member took writes, as far as the operator observed it."""
    rolled_back_rows: int = 0
    """Rows that the old leader had to discard."""


class Condition(BaseCondition):
    """A fact about a cluster."""

    type: Literal[
        "Ready", "Available", "Progressing", "Degraded", "Reconciled", "Stalled", "SplitBrain"
    ]
    """The aspect that the condition describes."""


class ClusterStatus(StatusModel):
    """The state of a cluster. Every number is from the latest answers of the nodes."""

    phase: str = "Pending"
    """A summary in one word."""
    observed_generation: int = 0
    """Of the specification that this is about."""
    leader: str = ""
    """The member that takes writes; empty if there is none."""
    term: int = 0
    """The latest election epoch."""
    quorum: int = 0
    """How many disks a write needs now."""
    confirmed_signature: int = 0
    """The highest confirmed index."""
    replicas: int = 0
    """Voting members that have a place."""
    ready_replicas: int = 0
    """Those that lead or follow."""
    selector: str = ""
    """Of the voters, for autoscalers."""
    replicaset_uuid: str = Field(
        default="", validation_alias="replicasetUUID", serialization_alias="replicasetUUID"
    )
    """Of the replica set."""
    volume_size: str = ""
    """What every volume has at least; `spec.storage.size` cannot become less."""
    members: list[MemberStatus] = Field(default_factory=list)
    """Each of them."""
    last_failover: LastFailover | None = None
    """The last change of leader."""
    last_audit: LastRun | None = None
    """The last one that ended."""
    last_compaction: LastRun | None = None
    """The last one that ended."""
    warnings: list[str] = Field(default_factory=list)
    """What is legal and probably not meant."""
    conditions: list[Condition] = Field(default_factory=list)
    """Ready, Available, Progressing, Degraded, Reconciled, SplitBrain; Stalled where the
    specification cannot be used."""

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"
