"""Compares the outcomes of all clients with the one order of confirmed transactions.

The order is the ledger: every index from the first to the last, with whether a decision removed the
row. It is replayed in a model that shares nothing with the engine. Then every answer is held
against it:

  committed      the row is there, taken, at the index that the answer named, and the model answers
                 the same; a write that wrote nothing answered from a state that was decided;
  rolled back    the row is not among the taken ones, unless an earlier attempt with the same key
                 was unknown;
  refused        nothing of it was ever confirmed;
  unknown        either, but once at the most;
  a read         returns a state of the order, and never one that was rolled back; a linearizable
                 one, in a transaction or not, and the answer of a write that changed nothing, none
                 older than what any client had received before it began (R2), nor of a smaller
                 index.
"""

from typing import Any

import msgpack

from qsync_node.format.keys import (
    CHANGES,
    INSERT,
    KEY_KEY,
    KEY_OPS,
    KEY_SPACE_ID,
    KEY_TUPLE,
    REPLACE,
    UPDATE,
    UPSERT,
)
from qsync_sim import publishing
from qsync_sim.cluster import Cluster
from qsync_sim.model import ASYNC_SPACE, SPACE, Model
from qsync_sim.operation import ClientOperation
from qsync_sim.sessions import SessionChecks
from qsync_sim.violation import InvariantViolation

DUPLICATE = 3
CONFLICT = 97


class Checker:
    """Compares all answers of one schedule with its order of confirmed rows."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.last = world.confirmed_anywhere
        self.versions: dict[tuple[int, int], list[tuple[int, list[Any] | None]]] = {}
        self.answers: dict[int, list[Any] | None] = {}
        self.index_of: dict[str, list[int]] = {}

    def check(self) -> None:
        self._replay()
        for operation in self.world.history:
            if operation.outcome:
                self._check(operation)
        self._check_transactions()
        self._check_keys()
        self._check_sessions()
        publishing.check(self.world)

    # --- the order ----------------------------------------------------------------------------

    def _replay(self) -> None:
        model = Model()
        ledger = self.world.ledger
        for index in range(1, self.last + 1):
            row = ledger.get(index)
            if row is None:
                raise InvariantViolation(
                    f"L1: index {index} is unconfirmed, but {self.last} is confirmed"
                )
            _, _, body, is_taken, row_type = row
            if not is_taken or row_type not in CHANGES:
                continue
            self.answers[index] = model.apply(row_type, body)
            fields = msgpack.unpackb(body, strict_map_key=False)
            space = fields[KEY_SPACE_ID]
            if space in model.spaces:
                self._note(index, space, row_type, fields, model)

    def _note(self, index: int, space: int, row_type: int, fields: Any, model: Model) -> None:
        key = fields[KEY_KEY][0] if KEY_KEY in fields else fields[KEY_TUPLE][0]
        versions = self.versions.setdefault((space, key), [(0, None)])
        versions.append((index, model.spaces[space].get(key)))
        value = _value_of(row_type, fields)
        if value is not None:
            self.index_of.setdefault(value, []).append(index)

    def _at(self, space: int, key: int, index: int) -> list[Any] | None:
        """Return the tuple under `key` after the row at `index`."""
        found: list[Any] | None = None
        for at, state in self.versions.get((space, key), []):
            if at > index:
                break
            found = state
        return found

    def _between(self, space: int, key: int, first: int, last: int) -> list[list[Any] | None]:
        """Return every state of `key` that was current at an index of `first .. last`."""
        states = [self._at(space, key, first)]
        for at, state in self.versions.get((space, key), []):
            if first < at <= last:
                states.append(state)
        return states

    # --- answers ------------------------------------------------------------------------------

    def _check(self, operation: ClientOperation) -> None:
        if operation.kind in ("scan", "linearizable scan"):
            self._check_scan(operation)
            return
        if operation.kind in ("select", "linearizable"):
            if not operation.transaction:
                self._check_read(operation)
            return
        if operation.kind in ("begin", "commit", "rollback") or operation.transaction:
            return
        if operation.kind in publishing.PUBLISHES:
            return
        places = self.index_of.get(operation.value, [])
        if len(places) > 1:
            self._fail(operation, f"T9: its row was confirmed at {places}")
        if operation.outcome == "committed":
            self._check_committed(operation, places)
        elif operation.outcome == "rolled back" and places:
            if not self._has_earlier_attempt(operation):
                self._fail(operation, f"T6: it is in the order at {places[0]}")
            self.world.count("earlier attempts executed after a rollback")
        elif operation.outcome == "refused":
            self._check_refused(operation, places)

    def _has_earlier_attempt(self, operation: ClientOperation) -> bool:
        """Return whether an earlier attempt with the same key had no answer that settled it (T9).

        Its messages may arrive after the rollback of a later attempt, and it is then executed.
        """
        return operation.idempotency is not None and any(
            other.idempotency == operation.idempotency
            and other.called_ns < operation.called_ns
            and other.outcome == "unknown"
            for other in self.world.history
        )

    def _check_committed(self, operation: ClientOperation, places: list[int]) -> None:
        if operation.space == ASYNC_SPACE and not places:
            self.world.count("asynchronous writes lost after their answer")
            return
        if operation.index <= 0 or operation.index > self.last:
            self._fail(
                operation, f"L3: acknowledged at {operation.index}, the order ends at {self.last}"
            )
        if operation.kind == "delete" and operation.tuples:
            row = self.world.ledger[operation.index]
            if not row[3] or not _same_request(operation, row[2]):
                self._fail(operation, f"L3: another row stands at {operation.index}")
            self._compare(operation, self.answers.get(operation.index))
            return
        if not places and operation.kind in ("delete", "update", "keyed"):
            self._check_not_older(operation)
        if operation.kind == "delete" or (operation.kind in ("update", "keyed") and not places):
            state = self._at(operation.space, operation.key, operation.index)
            if state is not None:
                self._fail(
                    operation, f"T8: it found nothing at {operation.index}, {state} was there"
                )
            return
        if not places:
            self._fail(operation, "L3: an acknowledged write is not in the order")
        if places[0] != operation.index:
            self._fail(
                operation, f"the answer named index {operation.index}, the row is at {places[0]}"
            )
        if operation.kind != "upsert" and operation.tuples:
            self._compare(operation, self.answers.get(operation.index))
        if places[0] <= operation.floor_index and not operation.idempotency:
            self._fail(operation, f"real time: it stands before {operation.floor_index}")

    def _compare(self, operation: ClientOperation, expected: list[Any] | None) -> None:
        if operation.idempotency and not operation.tuples:
            return  # the answer to a retry contains the outcome, not the result
        got = operation.tuples[0] if operation.tuples else None
        if got != expected:
            self._fail(operation, f"the answer was {got}, the order requires {expected}")

    def _check_refused(self, operation: ClientOperation, places: list[int]) -> None:
        if places and not operation.idempotency:
            self._fail(operation, f"T6: refused with {operation.code} and confirmed at {places[0]}")
        if operation.code == DUPLICATE and operation.index:
            self._check_not_older(operation)
            if self._at(operation.space, operation.key, operation.index) is None:
                self._fail(operation, f"T8: a duplicate at {operation.index}, where nothing was")

    def _check_not_older(self, operation: ClientOperation) -> None:
        """Check that a leader elected before the end of a write without effect answered it (R2)."""
        if operation.index < operation.floor_index and not operation.idempotency:
            self._fail(
                operation,
                f"R2: it saw {operation.index}, after an answer at {operation.floor_index}",
            )

    def _check_read(self, operation: ClientOperation) -> None:
        if operation.outcome != "committed":
            return
        first = operation.floor_index if operation.kind == "linearizable" else 0
        got = operation.tuples[0] if operation.tuples else None
        states = self._between(operation.space, operation.key, first, operation.ceiling_index)
        if operation.kind == "linearizable":
            self._check_index(operation)
            self.world.count("linearizable reads checked")
        if got not in states:
            self._fail(operation, f"R1/R2: it read {got}, possible were {states}")

    def _check_index(self, operation: ClientOperation) -> None:
        """Check that a linearizable read names no index before one that was answered (R2)."""
        if operation.index < operation.floor_index:
            self._fail(operation, f"R2: older than an answer at {operation.floor_index}")

    def _check_scan(self, operation: ClientOperation) -> None:
        """Check that a read of a whole space shows the state at one index (R1, R2)."""
        if operation.outcome != "committed":
            return
        is_linearizable = operation.kind == "linearizable scan"
        if is_linearizable:
            self._check_index(operation)
        first = operation.floor_index if is_linearizable else 0
        got = {fields[0]: fields for fields in operation.tuples}
        in_order = sorted(got, reverse=is_linearizable)
        if [fields[0] for fields in operation.tuples] != in_order:
            self._fail(operation, f"R1: it read the keys {[f[0] for f in operation.tuples]}")
        mine = {key: states for (space, key), states in self.versions.items() if space == SPACE}
        state = {key: self._at(SPACE, key, first) for key in mine}
        changes = sorted(
            (at, key, fields)
            for key, states in mine.items()
            for at, fields in states
            if first < at <= operation.ceiling_index
        )
        self.world.count(f"{operation.kind}s checked")
        for _, key, fields in [(first, None, None), *changes]:
            if key is not None:
                state[key] = fields
            if got == {key: fields for key, fields in state.items() if fields is not None}:
                return
        self._fail(operation, f"R1/R2: it read {got}, which was the state at no index")

    # --- transactions -------------------------------------------------------------------------

    def _check_transactions(self) -> None:
        groups: dict[tuple[int, int], list[ClientOperation]] = {}
        for operation in self.world.history:
            if operation.transaction:
                groups.setdefault((operation.client, operation.transaction), []).append(operation)
        attempts: dict[tuple[Any, ...], list[ClientOperation]] = {}
        for operations in groups.values():
            self._check_isolation(operations)
            key = operations[-1].idempotency if operations[-1].kind == "commit" else None
            if key is None and not operations[0].is_repeated:
                self._check_transaction(operations)
            elif key is not None:
                attempts.setdefault(tuple(key), []).append(operations[-1])
                if operations[-1].outcome == "committed" and not operations[-1].is_repeated:
                    self._check_transaction(operations)
        for commits in attempts.values():
            self._check_attempts(commits)

    def _check_attempts(self, commits: "list[ClientOperation]") -> None:
        """Check that all acknowledged attempts of a keyed transaction name one index (T9)."""
        told = {o.index for o in commits if o.outcome == "committed" and o.index <= self.last}
        rows = {index for index in told if self.world.ledger[index][4] in CHANGES}
        if len(rows) > 1:
            self._fail(commits[-1], f"T9: its attempts were answered {sorted(rows)}")
        self.world.count("keyed transactions checked")

    def _check_isolation(self, operations: "list[ClientOperation]") -> None:
        """Check that reads of linearizable transactions before their writes are new enough (R2)."""
        for operation in operations:
            if operation.kind != "select":
                if operation.kind != "begin":
                    return
            elif operation.is_linearizable and operation.outcome == "committed":
                got = operation.tuples[0] if operation.tuples else None
                first, last = operation.floor_index, operation.ceiling_index
                states = self._between(SPACE, operation.key, first, last)
                self.world.count("linearizable reads in transactions checked")
                if got not in states:
                    self._fail(operation, f"R2: it read {got}, possible were {states}")

    def _check_transaction(self, operations: "list[ClientOperation]") -> None:
        commit = operations[-1] if operations[-1].kind == "commit" else None
        writes = [o for o in operations if o.kind in ("replace", "insert", "update")]
        outcome = commit.outcome if commit is not None else "refused"
        if commit is None and operations[-1].outcome in ("", "unknown"):
            # The connection went: the transaction was never asked to commit.
            outcome = "rolled back"
        if outcome in ("refused", "rolled back"):
            for operation in writes:
                if operation.value in self.index_of:
                    self._fail(
                        operation, f"T6: its transaction was {outcome}, its row is confirmed"
                    )
            return
        if outcome == "committed":
            assert commit is not None
            self.world.count("transactions checked")
            self._replay_transaction(operations, commit)

    def _replay_transaction(
        self, operations: "list[ClientOperation]", commit: ClientOperation
    ) -> None:
        """Check that all answers of a transaction hold at its one place in the order (T8)."""
        statements = [o for o in operations if o.kind not in ("begin", "commit")]
        if any(o.outcome != "committed" for o in statements):
            return
        rows = sum(1 for o in statements if o.kind != "select" and o.tuples)
        rows += publishing.ROWS * sum(o.kind == publishing.PUBLISH for o in statements)
        first = commit.index - rows + 1
        own: dict[int, list[Any] | None] = {}
        for operation in statements:
            if operation.kind == publishing.PUBLISH:
                continue
            key = operation.key
            before = own[key] if key in own else self._at(SPACE, key, first - 1)
            expected, after = _run(operation, before)
            got = operation.tuples[0] if operation.tuples else None
            if got != expected:
                self._fail(
                    operation, f"T8: in a transaction at {first} it got {got}, not {expected}"
                )
            own[key] = after

    def _check_keys(self) -> None:
        """Check that a value is written at most once, regardless of its retries (T9)."""
        for operation in self.world.history:
            if len(self.index_of.get(operation.value, [])) > 1:
                self._fail(operation, "T9: it took effect twice")

    def _check_sessions(self) -> None:
        sessions = SessionChecks(self.versions, self.world.base.heartbeat_ns)
        self.world.counters["reads of sessions checked"] += sessions.check(self.world.history)

    def _fail(self, operation: ClientOperation, reason: str) -> None:
        raise InvariantViolation(
            f"{reason}; {operation.kind} {operation.value} key {operation.key} "
            f"at {operation.member}, "
            f"{operation.called_ns / 1e6:.3f} .. {operation.returned_ns / 1e6:.3f} ms, "
            f"answered {operation.outcome} ({operation.code}) index {operation.index} "
            f"{operation.tuples}"
        )


def _value_of(row_type: int, fields: Any) -> str | None:
    """Return the unique value that identifies the writer of a row, or None for a delete."""
    if row_type in (INSERT, REPLACE):
        return str(fields[KEY_TUPLE][1])
    if row_type == UPDATE:
        return str(fields[KEY_TUPLE][0][2])
    if row_type == UPSERT:
        return str(fields[KEY_OPS][0][2])
    return None


def _same_request(operation: ClientOperation, body: bytes) -> bool:
    mine = msgpack.unpackb(operation.body, strict_map_key=False)
    theirs = msgpack.unpackb(body, strict_map_key=False)
    return bool(
        mine.get(KEY_SPACE_ID) == theirs.get(KEY_SPACE_ID)
        and mine.get(KEY_KEY) == theirs.get(KEY_KEY)
        and mine.get(KEY_TUPLE) == theirs.get(KEY_TUPLE)
    )


def _run(operation: ClientOperation, before: list[Any] | None) -> tuple[Any, list[Any] | None]:
    """Return the answer of a statement over the tuple `before`, and the tuple after it."""
    made: list[Any] = [operation.key, operation.value, 0]
    if operation.kind == "select":
        return before, before
    if operation.kind == "delete":
        return before, None
    if operation.kind == "update":
        if before is None:
            return None, None
        after = [before[0], operation.value, before[2] + 1]
        return after, after
    return made, made
