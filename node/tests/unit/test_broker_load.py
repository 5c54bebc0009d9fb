"""A broker with many journals and appends: the work that each of them causes is bounded."""

import pytest

from qsync_broker import events as ev
from qsync_broker.broker import TICK_NS, Broker
from qsync_broker.keyspace import RowChange, Written
from qsync_broker.lease import BrokerConfig
from qsync_broker.pulses import PULSES_MAX
from qsync_broker.requests import Append, Break
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


def refused(effects: list[ev.BrokerEffect]) -> list[tuple[int, str]]:
    """Return numbers and errors of the appends that have ended."""
    return [(one.number, one.result.error) for one in effects if isinstance(one, ev.FinishAppend)]


def test_append_beyond_the_maximum_is_refused_until_another_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each append takes memory, and each tick examines all of them."""
    monkeypatch.setattr("qsync_broker.broker.APPENDS_MAX", 3)
    broker = Broker(BrokerConfig(ME, "http://me", "me:1", "process"))
    effects = broker.step(1, 0, [ev.Watched(1, [], True)])
    (renewal,) = [one for one in effects if isinstance(one, ev.Transact)]
    rows = [Written(space_of(row), encode_row(row)) for row in renewal.change.written]
    broker.step(2, 0, [ev.Watched(2, list(rows)), ev.Transacted(renewal.token, True)])
    later = Append("a/journal", min_revision=1 << 60)
    begun = [ev.AppendBegun(number, later, 1 << 62) for number in range(1, 5)]
    error = "the broker has 3 appends under way; retry later"
    assert refused(broker.step(3, 0, begun)) == [(4, error)]
    broken = ev.AppendReceived(1, Break("the client broke off"))
    assert refused(broker.step(4, 0, [broken])) == [(1, "the client broke off")]
    assert refused(broker.step(5, 0, [begun[0]])) == []
