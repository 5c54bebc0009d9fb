"""Conditions of a QsyncCluster and their reasons."""

from qsync_operator.api.catalogue.entries import NONE, WAIT, ConditionEntry, ReasonEntry, Severity
from qsync_operator.api.reasons import Reason

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
        "Read the message. If it lasts, follow {runbook}",
        runbook="QsyncNotWritable",
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
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.WAITING,
        ("Degraded", "Stalled"),
        "A Secret that the cluster needs is missing, cannot be read or is being deleted",
        "Create the Secret that the message names, or restore it from a backup. The operator"
        " retries within 30 seconds",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.NAME_TAKEN,
        ("Ready", "Degraded", "Reconciled", "Stalled"),
        "An object that the cluster needs exists, and the operator did not create it",
        "Delete or rename that object, or give the cluster another name. The operator never"
        " changes or deletes it",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.OBJECT_REFUSED,
        ("Ready", "Degraded", "Reconciled"),
        "The API server, a quota or a webhook refused an object",
        "Correct the manifest or the policy that the message names. The operator retries within 30"
        " seconds, and at once after a change",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.API_UNAVAILABLE,
        ("Ready", "Degraded", "Reconciled"),
        "The API server did not answer a request. Failover continues",
        "Check that the operator can reach the API server",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.START_FAILED,
        ("Ready", "Degraded", "Reconciled"),
        "The process of a local member cannot be started",
        "Remove the cause that the message names, for example a port in use",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.PORT_IN_USE,
        ("Degraded", "Reconciled"),
        "Another program uses the port of a local broker",
        "Stop the program, or change `spec.journals.port`",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.BROKER_DOWN,
        ("Degraded", "Reconciled"),
        "A local broker ends again and again after its start",
        "Correct the cause in the message. The operator starts the broker again",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.CERTIFICATE_REFUSED,
        ("Ready", "Degraded"),
        "The certificate is missing or expired, does not name the cluster, or its parts do not"
        " match. Members keep their present certificates",
        "Correct the Secret of `spec.tls.secretName`"
        " ([kubernetes.md](kubernetes.md#tls) lists the names)",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.MEMBER_DOWN,
        ("Ready", "Degraded"),
        "A member does not answer, is being replaced, or has a full disk",
        "Follow {runbook}, or free space on the disk",
        runbook="QsyncMemberMissing",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.VOTERS_FENCED,
        ("Degraded",),
        "Every voter except the leader is fenced: no voter can take over",
        "Unfence a voter: follow {runbook}",
        runbook="QsyncMemberFenced",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.DISK_LOW,
        ("Degraded",),
        "The disk of a member is nearly full. A leader with such a disk refuses writes",
        "Free space on the disk, or increase `spec.storage.size`",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.ARCHIVE_FAILING,
        ("Degraded",),
        "A member has not archived its confirmed rows for 30 seconds, because the archive fails."
        " It keeps its log files until the archive works again",
        "Check the address, the credentials and the space of `spec.archive`",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.SCALE_REFUSED,
        ("Ready", "Degraded"),
        "A member cannot be added or removed: too few voters would be available, or the leader"
        " does not accept signed orders",
        "Restore the members that are down, or set `spec.image` to a newer version",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.ROLLOUT_REFUSED,
        ("Ready", "Degraded"),
        "A voter cannot restart, because too few other voters are available",
        "Restore the members that are down",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.SCHEMA_REFUSED,
        ("Ready", "Degraded"),
        "An index of a declared space exists with another definition. The operator changes no"
        " index, because that could destroy data",
        "Correct the manifest, or drop the index and let the operator create it",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.ACCESS_REFUSED,
        ("Ready", "Degraded"),
        "A user or role cannot be created: a password, a role or a space is missing, or the name"
        " of a user belongs to a role or the reverse",
        "Create the Secret, role or space that the message names, or correct the manifest",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.STORAGE_REFUSED,
        ("Ready", "Degraded"),
        "The volumes cannot be expanded to `spec.storage.size`",
        "Set `allowVolumeExpansion: true` in the StorageClass, or restore the former size",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.JOURNALS_REFUSED,
        ("Degraded", "Reconciled"),
        "The leader refused the key space of journals or the user of the brokers, or the Secret of"
        " `journals.authKeysSecret` has no keys",
        "Correct the cause in the message. The operator tries again",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.FOUNDER_LOST,
        ("Ready", "Degraded"),
        "The disk of the founder was lost before the cluster was formed",
        "Delete the cluster and apply it again",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        Reason.DATA_LOST,
        ("Ready", "Degraded"),
        "No voter has data any more: every volume of a voter is new or gone",
        "Restore the former volumes, or follow [Data loss](operations.md#data-loss)",
        severity=Severity.CRITICAL,
    ),
    ReasonEntry(
        Reason.SPLIT_BRAIN,
        ("Ready", "Degraded"),
        "A member reports a history that contradicts the history of the cluster",
        "Follow {runbook}",
        runbook="QsyncSplitBrain",
        severity=Severity.CRITICAL,
    ),
    ReasonEntry(
        Reason.DIVERGED,
        ("SplitBrain",),
        "A member reports a history that contradicts the history of the cluster",
        "Follow {runbook}",
        runbook="QsyncSplitBrain",
        severity=Severity.CRITICAL,
    ),
)

CLUSTER_REASONS = (*NORMAL_REASONS, *PROGRESS_REASONS, *PROBLEM_REASONS)
