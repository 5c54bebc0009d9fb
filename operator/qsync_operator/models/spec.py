"""QsyncCluster.spec: what a person asks for, with every default and limit."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qsync_node.core.quorum import evaluate, needed
from qsync_operator.models.base import (
    NAMED,
    ClassName,
    Duration,
    Image,
    Quantity,
    Schedule,
    SecretName,
    SpecModel,
    TimeZone,
    duration_ns,
    quantity,
)
from qsync_operator.models.bootstrap import BootstrapSpec
from qsync_operator.models.podtemplate import refuse_template
from qsync_operator.models.spaces import SpaceSpec, refuse_repeated
from qsync_operator.models.users import RoleSpec, UserSpec

REGISTERED_MAX = 31
_WORDS = "[A-Za-z][A-Za-z.]*"
CONF_ALLOWED = re.compile(
    r"spark\.("
    + "|".join(
        (
            r"broadcast\.(blockSize|compress)",
            r"default\.parallelism",
            r"driver\.(maxResultSize|memory|memoryOverhead|memoryOverheadFactor)",
            r"executor\.(cores|heartbeatInterval|instances|memory|memoryOverhead"
            r"|memoryOverheadFactor)",
            r"kubernetes\.allocation\.batch\.(delay|size)",
            r"kubernetes\.executor\.(limit|request)\.cores",
            r"locality\.wait(\.(node|process|rack))?",
            r"memory\.(fraction|offHeap\.(enabled|size)|storageFraction)",
            r"network\.timeout",
            rf"reducer\.max{_WORDS}",
            r"rdd\.compress",
            r"rpc\.(askTimeout|message\.maxSize)",
            r"scheduler\.(minRegisteredResourcesRatio|maxRegisteredResourcesWaitingTime)",
            r"shuffle\.(compress|file\.buffer|io\.(maxRetries|retryWait)|spill\.compress"
            r"|sort\.bypassMergeThreshold)",
            rf"speculation(\.{_WORDS})?",
            r"sql\.(autoBroadcastJoinThreshold|broadcastTimeout|codegen\.wholeStage"
            r"|shuffle\.partitions)",
            rf"sql\.adaptive\.(?!custom){_WORDS}",
            rf"sql\.(execution\.arrow|files|inMemoryColumnarStorage)\.{_WORDS}",
            r"task\.(cpus|maxFailures)",
        )
    )
    + ")"
)
"""Keys of `spark.conf` that choose no code: who may ask for an audit must not run programs with the
driver's rights and the archive's credentials."""
CONF_VALUE = re.compile(r"[A-Za-z0-9.,-]{0,256}")
"""No `$`: Kubernetes replaces `$(NAME)` and Spark `${env:NAME}` by variables of the driver. A value
that is refused is quoted in the run's status, which would then show the archive's credentials."""


class ReplicationSpec(SpecModel):
    """How many copies a write needs, and how long it may wait for them."""

    quorum: int | str = "majority"
    """How many voters have a write on disk before it is confirmed: `majority`, a number, or a
    formula over N such as `N/2+1`."""
    synchro_timeout: Duration = "5s"
    """How long a write waits for its quorum before it is rolled back."""
    election_mode: Literal["candidate", "manual", "voter"] = "candidate"
    """Whether members stand for election by themselves (`candidate`), only when asked (`manual`),
    or never (`voter`)."""
    wal_mode: Literal["fsync", "write"] = "fsync"
    """`fsync`: acknowledged writes survive a power failure. `write`: only the end of a process."""
    heartbeat: Duration = "100ms"
    """How often a leader tells that it is alive."""
    election_timeout: Duration = "1s"
    """How long a follower hears nothing before it stands for election."""

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
    """What a new leader does with its predecessor's unconfirmed rows: confirm them (`adopt`), or
    undo what provably never had a quorum (`rollback`)."""
    delay: Duration = "0s"
    """How long the controller waits before it nominates; the members elect by themselves all the
    same."""


class StorageSpec(SpecModel):
    """Where data lives, and what becomes of it when a member is removed."""

    size: Quantity = "10Gi"
    """Of the volume of each member. It can grow and not shrink."""
    retention: Literal["Retain", "Delete"] = "Retain"
    """Whether volumes are kept (`Retain`) when a member or the cluster is removed."""
    storage_class: ClassName | None = None
    """The StorageClass of the volumes; without it the Kubernetes cluster's default. It cannot
    change."""


class ResourcesSpec(SpecModel):
    """Requests and limits of one container, as Kubernetes has them."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    """What the scheduler sets aside."""
    limits: dict[str, Quantity] = Field(default_factory=dict)
    """What the container may use at most."""

    @model_validator(mode="after")
    def _check(self) -> "ResourcesSpec":
        for name, amount in self.requests.items():
            limit = self.limits.get(name)
            if limit is not None and quantity(amount) > quantity(limit):
                raise ValueError(
                    f"requests.{name} {amount} is more than limits.{name} {limit}: nothing could"
                    " be scheduled"
                )
        return self


class TlsSpec(SpecModel):
    """Certificates: the controller's own authority unless a Secret is named, which holds tls.crt,
    tls.key and ca.crt as cert-manager writes them. Members speak TLS to each other in any case.
    """

    clients: Literal["Accept", "Require", "Off"] = "Accept"
    """`Accept`: clients may use TLS, on `ports.tls`. `Require`: every port asks for it. `Off`:
    only members use it."""
    secret_name: SecretName | None = None
    """A Secret with tls.crt, tls.key and ca.crt, in place of the operator's own authority."""


class AuthSpec(SpecModel):
    """The application's user; its password is generated unless a Secret holds one."""

    username: str = Field(default="app", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    """The user that applications log in as. It cannot change."""
    password_secret: SecretName | None = None
    """A Secret whose `password` that user has; without it one is made."""

    @field_validator("username")
    @classmethod
    def _check_username(cls, value: str) -> str:
        if value in ("admin", "guest", "public", "replication", "super"):
            raise ValueError(f"{value} exists in every database: name another user")
        return value


class PortsSpec(SpecModel):
    """Ports of the members. Locally the first member's: the next ones count on from there."""

    iproto: int | None = Field(default=None, ge=1, le=65535)
    """For clients; 3301 on Kubernetes. It cannot change."""
    admin: int | None = Field(default=None, ge=1, le=65535)
    """For status, metrics and orders; 8081 on Kubernetes. It cannot change."""
    tls: int | None = Field(default=None, ge=1, le=65535)
    """For members among themselves and for clients that encrypt; 3302. It cannot change."""


class ArchiveSpec(SpecModel):
    """The object store that sealed segments and snapshots are copied to."""

    url: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://.+$")
    """Such as `s3://bucket/orders`."""
    interval: Duration = "60s"
    """How old what is not yet archived may be."""
    credentials_secret: SecretName | None = None
    """A Secret with the store's credentials."""
    audit_credentials_secret: SecretName | None = None
    """A Secret with the credentials of audits, which read everything and write below `audits/`;
    without it audits use `credentialsSecret`."""
    retention: Duration | None = None
    """How far back the archive can be restored: compactions delete what is older and folded.
    Without it they delete nothing."""


class ExecutorSpec(SpecModel):
    """Resources of a Spark driver or executor."""

    cores: int = Field(default=1, ge=1, le=64)
    """Of one process."""
    memory: Quantity = "1Gi"
    """Of one process."""


class SparkSpec(SpecModel):
    """How large a Spark run is."""

    driver: ExecutorSpec = Field(default_factory=ExecutorSpec)
    """The process that plans."""
    executor: ExecutorSpec = Field(default_factory=ExecutorSpec)
    """The processes that work."""
    instances: int = Field(default=2, ge=1, le=1000)
    """How many executors."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Spark's own settings, of those that docs/spark.md lists: sizes, shuffles and SQL."""
    ui: bool = False
    """Whether the driver serves Spark's pages on port 4040. They ask for no password."""

    @field_validator("conf")
    @classmethod
    def _check_conf(cls, conf: dict[str, str]) -> dict[str, str]:
        for key, value in conf.items():
            if not CONF_VALUE.fullmatch(value):
                raise ValueError(f"{key} is a number, a size or a word: letters, digits and .,-")
            if not CONF_ALLOWED.fullmatch(key):
                raise ValueError(
                    f"{key} cannot be set: conf takes sizes, shuffles and SQL; see docs/spark.md"
                )
        return conf


class JobSpec(SpecModel):
    """A Spark job that runs by the clock: audit or compaction."""

    schedule: Schedule
    """Five fields as cron has them: minute, hour, day, month, weekday."""
    suspend: bool = False
    """No new run begins."""
    time_zone: TimeZone = "Etc/UTC"
    """Of the schedule."""
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    """What happens if a run is due while another one runs: it is left out (`Forbid`) or takes its
    place (`Replace`)."""
    successful_history_limit: int = Field(default=3, ge=0, le=100)
    """How many runs that succeeded are kept."""
    failed_history_limit: int = Field(default=3, ge=0, le=100)
    """How many runs that failed are kept."""
    spark: SparkSpec = Field(default_factory=SparkSpec)
    """How large a run is."""


class RolloutSpec(SpecModel):
    """How a change that needs restarts reaches the leader: by a switchover, or by yours."""

    strategy: Literal["Automatic", "Supervised"] = "Automatic"
    """`Automatic`: the leader restarts last, after a switchover. `Supervised`: the switchover is
    yours."""


class NetworkPolicySpec(SpecModel):
    """Who may reach members: each other and the operator always, clients on the data port."""

    enabled: bool = True
    """Whether a NetworkPolicy is made."""


class MonitoringSpec(SpecModel):
    """Objects for Prometheus' operator, where its kinds exist."""

    pod_monitor: bool = False
    """Make a PodMonitor."""
    prometheus_rule: bool = False
    """Make a PrometheusRule with the alerts of docs/runbooks."""


class ClusterSpec(SpecModel):
    """The whole of `spec`; an empty one is a good one."""

    replicas: int = Field(default=3, ge=1, le=REGISTERED_MAX)
    """Voting members; an odd number is best. `kubectl scale` sets it."""
    async_replicas: int = Field(default=0, ge=0, le=REGISTERED_MAX - 1)
    """Registered members that no quorum counts."""
    read_replicas: int = Field(default=0, ge=0, le=1000)
    """Members that only follow, and are not registered."""
    image: Image | None = None
    """Of the nodes; without it the one that the cluster was made with."""
    hibernate: bool = False
    """Stop all pods and keep everything else."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How changes that restart members reach the leader."""
    replication: ReplicationSpec = Field(default_factory=ReplicationSpec)
    """How many copies a write needs."""
    failover: FailoverSpec = Field(default_factory=FailoverSpec)
    """What follows the loss of a leader."""
    storage: StorageSpec = Field(default_factory=StorageSpec)
    """The volumes."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Of the node's container."""
    tls: TlsSpec = Field(default_factory=TlsSpec)
    """Certificates, and who has to encrypt."""
    auth: AuthSpec = Field(default_factory=AuthSpec)
    """The application's user."""
    guest: bool | None = None
    """Whether clients may send requests without logging in. The default is false on Kubernetes and
    true for a local cluster. Images before this field refuse to start with true."""
    ports: PortsSpec = Field(default_factory=PortsSpec)
    """Where members listen."""
    spaces: list[SpaceSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Spaces that are created and extended, never dropped."""
    roles: list[RoleSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Roles of the database that are kept as declared."""
    users: list[UserSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Users of the database that are kept as declared."""
    bootstrap: BootstrapSpec | None = None
    """What a new cluster begins with, in place of an empty database. It cannot change."""
    archive: ArchiveSpec | None = None
    """Where sealed segments and snapshots go."""
    audit: JobSpec | None = None
    """Regular audits of the archive."""
    compaction: JobSpec | None = None
    """Regular compactions of the archive."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Laid over the pods: metadata and spec as Kubernetes has them; docs/kubernetes.md says what
    is refused."""
    network_policy: NetworkPolicySpec = Field(default_factory=NetworkPolicySpec)
    """Who may reach members."""
    monitoring: MonitoringSpec = Field(default_factory=MonitoringSpec)
    """Objects of Prometheus' operator."""

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
        begin = self.bootstrap.from_archive if self.bootstrap is not None else None
        if begin and self.archive and begin.url.rstrip("/") == self.archive.url.rstrip("/"):
            raise ValueError(
                "bootstrap.fromArchive.url is archive.url: a new cluster archives to a place of"
                " its own"
            )
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
