"""QsyncCluster.spec: the fields that users set, with defaults and limits."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qsync_node.consensus.quorum import evaluate, needed
from qsync_operator.api.base import (
    NAMED,
    ClassName,
    CronSchedule,
    Duration,
    Image,
    Quantity,
    SecretName,
    SpecModel,
    TimeZone,
    duration_ns,
    quantity,
)
from qsync_operator.api.bootstrap import BootstrapSpec
from qsync_operator.api.patterns import URL_PATTERN, USER_PATTERN
from qsync_operator.api.podtemplate import refuse_template
from qsync_operator.api.spaces import SpaceSpec, refuse_repeated
from qsync_operator.api.users import RoleSpec, UserSpec, refuse_reserved

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
"""Keys of `spark.conf` that select no code.

A user who may request an audit must not run programs with the driver's permissions and the
archive's credentials.
"""
CONF_VALUE = re.compile(r"[A-Za-z0-9.,-]{0,256}")
"""Allowed values contain no `$`.

Kubernetes would replace `$(NAME)`, and Spark `${env:NAME}`, by variables of the driver. A refused
value is quoted in the status, which would then show the archive's credentials.
"""


class ReplicationSpec(SpecModel):
    """Quorum, timeouts and elections."""

    quorum: int | str = "majority"
    """Number of voters that must have a write on disk before it is confirmed: `majority`, a number,
    or a formula over N such as `N/2+1`."""
    synchro_timeout: Duration = "5s"
    """Time without progress after which the leader rolls back writes that wait for their quorum."""
    election_mode: Literal["candidate", "manual", "voter"] = "candidate"
    """`candidate`: members start elections automatically. `manual`: only on request. `voter`:
    never."""
    wal_mode: Literal["fsync", "write"] = "fsync"
    """`fsync`: acknowledged writes survive a power failure. `write`: they survive only a failure of
    the process."""
    heartbeat: Duration = "100ms"
    """Interval between two heartbeats of the leader."""
    election_timeout: Duration = "1s"
    """Time without a heartbeat after which a follower starts an election."""

    @model_validator(mode="after")
    def _check(self) -> "ReplicationSpec":
        if duration_ns(self.heartbeat) * 2 > duration_ns(self.election_timeout):
            raise ValueError(
                f"electionTimeout {self.election_timeout} is too short: it must be at "
                f"least twice the heartbeat {self.heartbeat}"
            )
        if duration_ns(self.heartbeat) < 10**6 or duration_ns(self.synchro_timeout) < 10**6:
            raise ValueError("heartbeat and synchroTimeout must be at least 1ms")
        if isinstance(self.quorum, str) and self.quorum != "majority":
            evaluate(self.quorum, 3)
        return self


class FailoverSpec(SpecModel):
    """Treatment of unconfirmed rows at a failover, and delay of the nomination."""

    unconfirmed: Literal["adopt", "rollback"] = "adopt"
    """`adopt`: a new leader confirms the unconfirmed rows of its predecessor. `rollback`: it rolls
    back those that provably never had a quorum."""
    delay: Duration = "0s"
    """Time that the controller waits before it nominates a new leader. Members may elect one
    earlier."""


class StorageSpec(SpecModel):
    """Volumes of the members, and their retention."""

    size: Quantity = "10Gi"
    """Size of the volume of each member. It can grow but not shrink."""
    retention: Literal["Retain", "Delete"] = "Retain"
    """`Retain`: volumes are kept when a member or the cluster is removed. `Delete`: they are
    deleted."""
    storage_class: ClassName | None = None
    """StorageClass of the volumes. The default is that of the Kubernetes cluster. It cannot change.
    """


class ResourcesSpec(SpecModel):
    """Requests and limits of one container, as in Kubernetes."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    """Resources that the scheduler reserves."""
    limits: dict[str, Quantity] = Field(default_factory=dict)
    """Resources that the container may use at most."""

    @model_validator(mode="after")
    def _check(self) -> "ResourcesSpec":
        for name, amount in self.requests.items():
            limit = self.limits.get(name)
            if limit is not None and quantity(amount) > quantity(limit):
                raise ValueError(
                    f"requests.{name} {amount} exceeds limits.{name} {limit}: no pod "
                    "could be scheduled"
                )
        return self


class TlsSpec(SpecModel):
    """Certificates of the members. Without `secretName`, the operator issues them. Members always
    use TLS between each other."""

    clients: Literal["Accept", "Require", "Off"] = "Accept"
    """`Accept`: clients may use TLS, on `ports.tls`. `Require`: all ports require TLS. `Off`: only
    members use TLS."""
    secret_name: SecretName | None = None
    """Secret with `tls.crt`, `tls.key` and `ca.crt`, used instead of certificates issued by the
    operator."""


class AuthSpec(SpecModel):
    """User of the application. The operator generates a password unless a Secret is named."""

    username: str = Field(default="app", pattern=USER_PATTERN)
    """Name of the user that applications log in as. It cannot change."""
    password_secret: SecretName | None = None
    """Secret whose key `password` is the password of the user. Without it, the operator generates
    one."""

    @field_validator("username")
    @classmethod
    def _check_username(cls, value: str) -> str:
        return refuse_reserved(value)


class PortsSpec(SpecModel):
    """Ports of the members. For local clusters, the ports of the first member; later members use
    the next ones."""

    iproto: int | None = Field(default=None, ge=1, le=65535)
    """Port for clients. The default on Kubernetes is 3301. It cannot change."""
    admin: int | None = Field(default=None, ge=1, le=65535)
    """Port for status, metrics and orders. The default on Kubernetes is 8081. It cannot change."""
    tls: int | None = Field(default=None, ge=1, le=65535)
    """Port for connections between members and for clients that use TLS. The default is 3302. It
    cannot change."""


class ArchiveSpec(SpecModel):
    """Object store that receives sealed segments and snapshots."""

    url: str = Field(pattern=URL_PATTERN)
    """URL of the archive, such as `s3://bucket/orders`."""
    interval: Duration = "60s"
    """Maximum age of confirmed rows that are not archived."""
    credentials_secret: SecretName | None = None
    """Secret with the credentials of the store."""
    audit_credentials_secret: SecretName | None = None
    """Secret with the credentials of audits, which read everything and write below `audits/`. The
    default is `credentialsSecret`."""
    retention: Duration | None = None
    """Time range within which the archive can be restored. Compactions delete older data that they
    have folded. Without it, they delete nothing."""


class ExecutorSpec(SpecModel):
    """Resources of a Spark driver or executor."""

    cores: int = Field(default=1, ge=1, le=64)
    """CPU cores of the process."""
    memory: Quantity = "1Gi"
    """Memory of the process."""


class SparkSpec(SpecModel):
    """Size and settings of a Spark application."""

    driver: ExecutorSpec = Field(default_factory=ExecutorSpec)
    """Resources of the driver."""
    executor: ExecutorSpec = Field(default_factory=ExecutorSpec)
    """Resources of each executor."""
    instances: int = Field(default=2, ge=1, le=1000)
    """Number of executors."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark. docs/spark.md lists the allowed keys: sizes, shuffles and SQL."""
    ui: bool = False
    """Whether the driver serves Spark's pages on port 4040. They require no password."""

    @field_validator("conf")
    @classmethod
    def _check_conf(cls, conf: dict[str, str]) -> dict[str, str]:
        for key, value in conf.items():
            if not CONF_VALUE.fullmatch(value):
                raise ValueError(
                    f"invalid value of {key}: use a number, a size or a word of letters, "
                    "digits and .,-"
                )
            if not CONF_ALLOWED.fullmatch(key):
                raise ValueError(
                    f"{key} cannot be set: conf accepts only settings of sizes, shuffles "
                    "and SQL; see docs/spark.md"
                )
        return conf


class JobSpec(SpecModel):
    """A scheduled Spark job: audit or compaction."""

    schedule: CronSchedule
    """Schedule in cron format: minute, hour, day, month, weekday."""
    suspend: bool = False
    """Whether the schedule is suspended."""
    time_zone: TimeZone = "Etc/UTC"
    """Time zone of the schedule."""
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    """Behaviour if a job is due while the previous one runs. `Forbid`: skip it. `Replace`: cancel
    the previous one."""
    successful_history_limit: int = Field(default=3, ge=0, le=100)
    """Number of successful jobs to keep."""
    failed_history_limit: int = Field(default=3, ge=0, le=100)
    """Number of failed jobs to keep."""
    spark: SparkSpec = Field(default_factory=SparkSpec)
    """Size and settings of the Spark application."""


class RolloutSpec(SpecModel):
    """Restart of the leader in a rolling update."""

    strategy: Literal["Automatic", "Supervised"] = "Automatic"
    """`Automatic`: the leader restarts last, after a switchover. `Supervised`: the operator waits
    for a switchover by the user."""


class NetworkPolicySpec(SpecModel):
    """Network access to the members. Members, the operator and clients of the data port are
    allowed."""

    enabled: bool = True
    """Whether the operator creates a NetworkPolicy."""


class MonitoringSpec(SpecModel):
    """Objects for the Prometheus operator, if its definitions are installed."""

    pod_monitor: bool = False
    """Whether the operator creates a PodMonitor."""
    prometheus_rule: bool = False
    """Whether the operator creates a PrometheusRule with the alerts of docs/runbooks."""


class JournalsSpec(SpecModel):
    """Brokers of journals, one beside each voter."""

    enabled: bool = True
    """Whether the brokers run. Journals are kept if it becomes false."""
    port: int = Field(default=0, ge=0, le=65_000)
    """Port of the brokers for clients. On Kubernetes, all brokers have this port, by default 8080.
    In a local cluster, the first broker has it, and each further one the next; the default is to
    choose free ports."""
    tls: bool = False
    """Whether the brokers require TLS: on Kubernetes with the certificate of the members, locally
    with certificates of an authority of the cluster."""
    auto_suspend: bool = False
    """Whether brokers suspend a journal whose bytes have been in its store for an interval of
    flushes: it then has one broker. The next append resumes it."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Requests and limits of each broker on Kubernetes."""
    auth_keys_file: str | None = Field(default=None, min_length=1, max_length=4096)
    """File with the keys of clients' tokens in Base64, as an absolute path. Without it, clients
    need no token. Kubernetes does not support it."""
    auth_keys_secret: SecretName | None = None
    """Secret on Kubernetes whose value `keys` has the keys of clients' tokens in Base64, separated
    by spaces. Brokers use a changed Secret without a restart. Without it, clients need no token."""


class ClusterSpec(SpecModel):
    """Specification of a cluster. Every field has a default."""

    replicas: int = Field(default=3, ge=1, le=REGISTERED_MAX)
    """Number of voters. Prefer an odd number. `kubectl scale` sets it."""
    async_replicas: int = Field(default=0, ge=0, le=REGISTERED_MAX - 1)
    """Number of registered members that never count for the quorum."""
    read_replicas: int = Field(default=0, ge=0, le=1000)
    """Number of members that follow without being registered."""
    image: Image | None = None
    """Image of the nodes. The default is the image with which the cluster was created."""
    hibernate: bool = False
    """Whether all pods are stopped. Everything else is kept."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """Restart of the leader in a rolling update."""
    replication: ReplicationSpec = Field(default_factory=ReplicationSpec)
    """Quorum, timeouts and elections."""
    failover: FailoverSpec = Field(default_factory=FailoverSpec)
    """Behaviour after the loss of a leader."""
    storage: StorageSpec = Field(default_factory=StorageSpec)
    """Volumes of the members."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Resources of the node container."""
    tls: TlsSpec = Field(default_factory=TlsSpec)
    """Certificates, and TLS of clients."""
    auth: AuthSpec = Field(default_factory=AuthSpec)
    """User of the application."""
    guest: bool | None = None
    """Whether clients may send requests without logging in. The default is false on Kubernetes and
    true for a local cluster. Images older than this field refuse to start with true."""
    ports: PortsSpec = Field(default_factory=PortsSpec)
    """Ports of the members."""
    spaces: list[SpaceSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Spaces that the operator creates and extends. It never drops a space."""
    roles: list[RoleSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Database roles that the operator keeps as declared."""
    users: list[UserSpec] = Field(default_factory=list, json_schema_extra=NAMED)
    """Database users that the operator keeps as declared."""
    bootstrap: BootstrapSpec | None = None
    """Initial state of a new cluster. The default is an empty database. It cannot change."""
    archive: ArchiveSpec | None = None
    """Destination of sealed segments and snapshots."""
    audit: JobSpec | None = None
    """Scheduled audits of the archive."""
    compaction: JobSpec | None = None
    """Scheduled compactions of the archive."""
    journals: JournalsSpec | None = None
    """Journals of the cluster."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Metadata and spec that are merged into the pods. docs/kubernetes.md lists the refused fields.
    """
    network_policy: NetworkPolicySpec = Field(default_factory=NetworkPolicySpec)
    """Network access to the members."""
    monitoring: MonitoringSpec = Field(default_factory=MonitoringSpec)
    """Objects for the Prometheus operator."""

    @model_validator(mode="after")
    def _check(self) -> "ClusterSpec":
        registered = self.replicas + self.async_replicas
        if registered > REGISTERED_MAX:
            raise ValueError(
                f"the sum of replicas and asyncReplicas is {registered}: at most "
                f"{REGISTERED_MAX} members can be registered"
            )
        self._check_quorum()
        refuse_repeated([space.name for space in self.spaces], "space")
        names = [one.name for one in (*self.roles, *self.users)]
        refuse_repeated([*names, self.auth.username], "user or role")
        has_brokers = self.journals is not None and self.journals.enabled
        refuse_template(self.pod_template, has_brokers)
        begin = self.bootstrap.from_archive if self.bootstrap is not None else None
        if begin and self.archive and begin.url.rstrip("/") == self.archive.url.rstrip("/"):
            raise ValueError(
                "bootstrap.fromArchive.url equals archive.url: a new cluster needs its own archive"
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
    """Return warnings for settings that are valid but probably unintended."""
    found = []
    if spec.replicas % 2 == 0:
        found.append(
            f"{spec.replicas} voters tolerate no more failures than {spec.replicas - 1}: "
            "use an odd number"
        )
    if spec.replication.wal_mode == "write":
        found.append("walMode write: a power failure may lose acknowledged writes")
    return found


_KUBERNETES_ONLY = {
    "image", "resources", "pod_template", "monitoring", "audit", "compaction",
    "network_policy",
}  # fmt: skip


def without_local_meaning(spec: ClusterSpec) -> list[str]:
    """Return the given fields that have no effect on a cluster of local processes."""
    fields = type(spec).model_fields
    given = [str(fields[name].alias) for name in sorted(spec.model_fields_set & _KUBERNETES_ONLY)]
    return given + [
        f"storage.{StorageSpec.model_fields[name].alias}"
        for name in sorted(spec.storage.model_fields_set & {"size", "storage_class"})
    ]
