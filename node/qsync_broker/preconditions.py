"""Preconditions of an append: pure decisions about its journal at the primary."""

from qsync_broker.registers import unpack_registers
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, Suspend
from qsync_broker.status import Status
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import JournalRow

FLUSH_S = 86_400
"""Interval in seconds for a journal that states none."""


def head_of(journal: JournalRow, replica: JournalReplica) -> int:
    """Return the offset at which the next append of a journal begins."""
    return max(replica.spool.end, replica.index_end, journal.suspend_offset)


def refusal_for(request: Append, journal: JournalRow, replica: JournalReplica) -> Status | None:
    """Return the status with which registers or offset refuse an append, None if they allow it."""
    registers = unpack_registers(replica.spool.registers)
    if request.check is not None and registers and not request.check.matches(registers):
        return Status.REGISTER_MISMATCH
    if request.offset:
        is_wrong = request.offset != head_of(journal, replica)
        return Status.WRONG_APPEND_OFFSET if is_wrong else None
    if replica.index_end > replica.spool.end and replica.settings.is_writable:
        return Status.INDEX_HAS_GREATER_OFFSET
    return None


def suspend_level(
    journal: JournalRow, replica: JournalReplica, wish: Suspend, unix_s: int
) -> int | None:
    """Return the level of suspension that a request wants, None if it must fail instead."""
    level = journal.suspend_level
    if wish is Suspend.KEEP:
        return level
    if wish is Suspend.RESUME:
        return 0
    if wish is Suspend.NO_RESUME:
        return None if level else level
    if replica.is_empty and not partial_brokers(journal):  # a partial one only seems to be empty
        return 2
    if level:
        return None
    return 1 if wish is Suspend.NOW or is_idle(replica, unix_s) else 0


def is_idle(replica: JournalReplica, unix_s: int) -> bool:
    """Return whether all bytes of a journal have been in its store for an interval of flushes."""
    interval_s = replica.settings.flush_s or FLUSH_S
    last_s = replica.remote.mod_time
    return replica.is_flushed and 0 < last_s <= unix_s - interval_s


def refusal_for_resumption(request: Append, end: int, *, has_stores: bool) -> Status | None:
    """Return the status for an append to a journal whose last bytes are missing (J3).

    Another offset is no WRONG_APPEND_OFFSET: a writer that continues at the head after this status
    would accept the loss without knowing it.

    Args:
        request: the append; it is allowed if its offset is the end.
        end: greatest end of all states and fragments that are known.
        has_stores: whether the journal has stores. Without one, nothing shows where the lost bytes
            ended: the journal continues after them only if a person accepts the loss.
    """
    is_head = request.offset == end and end > 0
    return None if has_stores and is_head else Status.INDEX_HAS_GREATER_OFFSET
