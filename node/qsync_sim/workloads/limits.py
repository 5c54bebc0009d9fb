"""Requests beyond the limits of a member, with small limits in the settings.

A refused request must have the documented code, and nothing of it may be in the order. A request
that exceeds a limit must be refused.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import DELETE, INSERT, KEY_SPACE_ID, KEY_TUPLE, REPLACE, UPSERT
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK
from qsync_sim.cluster import Cluster
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads.base import (
    MILLISECOND,
    SESSIONS_FROM,
    Script,
    Workload,
    WorkloadRequest,
    body_of,
)
from qsync_sim.workloads.checks import CIRCUMSTANCES
from qsync_sim.workloads.order import INDEXES, ConfirmedOrder

SPACE, LARGE_SPACE = 660, 661
MEMORY, TOO_MANY = int(ErrorCode.MEMORY_ISSUE), int(ErrorCode.TOO_MANY)
LARGE_BYTES = 8_000
MEMORY_BYTES_MAX = 200_000
NEW_CLUSTER_BYTES = 100_000
"""Memory of a new cluster, at least."""
WRITES, TRANSACTIONS, REFUSALS = 22, 3, 3
STREAMS_MAX = {"guest": 100, "admin": 1_000}
"""Open transactions of all unauthenticated clients, and of one connection."""
QUEUE_SLACK = 3
"""A step may write several entries before it checks the length of the queue again."""
_SETTINGS: dict[str, list[int]] = {
    "transaction_bytes_max": [500],
    "transactions_bytes_max": [700],
    "limbo_entries_max": [2, 4],
    "limbo_bytes_max": [1_000],
    "memory_bytes_max": [MEMORY_BYTES_MAX],
}
_QUEUE = ("limbo_entries_max", "limbo_bytes_max")


class LimitWorkload(Workload):
    """Requests that exceed limits."""

    name = "limits"
    number = 7

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        chosen = self.rng.sample(list(_SETTINGS), self.rng.choice([2, 3]))
        self.limits = {name: self.rng.choice(_SETTINGS[name]) for name in chosen}
        self.statements: list[list[WorkloadRequest]] = []  # by transaction
        self.bursts: list[Burst] = []
        self.raised_ns = 1 << 62  # when the limit of memory ends

    def settings(self) -> dict[str, Any]:
        return dict(self.limits)

    def set_up(self) -> None:
        """Create one space for small tuples and one for large ones."""
        for space in (SPACE, LARGE_SPACE):
            self.world.insert(SystemSpace.SPACE, [space, 1, f"s{space}", "memtx", 0, {}, []])
            self.world.insert(SystemSpace.INDEX, [space, 0, "key", "tree", {}, [[0, "unsigned"]]])
        if "limbo_entries_max" in self.limits:
            self._watch_queue()
        for user, probability in (("guest", 0.5), ("admin", 0.1)):
            if self.rng.random() < probability:
                begin = partial(self._begin_many, user)
                self.world.after(self.rng.randrange(200, 3_000) * MILLISECOND, begin)

    def scripts(self) -> list[Script]:
        return [self._exceed(), self._transact(), self._fill()]

    # --- requests -----------------------------------------------------------------------------

    def _exceed(self) -> Script:
        """Send requests that no setting allows."""
        kinds: list[Callable[[str], WorkloadRequest]] = [
            _large_tuple, _many_operations, _many_keys, _deep_tuple, _many_parts, _long_client,
        ]  # fmt: skip
        self.rng.shuffle(kinds)
        for kind in kinds:
            yield self.rng.choice([50, 300])
            yield self.sent(kind(self.new_tag()))

    def _transact(self) -> Script:
        """Write more than a transaction may, and commit the rest."""
        for _ in range(TRANSACTIONS):
            yield self.rng.choice([0, 300, 900])
            stream = len(self.statements) + 1
            statements: list[WorkloadRequest] = []
            self.statements.append(statements)
            begin = self.sent(WorkloadRequest("begin", BEGIN, b"", stream=stream))
            yield begin
            if begin.outcome != "committed":
                continue
            for key in range(5):
                tag = self.new_tag()
                made = [key, tag, "x" * self.rng.choice([50, 150, 250])]
                body = body_of(space=SPACE, tuple=made)
                statements.append(
                    self.sent(WorkloadRequest("write", REPLACE, body, tag, stream=stream))
                )
                yield statements[-1]
            is_whole = all(one.outcome in ("committed", "refused") for one in statements)
            kind = COMMIT if is_whole else ROLLBACK
            statements.append(self.sent(WorkloadRequest("end", kind, b"", stream=stream)))
            yield statements[-1]

    def _fill(self) -> Script:
        """Write large tuples until the memory limit, then delete some or raise the limit."""
        refusals = 0
        for key in range(WRITES):
            yield self.rng.choice([0, 100, 400])
            tag = self.new_tag()
            body = body_of(space=LARGE_SPACE, tuple=[key, tag, "x" * LARGE_BYTES])
            request = self.sent(WorkloadRequest("large write", REPLACE, body, tag))
            yield request
            if request.code == MEMORY:
                refusals += 1
                body = body_of(space=LARGE_SPACE, index=0, key=[self.rng.randrange(key + 1)])
                yield self.sent(WorkloadRequest("large delete", DELETE, body))
            if refusals == REFUSALS:
                self._raise_memory()
                return

    def _raise_memory(self) -> None:
        """Change the limit of memory at all members, as an administrator does."""
        world = self.world
        self.raised_ns = min(self.raised_ns, world.now_ns)
        world.base = replace(world.base, memory_bytes_max=0)
        for shell in world.shells.values():
            shell.settings = replace(shell.settings, memory_bytes_max=0)
            if shell.is_alive:
                world.command(shell, "configure", memory_bytes_max=0)

    def stop(self) -> None:
        super().stop()
        if "memory_bytes_max" in self.limits:
            self._raise_memory()

    def _begin_many(self, user: str) -> None:
        """Open more transactions in one session than the user may have."""
        leader = self.world.leader()
        if leader is None or self.is_stopped:
            return
        burst = Burst(user)
        self.bursts.append(burst)
        session = SESSIONS_FROM * 10 * self.number - len(self.bursts)
        self.world.clients_by_session[session] = burst
        leader.step(
            [
                fx.Request(session, number, BEGIN, b"", number, user, None)
                for number in range(1, STREAMS_MAX[user] + 4)
            ]
        )
        incarnation, close = leader.incarnation, fx.SessionClosed(session)
        later_ns = 100 * MILLISECOND
        self.world.after(
            later_ns, lambda: leader.step([close]) if leader.incarnation == incarnation else None
        )

    # --- checks -------------------------------------------------------------------------------

    def _watch_queue(self) -> None:
        """Check the length of the queue of unconfirmed transactions (T11)."""
        leader = self.world.leader()
        if leader is not None and leader.node is not None:
            most = self.limits["limbo_entries_max"] + QUEUE_SLACK
            entries = leader.node.context.limbo.entries
            # Rows that a leader inherits were bounded by the leader before it.
            waiting = sum(entry.is_clients_write for entry in entries)
            if waiting > most:
                raise InvariantViolation(f"T11: {leader.name} has a queue of {waiting}, not {most}")
        if not self.is_stopped:
            self.world.after(self.rng.randrange(1, 20) * MILLISECOND, self._watch_queue)

    def check(self, order: ConfirmedOrder) -> None:
        """Check all refusals and all accepted requests (T6, T11)."""
        for request in self.requests:
            places = order.places.get(request.tag, []) if request.tag else []
            if request.outcome == "refused" and places:
                self.fail(request, f"T6: it is in the order at {places[0]}")
            self._check_code(request)
            if request.kind == "large write" and request.outcome == "committed":
                self._check_memory(order, request)
        for statements in self.statements:
            self._check_transaction(order, statements)
        for burst in self.bursts:
            self._check_burst(burst)

    def _check_code(self, request: WorkloadRequest) -> None:
        """Check the code of a refusal, and that a request beyond a fixed limit is refused."""
        expected = request.note
        if request.outcome == "committed" and expected:
            self.fail(request, f"T11: accepted beyond a limit, not refused with {expected}")
        if request.outcome != "refused":
            return
        if request.code == expected:
            self.world.count(f"limits: {request.kind} refused")
        elif "queue of unconfirmed transactions is full" in request.reason:
            if not any(name in self.limits for name in _QUEUE):
                self.fail(request, "T11: the queue cannot be full")
            self.world.count("limits: full queue")
        elif "memory limit" in request.reason:
            if "memory_bytes_max" not in self.limits or request.type == DELETE:
                self.fail(request, "T11: the memory limit does not apply")
            self.world.count("limits: memory")
        elif request.code not in _ALLOWED:
            self.fail(request, "T6: no rule allows this error")

    def _check_memory(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        """Check that nothing was written while the known tuples exceed the limit."""
        limit = self.limits.get("memory_bytes_max")
        rows = order.at(LARGE_SPACE, request.floor_index).rows.values()
        size = NEW_CLUSTER_BYTES + sum(len(made[2]) for made in rows)
        is_limited = limit is not None and request.returned_ns < self.raised_ns
        if limit is not None and is_limited and size > limit:
            self.fail(request, f"T11: {size} bytes exceed the limit of memory")

    def _check_transaction(self, order: ConfirmedOrder, statements: list[WorkloadRequest]) -> None:
        """Check each statement against the size of those before it."""
        limit = self.limits.get("transaction_bytes_max", 1 << 30)
        all_limit = self.limits.get("transactions_bytes_max", 1 << 30)
        size = 0
        for request in statements:
            wanted = size + len(request.body)
            if request.outcome == "committed":
                if request.type == REPLACE and wanted > min(limit, all_limit):
                    self.fail(request, f"T11: its transaction has {wanted} bytes")
                size = wanted
            elif request.code == MEMORY and "too large" in request.reason:
                if wanted <= limit:
                    self.fail(request, f"T11: its transaction has only {wanted} bytes")
                self.world.count("limits: size of a transaction")
            elif request.code == MEMORY and "open transactions" in request.reason:
                if "transactions_bytes_max" not in self.limits:
                    self.fail(request, "T11: the limit of open transactions does not apply")
                self.world.count("limits: size of open transactions")
        end = statements[-1] if statements else None
        is_committed = end is not None and end.type == COMMIT and end.outcome == "committed"
        for request in statements:
            if is_committed and request.outcome == "committed" and request.tag:
                if request.tag not in order.places:
                    self.fail(request, "L3: its transaction is committed, its row is missing")

    def _check_burst(self, burst: "Burst") -> None:
        accepted = sum(answer.code == 0 for answer in burst.answers)
        if accepted > STREAMS_MAX[burst.user]:
            raise InvariantViolation(f"T11: {burst.user} has {accepted} open transactions")
        for answer in burst.answers:
            if answer.code not in {0, TOO_MANY} | _ALLOWED:
                raise InvariantViolation(
                    f"T6: BEGIN of {burst.user}: {answer.code} {answer.reason}"
                )
        if any(answer.code == TOO_MANY for answer in burst.answers):
            self.world.count(f"limits: transactions of {burst.user}")


class Burst:
    """The answers to a session that opens many transactions at once."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.answers: list[fx.Answer] = []

    def on_answer(self, answer: fx.Answer) -> None:
        """Note an answer."""
        self.answers.append(answer)


_ALLOWED = {
    *CIRCUMSTANCES,
    int(ErrorCode.TRANSACTION_CONFLICT),
    int(ErrorCode.TRANSACTION_TIMEOUT),
}


# --- requests beyond fixed limits -----------------------------------------------------------------


def _large_tuple(tag: str) -> WorkloadRequest:
    body = body_of(space=SPACE, tuple=[1, tag, "x" * (1 << 20)])
    return WorkloadRequest("large tuple", INSERT, body, tag, note=110)


def _many_operations(tag: str) -> WorkloadRequest:
    ops = [["=", 1, tag]] * 4_001
    body = body_of(space=SPACE, tuple=[1, tag], ops=ops)
    return WorkloadRequest("upsert of many operations", UPSERT, body, tag, note=1)


def _many_keys(tag: str) -> WorkloadRequest:
    fields = {
        KEY_SPACE_ID: SPACE,
        KEY_TUPLE: [1, tag],
        **{1_000 + number: 0 for number in range(1_024)},
    }
    return WorkloadRequest("body of many keys", REPLACE, msgpack.packb(fields), tag, note=20)


def _deep_tuple(tag: str) -> WorkloadRequest:
    value: list[Any] = []
    for _ in range(100):
        value = [value]
    return WorkloadRequest(
        "deep tuple", REPLACE, body_of(space=SPACE, tuple=[1, tag, value]), tag, note=20
    )


def _many_parts(tag: str) -> WorkloadRequest:
    parts = [[number, "unsigned"] for number in range(256)]
    body = body_of(space=INDEXES, tuple=[SPACE, 1, tag, "tree", {"unique": False}, parts])
    return WorkloadRequest("index of many parts", INSERT, body, tag, note=14)


def _long_client(tag: str) -> WorkloadRequest:
    body = body_of(space=SPACE, tuple=[1, tag])
    return WorkloadRequest("long client of a key", REPLACE, body, tag, key=["c" * 65, 1, 0], note=1)
