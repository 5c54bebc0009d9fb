"""Workloads of the simulator: each runs alone, and its check refuses wrong answers."""

from collections.abc import Callable

import pytest

from qsync_client.protocol.constants import Key
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_sim import workloads
from qsync_sim.clients import COMMIT
from qsync_sim.schedule import Schedule
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads.access import Access
from qsync_sim.workloads.base import SECOND_BEGIN, Workload, WorkloadRequest
from qsync_sim.workloads.contents import check_indexes
from qsync_sim.workloads.indexes import Indexes
from qsync_sim.workloads.limits import Burst, LimitWorkload
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.tables import Tables
from qsync_sim.workloads.transactions import Transactions

NAMES = [kind.name for kind in workloads.ALL]


def finished(name: str, seed: int = 1) -> tuple[Workload, ConfirmedOrder]:
    """Return a workload after its schedule, and the order of that schedule."""
    schedule = Schedule(seed, workloads=[name])
    world = schedule.run()
    (workload,) = schedule.workloads
    return workload, ConfirmedOrder(world)


def refuses(name: str, change: Callable[[WorkloadRequest], bool], rule: str) -> None:
    """Assert that the workload refuses the first request that the function changes."""
    for seed in range(1, 20):
        workload, order = finished(name, seed)
        if any(change(request) for request in workload.requests):
            with pytest.raises(InvariantViolation, match=rule):
                workload.check(order)
            return
    pytest.fail("no request of this kind")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 4, 5])
def test_workload_alone_passes_and_checks_answers(name: str, seed: int) -> None:
    schedule = Schedule(seed, workloads=[name])
    schedule.run()
    assert schedule.world.counters[f"workload {name}"] == 1
    (workload,) = schedule.workloads
    assert len(workload.requests) > 20
    assert sum(request.outcome == "committed" for request in workload.requests) > 5


def test_seeds_choose_subsets_and_a_third_has_none() -> None:
    chosen = [workloads.names_of(seed) for seed in range(600)]
    assert 150 < sum(not names for names in chosen) < 250
    assert {name for names in chosen for name in names} == set(NAMES)


def test_schedule_without_workloads_draws_nothing_for_them() -> None:
    seed = next(seed for seed in range(20) if not workloads.names_of(seed))
    one, other = Schedule(seed), Schedule(seed, workloads=())
    one.run()
    other.run()
    assert one.world.ledger == other.world.ledger


def test_transaction_with_an_expired_statement_is_not_begun_a_second_time() -> None:
    """It has ended, so a second BEGIN may open the next one."""
    kinds = set()
    for seed in range(40):
        script = Transactions(Schedule(seed, workloads=()).world).scripts()[0]
        item = next(script)
        for _ in range(40):
            answered = None
            if isinstance(item, WorkloadRequest):
                kinds.add(item.kind)
                is_begin = item.kind == "begin"
                item.outcome = "committed" if is_begin else "refused"
                item.code = 0 if is_begin else int(ErrorCode.TIMEOUT)
                answered = item
            try:
                item = script.send(answered)
            except StopIteration:
                break
    assert {"begin", "write"} <= kinds
    assert SECOND_BEGIN not in kinds


class TestIndexes:
    """The check of secondary indexes, range scans and pages."""

    def test_row_missing_from_a_linearizable_read(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            is_scan = request.kind == "select" and request.fields.get(Key.TXN_ISOLATION) == 4
            if is_scan and request.outcome == "committed" and len(request.tuples) > 1:
                del request.tuples[0]
                return True
            return False

        refuses("indexes", change, "R1/R2")

    def test_dirty_read_of_a_value_that_was_never_written(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            is_dirty = request.kind == "select" and request.fields.get(Key.TXN_ISOLATION) == 1
            if is_dirty and request.outcome == "committed":
                request.tuples = [[1, "never", 1, 1]]
                return True
            return False

        refuses("indexes", change, "R1")

    def test_duplicate_that_nothing_justifies(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "delete" and request.outcome == "committed" and not request.tuples:
                request.code, request.outcome = 3, "refused"
                return True
            return False

        refuses("indexes", change, "T8")

    def test_refused_write_that_is_in_the_order(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.tag and request.outcome == "committed" and request.tuples:
                request.code, request.outcome = 226, "refused"
                return True
            return False

        refuses("indexes", change, "T6")

    def test_static_row_on_two_pages(self) -> None:
        workload, order = finished("indexes")
        assert isinstance(workload, Indexes)
        pages = next(pages for pages in workload.paginations if len(pages) > 2)
        workload.requests.clear()
        pages[1].tuples[0] = pages[0].tuples[0]
        with pytest.raises(InvariantViolation, match="R1"):
            workload.check(order)

    def test_index_that_lacks_a_tuple(self) -> None:
        schedule = Schedule(1, workloads=["indexes"])
        world = schedule.run()
        shell = next(shell for shell in world.alive() if shell.node is not None)
        assert shell.node is not None
        index = shell.node.database.space(601).indexes[1]
        key, _ = next(iter(index.entries()))
        index.put(key, None)
        with pytest.raises(InvariantViolation, match="S1"):
            check_indexes(shell.name, shell.node.database)


class TestTables:
    """The check of schema changes."""

    def test_format_change_that_the_tuples_forbid(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.outcome == "refused" and request.code in (3, 23, 39):
                if request.fields[Key.SPACE_ID] in (280, 288):
                    request.code, request.outcome = 0, "committed"
                    return True
            return False

        refuses("tables", change, "P3")

    def test_refusal_that_no_state_justifies(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "truncate" and request.outcome == "committed":
                request.code, request.outcome = 42, "refused"
                return True
            return False

        refuses("tables", change, "P3")

    def test_write_to_a_space_that_does_not_exist(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "put" and request.code == 36:
                request.code, request.outcome = 0, "committed"
                request.tuples = [request.fields[Key.TUPLE]]
                return True
            return False

        refuses("tables", change, "T8")

    def test_half_of_a_schema_transaction(self) -> None:
        for seed in range(1, 20):
            workload, order = finished("tables", seed)
            assert isinstance(workload, Tables)
            committed = [one for one in workload.created if one[2].outcome == "committed"]
            if committed:
                del order.places[committed[0][1].tag]
                workload.requests.clear()
                with pytest.raises(InvariantViolation, match="T8"):
                    workload.check(order)
                return
        pytest.fail("no schema change in a transaction")


class TestTransactions:
    """The check of interactive transactions."""

    def test_committed_after_its_timeout(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "commit" and request.code == 231:
                request.code, request.outcome = 0, "committed"
                return True
            return False

        refuses("transactions", change, "T6")

    def test_read_that_does_not_hold_at_its_place(self) -> None:
        for seed in range(1, 20):
            workload, order = finished("transactions", seed)
            assert isinstance(workload, Transactions)
            committed = [one for one in workload.transactions if one.outcome == "committed"]
            reads = [
                statement
                for one in committed
                for statement in one.statements
                if statement.kind == "select" and statement.tuples
            ]
            if reads:
                reads[0].tuples[0][1] = "another value"
                with pytest.raises(InvariantViolation, match=r"T8|R2"):
                    workload.check(order)
                return
        pytest.fail("no read in a committed transaction")

    def test_refused_transaction_with_a_row(self) -> None:
        for seed in range(1, 20):
            workload, order = finished("transactions", seed)
            assert isinstance(workload, Transactions)
            for one in workload.transactions:
                tags = [request.tag for request in one.rows if request.tag]
                if one.outcome == "committed" and tags and one.end is not None:
                    one.end.outcome, one.end.code = "refused", 97
                    with pytest.raises(InvariantViolation, match="T6"):
                        workload.check(order)
                    return
        pytest.fail("no committed transaction")


class TestSequences:
    """The check of sequences."""

    def test_value_that_was_not_next(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "draw" and request.outcome == "committed":
                request.tuples[0][0] += 1
                return True
            return False

        refuses("sequences", change, "T8")

    def test_overflow_with_values_left(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "delete" and request.outcome == "committed" and not request.tuples:
                request.outcome, request.code = "refused", 147
                return True
            return False

        refuses("sequences", change, "T8")


class TestKeys:
    """The check of idempotency keys."""

    def test_expiry_within_the_window(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "retry" and request.index <= request.floor_index:
                is_young = request.ceiling_index - request.key[2] < 200
                if request.outcome == "committed" and is_young:
                    request.outcome, request.code = "unknown", 0x4002
                    return True
            return False

        refuses("keys", change, "T9")

    def test_retry_with_another_index(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "retry" and request.outcome == "committed":
                request.index -= 1
                return True
            return False

        refuses("keys", change, "T9")

    def test_write_with_a_mark_from_before_the_window(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            is_new = request.outcome == "committed" and request.index > request.floor_index
            if request.kind != "first" or not is_new:
                return False
            request.key = [*request.key[:2], -1]
            return True

        refuses("keys", change, "T9: it ran at")

    def test_other_transaction_with_a_known_key_gets_no_answer(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            is_refused = request.kind == "reuse" and request.code == ErrorCode.KEY_REUSED
            if request.type != COMMIT or not is_refused:
                return False
            request.outcome, request.code, request.index = "committed", 0, 1
            return True

        refuses("keys", change, "T9: its row is at")


class TestAccess:
    """The check of privileges."""

    def test_write_without_the_privilege(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "write" and request.outcome == "committed":
                request.user = "unknown"
                return True
            return False

        refuses("access", change, "P3")

    def test_refusal_in_spite_of_the_privilege(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "write" and request.outcome == "refused" and request.code == 42:
                request.user = "other"
                return True
            return False

        refuses("access", change, "P3")

    def test_log_in_with_an_old_password(self) -> None:
        workload, order = finished("access")
        assert isinstance(workload, Access)
        user, _, index, may_log_in = workload.log_ins[-1]
        workload.log_ins[-1] = (user, "another hash", index, may_log_in)
        with pytest.raises(InvariantViolation, match="P3"):
            workload.check(order)


class TestLimits:
    """The check of limits."""

    def test_accepted_beyond_a_limit(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "large tuple" and request.outcome == "refused":
                request.outcome, request.code = "committed", 0
                return True
            return False

        refuses("limits", change, "T11")

    def test_refusal_with_another_code(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "deep tuple" and request.code == 20:
                request.code = 23
                return True
            return False

        refuses("limits", change, "T6")

    def test_transaction_refused_below_its_limit(self) -> None:
        def change(request: WorkloadRequest) -> bool:
            if request.kind == "write" and request.outcome == "committed":
                request.outcome, request.code, request.reason = "refused", 2, "too large"
                return True
            return False

        refuses("limits", change, "T6|T11")

    def test_more_transactions_of_guests_than_allowed(self) -> None:
        workload, order = finished("limits")
        assert isinstance(workload, LimitWorkload)
        burst = Burst("guest")
        burst.answers = [fx.Answer(1, number, 0, "", [], 0) for number in range(101)]
        workload.bursts = [burst]
        with pytest.raises(InvariantViolation, match="T11"):
            workload.check(order)
