"""QsyncCluster.spec: what a person asks for, with every default and limit."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qsync_node.core.quorum import evaluate, needed
from qsync_operator.models.base import Duration, Quantity, Schedule, SpecModel, duration_ns
from qsync_operator.models.podtemplate import refuse_template
from qsync_operator.models.spaces import SpaceSpec, refuse_repeated
from qsync_operator.models.users import RoleSpec, UserSpec

REGISTERED_MAX = 31


class ReplicationSpec(SpecModel):
    """How many copies a write needs, and how long it may wait for them."""

    quorum: int | str = "majority"
    synchro_timeout: Duration = "5s"
    election_mode: Literal["candidate", "manual", "voter"] = "candidate"
    wal_mode: Literal["fsync", "write"] = "fsync"
    heartbeat: Duration = "100ms"
    election_timeout: Duration = "1s"

    @model_validator(mode="after")
    def _check(self) -> "ReplicationSpec":
        if duration_ns(self.heartbeat) * 2 > duration_ns(self.election_timeout):
            raise ValueError(
                f"electionTimeout {self.election_timeout} must be at least two heartbeats"
                f" of {self.heartbeat}"
            )
        if duration_ns(self.heartbeat) < 10**6 or duration_ns(self.synchro_timeout) < 10**6:
            raise ValueError("heartbeat and synchroTimeout must be at least 1ms")
        if isinstance(self.quorum, str) and self.quorum != "majority":
            evaluate(self.quorum, 3)
        return self


class FailoverSpec(SpecModel):
    """What happens to the leader's unconfirmed tail, and how soon the controller acts."""

    unconfirmed: Literal["adopt", "rollback"] = "adopt"
    delay: Duration = "0s"


class StorageSpec(SpecModel):
    """Where data lives, and what becomes of it when a member is removed."""

    size: Quantity = "10Gi"
    retention: Literal["Retain", "Delete"] = "Retain"
    storage_class: str | None = None


class ResourcesSpec(SpecModel):
    """Requests and limits of one container, as Kubernetes has them."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    limits: dict[str, Quantity] = Field(default_factory=dict)


class TlsSpec(SpecModel):
    """Certificates: the controller's own authority unless a Secret is named, which holds tls.crt,
    tls.key and ca.crt as cert-manager writes them. Members speak TLS to each other in any case.
    """

    clients: Literal["Accept", "Require", "Off"] = "Accept"
    secret_name: str | None = None


class AuthSpec(SpecModel):
    """The application's user; its password is generated unless a Secret holds one."""

    username: str = Field(default="app", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    password_secret: str | None = None

    @field_validator("username")
    @classmethod
    def _check_username(cls, value: str) -> str:
        if value in ("admin", "guest", "public", "replication", "super"):
            raise ValueError(f"{value} exists in every database: name another user")
        return value


class PortsSpec(SpecModel):
    """Ports of the members. Locally the first member's: the next ones count on from there."""

    iproto: int | None = Field(default=None, ge=1, le=65535)
    admin: int | None = Field(default=None, ge=1, le=65535)
    tls: int | None = Field(default=None, ge=1, le=65535)


class ArchiveSpec(SpecModel):
    """The object store that sealed segments and snapshots are copied to."""

    url: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://.+$")
    interval: Duration = "60s"
    credentials_secret: str | None = None
    retention: Duration | None = None


class ExecutorSpec(SpecModel):
    """Resources of a Spark driver or executor."""

    cores: int = Field(default=1, ge=1, le=64)
    memory: Quantity = "1Gi"


class SparkSpec(SpecModel):
    """How large a Spark run is."""

    driver: ExecutorSpec = Field(default_factory=ExecutorSpec)
    executor: ExecutorSpec = Field(default_factory=ExecutorSpec)
    instances: int = Field(default=2, ge=1, le=1000)
    conf: dict[str, str] = Field(default_factory=dict)


class JobSpec(SpecModel):
    """A Spark job that runs by the clock: audit or compaction."""

    schedule: Schedule
    suspend: bool = False
    time_zone: str = "Etc/UTC"
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    successful_history_limit: int = Field(default=3, ge=0, le=100)
    failed_history_limit: int = Field(default=3, ge=0, le=100)
    spark: SparkSpec = Field(default_factory=SparkSpec)


class RolloutSpec(SpecModel):
    """How a change that needs restarts reaches the leader: by a switchover, or by yours."""

    strategy: Literal["Automatic", "Supervised"] = "Automatic"


class NetworkPolicySpec(SpecModel):
    """Who may reach members: each other and the operator always, clients on the data port."""

    enabled: bool = True


class MonitoringSpec(SpecModel):
    """Objects for Prometheus' operator, where its kinds exist."""

    pod_monitor: bool = False
    prometheus_rule: bool = False


class ClusterSpec(SpecModel):
    """The whole of `spec`; an empty one is a good one."""

    replicas: int = Field(default=3, ge=1, le=REGISTERED_MAX)
    async_replicas: int = Field(default=0, ge=0, le=REGISTERED_MAX - 1)
    read_replicas: int = Field(default=0, ge=0, le=1000)
    image: str | None = None
    hibernate: bool = False
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    replication: ReplicationSpec = Field(default_factory=ReplicationSpec)
    failover: FailoverSpec = Field(default_factory=FailoverSpec)
    storage: StorageSpec = Field(default_factory=StorageSpec)
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    tls: TlsSpec = Field(default_factory=TlsSpec)
    auth: AuthSpec = Field(default_factory=AuthSpec)
    ports: PortsSpec = Field(default_factory=PortsSpec)
    spaces: list[SpaceSpec] = Field(default_factory=list)
    roles: list[RoleSpec] = Field(default_factory=list)
    users: list[UserSpec] = Field(default_factory=list)
    archive: ArchiveSpec | None = None
    audit: JobSpec | None = None
    compaction: JobSpec | None = None
    pod_template: dict[str, Any] = Field(default_factory=dict)
    network_policy: NetworkPolicySpec = Field(default_factory=NetworkPolicySpec)
    monitoring: MonitoringSpec = Field(default_factory=MonitoringSpec)

    @model_validator(mode="after")
    def _check(self) -> "ClusterSpec":
        registered = self.replicas + self.async_replicas
        if registered > REGISTERED_MAX:
            raise ValueError(
                f"replicas and asyncReplicas are {registered} together: at most"
                f" {REGISTERED_MAX} can be registered"
            )
        self._check_quorum()
        refuse_repeated([space.name for space in self.spaces], "space")
        names = [one.name for one in (*self.roles, *self.users)]
        refuse_repeated([*names, self.auth.username], "user or role")
        refuse_template(self.pod_template)
        for job, what in ((self.audit, "audit"), (self.compaction, "compaction")):
            if job is not None and self.archive is None:
                raise ValueError(f"{what} reads the archive: set archive.url too")
        return self

    def _check_quorum(self) -> None:
        configured, voters = self.replication.quorum, self.replicas
        if configured == "majority":
            return
        wanted = configured if isinstance(configured, int) else evaluate(configured, voters)
        majority = needed(voters)
        if wanted < majority:
            raise ValueError(
                f"replication.quorum {configured} is below a majority of {voters} replicas,"
                f" which is {majority}: two halves could confirm different writes"
            )
        if wanted > voters:
            raise ValueError(
                f"replication.quorum {configured} can never be reached by {voters} replicas"
            )


def spec_warnings(spec: ClusterSpec) -> list[str]:
    """What is legal and probably not meant."""
    found = []
    if spec.replicas % 2 == 0:
        found.append(
            f"{spec.replicas} voters survive the loss of no more than {spec.replicas - 1} do:"
            " an odd number is better"
        )
    if spec.replication.wal_mode == "write":
        found.append("walMode write: a power failure may lose acknowledged writes")
    return found


_KUBERNETES_ONLY = {
    "image", "resources", "pod_template", "monitoring", "audit", "compaction", "tls",
    "users", "roles", "network_policy",
}  # fmt: skip


def without_local_meaning(spec: ClusterSpec) -> list[str]:
    """Fields that were given and mean nothing to a cluster of local processes."""
    fields = type(spec).model_fields
    given = [str(fields[name].alias) for name in sorted(spec.model_fields_set & _KUBERNETES_ONLY)]
    return given + [
        f"storage.{StorageSpec.model_fields[name].alias}"
        for name in sorted(spec.storage.model_fields_set & {"size", "storage_class"})
    ]
