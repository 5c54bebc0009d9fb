"""Alerts; `resources.monitoring` has their expressions, and docs/runbooks a page for each."""

from qsync_operator.api.catalogue.entries import AlertEntry, Severity

_ALERTS = (
    AlertEntry("QsyncNotWritable", Severity.CRITICAL, "No member of {cluster} accepts writes."),
    AlertEntry(
        "QsyncMemberMissing", Severity.WARNING, "Fewer members of {cluster} answer than it has."
    ),
    AlertEntry(
        "QsyncSplitBrain",
        Severity.CRITICAL,
        "The logs of two members of {cluster} contradict each other.",
    ),
    AlertEntry(
        "QsyncAcknowledgedLost",
        Severity.CRITICAL,
        "Acknowledged asynchronous writes to {cluster} were lost.",
    ),
    AlertEntry(
        "QsyncMemberRestarting", Severity.WARNING, "A member of {cluster} restarts repeatedly."
    ),
    AlertEntry(
        "QsyncConfirmationSlow",
        Severity.WARNING,
        "Writes to {cluster} wait for their quorum for more than 5 seconds.",
    ),
    AlertEntry(
        "QsyncFollowerBehind",
        Severity.WARNING,
        "A member of {cluster} lags more than 100,000 rows.",
    ),
    AlertEntry(
        "QsyncCertificateExpiring",
        Severity.WARNING,
        "The certificate of {cluster} expires within a week.",
    ),
    AlertEntry("QsyncOperatorAbsent", Severity.WARNING, "No operator manages {cluster}."),
    AlertEntry(
        "QsyncDegraded",
        Severity.WARNING,
        "The operator cannot apply the specification of {cluster}.",
    ),
    AlertEntry(
        "QsyncAuditViolated", Severity.CRITICAL, "The last audit of {cluster} found a violation."
    ),
    AlertEntry(
        "QsyncAuditOverdue",
        Severity.WARNING,
        "No audit of {cluster} produced a verdict for twice its interval.",
    ),
    AlertEntry(
        "QsyncMemberFenced", Severity.INFO, "A member of {cluster} has been fenced for a day."
    ),
    AlertEntry(
        "QsyncRowsRolledBack", Severity.INFO, "Unconfirmed rows of {cluster} were truncated."
    ),
    AlertEntry(
        "QsyncArchiveFailing",
        Severity.WARNING,
        "Members of {cluster} do not archive their rows.",
    ),
    AlertEntry(
        "QsyncDiskNearlyFull",
        Severity.WARNING,
        "A disk of {cluster} is nearly full.",
    ),
    AlertEntry(
        "QsyncMemoryNearlyFull",
        Severity.WARNING,
        "The tuples of {cluster} use more than 90 % of the memory limit.",
    ),
    AlertEntry(
        "QsyncLogInsFailing",
        Severity.WARNING,
        "Log-ins to {cluster} fail repeatedly.",
    ),
    AlertEntry(
        "QsyncWritesSlow",
        Severity.WARNING,
        "One of 100 writes to {cluster} takes longer than a second.",
    ),
    AlertEntry(
        "QsyncWritesRefused",
        Severity.WARNING,
        "Members of {cluster} refuse writes for lack of resources.",
    ),
    AlertEntry(
        "QsyncBrokerMissing",
        Severity.WARNING,
        "Fewer brokers of {cluster} serve journals than it has voters.",
    ),
    AlertEntry(
        "QsyncJournalsNotWritable", Severity.CRITICAL, "Journals of {cluster} accept no appends."
    ),
    AlertEntry(
        "QsyncJournalsUnderReplicated",
        Severity.WARNING,
        "Journals of {cluster} have fewer brokers than their replication.",
    ),
    AlertEntry(
        "QsyncFragmentStoreFailing",
        Severity.WARNING,
        "Brokers of {cluster} cannot use a store of fragments.",
    ),
)
ALERTS = {entry.name: entry for entry in _ALERTS}
