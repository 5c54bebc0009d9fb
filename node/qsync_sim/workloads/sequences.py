"""Sequences: values for a primary key, and changes of the sequence itself.

A value is drawn at the place of its row in the log, so the order of confirmed rows determines each
value. Rolled back rows use none.
"""

from typing import Any

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_INDEX_ID,
    KEY_SPACE_ID,
    KEY_TUPLE,
    REPLACE,
    SELECT,
    UPDATE,
)
from qsync_sim.workloads.base import Script, Workload, WorkloadRequest, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES, LINEARIZABLE, check_read
from qsync_sim.workloads.order import SEQUENCE_DATA, SEQUENCES, SPACE_SEQUENCES, ConfirmedOrder
from qsync_sim.workloads.table import DUPLICATE, GE, TableResult

SPACE = SEQUENCE = 620
GREATEST = 60
DRAWS, CHANGES = 22, 12
BEAT_MS = 100
OVERFLOW = 147


class Sequences(Workload):
    """Draws from a sequence, and sets, resets and alters it."""

    name = "sequences"
    number = 4

    def set_up(self) -> None:
        """Create a space whose primary key a sequence fills."""
        is_cyclic = self.rng.random() < 0.3
        world = self.world
        world.insert(SystemSpace.SPACE, [SPACE, 1, f"s{SPACE}", "memtx", 0, {}, []])
        world.insert(SystemSpace.INDEX, [SPACE, 0, "key", "tree", {}, [[0, "unsigned"]]])
        world.insert(SEQUENCES, [SEQUENCE, 1, "numbers", 1, 1, GREATEST, 1, 0, is_cyclic])
        world.insert(SPACE_SEQUENCES, [SPACE, SEQUENCE, False, 0, ""])

    def scripts(self) -> list[Script]:
        return [self._draw(), self._draw(), self._change()]

    # --- requests -----------------------------------------------------------------------------

    def _draw(self) -> Script:
        rng = self.rng
        for _ in range(DRAWS):
            if rng.random() < 0.7:
                yield self.until_beat(BEAT_MS)
            tag = self.new_tag()
            key = None if rng.random() < 0.8 else rng.randrange(1, GREATEST)
            kind = INSERT if rng.random() < 0.8 else REPLACE
            body = body_of(space=SPACE, tuple=[key, tag])
            yield self.sent(WorkloadRequest("draw" if key is None else "put", kind, body, tag))

    def _change(self) -> Script:
        rng = self.rng
        for _ in range(CHANGES):
            yield rng.choice([0, 100, 500])
            kind = rng.choice(["set", "set", "reset", "alter", "delete", "delete", "read", "read"])
            key = [SEQUENCE]
            if kind == "set":
                body = body_of(space=SEQUENCE_DATA, tuple=[SEQUENCE, rng.randrange(1, GREATEST)])
                request = WorkloadRequest(kind, REPLACE, body)
            elif kind == "reset":
                request = WorkloadRequest(
                    kind, DELETE, body_of(space=SEQUENCE_DATA, index=0, key=key)
                )
            elif kind == "alter":
                ops = [["=", 3, rng.choice([1, 2, 3])]]
                body = body_of(space=SEQUENCES, index=0, key=key, tuple=ops)
                request = WorkloadRequest(kind, UPDATE, body)
            elif kind == "delete":
                body = body_of(space=SPACE, index=0, key=[rng.randrange(1, GREATEST)])
                request = WorkloadRequest(kind, DELETE, body)
            else:
                space = rng.choice([SEQUENCE_DATA, SPACE])
                body = body_of(
                    space=space, key=key if space == SEQUENCE_DATA else [], limit=100,
                    iterator=0 if space == SEQUENCE_DATA else GE,
                    isolation=rng.choice([0, LINEARIZABLE]),
                )  # fmt: skip
                request = WorkloadRequest(kind, SELECT, body)
            yield self.sent(request)

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check every value that was drawn, and the reads (T6, T8, R1, R2)."""
        for request in self.requests:
            if request.kind == "read":
                check_read(self, order, request)
            else:
                self._check_write(order, request)

    def _check_write(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        places = order.places.get(request.tag, []) if request.tag else []
        if len(places) > 1:
            self.fail(request, f"T9: its row was confirmed at {places}")
        if request.outcome in ("rolled back", "refused") and places:
            self.fail(request, f"T6: it is in the order at {places[0]}")
        if request.outcome not in ("committed", "refused") or request.code in CIRCUMSTANCES:
            return
        if request.tag and request.outcome == "committed" and places != [request.index]:
            self.fail(request, f"L3: its row is at {places}")
        if request.index < request.floor_index:
            self.fail(request, f"R2: older than an answer at {request.floor_index}")
        row = order.rows.get(request.index)
        # A DELETE that has found nothing may name the index of an equal one before it.
        has_effect = request.type != DELETE or bool(request.tuples)
        is_logged = bool(places) or (
            row is not None and not request.tag and has_effect
            and (row.type, row.fields) == (request.type, self._logged(request))
        )  # fmt: skip
        expected = self._expected(order, request.index - is_logged, request)
        if (expected.code, expected.tuples) != (request.code, request.tuples):
            self.fail(request, f"T8: the order requires {expected[:2]}")
        # A REPLACE by the same tuple has a row, too.
        has_row = expected.is_change or request.type == REPLACE
        if request.outcome == "committed" and has_row != is_logged:
            self.fail(request, f"L3: another row is at {request.index}")
        what = "overflows" if request.code == OVERFLOW else request.kind
        self.world.count(f"sequences: {what} checked")

    @staticmethod
    def _logged(request: WorkloadRequest) -> dict[int, Any]:
        """Return the body of a row as it is in the log, without the number of the index."""
        return {key: value for key, value in request.fields.items() if key != KEY_INDEX_ID}

    @staticmethod
    def _expected(order: ConfirmedOrder, at: int, request: WorkloadRequest) -> TableResult:
        """Return the result of a write over the state after the row at `at`."""
        fields = request.fields
        table = order.at(fields[KEY_SPACE_ID], at)
        if request.kind != "draw":
            return table.execute(request.type, fields)
        value = order.next_value(SEQUENCE, at)
        if value is None:
            return TableResult(OVERFLOW, [])
        made = [value, fields[KEY_TUPLE][1]]
        if (value,) in table.rows and request.type == INSERT:
            return TableResult(DUPLICATE, [])
        return TableResult(0, [made], table.rows.get((value,)), made)
