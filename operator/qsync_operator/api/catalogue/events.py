"""Events, the actions that they report, and the causes of a change of leader."""

from qsync_operator.api.catalogue.clusters import PROBLEM_REASONS
from qsync_operator.api.catalogue.entries import NONE, ActionEntry, CauseEntry, EventEntry, Severity
from qsync_operator.api.reasons import EventReason, FailoverReason, Reason

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
        Severity.INFO,
        "Another member leads. The message names both members, the cause and the time without"
        " writes",
        "See the causes of a change of leader",
    ),
    EventEntry(
        EventReason.ROWS_ROLLED_BACK,
        Severity.WARNING,
        "The previous leader returned, and discarded rows that were never confirmed",
        "Follow {runbook}",
        runbook="QsyncRowsRolledBack",
    ),
    EventEntry(
        EventReason.MEMBER_FAILING,
        Severity.WARNING,
        "A member is down, and Kubernetes or its log states the cause",
        "Remove the cause that the message names",
    ),
    EventEntry(
        EventReason.PROCESS_STARTED,
        Severity.INFO,
        "The process of a local member was started",
        NONE,
    ),
    EventEntry(
        EventReason.PROCESS_ENDED,
        Severity.WARNING,
        "The process of a local member ended",
        "Read the log of the member, unless the end was requested. The operator starts the member"
        " again if the member is wanted",
    ),
    EventEntry(
        EventReason.JOURNAL_CONFIGURED,
        Severity.INFO,
        "A declared journal was created or changed",
        NONE,
    ),
    EventEntry(
        EventReason.JOURNALS_FAILED,
        Severity.WARNING,
        "The leader refused the key space of journals, or a declared journal",
        "Correct the QsyncJournal that the message names. The operator tries again",
    ),
    EventEntry("PhaseReady", Severity.INFO, "The cluster became `Ready`", NONE),
    EventEntry("PhaseCreating", Severity.INFO, "The cluster or its spaces are being created", NONE),
    EventEntry("PhaseScaling", Severity.INFO, "The membership is changing", NONE),
    EventEntry("PhaseRollingOut", Severity.INFO, "Members get another configuration", NONE),
    EventEntry("PhaseProgressing", Severity.INFO, "Another change is in progress", NONE),
    EventEntry(
        "PhaseHibernated",
        Severity.INFO,
        "The members are stopped, as `spec.hibernate` requests",
        NONE,
    ),
    EventEntry(
        "PhasePaused",
        Severity.INFO,
        "Changes wait, as the annotation `qsync.dev/paused` requests",
        NONE,
    ),
    EventEntry(
        "PhaseUnavailable",
        Severity.WARNING,
        "No member accepts writes",
        "See the reason `NoLeader`",
    ),
    EventEntry(
        "PhaseDegraded",
        Severity.WARNING,
        "The cluster needs attention",
        "See the reason of the condition `Degraded`",
    ),
    *(
        EventEntry(entry.name, Severity.WARNING, entry.meaning, entry.action)
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
    EventEntry("AuditPassed", Severity.INFO, "Every proof of an audit holds", NONE),
    EventEntry(
        "AuditViolated",
        Severity.WARNING,
        "An audit found a violation",
        "Follow {runbook}",
        runbook="QsyncAuditViolated",
    ),
    EventEntry(
        "AuditIncomplete",
        Severity.WARNING,
        "The archive lacks data that the proofs need",
        "Read the message; [spark.md](spark.md) describes the proofs",
    ),
    EventEntry(
        "AuditFailed", Severity.WARNING, "An audit has no result", "See the reason of its condition"
    ),
    EventEntry("CompactionSucceeded", Severity.INFO, "A compaction ended with a result", NONE),
    EventEntry(
        "CompactionFailed",
        Severity.WARNING,
        "A compaction has no result",
        "See the reason of its condition",
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
"""The Events of successful and refused actions, in the order of `plan/actions.py`."""

_SEVERITIES: dict[str, Severity] = {
    **{str(entry.name): entry.severity for entry in EVENTS},
    **{entry.name: Severity.INFO for entry in ACTIONS},
    **{entry.refused: Severity.WARNING for entry in ACTIONS},
}


def event_type(reason: str) -> str:
    """Return the type of the Events with this reason; an unknown reason deserves attention."""
    return _SEVERITIES.get(reason, Severity.WARNING).event_type
