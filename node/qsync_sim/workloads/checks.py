"""Checks that several workloads share: single writes and reads against the order."""

from qsync_client.protocol.constants import Isolation
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import DELETE, KEY_SPACE_ID, KEY_TXN_ISOLATION
from qsync_sim.workloads.base import Workload, WorkloadRequest
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.table import (
    DUPLICATE,
    KEY_CHANGED,
    NO_SUCH_INDEX,
    NO_SUCH_SPACE,
    NOT_UNIQUE,
    PARTIAL_KEY,
    TOO_SHORT,
    WRONG_TYPE,
    TableResult,
    TableWorkload,
)

STATEMENT = frozenset(
    {
        DUPLICATE,
        KEY_CHANGED,
        NO_SUCH_INDEX,
        NO_SUCH_SPACE,
        NOT_UNIQUE,
        PARTIAL_KEY,
        TOO_SHORT,
        WRONG_TYPE,
    }
)
"""Codes that depend on the contents of the database."""
CIRCUMSTANCES = frozenset(
    {
        ErrorCode.READONLY,
        ErrorCode.TIMEOUT,
        ErrorCode.LOADING,
        ErrorCode.UNKNOWN_REPLICA,
        ErrorCode.NOT_LEADER,
        ErrorCode.SYNC_QUEUE_FULL,
        ErrorCode.DISK_FULL,
        ErrorCode.MEMORY_ISSUE,  # only with the small limits of the workload `limits`
    }
)
"""Codes with which any request may be refused; nothing of it was logged."""
LINEARIZABLE, DIRTY = int(Isolation.LINEARIZABLE), int(Isolation.READ_COMMITTED)


def check_write(workload: Workload, order: ConfirmedOrder, request: WorkloadRequest) -> None:
    """Check a write outside a transaction: its place, its answer and its refusal (T6, T8)."""
    places = order.places.get(request.tag, []) if request.tag else []
    if len(places) > 1:
        workload.fail(request, f"T9: its row was confirmed at {places}")
    if request.outcome in ("rolled back", "refused") and places:
        workload.fail(request, f"T6: it is in the order at {places[0]}")
    if request.outcome == "refused" and request.code not in CIRCUMSTANCES:
        if request.code not in STATEMENT:
            workload.fail(request, "T6: no rule allows this error")
        _check_without_row(workload, order, request)
    elif request.outcome == "committed":
        _check_committed(workload, order, request, places)


def _check_committed(
    workload: Workload, order: ConfirmedOrder, request: WorkloadRequest, places: list[int]
) -> None:
    if not 0 < request.index <= order.last:
        workload.fail(request, f"L3: acknowledged, but the order ends at {order.last}")
    row = order.rows.get(request.index)
    if request.type == DELETE and request.tuples:
        if row is None or row.type != DELETE or row.space != request.fields[KEY_SPACE_ID]:
            workload.fail(request, f"L3: another row is at {request.index}")
    elif not places or (request.type == DELETE and request.key is None):
        # A DELETE that has found nothing may name the index of an equal one before it.
        _check_without_row(workload, order, request)
        return
    elif places[0] != request.index:
        workload.fail(request, f"L3: its row is at {places[0]}")
    if request.index <= request.floor_index:
        workload.fail(request, f"R2: it is before {request.floor_index}, answered earlier")
    expected = expected_of(order.at(request.fields[KEY_SPACE_ID], request.index - 1), request)
    if (expected.code, expected.tuples) != (0, request.tuples):
        workload.fail(request, f"T8: the order requires {expected[:2]}")
    workload.world.count(f"{workload.name}: writes checked")


def _check_without_row(workload: Workload, order: ConfirmedOrder, request: WorkloadRequest) -> None:
    """Check an answer that logged nothing at the index that it names (T8, R2)."""
    if not request.index:
        workload.fail(request, "T8: the answer names no index")
    if request.index < request.floor_index:
        workload.fail(request, f"R2: older than an answer at {request.floor_index}")
    expected = expected_of(order.at(request.fields[KEY_SPACE_ID], request.index), request)
    if expected.is_change or (expected.code, expected.tuples) != (request.code, request.tuples):
        workload.fail(request, f"T8: the order requires {expected[:2]}")
    workload.world.count(f"{workload.name}: answers without a row checked")


def expected_of(table: TableWorkload, request: WorkloadRequest) -> TableResult:
    """Return the result that a statement must have in this version of its space."""
    return table.execute(request.type, request.fields)


def check_read(workload: Workload, order: ConfirmedOrder, request: WorkloadRequest) -> None:
    """Check a SELECT outside a transaction against the versions that it may show (R1, R2)."""
    if request.outcome == "unknown" or not request.outcome:
        return
    if request.outcome == "refused" and request.code in CIRCUMSTANCES:
        return
    fields = request.fields
    level = fields.get(KEY_TXN_ISOLATION, 0)
    if level == DIRTY:
        return
    is_old = request.index < request.floor_index
    if level == LINEARIZABLE and request.outcome == "committed" and is_old:
        workload.fail(request, f"R2: older than an answer at {request.floor_index}")
    first = request.floor_index if level == LINEARIZABLE else 0
    after = request.note if isinstance(request.note, list) else None
    got = (request.code, request.tuples)
    for table in order.between(fields[KEY_SPACE_ID], first, request.ceiling_index):
        if table.select(fields, after)[:2] == got:
            kind = "linearizable reads" if level == LINEARIZABLE else "reads"
            workload.world.count(f"{workload.name}: {kind} checked")
            return
    newest = order.at(fields[KEY_SPACE_ID], request.ceiling_index).select(fields, after)
    workload.fail(request, f"R1/R2: no state since {first} gives this; the last is {newest[:2]}")


def check_dirty_read(workload: Workload, request: WorkloadRequest) -> None:
    """Check that a dirty read returns no value of a write that was refused (R1)."""
    if request.outcome != "committed" or request.fields.get(KEY_TXN_ISOLATION) != DIRTY:
        return
    written = {one.tag: one for one in workload.requests if one.tag}
    for made in request.tuples:
        writer = written.get(made[1])
        if writer is None:
            if not str(made[1]).startswith("first"):
                workload.fail(request, f"R1: {made} was never written")
        elif writer.outcome == "refused" or writer.called_ns > request.returned_ns:
            workload.fail(request, f"R1: {made} was {writer.outcome} ({writer.code})")
    workload.world.count(f"{workload.name}: dirty reads checked")
