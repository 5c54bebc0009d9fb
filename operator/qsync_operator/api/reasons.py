"""Reasons of conditions, of changes of leader and of Events, by their names.

The names are API: programs compare them, so they never change. `catalogue` explains each of them.
"""

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
    VOTERS_FENCED = "VotersFenced"
    DISK_LOW = "DiskLow"
    ARCHIVE_FAILING = "ArchiveFailing"
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


class JournalReason(StrEnum):
    """Reasons of the conditions of a QsyncJournal."""

    SYNCHRONISED = "Synchronised"
    WRITABLE = "Writable"
    STORES_ANSWER = "StoresAnswer"
    NO_STORES = "NoStores"
    HEAD_KNOWN = "HeadKnown"
    NOT_SUSPENDED = "NotSuspended"

    SYNCHRONISING = "Synchronising"
    TOO_FEW_BROKERS = "TooFewBrokers"
    NO_PRIMARY = "NoPrimary"
    APPENDS_FAIL = "AppendsFail"
    READ_ONLY = "ReadOnly"
    SUSPENDED = "Suspended"
    PARTIALLY_SUSPENDED = "PartiallySuspended"
    FULLY_SUSPENDED = "FullySuspended"
    STORE_FAILING = "StoreFailing"
    HEAD_UNKNOWN = "HeadUnknown"

    NOT_OBSERVED = "NotObserved"
    INVALID_SPEC = "InvalidSpec"
    NO_CLUSTER = "NoCluster"
    JOURNALS_DISABLED = "JournalsDisabled"
    DECLARED_TWICE = "DeclaredTwice"
    REFUSED = "Refused"
