"""Sentences about refused appends, for all interfaces of a broker and for its clients."""

from qsync_broker.requests import Append, Suspend
from qsync_broker.status import Status, refusal


def explain(request: Append, status: Status, *, head: int | None = None, reason: str = "") -> str:
    """Return a sentence about a refused append: what failed, the cause, and what to do.

    Args:
        request: the append.
        status: status of the answer.
        head: offset at which the next append begins, or None if the answer does not state it.
        reason: cause that the broker states, or "".
    """
    cause, action = reason, ""
    suspend = request.suspend.name
    if status is Status.WRONG_APPEND_OFFSET and head is not None and not reason:
        cause = f"the next append begins at {head}, not at {request.offset}"
    elif status is Status.REGISTER_MISMATCH:
        cause = "the registers do not match the check"
    elif status is Status.NOT_ALLOWED and request.suspend >= Suspend.IF_FLUSHED:
        cause = f"an append with suspend {suspend} carries no content"
        action = "send no content, or append with suspend RESUME"
    elif status is Status.NOT_ALLOWED:
        cause = "the flags of the journal permit no appends"
    elif status is Status.SUSPENDED and request.suspend is not Suspend.RESUME:
        cause = f"an append with suspend {suspend} does not resume the journal"
        action = "append with suspend RESUME"
    name = request.journal.partition(";")[0]
    return refusal(name, status, cause, action)


def explain_not_yet(journal: str, offset: int, head: int) -> str:
    """Return a sentence about a read at an offset whose byte is not available.

    Args:
        journal: name of the journal.
        offset: offset of the next wanted byte.
        head: write head of the journal.
    """
    cause = f"the offset is {offset}, and the write head is {head}"
    action = "read from the write head or less, or wait with a blocking read"
    if offset < head:
        cause = f"no fragment has the byte at {offset}, and the write head is {head}"
        action = "check the stores of the journal, or read from a later offset"
    return refusal(journal, Status.OFFSET_NOT_YET_AVAILABLE, cause, action)
