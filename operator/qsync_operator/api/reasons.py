"""The catalogue of condition types, reasons and events, each with its meaning and action.

Names are API: programs compare them, so they never change. Other modules use the names, and a test
compares the catalogue with the code.

`make references` writes the texts into docs/conditions.md, and `qsync explain` prints them. They
are Markdown, and links are relative to docs/. Each begins with a capital letter and ends without a
full stop.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Reasons of the conditions of a QsyncCluster."""

    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILED = "Reconciled"
    SETTLED = "Settled"
    HEALTHY = "Healthy"
    ONE_HISTORY = "OneHistory"
    HIBERNATED = "Hibernated"
    PAUSED = "Paused"

    FORMING = "Forming"
    NO_LEADER = "NoLeader"
    SCALING = "Scaling"
    ROLLING_OUT = "RollingOut"
    AWAITING_SWITCHOVER = "AwaitingSwitchover"
    GROWING_STORAGE = "GrowingStorage"
    CREATING_SPACES = "CreatingSpaces"
    GRANTING_ACCESS = "GrantingAccess"

    INVALID_SPEC = "InvalidSpec"
    WAITING = "Waiting"
    NAME_TAKEN = "NameTaken"
    OBJECT_REFUSED = "ObjectRefused"
    API_UNAVAILABLE = "ApiUnavailable"
    START_FAILED = "StartFailed"
    PORT_IN_USE = "PortInUse"
    BROKER_DOWN = "BrokerDown"
    CERTIFICATE_REFUSED = "CertificateRefused"
    MEMBER_DOWN = "MemberDown"
    SCALE_REFUSED = "ScaleRefused"
    ROLLOUT_REFUSED = "RolloutRefused"
    SCHEMA_REFUSED = "SchemaRefused"
    ACCESS_REFUSED = "AccessRefused"
    STORAGE_REFUSED = "StorageRefused"
    JOURNALS_REFUSED = "JournalsRefused"
    FOUNDER_LOST = "FounderLost"
    DATA_LOST = "DataLost"
    SPLIT_BRAIN = "SplitBrain"
    DIVERGED = "Diverged"


class RunReason(StrEnum):
    """Reasons of the conditions of a QsyncAudit or QsyncCompaction, except those of its Job."""

    FINISHED = "Finished"
    NO_RESULT = "NoResult"
    JOB_FAILED = "JobFailed"
    JOB_DELETED = "JobDeleted"
    INVALID_SPEC = "InvalidSpec"
    REFUSED = "Refused"
    NAME_TAKEN = "NameTaken"
    NO_CLUSTER = "NoCluster"


class FailoverReason(StrEnum):
    """Causes of a change of leader, in `status.lastFailover.reason`."""

    PROCESS_ENDED = "ProcessEnded"
    UNREACHABLE = "Unreachable"
    STEPPED_DOWN = "SteppedDown"
    SWITCHOVER = "Switchover"
    UNSUPERVISED = "Unsupervised"


class EventReason(StrEnum):
    """Reasons of Events that are named neither after an action nor after a state."""

    FAILOVER = "Failover"
    ROWS_ROLLED_BACK = "RowsRolledBack"
    MEMBER_FAILING = "MemberFailing"
    PROCESS_STARTED = "ProcessStarted"
    PROCESS_ENDED = "ProcessEnded"
    JOURNAL_CONFIGURED = "JournalConfigured"
    JOURNALS_FAILED = "JournalsFailed"


@dataclass(frozen=True, slots=True)
class ConditionEntry:
    """A condition type."""

    name: str
    meaning: str
    """When the condition is True."""


@dataclass(frozen=True, slots=True)
class ReasonEntry:
    """A reason; `conditions` are the types of the conditions that can have it."""

    name: str
    conditions: tuple[str, ...]
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class CauseEntry:
    """A cause of a change of leader."""

    name: FailoverReason
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class EventEntry:
    """A reason of Events."""

    name: str
    is_warning: bool
    meaning: str
    action: str


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action of the operator: its Event `name`, and its Event `refused` after a failure."""

    name: str
    meaning: str
    remedy: str
    """What to do if the action is refused."""

    @property
    def refused(self) -> str:
        return f"{self.name}Refused"


CLUSTER_CONDITIONS = (
    ConditionEntry("Ready", "All members are as specified, and one accepts writes"),
    ConditionEntry("Available", "A member accepts writes"),
    ConditionEntry("Progressing", "The operator is changing the cluster"),
    ConditionEntry("Degraded", "The cluster needs attention; the reason names the cause"),
    ConditionEntry("Reconciled", "All objects of the cluster are applied"),
    ConditionEntry(
        "Stalled",
        "The newest specification is unusable, or the operator cannot begin to reconcile the"
        " cluster. The last valid specification stays in effect",
    ),
    ConditionEntry(
        "SplitBrain",
        "Two histories contradict each other; the operator makes no further change",
    ),
)

RUN_CONDITIONS = (
    ConditionEntry("Complete", "The job ended with a result. An audit has a verdict"),
    ConditionEntry("Failed", "The job has no result; the reason names the cause"),
)

NONE = "None"
"""The action for a reason that needs none."""
WAIT = "None: the operator continues automatically"

NORMAL_REASONS = (
    ReasonEntry(Reason.READY, ("Ready",), "Every member is in its place and one leads", NONE),
    ReasonEntry(Reason.AVAILABLE, ("Available",), "A member accepts writes", NONE),
    ReasonEntry(Reason.RECONCILED, ("Reconciled",), "Every object is applied", NONE),
    ReasonEntry(Reason.SETTLED, ("Progressing",), "No change is in progress", NONE),
    ReasonEntry(Reason.HEALTHY, ("Degraded",), "No problem is known", NONE),
    ReasonEntry(Reason.ONE_HISTORY, ("SplitBrain",), "No member reports a split brain", NONE),
    ReasonEntry(
        Reason.HIBERNATED,
        ("Ready", "Available", "Progressing"),
        "`spec.hibernate` is true: the members are stopped, and their data is kept",
        "Set `spec.hibernate` to false to resume the members",
    ),
    ReasonEntry(
        Reason.PAUSED,
        ("Ready", "Progressing"),
        "The annotation `qsync.dev/paused` is set: changes wait, and failover continues",
        "Remove the annotation with `kubectl qsync resume`",
    ),
)

PROGRESS_REASONS = (
    ReasonEntry(
        Reason.FORMING,
        ("Ready", "Progressing", "Degraded"),
        "The members are starting, and one of them bootstraps the cluster",
        "None. If `Degraded` has this reason, the image of the bootstrap member does not accept"
        " signed orders: set `spec.image` to a newer version",
    ),
    ReasonEntry(
        Reason.NO_LEADER,
        ("Ready", "Available", "Progressing"),
        "No member accepts writes: an election is in progress, the new leader is not writable"
        " yet, or too few voters answer",
        "Read the message. If it lasts, follow the runbook"
        " [QsyncNotWritable](runbooks/QsyncNotWritable.md)",
    ),
    ReasonEntry(
        Reason.SCALING,
        ("Ready", "Progressing"),
        "A member is added, removed or registered again, or the operator waits until it has joined",
        WAIT,
    ),
    ReasonEntry(
        Reason.ROLLING_OUT,
        ("Ready", "Progressing"),
        "Members get changed settings or restart, or a restart waits until all members answer and"
        " have caught up",
        f"{WAIT}. If the message names a member that is down, repair that member",
    ),
    ReasonEntry(
        Reason.AWAITING_SWITCHOVER,
        ("Ready", "Progressing"),
        "Only the leader has yet to restart, and `spec.rollout.strategy` is `Supervised`",
        "Run `kubectl qsync switchover`",
    ),
    ReasonEntry(
        Reason.GROWING_STORAGE, ("Ready", "Progressing"), "The volumes are being expanded", WAIT
    ),
    ReasonEntry(
        Reason.CREATING_SPACES,
        ("Ready", "Progressing"),
        "Declared spaces and indexes are compared with the database and created",
        WAIT,
    ),
    ReasonEntry(
        Reason.GRANTING_ACCESS,
        ("Ready", "Progressing"),
        "Users and roles are changed to match their declarations",
        WAIT,
    ),
)

PROBLEM_REASONS = (
    ReasonEntry(
        Reason.INVALID_SPEC,
        ("Degraded", "Stalled"),
        "The operator cannot use the specification. The last valid one stays in effect",
        "Correct the field that the message names",
    ),
    ReasonEntry(
        Reason.WAITING,
        ("Degraded", "Stalled"),
        "A Secret that the cluster needs is missing, cannot be read or is being deleted",
        "Create the Secret that the message names, or restore it from a backup. The operator"
        " retries within 30 seconds",
    ),
    ReasonEntry(
        Reason.NAME_TAKEN,
        ("Ready", "Degraded", "Reconciled", "Stalled"),
        "An object that the cluster needs exists, and the operator did not create it",
        "Delete or rename that object, or give the cluster another name. The operator never"
        " changes or deletes it",
    ),
    ReasonEntry(
        Reason.OBJECT_REFUSED,
        ("Ready", "Degraded", "Reconciled"),
        "The API server, a quota or a webhook refused an object",
        "Correct the manifest or the policy that the message names. The operator retries within 30"
        " seconds, and at once after a change",
    ),
    ReasonEntry(
        Reason.API_UNAVAILABLE,
        ("Ready", "Degraded", "Reconciled"),
        "The API server did not answer a request. Failover continues",
        "Check that the operator can reach the API server",
    ),
    ReasonEntry(
        Reason.START_FAILED,
        ("Ready", "Degraded", "Reconciled"),
        "The process of a local member cannot be started",
        "Remove the cause that the message names, for example a port in use",
    ),
    ReasonEntry(
        Reason.PORT_IN_USE,
        ("Degraded", "Reconciled"),
        "Another program uses the port of a local broker",
        "Stop the program, or change `spec.journals.port`",
    ),
    ReasonEntry(
        Reason.BROKER_DOWN,
        ("Degraded", "Reconciled"),
        "A local broker ends again and again after its start",
        "Correct the cause in the message. The operator starts the broker again",
    ),
    ReasonEntry(
        Reason.CERTIFICATE_REFUSED,
        ("Ready", "Degraded"),
        "The certificate is missing or expired, does not name the cluster, or its parts do not"
        " match. Members keep their present certificates",
        "Correct the Secret of `spec.tls.secretName`"
        " ([kubernetes.md](kubernetes.md#tls) lists the names)",
    ),
    ReasonEntry(
        Reason.MEMBER_DOWN,
        ("Ready", "Degraded"),
        "A member does not answer, is being replaced, or has a full disk",
        "Follow the runbook [QsyncMemberMissing](runbooks/QsyncMemberMissing.md), or free space"
        " on the disk",
    ),
    ReasonEntry(
        Reason.SCALE_REFUSED,
        ("Ready", "Degraded"),
        "A member cannot be added or removed: too few voters would be available, or the leader"
        " does not accept signed orders",
        "Restore the members that are down, or set `spec.image` to a newer version",
    ),
    ReasonEntry(
        Reason.ROLLOUT_REFUSED,
        ("Ready", "Degraded"),
        "A voter cannot restart, because too few other voters are available",
        "Restore the members that are down",
    ),
    ReasonEntry(
        Reason.SCHEMA_REFUSED,
        ("Ready", "Degraded"),
        "An index of a declared space exists with another definition. The operator changes no"
        " index, because that could destroy data",
        "Correct the manifest, or drop the index and let the operator create it",
    ),
    ReasonEntry(
        Reason.ACCESS_REFUSED,
        ("Ready", "Degraded"),
        "A user or role cannot be created: a password, a role or a space is missing, or the name"
        " of a user belongs to a role or the reverse",
        "Create the Secret, role or space that the message names, or correct the manifest",
    ),
    ReasonEntry(
        Reason.STORAGE_REFUSED,
        ("Ready", "Degraded"),
        "The volumes cannot be expanded to `spec.storage.size`",
        "Set `allowVolumeExpansion: true` in the StorageClass, or restore the former size",
    ),
    ReasonEntry(
        Reason.JOURNALS_REFUSED,
        ("Degraded", "Reconciled"),
        "The leader refused the key space of journals or the user of the brokers, or the Secret of"
        " `journals.authKeysSecret` has no keys",
        "Correct the cause in the message. The operator tries again",
    ),
    ReasonEntry(
        Reason.FOUNDER_LOST,
        ("Ready", "Degraded"),
        "The disk of the founder was lost before the cluster was formed",
        "Delete the cluster and apply it again",
    ),
    ReasonEntry(
        Reason.DATA_LOST,
        ("Ready", "Degraded"),
        "All data of the cluster is lost: every volume is new",
        "Restore the former volumes, or follow [Data loss](operations.md#data-loss)",
    ),
    ReasonEntry(
        Reason.SPLIT_BRAIN,
        ("Ready", "Degraded"),
        "A member reports a history that contradicts the history of the cluster",
        "Follow the runbook [QsyncSplitBrain](runbooks/QsyncSplitBrain.md)",
    ),
    ReasonEntry(
        Reason.DIVERGED,
        ("SplitBrain",),
        "A member reports a history that contradicts the history of the cluster",
        "Follow the runbook [QsyncSplitBrain](runbooks/QsyncSplitBrain.md)",
    ),
)

CLUSTER_REASONS = (*NORMAL_REASONS, *PROGRESS_REASONS, *PROBLEM_REASONS)

JOB_REASONS = (
    ReasonEntry(
        "BackoffLimitExceeded",
        ("Failed",),
        "The driver failed twice (set by Kubernetes)",
        "Read the message and the log of the driver's pod",
    ),
    ReasonEntry(
        "DeadlineExceeded",
        ("Failed",),
        "The job took longer than `spec.deadline` (set by Kubernetes)",
        "Raise `spec.deadline` or the size in `spec.spark`",
    ),
)
"""The usual reasons of a failed Job, which the operator copies."""

RUN_REASONS = (
    ReasonEntry(RunReason.FINISHED, ("Complete",), "The job ended with a result", NONE),
    ReasonEntry(
        RunReason.INVALID_SPEC,
        ("Failed",),
        "The operator cannot use the specification",
        "Create another object with the field that the message names corrected",
    ),
    ReasonEntry(
        RunReason.NO_CLUSTER,
        ("Failed",),
        "The namespace has no QsyncCluster of the name in `spec.cluster`",
        "Create another object that names an existing cluster",
    ),
    ReasonEntry(
        RunReason.REFUSED,
        ("Failed",),
        "The cluster has no archive, or the operator has no image with Spark",
        "Set `spec.archive` of the cluster, or `sparkImage` in the values of the operator's chart",
    ),
    ReasonEntry(
        RunReason.NAME_TAKEN,
        ("Failed",),
        "Another Job has the name of this object",
        "Delete that Job, or create the object under another name",
    ),
    ReasonEntry(
        RunReason.JOB_DELETED,
        ("Failed",),
        "The Job was deleted while it was active",
        "Create the object again",
    ),
    ReasonEntry(
        RunReason.JOB_FAILED,
        ("Failed",),
        "The Job failed, and Kubernetes gave no reason",
        "Read the message and the log of the driver's pod",
    ),
    *JOB_REASONS,
    ReasonEntry(
        RunReason.NO_RESULT,
        ("Failed",),
        "The driver ended without a result, or with an error",
        "Read the message and the log of the driver's pod",
    ),
)

FAILOVER_REASONS = (
    CauseEntry(
        FailoverReason.PROCESS_ENDED,
        "The process or pod of the previous leader ended",
        "Find the cause in the events and the log of that member, unless it was intended",
    ),
    CauseEntry(
        FailoverReason.UNREACHABLE,
        "The previous leader still existed, and did not answer the operator",
        "Check the network and the machine of that member",
    ),
    CauseEntry(
        FailoverReason.STEPPED_DOWN,
        "The previous leader stepped down before another member led, for example without a quorum",
        "Check the connections between the members, unless a switchover was ordered",
    ),
    CauseEntry(
        FailoverReason.SWITCHOVER,
        "Leadership moved, and the operator observed a leader at all times",
        NONE,
    ),
    CauseEntry(
        FailoverReason.UNSUPERVISED,
        "The leader changed while no operator watched the cluster",
        "Check why no operator was active, unless it was being updated",
    ),
)

EVENTS = (
    EventEntry(
        EventReason.FAILOVER,
        False,
        "Another member leads. The message names both members, the cause and the time without"
        " writes",
        "See the causes of a change of leader",
    ),
    EventEntry(
        EventReason.ROWS_ROLLED_BACK,
        True,
        "The previous leader returned, and discarded rows that were never confirmed",
        "Follow the runbook [QsyncRowsRolledBack](runbooks/QsyncRowsRolledBack.md)",
    ),
    EventEntry(
        EventReason.MEMBER_FAILING,
        True,
        "A member is down, and Kubernetes or its log states the cause",
        "Remove the cause that the message names",
    ),
    EventEntry(
        EventReason.PROCESS_STARTED, False, "The process of a local member was started", NONE
    ),
    EventEntry(
        EventReason.PROCESS_ENDED,
        True,
        "The process of a local member ended",
        "Read the log of the member, unless the end was requested. The operator starts the member"
        " again if the member is wanted",
    ),
    EventEntry(
        EventReason.JOURNAL_CONFIGURED, False, "A declared journal was created or changed", NONE
    ),
    EventEntry(
        EventReason.JOURNALS_FAILED,
        True,
        "The leader refused the key space of journals, or a declared journal",
        "Correct the QsyncJournal that the message names. The operator tries again",
    ),
    EventEntry("PhaseReady", False, "The cluster became `Ready`", NONE),
    EventEntry("PhaseCreating", False, "The cluster or its spaces are being created", NONE),
    EventEntry("PhaseScaling", False, "The membership is changing", NONE),
    EventEntry("PhaseRollingOut", False, "Members get another configuration", NONE),
    EventEntry("PhaseProgressing", False, "Another change is in progress", NONE),
    EventEntry(
        "PhaseHibernated", False, "The members are stopped, as `spec.hibernate` requests", NONE
    ),
    EventEntry(
        "PhasePaused", False, "Changes wait, as the annotation `qsync.dev/paused` requests", NONE
    ),
    EventEntry(
        "PhaseUnavailable",
        True,
        "No member accepts writes",
        "See the reason `NoLeader`",
    ),
    EventEntry(
        "PhaseDegraded",
        True,
        "The cluster needs attention",
        "See the reason of the condition `Degraded`",
    ),
    *(
        EventEntry(entry.name, True, entry.meaning, entry.action)
        for entry in PROBLEM_REASONS
        if entry.name
        in (
            Reason.INVALID_SPEC,
            Reason.WAITING,
            Reason.NAME_TAKEN,
            Reason.OBJECT_REFUSED,
            Reason.API_UNAVAILABLE,
            Reason.START_FAILED,
            Reason.PORT_IN_USE,
            Reason.BROKER_DOWN,
            Reason.JOURNALS_REFUSED,
        )
    ),
    EventEntry("AuditPassed", False, "Every proof of an audit holds", NONE),
    EventEntry(
        "AuditViolated",
        True,
        "An audit found a violation",
        "Follow the runbook [QsyncAuditViolated](runbooks/QsyncAuditViolated.md)",
    ),
    EventEntry(
        "AuditIncomplete",
        True,
        "The archive lacks data that the proofs need",
        "Read the message; [spark.md](spark.md) describes the proofs",
    ),
    EventEntry("AuditFailed", True, "An audit has no result", "See the reason of its condition"),
    EventEntry("CompactionSucceeded", False, "A compaction ended with a result", NONE),
    EventEntry(
        "CompactionFailed", True, "A compaction has no result", "See the reason of its condition"
    ),
)

_RETRIED = "the operator retries automatically"
_MEMBER_REMEDY = f"Check that the member answers; {_RETRIED}"
_LEADER_REMEDY = f"Check the state of the leader; {_RETRIED}"
_STORE_REMEDY = f"Check that the operator can write its Secret or file; {_RETRIED}"
_NAMED_REMEDY = f"Remove the cause that the message names; {_RETRIED}"

ACTIONS = (
    ActionEntry(
        "CreateMember",
        "The operator created a member",
        f"Correct the object that the message names; {_RETRIED}",
    ),
    ActionEntry(
        "RecordBootstrap", "The operator stored which instance founds the cluster", _STORE_REMEDY
    ),
    ActionEntry(
        "Bootstrap",
        "The operator ordered the founder to form the cluster",
        f"Check the founder and, for a restore, the archive; {_RETRIED}",
    ),
    ActionEntry("RecordFormed", "The operator stored that the cluster exists", _STORE_REMEDY),
    ActionEntry(
        "Nominate",
        "The operator nominated a member to become leader",
        "None: the operator nominates again, and the members also elect without it",
    ),
    ActionEntry("Switchover", "The operator moved leadership to another member", _LEADER_REMEDY),
    ActionEntry(
        "Unregister", "The operator removed an instance from the configuration", _LEADER_REMEDY
    ),
    ActionEntry("RemoveMember", "The operator stopped an unregistered member", _NAMED_REMEDY),
    ActionEntry("Configure", "A member adopted changed settings while it ran", _MEMBER_REMEDY),
    ActionEntry(
        "Restart", "The operator restarted a member with its new configuration", _NAMED_REMEDY
    ),
    ActionEntry("CreateSpaces", "The operator created spaces or indexes", _LEADER_REMEDY),
    ActionEntry(
        "RecordFenced", "The operator stored which members an annotation fences", _STORE_REMEDY
    ),
    ActionEntry("Fence", "The operator prevented a member from leading", _MEMBER_REMEDY),
    ActionEntry("Unfence", "The operator allowed a member to lead again", _MEMBER_REMEDY),
    ActionEntry(
        "GrowStorage",
        "The operator expanded the volumes",
        "Set `allowVolumeExpansion: true` in the StorageClass",
    ),
    ActionEntry(
        "GrantAccess",
        "The operator changed users or roles",
        f"Create the Secret, role or space that the message names; {_RETRIED}",
    ),
    ActionEntry(
        "DrainBroker",
        "The operator let the broker of a member hand its journals over before its removal",
        _LEADER_REMEDY,
    ),
)
"""The Events of successful and refused actions, in the order of `actions.py`."""
