"""The order in which one client sees the states of a member and the effects of its own writes.

An answer of a default read names no index, so this check derives the first index at which the
answer was the state. Each session is a connection to one process run of one member.

  R1   The confirmed index of a process run only rises. The reads of a session, default and
       linearizable ones, therefore never show an older state than an earlier read of the session.
  T10  A member answers a forwarded write when its own confirmed index covers it. A later default
       read of the session shows the write. A member that lags answers after
       `COVER_DEADLINE_HEARTBEATS` nevertheless: after an answer that took that long by the fastest
       clock (`CLOCK_RATE_MAX`), nothing is required.
  R2   A linearizable read is as new as every answer that any client received before it began
       (guarantee 3), also as those of default reads.

The protocol promises none of this across connections: a process that restarts, or another member,
may show an older state. Neither is anything promised for spaces with `isSync: false`, for reads of
pending rows and for reads in transactions, whose answers do not depend on the member's state.
"""

from bisect import bisect_left
from typing import Any

from qsync_node.transactions.forwarding import COVER_DEADLINE_HEARTBEATS
from qsync_sim.model import SPACE
from qsync_sim.operation import ClientOperation
from qsync_sim.violation import InvariantViolation

CLOCK_RATE_MAX = 1.3
"""The fastest clock of a member (faults.clock)."""
WRITES = frozenset({"insert", "replace", "update", "delete", "upsert", "keyed", "commit"})
SCANS = frozenset({"scan", "linearizable scan"})
READS = frozenset({"select", "linearizable"}) | SCANS

RowVersions = dict[tuple[int, int], list[tuple[int, list[Any] | None]]]


class SessionChecks:
    """Checks the sessions of all clients of one schedule."""

    def __init__(self, versions: RowVersions, heartbeat_ns: int) -> None:
        """Prepare the states of each key.

        Args:
            versions: by space and key, the states with the index of each, oldest first.
            heartbeat_ns: heartbeat interval of the members.
        """
        self._states = {key: states for (space, key), states in versions.items() if space == SPACE}
        self._starts = {key: [at for at, _ in states] for key, states in self._states.items()}
        self._covered_ns = COVER_DEADLINE_HEARTBEATS * heartbeat_ns / CLOCK_RATE_MAX
        self._read: dict[int, int] = {}  # index that each session has seen in a read
        self._written: dict[int, int] = {}  # index of the newest write that it must see
        self._ends: list[int] = []  # times of answers to default reads, in order
        self._seen: list[int] = []  # the greatest index that they had shown until then

    def check(self, history: "list[ClientOperation]") -> int:
        """Check all sessions.

        Returns:
            The number of reads that had to be as new as something before them.

        Raises:
            Violation: a read shows an older state than it must.
        """
        checked = 0
        for operation in sorted(history, key=lambda one: one.returned_ns):
            if operation.outcome != "committed" or operation.space != SPACE:
                continue
            is_single = not operation.transaction or operation.kind == "commit"
            if operation.kind in WRITES and is_single:
                self._on_write(operation)
            elif operation.kind in READS and not operation.transaction:
                checked += self._check_read(operation)
        return checked

    def _on_write(self, operation: ClientOperation) -> None:
        waited_ns = operation.returned_ns - operation.called_ns
        if waited_ns < self._covered_ns:
            session = operation.session
            self._written[session] = max(self._written.get(session, 0), operation.index)

    def _check_read(self, operation: ClientOperation) -> int:
        session = operation.session
        read, written = self._read.get(session, 0), self._written.get(session, 0)
        floors = [(read, "R1: an earlier read of the session"), (written, "T10: its own write")]
        is_linearizable = operation.kind.startswith("linearizable")
        if is_linearizable:
            before = bisect_left(self._ends, operation.called_ns)
            seen = self._seen[before - 1] if before else 0
            floors.append((seen, "R2: an answer before"))
        floor, reason = max(floors)
        index = self._first_at(operation, floor)
        if index > operation.ceiling_index:
            raise InvariantViolation(
                f"{reason} showed the state at {floor}, but not {operation.kind} {operation.value} "
                f"key {operation.key} of session {session} at {operation.member}, "
                f"{operation.called_ns / 1e6:.3f} .. {operation.returned_ns / 1e6:.3f} ms: "
                f"{operation.tuples}"
            )
        self._read[session] = index
        if not is_linearizable:
            last = self._seen[-1] if self._seen else 0
            self._ends.append(operation.returned_ns)
            self._seen.append(max(last, index))
        return bool(floor)

    def _first_at(self, operation: ClientOperation, floor: int) -> int:
        """Return the first index from `floor` on at which the answer was the state."""
        if operation.kind not in SCANS:
            got = operation.tuples[0] if operation.tuples else None
            return self._first_of_key(operation.key, got, floor)
        by_key = {fields[0]: fields for fields in operation.tuples}
        index = before = floor
        while True:
            for key in self._states:
                index = self._first_of_key(key, by_key.get(key), index)
            if index == before:
                return index
            before = index

    def _first_of_key(self, key: int, got: list[Any] | None, floor: int) -> int:
        """Return the first index from `floor` on at which `key` had this tuple."""
        states = self._states.get(key)
        if states is None:
            return floor if got is None else NEVER
        position = max(0, bisect_left(self._starts[key], floor + 1) - 1)
        for at, state in states[position:]:
            if state == got:
                return max(at, floor)
        return NEVER


NEVER = 1 << 62
"""An index that no row has."""
