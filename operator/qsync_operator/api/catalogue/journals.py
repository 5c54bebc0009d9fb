"""Conditions of a QsyncJournal and their reasons."""

from qsync_operator.api.catalogue.entries import NONE, WAIT, ConditionEntry, ReasonEntry, Severity
from qsync_operator.api.reasons import JournalReason

_ALL = ("Consistent", "Writable", "StoreHealthy", "HeadKnown", "Suspended")

JOURNAL_CONDITIONS = (
    ConditionEntry("Consistent", "All brokers of the journal have all acknowledged bytes"),
    ConditionEntry("Writable", "The journal accepts appends"),
    ConditionEntry("StoreHealthy", "The last request to a store of its fragments succeeded"),
    ConditionEntry("HeadKnown", "No acknowledged byte is known to be missing"),
    ConditionEntry(
        "Suspended", "The journal is suspended, partially or fully; an append resumes it"
    ),
)
JOURNAL_REASONS = (
    ReasonEntry(JournalReason.SYNCHRONISED, ("Consistent",), "All brokers are synchronised", NONE),
    ReasonEntry(JournalReason.WRITABLE, ("Writable",), "The primary accepts appends", NONE),
    ReasonEntry(JournalReason.STORES_ANSWER, ("StoreHealthy",), "The last request succeeded", NONE),
    ReasonEntry(
        JournalReason.NO_STORES,
        ("StoreHealthy",),
        "`spec.fragment.stores` is empty: fragments stay on the disks of the brokers",
        NONE,
    ),
    ReasonEntry(JournalReason.HEAD_KNOWN, ("HeadKnown",), "No byte is missing", NONE),
    ReasonEntry(JournalReason.NOT_SUSPENDED, ("Suspended",), "The journal is in use", NONE),
    ReasonEntry(
        JournalReason.SYNCHRONISING,
        ("Consistent", "Writable"),
        "The primary synchronises the brokers of the journal",
        f"{WAIT}. If it lasts, read the log of the primary's container `broker`",
    ),
    ReasonEntry(
        JournalReason.TOO_FEW_BROKERS,
        ("Consistent", "Writable"),
        "The journal has fewer brokers than `spec.replication`",
        "Restore the missing brokers, add voters, or reduce `spec.replication`",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.NO_PRIMARY,
        ("Writable",),
        "No broker is the primary of the journal",
        f"{WAIT}. If it lasts, restore the brokers of the cluster",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.APPENDS_FAIL,
        ("Writable",),
        "The primary tried to append nothing, and failed. The message names the cause, for example"
        " a broker that it cannot reach",
        "Repair the cause. The primary tries again every 5 seconds, or less often if many journals"
        " fail",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.READ_ONLY, ("Writable",), "`spec.flags` is `O_RDONLY`", "Change `spec.flags`"
    ),
    ReasonEntry(
        JournalReason.SUSPENDED,
        ("Writable",),
        "The journal is suspended",
        "None. An append resumes the journal",
    ),
    ReasonEntry(
        JournalReason.PARTIALLY_SUSPENDED,
        ("Suspended",),
        "One broker has the journal, and serves its reads",
        "None. An append resumes the journal",
    ),
    ReasonEntry(
        JournalReason.FULLY_SUSPENDED,
        ("Suspended",),
        "No broker has the journal, which has no bytes",
        "None. An append resumes the journal",
    ),
    ReasonEntry(
        JournalReason.STORE_FAILING,
        ("StoreHealthy",),
        "The last request to a store failed. Fragments wait on disks, and appends continue until"
        " six health checks of the first store have failed in succession",
        "Follow {runbook}",
        runbook="QsyncFragmentStoreFailing",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.HEAD_UNKNOWN,
        ("HeadKnown", "Writable"),
        "No broker of the journal has all acknowledged bytes",
        "Restore the missing brokers. If their disks are lost, accept the loss of the last bytes"
        " with `qsync journals reset-head`. For a journal without a store, use"
        " `qsync journals accept-loss`",
        severity=Severity.CRITICAL,
    ),
    ReasonEntry(
        JournalReason.NOT_OBSERVED,
        _ALL,
        "No broker has reported the journal, or its primary does not answer",
        f"{WAIT}. If it lasts, read the logs of the containers `broker`",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.INVALID_SPEC,
        _ALL,
        "The operator cannot use the specification",
        "Correct the field that the message names",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.NO_CLUSTER,
        _ALL,
        "The namespace has no QsyncCluster of the name in `spec.cluster`",
        "Create the cluster, or delete the journal",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.JOURNALS_DISABLED,
        _ALL,
        "The cluster has no brokers",
        "Set `spec.journals.enabled` of the cluster",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.DECLARED_TWICE,
        _ALL,
        "An older QsyncJournal declares the same journal, or one whose folder contains it",
        "Delete one of them",
        severity=Severity.WARNING,
    ),
    ReasonEntry(
        JournalReason.REFUSED,
        _ALL,
        "The leader refused the specification",
        "Correct the cause in the message. The operator tries again",
        severity=Severity.WARNING,
    ),
)
