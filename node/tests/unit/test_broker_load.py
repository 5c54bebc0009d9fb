"""A broker with many journals: work that no client waits for is bounded."""

from qsync_broker import events as ev
from qsync_broker.broker import TICK_NS, Broker
from qsync_broker.keyspace import RowChange, Written
from qsync_broker.lease import BrokerConfig
from qsync_broker.pulses import PULSES_MAX
from qsync_node.format.journals import (
    NO_ROUTE,
    AssignmentRow,
    BrokerId,
    JournalRow,
    encode_row,
    space_of,
)

ME = BrokerId("a", "me")
JOURNALS = 1000


def changes() -> list[RowChange]:
    """Return the rows of journals of which the broker is the only member."""
    rows: list[JournalRow | AssignmentRow] = []
    for number in range(JOURNALS):
        name = f"j/{number}"
        rows.append(JournalRow(name, {"replication": 1}, 0, 0, 0, 0, NO_ROUTE, 1, 1))
        rows.append(AssignmentRow(name, ME, 0, 1, 1))
    return [Written(space_of(row), encode_row(row)) for row in rows]


def test_pulses_are_few_at_a_time() -> None:
    broker = Broker(BrokerConfig(ME, "http://me", "me:1", "process"))
    now_ns, revision = 1, 1
    inputs: list[ev.BrokerEvent] = [ev.Watched(revision, changes(), True)]
    for _ in range(200):
        effects = broker.step(now_ns, 0, inputs)
        now_ns, revision, inputs = now_ns + TICK_NS, revision + 1, []
        stored = [one.token for one in effects if isinstance(one, ev.StoreOperations)]
        if stored:
            inputs.append(ev.OperationsStored(max(stored)))
        under_way = [one for one in effects if isinstance(one, ev.Transact)]
        journals = [one for one in under_way if isinstance(one.change.written[0], JournalRow)]
        assert len(journals) <= PULSES_MAX
        for transact in under_way:
            rows = [Written(space_of(row), encode_row(row)) for row in transact.change.written]
            inputs += [ev.Watched(revision, list(rows)), ev.Transacted(transact.token, True)]
    epochs = [row.epoch for row in broker.keys.journals.values()]
    assert sum(epoch > 0 for epoch in epochs) > JOURNALS // 2
