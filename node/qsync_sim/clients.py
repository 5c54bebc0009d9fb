"""Simulated clients: each performs one operation at a time and records its outcome.

An operation carries a unique value, so that its row is recognised in the log. A client that hears
*unknown* does something else next, except with an idempotency key: then it asks again, until it
knows. A transaction whose COMMIT has a key is repeated as a whole, request for request.
"""

from random import Random
from typing import Any

import msgpack

from qsync_client.protocol.constants import Isolation
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_INDEX_ID,
    KEY_ITERATOR,
    KEY_KEY,
    KEY_LIMIT,
    KEY_OPS,
    KEY_SPACE_ID,
    KEY_TUPLE,
    KEY_TXN_ISOLATION,
    REPLACE,
    SELECT,
    UPDATE,
    UPSERT,
    Type,
)
from qsync_sim import publishing
from qsync_sim.cluster import Cluster
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.operation import ClientOperation
from qsync_sim.shell import Shell

BEGIN, COMMIT, ROLLBACK = int(Type.BEGIN), int(Type.COMMIT), int(Type.ROLLBACK)
KEYS = 6
MILLISECOND = 1_000_000
ROLLED_BACK = (int(ErrorCode.SYNC_QUORUM_TIMEOUT), int(ErrorCode.SYNC_ROLLBACK))
UNKNOWN = (int(ErrorCode.OUTCOME_UNKNOWN), int(ErrorCode.KEY_EXPIRED))


def build_body(space: int, **more: object) -> bytes:
    """Return the body of a request on `space` from named fields."""
    names = {
        "key": KEY_KEY,
        "tuple": KEY_TUPLE,
        "ops": KEY_OPS,
        "index": KEY_INDEX_ID,
        "limit": KEY_LIMIT,
        "iterator": KEY_ITERATOR,
        "isolation": KEY_TXN_ISOLATION,
    }
    fields: dict[int, Any] = {KEY_SPACE_ID: space}
    for name, value in more.items():
        fields[names[name]] = value
    packed: bytes = msgpack.packb(fields)
    return packed


THINK_MS = (0, 0, 10, 60, 300)
"""Pauses of a client after an answer. Requests take most of the time of a schedule."""
SHORT_THINK_MS = (0, 0, 2, 20, 150)
"""The same in a schedule that is made for its rows."""
PUBLISHES = 0.2
"""The part of requests outside of transactions that publish, if the world has a journal."""
SCANS = 0.3
"""The part of reads outside of transactions that read a whole space."""
SCAN_LIMIT = 0xFFFFFFFF


class SimClient:
    """A client with one session at a time."""

    def __init__(self, world: Cluster, number: int, rng: Random | None = None) -> None:
        self.world = world
        self.number = number
        self.rng = rng or Random(world.rng.random())
        self.session = 1000 * (number + 1)
        self.sync = 0
        self.member: Shell | None = None
        self.member_incarnation = 0
        self.waiting: ClientOperation | None = None
        self.made = 0
        self.plan: list[tuple[str, int, str]] = []  # kind, key, value of each request to come
        self.script: list[tuple[str, int, str]] = []  # the whole transaction, to be repeated
        self.commit_key: Any = None
        self.is_linearizable = False
        self.is_repeating = False
        self.transaction = 0
        self.transactions = 0
        self.think_ms = THINK_MS
        self.is_stopped = False
        self.keyed: ClientOperation | None = None
        self.scans = Random(f"scans of {number} in {world.seed}")
        self.publishes = Random(f"publications of {number} in {world.seed}")

    # --- what next ----------------------------------------------------------------------------

    def act(self) -> None:
        """Begin the next operation, or connect first."""
        if self.is_stopped or self.waiting is not None:
            return
        if (
            self.member is None
            or self.member.incarnation != self.member_incarnation
            or not self.member.is_alive
        ):
            if not self._connect():
                self._later(50)
                return
        if self.keyed is not None:
            self._repeat_keyed()
        elif self.plan:
            self._step_transaction()
        elif self.is_repeating:
            self._start_transaction()
        else:
            self._choose()

    def _connect(self) -> bool:
        alive = [s for s in self.world.shells.values() if s.is_alive and not s.is_removed]
        if not alive:
            return False
        self.session += 1
        self.member = self.rng.choice(alive)
        self.member_incarnation = self.member.incarnation
        self.plan = []
        self.transaction = 0
        return True

    def _choose(self) -> None:
        roll = self.rng.random()
        if self.rng.random() < 0.05:
            self.disconnect()
            self._later(1)
            return
        if roll < 0.12:
            self._begin_transaction()
            return
        kind = self.rng.choices(
            ["insert", "replace", "update", "delete", "upsert", "select", "linearizable", "keyed"],
            [10, 25, 15, 10, 5, 12, 10, 13],
        )[0]
        if kind in ("select", "linearizable") and self.scans.random() < SCANS:
            kind = {"select": "scan", "linearizable": "linearizable scan"}[kind]
        if self.world.has_journal and self.publishes.random() < PUBLISHES:
            kind = self.publishes.choice(publishing.PUBLISHES)
        space = ASYNC_SPACE if self.rng.random() < 0.08 and kind == "replace" else SPACE
        self._do(kind, space, self.rng.randrange(KEYS))

    def disconnect(self) -> None:
        if self.member is not None and self.member.incarnation == self.member_incarnation:
            self.member.step([fx.SessionClosed(self.session)])
        self.member = None

    def _begin_transaction(self) -> None:
        count = self.rng.randrange(1, 4)
        kinds = ["select", "replace", "update", "insert", "delete"]
        script = [("begin", 0)]
        script += [(self.rng.choice(kinds), self.rng.randrange(KEYS)) for _ in range(count)]
        while self.world.has_journal and self.publishes.random() < 0.5:
            script.insert(self.publishes.randrange(1, len(script) + 1), (publishing.PUBLISH, 0))
        script.append(("commit" if self.rng.random() < 0.9 else "rollback", 0))
        self.script = [(kind, key, self._new_value()) for kind, key in script]
        self.is_linearizable = self.rng.random() < 0.3
        self.commit_key = self._new_key() if self.rng.random() < 0.4 else None
        self._start_transaction()

    def _start_transaction(self) -> None:
        self.transactions += 1
        self.transaction = self.transactions
        self.plan = list(self.script)
        self._step_transaction()

    def _step_transaction(self) -> None:
        kind, key, value = self.plan.pop(0)
        self._do(kind, SPACE, key, value)

    def _new_value(self) -> str:
        self.made += 1
        return f"c{self.number}-{self.made}"

    def _new_key(self) -> list[Any]:
        return [f"client-{self.number}", self.made, self.world.told_index]

    # --- requests -----------------------------------------------------------------------------

    def _do(self, kind: str, space: int, key: int, value: str = "") -> None:
        value = value or self._new_value()
        request_type, body = self._request(kind, space, key, value)
        idempotency = None
        if kind in ("keyed", publishing.KEYED_PUBLISH):
            idempotency = self._new_key()
        elif kind == "commit":
            idempotency = self.commit_key
        operation = ClientOperation(
            self.number, kind, request_type, body, space, key, value, "", 0, idempotency=idempotency
        )
        operation.transaction = self.transaction
        if self.transaction:
            operation.is_linearizable = self.is_linearizable
            operation.is_repeated = self.is_repeating
        if kind in ("keyed", publishing.KEYED_PUBLISH):
            self.keyed = operation
        self._send(operation)

    def _request(self, kind: str, space: int, key: int, value: str) -> tuple[int, bytes]:
        made = [key, value, 0]
        if kind in publishing.PUBLISHES:
            return publishing.CALL, publishing.publish_body(value)
        if kind == "insert":
            return INSERT, build_body(space, tuple=made)
        if kind == "replace":
            return REPLACE, build_body(space, tuple=made)
        if kind in ("update", "keyed"):
            ops = [["=", 1, value], ["+", 2, 1]]
            return UPDATE, build_body(space, index=0, key=[key], tuple=ops)
        if kind == "delete":
            return DELETE, build_body(space, index=0, key=[key])
        if kind == "upsert":
            return UPSERT, build_body(space, tuple=made, ops=[["=", 1, value], ["+", 2, 1]])
        if kind == "select":
            return SELECT, build_body(space, index=0, limit=10, key=[key])
        if kind == "linearizable":
            return SELECT, build_body(
                space, index=0, limit=10, key=[key], isolation=Isolation.LINEARIZABLE
            )
        if kind == "scan":
            return SELECT, build_body(space, index=0, limit=SCAN_LIMIT, iterator=2, key=[])
        if kind == "linearizable scan":  # from the greatest key down
            body = build_body(
                space, limit=SCAN_LIMIT, iterator=1, key=[], isolation=Isolation.LINEARIZABLE
            )
            return SELECT, body
        if kind == "begin" and self.is_linearizable:
            return BEGIN, msgpack.packb({KEY_TXN_ISOLATION: Isolation.LINEARIZABLE})
        return {"begin": BEGIN, "commit": COMMIT, "rollback": ROLLBACK}[kind], b""

    def _repeat_keyed(self) -> None:
        first = self.keyed
        assert first is not None
        again = ClientOperation(
            self.number,
            first.kind,
            first.type,
            first.body,
            first.space,
            first.key,
            first.value,
            "",
            0,
            idempotency=first.idempotency,
        )
        self._send(again)

    def _send(self, operation: ClientOperation) -> None:
        world, member = self.world, self.member
        assert member is not None
        self.sync += 1
        operation.member = member.name
        operation.session = self.session
        operation.called_ns = world.now_ns
        operation.floor_index = world.told_index
        world.history.append(operation)
        self.waiting = operation
        stream = 1 if operation.transaction else 0
        request = fx.Request(
            self.session,
            self.sync,
            operation.type,
            operation.body,
            stream,
            "admin",
            operation.idempotency,
        )
        incarnation, sync, session = member.incarnation, self.sync, self.session

        def arrive() -> None:
            if member.incarnation == incarnation:
                member.step([request])
            else:
                self.on_lost(session, sync)

        world.clients_by_session[session] = self
        world.after(self.rng.randrange(50_000, 400_000), arrive)
        world.after(30_000 * MILLISECOND, lambda: self._give_up(session, sync))

    def _give_up(self, session: int, sync: int) -> None:
        """Stop waiting for the answer; the outcome remains unknown."""
        if self.waiting is not None and (session, sync) == (self.session, self.sync):
            member = self.member
            if member is not None and member.incarnation == self.member_incarnation:
                waiting = self.waiting
                self.world.fail(
                    f"G3: {waiting.kind} {waiting.value} at {member.name} has no answer"
                )
            self.disconnect()
            self.on_lost(session, sync)

    # --- answers ------------------------------------------------------------------------------

    def on_answer(self, answer: fx.Answer) -> None:
        operation = self.waiting
        if operation is None or (answer.session, answer.sync) != (self.session, self.sync):
            return
        operation.code = answer.code
        operation.index = answer.log_index
        operation.tuples = [msgpack.unpackb(packed) for packed in answer.tuples]
        if answer.code == 0:
            operation.outcome = "committed"
            if operation.space != ASYNC_SPACE:  # such an answer promises nothing about its index
                self.world.told_index = max(self.world.told_index, answer.log_index)
        elif answer.code in ROLLED_BACK:
            operation.outcome = "rolled back"
        elif answer.code in UNKNOWN:
            operation.outcome = "unknown"
        else:
            operation.outcome = "refused"
        self._ended(operation)

    def on_lost(self, session: int, sync: int) -> None:
        """Record an unknown outcome: the member or the connection is lost."""
        if self.waiting is None or (session, sync) != (self.session, self.sync):
            return
        self.waiting.outcome = "unknown"
        self.member = None
        self._ended(self.waiting)

    def on_member_stopped(self, shell: Shell) -> None:
        if self.member is shell and self.waiting is not None:
            self.on_lost(self.session, self.sync)

    def _ended(self, operation: ClientOperation) -> None:
        operation.returned_ns = self.world.now_ns
        operation.ceiling_index = self.world.confirmed_anywhere
        self.waiting = None
        self.world.count(f"outcome {operation.outcome}")
        if operation.idempotency is not None and not operation.transaction:
            # A rollback settles one attempt: an earlier one may still be under way (T9).
            is_retry = operation is not self.keyed
            again = operation.outcome == "unknown" and operation.code != ErrorCode.KEY_EXPIRED
            if again or (is_retry and operation.outcome == "rolled back"):
                self.world.count("keyed retries")
            else:
                self.keyed = None
        if operation.transaction:
            self._step_ended(operation)
        if operation.outcome in ("refused", "unknown") and self.rng.random() < 0.5:
            self.disconnect()
        self._later(self.rng.choice(self.think_ms))

    def _step_ended(self, operation: ClientOperation) -> None:
        """Process the answer to a request of a transaction, and update the plan."""
        ended = operation.kind in ("commit", "rollback")
        if operation.outcome == "committed" and not ended:
            return
        if operation.kind == "commit" and operation.idempotency is not None:
            is_unknown = operation.outcome == "unknown" and operation.code != ErrorCode.KEY_EXPIRED
            # During a retry, a conflict reveals nothing about the first attempt: retry again.
            # The same holds for a rollback (T9).
            is_aborted = operation.code == ErrorCode.TRANSACTION_CONFLICT
            is_unsettled = is_aborted or operation.outcome == "rolled back"
            self.is_repeating = is_unknown or (self.is_repeating and is_unsettled)
            self.world.count(
                "keyed transactions repeated" if self.is_repeating else "keyed commits"
            )
        elif not ended and operation.outcome == "refused" and operation.kind != "begin":
            if not self.is_repeating:
                # A refused statement leaves the transaction open: end it.
                self.plan = [("rollback", 0, "")]
            return  # a retry needs only the outcome, regardless of the results of its statements
        self.plan = []
        self.transaction = 0

    def _later(self, milliseconds: int) -> None:
        self.world.after(milliseconds * MILLISECOND + self.rng.randrange(100_000), self.act)
