"""Leases of brokers: the leader removes the row of a broker that no longer renews it.

Theory. A broker renews its lease by replacing its row in `_qsync_broker`
(docs/journals-protocol.md). Only the leader measures the time since the last renewal, with its own
monotonic clock, and it removes an expired row by a DELETE in the log. A lease therefore ends at one
index, which is the same for every watcher. An assignment is in force only while the row of its
broker exists, so one row ends all of a broker's assignments at once.

A new leader does not know when each lease was last renewed. It grants every lease a full period,
which begins when it sees the row for the first time. The DELETE runs like a client's statement,
over the pending state, and only if no renewal is pending. It never outlives the leadership in which
it was decided.

A step looks at `POLL_MAX` rows, so that the number of rows does not determine its duration (G1).

Invariants

  B1  A row is removed only by a leader that has known the same renewal for the whole lease.
"""

from itertools import islice
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.engine.fields import decode
from qsync_node.engine.index import EVERYTHING, TreeIndex, range_after
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, decode_row
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack
from qsync_node.transactions.calls import NODE_SESSION, Call
from qsync_node.transactions.shared import Shared

POLL_NS = 100_000_000
"""Interval between two polls; a lease ends at most this much too late."""
POLL_MAX = 64


class _Lease:
    """A renewal that this leader knows, since when, and the statement that removes its row."""

    __slots__ = ("call", "renewal", "since_ns")

    def __init__(self, renewal: tuple[str, int], since_ns: int) -> None:
        self.renewal = renewal
        self.since_ns = since_ns
        self.call: Call | None = None


class Leases:
    """The leases that this member has observed as the leader."""

    def __init__(self, shared: Shared) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.state = shared.state
        self.queue = shared.queue
        self._leases: dict[BrokerId, _Lease] = {}
        self._seen: dict[BrokerId, _Lease] = {}  # in the current pass over the rows
        self._after: Any = None  # entry key at which the next poll continues
        self._poll_at_ns = 0

    def tick(self) -> None:
        """Observe the next rows, and remove those whose lease has expired."""
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None or not leader.is_confirmed or context.now_ns < self._poll_at_ns:
            return
        self._poll_at_ns = context.now_ns + POLL_NS
        space = self.state.database.find_space(BROKER_SPACE)
        index = space.indexes.get(0) if space is not None else None
        if not isinstance(index, TreeIndex):
            return  # journals are not enabled
        bounds = EVERYTHING if self._after is None else range_after(EVERYTHING, self._after)
        rows = list(islice(index.scan(bounds), POLL_MAX))
        for key, packed in rows:
            self._observe(key, packed)
        if len(rows) == POLL_MAX:
            self._after = rows[-1][0]
            return
        self._after = None
        self._leases, self._seen = self._seen, {}

    def _observe(self, key: object, packed: bytes) -> None:
        try:
            row = decode_row(BROKER_SPACE, decode(packed))
        except ValueError:
            return  # not written by a broker
        assert isinstance(row, BrokerRow)
        now_ns = self.context.now_ns
        renewal = row.process, row.renewals
        lease = self._leases.get(row.id)
        if lease is None or lease.renewal != renewal:
            lease = _Lease(renewal, now_ns)
        self._seen[row.id] = lease
        if now_ns - lease.since_ns >= row.lease_ms * 1_000_000:
            self._expire(lease, row, key, packed)

    def _expire(self, lease: _Lease, row: BrokerRow, key: object, packed: bytes) -> None:
        pending = self.state.pending
        space = pending.find_space(BROKER_SPACE) if pending is not None else None
        index = space.indexes.get(0) if space is not None else None
        if index is None or index.get(key) != packed:
            return  # a renewal, or a removal of the row or its space, is not confirmed yet
        assert self.context.now_ns >= lease.since_ns, "B1: a lease is measured forward"
        if lease.call is None:
            self.context.report("lease_expired", zone=row.id.zone, broker=row.id.suffix)
        elif not lease.call.is_done:
            return
        body = pack({int(Key.SPACE_ID): BROKER_SPACE, int(Key.KEY): row.key})
        request = fx.Request(NODE_SESSION, 0, int(Type.DELETE), body, 0, "admin", None)
        lease.call = Call(request, self.context.now_ns)
        # Nothing that could renew the lease may run between the check and the removal.
        self.queue.appendleft(lease.call)

    def on_leadership_lost(self) -> None:
        """Forget all observations: the next leader grants every lease a full period."""
        self._leases.clear()
        self._seen.clear()
        self._after = None
        self._poll_at_ns = 0
