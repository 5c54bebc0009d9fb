"""Interactive transactions over two spaces, with every isolation level and short timeouts.

A committed transaction has its rows at consecutive indexes, and all its answers hold before them. A
refused one, one that timed out or one without COMMIT has no row in the order.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_SPACE_ID,
    KEY_TXN_ISOLATION,
    REPLACE,
    SELECT,
    UPDATE,
    UPSERT,
)
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK
from qsync_sim.cluster import Cluster
from qsync_sim.workloads.base import (
    LOST,
    MILLISECOND,
    SECOND_BEGIN,
    Script,
    Workload,
    WorkloadRequest,
    body_of,
)
from qsync_sim.workloads.checks import CIRCUMSTANCES, LINEARIZABLE, STATEMENT
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.pipelines import PipelinedTransactions
from qsync_sim.workloads.table import EQ, GE, LE, TableWorkload

SPACE, OTHER_SPACE = 640, 641
KEYS, VALUES = 4, 4
TRANSACTIONS = 5
BEAT_MS = 100
SHORT_MS = 60
LEVELS = ("default", "read-committed", "read-confirmed", "best-effort", "linearizable")
SECOND_BEGINS = 0.25
"""The part of the schedules whose transactions begin twice."""
CLOCKS = 1.5
"""Two clocks of a schedule differ by less than this factor."""
ACTIVE = int(ErrorCode.ACTIVE_TRANSACTION)
TIMED_OUT, CONFLICT = int(ErrorCode.TRANSACTION_TIMEOUT), int(ErrorCode.TRANSACTION_CONFLICT)
ENDS = (CONFLICT, TIMED_OUT, int(ErrorCode.TIMEOUT))
"""Errors after which a transaction cannot commit; a member may have ended it (G3)."""


@dataclass(slots=True)
class TransactionWorkload:
    """The requests of one transaction; `end` is its COMMIT or ROLLBACK, if it was sent."""

    begin: WorkloadRequest
    isolation: int
    timeout_ms: int
    statements: list[WorkloadRequest] = field(default_factory=list)
    end: WorkloadRequest | None = None

    @property
    def outcome(self) -> str:
        """Return the outcome for the rows of the transaction."""
        if self.end is None or self.end.type == ROLLBACK or self.end.outcome == LOST:
            return "rolled back"
        return self.end.outcome

    @property
    def rows(self) -> list[WorkloadRequest]:
        """Return the statements that wrote a row, by their answers."""
        return [
            one
            for one in self.statements
            if one.type != SELECT
            and one.outcome == "committed"
            and (one.tuples or one.type == UPSERT)
        ]


class Transactions(Workload):
    """Transactions that read and write two spaces."""

    name = "transactions"
    number = 3

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self.transactions: list[TransactionWorkload] = []
        self.default_ms = self.rng.choice([300_000, 300_000, 400])
        self._second = Random(f"second begins in {world.seed}")
        self._has_second = self._second.random() < SECOND_BEGINS
        self._pipelines = PipelinedTransactions(world, SPACE, self.number)

    def settings(self) -> dict[str, Any]:
        """Let transactions time out early in some schedules."""
        return {"transaction_timeout_ns": self.default_ms * MILLISECOND}

    def set_up(self) -> None:
        """Create both spaces; the second one has a unique secondary index."""
        self.world.begins_twice |= self._has_second
        for space in (SPACE, OTHER_SPACE):
            self.world.insert(SystemSpace.SPACE, [space, 1, f"s{space}", "memtx", 0, {}, []])
            self.world.insert(SystemSpace.INDEX, [space, 0, "key", "tree", {}, [[0, "unsigned"]]])
        self.world.insert(
            SystemSpace.INDEX, [OTHER_SPACE, 1, "value", "tree", {}, [[2, "unsigned"]]]
        )

    def scripts(self) -> list[Script]:
        return [self._work() for _ in range(3)]

    def start(self) -> None:
        super().start()
        self._pipelines.start()

    def stop(self) -> None:
        super().stop()
        self._pipelines.is_stopped = True

    def disconnect(self) -> None:
        super().disconnect()
        self._pipelines.disconnect()

    @property
    def is_idle(self) -> bool:
        return super().is_idle and self._pipelines.is_idle

    # --- requests -----------------------------------------------------------------------------

    def _work(self) -> Script:
        for _ in range(TRANSACTIONS):
            if self.rng.random() < 0.7:
                yield self.until_beat(BEAT_MS)
            transaction = self._new_transaction()
            yield self.sent(transaction.begin)
            if transaction.begin.outcome == "committed":
                yield from self._continue(transaction)

    def _new_transaction(self) -> TransactionWorkload:
        rng = self.rng
        isolation = rng.randrange(len(LEVELS))
        timeout_ms = rng.choice([0, 0, SHORT_MS])
        options: dict[str, Any] = {"isolation": isolation}
        if timeout_ms:
            options["timeout"] = timeout_ms / 1000
        stream = len(self.transactions) + 1
        begin = WorkloadRequest("begin", BEGIN, body_of(**options), stream=stream)
        timeout_ms = min(timeout_ms or self.default_ms, self.default_ms)
        self.transactions.append(TransactionWorkload(begin, isolation, timeout_ms))
        return self.transactions[-1]

    def _continue(self, transaction: TransactionWorkload) -> Script:
        rng = self.rng
        for _ in range(rng.randrange(1, 4)):
            statement = self._statement(transaction.begin.stream)
            transaction.statements.append(statement)
            yield self.sent(statement)
            if _has_ended(statement):
                break
            if self._has_second and self._second.random() < 0.5:
                begin = WorkloadRequest(SECOND_BEGIN, BEGIN, b"", stream=statement.stream)
                yield self.sent(begin)
                self._check_second(begin)
                if _has_ended(begin):
                    break
        if rng.random() < 0.2:
            yield 2 * transaction.timeout_ms if transaction.timeout_ms < 1000 else 20
        is_whole = transaction.statements[-1].outcome in ("committed", "refused")
        kind = COMMIT if is_whole and rng.random() < 0.9 else ROLLBACK
        name = "commit" if kind == COMMIT else "rollback"
        transaction.end = WorkloadRequest(name, kind, b"", stream=transaction.begin.stream)
        yield self.sent(transaction.end)

    def _statement(self, stream: int) -> WorkloadRequest:
        rng, tag = self.rng, self.new_tag()
        space, key = rng.choice([SPACE, OTHER_SPACE]), rng.randrange(KEYS)
        made, ops = [key, tag, rng.randrange(VALUES)], [["=", 1, tag], ["+", 2, 1]]
        kind = rng.choice([SELECT, SELECT, INSERT, REPLACE, REPLACE, UPDATE, DELETE, UPSERT])
        index = rng.choice([0, 1]) if space == OTHER_SPACE else 0
        if kind == SELECT:
            iterator = rng.choice([EQ, GE, LE])
            body = body_of(
                space=space, index=index, key=[key] if iterator == EQ else [], limit=10,
                iterator=iterator, isolation=rng.choice([0, 0, 1, LINEARIZABLE]),
            )  # fmt: skip
            return WorkloadRequest("select", SELECT, body, stream=stream)
        if kind in (INSERT, REPLACE):
            body = body_of(space=space, tuple=made)
        elif kind == UPSERT:
            body = body_of(space=space, tuple=made, ops=ops)
        elif kind == UPDATE:
            body = body_of(space=space, index=index, key=[key], tuple=ops)
        else:
            return WorkloadRequest(
                "delete", DELETE, body_of(space=space, index=index, key=[key]), stream=stream
            )
        return WorkloadRequest("write", kind, body, tag, stream=stream)

    # --- checks -------------------------------------------------------------------------------

    def _check_second(self, begin: WorkloadRequest) -> None:
        """Check that a BEGIN in a transaction is refused (T10)."""
        if begin.outcome == "committed":
            self.fail(begin, "T10: a transaction began within another one")
        if begin.code == ACTIVE:
            self.world.count("transactions begun twice")

    def check(self, order: ConfirmedOrder) -> None:
        """Check all transactions (T6, T8, R2)."""
        self._pipelines.check(order)
        for transaction in self.transactions:
            self._check_timeout(transaction)
            self._check_reads(order, transaction)
            if transaction.outcome == "committed":
                self._check_committed(order, transaction)
            elif transaction.outcome in ("rolled back", "refused"):
                self._check_absent(order, transaction)
            else:
                self._check_whole(order, transaction)

    def _check_timeout(self, transaction: TransactionWorkload) -> None:
        """Check that only a transaction older than its timeout gets error 231, and each does."""
        limit_ns = transaction.timeout_ms * MILLISECOND
        end = transaction.end
        for request in [*transaction.statements, *([end] if end is not None else [])]:
            open_ns = request.returned_ns - transaction.begin.called_ns
            if request.code == TIMED_OUT:
                if open_ns * CLOCKS < limit_ns:
                    self.fail(request, f"T6: it timed out after {open_ns / 1e6:.3f} ms")
                self.world.count("transactions timed out")
        if end is not None and transaction.outcome == "committed":
            open_ns = end.called_ns - transaction.begin.returned_ns
            if open_ns > limit_ns * CLOCKS:
                self.fail(end, f"T6: it was committed after {open_ns / 1e6:.3f} ms")

    def _check_reads(self, order: ConfirmedOrder, transaction: TransactionWorkload) -> None:
        """Check linearizable reads before the first write of the transaction (R2)."""
        for request in transaction.statements:
            if request.type != SELECT:
                return
            level = LINEARIZABLE in (transaction.isolation, request.fields.get(KEY_TXN_ISOLATION))
            if not level or request.outcome != "committed":
                continue
            fields = request.fields
            states = order.between(fields[KEY_SPACE_ID], request.floor_index, request.ceiling_index)
            if not any(table.select(fields).tuples == request.tuples for table in states):
                self.fail(request, f"R2: no state since {request.floor_index} gives this")
            self.world.count("transactions: linearizable reads checked")

    def _check_absent(self, order: ConfirmedOrder, transaction: TransactionWorkload) -> None:
        end = transaction.end
        if end is not None and end.outcome == "refused":
            allowed = end.code in CIRCUMSTANCES or end.code in (CONFLICT, TIMED_OUT)
            if not allowed:
                self.fail(end, "T6: no rule allows this error")
            if end.code == CONFLICT:
                self.world.count("transactions: conflicts")
        for request in transaction.statements:
            if request.tag and request.tag in order.places:
                self.fail(request, f"T6: {transaction.outcome}, but at {order.places[request.tag]}")

    def _check_whole(self, order: ConfirmedOrder, transaction: TransactionWorkload) -> None:
        """Check that a transaction with an unknown outcome is in the order as a whole or not."""
        tagged = [request for request in transaction.rows if request.tag]
        found = [order.places[one.tag][0] for one in tagged if one.tag in order.places]
        if found and len(found) < len(tagged):
            self.fail(tagged[0], f"T6: a part of its transaction is in the order, at {found}")

    def _check_committed(self, order: ConfirmedOrder, transaction: TransactionWorkload) -> None:
        """Check that all answers hold at the place of the transaction (T8)."""
        end, rows = transaction.end, transaction.rows
        assert end is not None
        has_writes = any(request.type != SELECT for request in transaction.statements)
        if (has_writes or transaction.isolation == LINEARIZABLE) and end.index < end.floor_index:
            self.fail(end, f"R2: older than an answer at {end.floor_index}")
        first = end.index - len(rows) + 1
        tables: dict[int, TableWorkload] = {}
        for request in transaction.statements:
            if request.outcome == "refused" and request.code not in STATEMENT:
                continue
            fields = request.fields
            table = tables.get(fields[KEY_SPACE_ID]) or order.at(fields[KEY_SPACE_ID], first - 1)
            if request.type == SELECT:
                result = table.select(fields)
            else:
                result = table.execute(request.type, fields)
                tables[table.id] = table.after(result)
            if (result.code, result.tuples) != (request.code, request.tuples):
                self.fail(request, f"T8: in a transaction at {first}, {result[:2]} is right")
        for index, request in enumerate(rows, first):
            row = order.rows.get(index)
            if row is None or (row.type, row.space) != (request.type, request.fields[KEY_SPACE_ID]):
                self.fail(request, f"T8: its transaction has another row at {index}")
            if request.tag and order.places.get(request.tag) != [index]:
                self.fail(request, f"T8: its row is not at {index}")
        self.world.count(f"transactions: {LEVELS[transaction.isolation]} checked")


def _has_ended(request: WorkloadRequest) -> bool:
    """Return whether the transaction of a request can no longer commit."""
    return request.outcome in ("unknown", LOST) or request.code in ENDS
