"""Statuses of requests, as in Gazette's protocol."""

from enum import IntEnum


class Status(IntEnum):
    """Result of a request; the values are those of Gazette's enumeration."""

    OK = 0
    JOURNAL_NOT_FOUND = 1
    NO_JOURNAL_PRIMARY_BROKER = 2
    NOT_JOURNAL_PRIMARY_BROKER = 3
    INSUFFICIENT_JOURNAL_BROKERS = 4
    NOT_JOURNAL_BROKER = 5
    OFFSET_NOT_YET_AVAILABLE = 6
    WRONG_ROUTE = 7
    PROPOSAL_MISMATCH = 8
    ETCD_TRANSACTION_FAILED = 9
    NOT_ALLOWED = 10
    WRONG_APPEND_OFFSET = 11
    INDEX_HAS_GREATER_OFFSET = 12
    REGISTER_MISMATCH = 13
    SUSPENDED = 14
    FRAGMENT_STORE_UNHEALTHY = 15


ACTIONS = {
    Status.JOURNAL_NOT_FOUND: "create the journal, or correct its name",
    Status.NO_JOURNAL_PRIMARY_BROKER: "retry; if it lasts, start the missing brokers",
    Status.NOT_JOURNAL_PRIMARY_BROKER: "retry",
    Status.INSUFFICIENT_JOURNAL_BROKERS: (
        "retry; if it lasts, start the missing brokers, or free space on their disks"
    ),
    Status.NOT_JOURNAL_BROKER: "retry",
    Status.OFFSET_NOT_YET_AVAILABLE: "wait for more bytes, or read from a smaller offset",
    Status.NOT_ALLOWED: "change the flags of the journal",
    Status.WRONG_APPEND_OFFSET: "read the write head again",
    Status.INDEX_HAS_GREATER_OFFSET: (
        "start the missing brokers of the journal, or accept that its last bytes are lost with"
        " `qsync journals reset-head`, or with `qsync journals accept-loss` if it has no store"
    ),
    Status.REGISTER_MISMATCH: "read the registers again",
    Status.SUSPENDED: "append to the journal to resume it",
    Status.FRAGMENT_STORE_UNHEALTHY: "repair the first store of the journal, then retry",
}
"""Action of a client for each status, as docs/journals.md states it."""


def refusal(journal: str, status: Status, cause: str = "", action: str = "") -> str:
    """Return a sentence about a refused request: what failed, the cause, and what to do.

    Args:
        journal: name of the journal.
        status: status of the answer.
        cause: cause, if more is known than the status states.
        action: action, if it differs from that of `ACTIONS`.
    """
    text = f"{journal}: {status.name}: {cause}" if cause else f"{journal}: {status.name}"
    action = action or ACTIONS.get(status, "")
    return f"{text}; {action}" if action else text
