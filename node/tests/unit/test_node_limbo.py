"""The limbo compared with a list of rows: confirmation, removal, truncation, vclocks, members."""

from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.decisions import Decision
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.consensus.entries import (
    Entry,
    EntryKind,
    configuration_after,
    control_body,
    read_entries,
)
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.membership import ClusterMember, Configuration, delete_member, put_member
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import Type
from qsync_node.transactions.builds import Builds

SECOND = 1_000_000_000


def user_entry(first: int, transactions: list[int], replica_id: int, lsn: int) -> Entry:
    """Return one batch of transactions; each number is a transaction's count of rows."""
    body = msgpack.packb({Key.SPACE_ID: 512, Key.TUPLE: [1]})
    rows = [[(3, body, None)] * count for count in transactions]
    data, count = encode_transactions(rows, replica_id, lsn + 1, 1.0, 6)
    entry = Entry(LogBatch(first, first + count - 1, replica_id, lsn + count, data), 1)
    entry.is_own = True
    return entry


def decision_entry(index: int, first_removed: int, replica_id: int, lsn: int) -> Entry:
    body = control_body(1, replica_id, 0, first_removed, 1)
    data, _ = encode_transactions(
        [[(int(Type.RAFT_ROLLBACK), body, None)]], replica_id, lsn + 1, 1.0, 0
    )
    batch = LogBatch(index, index, replica_id, lsn + 1, data)
    return read_entries(batch, 1)[0]


def member_entry(index: int, rows: list[tuple[int, bytes]], lsn: int) -> Entry:
    data, count = encode_transactions([[(t, b, None) for t, b in rows]], 1, lsn + 1, 1.0, 6)
    batch = LogBatch(index, index + count - 1, 1, lsn + count, data)
    entry = read_entries(batch, 1)[0]
    assert entry.kind is EntryKind.MEMBERSHIP
    return entry


class LimboMachine(RuleBasedStateMachine):
    """A log of one owner, with ROLLBACKs, that is confirmed and truncated at random places."""

    @initialize()
    def begin(self) -> None:
        self.limbo = Limbo(0, {}, Configuration())
        self.ends: list[int] = []  # last indexes of transactions in the limbo
        self.decisions: list[Decision] = []
        self.last = 0
        self.confirmed = 0
        self.taken: set[int] = set()
        self.removed: set[int] = set()

    @rule(transactions=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def write(self, transactions: list[int]) -> None:
        self.limbo.append(user_entry(self.last + 1, transactions, 1, self.last))
        for count in transactions:
            self.last += count
            self.ends.append(self.last)

    @precondition(lambda self: self.last > self.confirmed)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        starts = [self.confirmed + 1, *[end + 1 for end in self.ends if end < self.last]]
        first = data.draw(st.sampled_from(starts))
        self.limbo.append(decision_entry(self.last + 1, first, 1, self.last))
        self.last += 1
        self.ends.append(self.last)
        self.decisions.append(Decision(first, self.last))

    def covered(self, up_to: int) -> set[int]:
        removed: set[int] = set()
        for decision in reversed([d for d in self.decisions if d.at <= up_to]):
            if decision.at not in removed:
                removed.update(range(decision.first, decision.at))
        return removed

    @precondition(lambda self: self.last > self.confirmed)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        index = self.limbo.clamp(data.draw(st.sampled_from(self.ends)))
        if index <= self.confirmed:
            return
        covered = self.covered(index)
        taken, removed = self.limbo.confirm(index)
        for entries, seen in ((taken, self.taken), (removed, self.removed)):
            for entry in entries:
                seen.update(range(entry.batch.first_index, entry.batch.last_index + 1))
        step = set(range(self.confirmed + 1, index + 1))
        assert self.removed & step == covered & step
        assert self.taken & step == step - covered
        self.confirmed = index
        self.ends = [end for end in self.ends if end > index]
        self.decisions = [d for d in self.decisions if d.at > index]

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from([self.confirmed, *self.ends]))
        self.limbo.cut(index)
        self.last = index
        self.ends = [end for end in self.ends if end <= index]
        self.decisions = [d for d in self.decisions if d.at <= index]

    @invariant()
    def agrees(self) -> None:
        limbo = self.limbo
        assert limbo.last_index == self.last
        assert limbo.confirmed_index == self.confirmed
        assert sum(limbo.confirmed_vclock.values()) == self.confirmed
        assert sum(limbo.vclock_at(self.last).values()) == self.last
        assert limbo.bytes == sum(len(entry.batch.data) for entry in limbo.entries)
        assert not self.taken & self.removed
        assert self.taken | self.removed == set(range(1, self.confirmed + 1))
        index = self.confirmed + 1
        for entry in limbo.entries:
            assert entry.batch.first_index == index
            index = entry.batch.last_index + 1


TestLimbo = LimboMachine.TestCase
TestLimbo.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_confirmed_rows_are_never_cut_covered_or_confirmed_again() -> None:
    limbo = Limbo(0, {}, Configuration())
    limbo.append(user_entry(1, [1, 1], 1, 0))
    limbo.confirm(1)
    with pytest.raises(AssertionError, match="B3"):
        limbo.cut(0)
    with pytest.raises(AssertionError, match="B2"):
        limbo.confirm(1)
    with pytest.raises(AssertionError, match="B3"):
        limbo.append(decision_entry(3, 1, 1, 2))


def test_the_confirmed_index_passes_a_decision_in_one_step() -> None:
    limbo = Limbo(0, {}, Configuration())
    for index in (1, 2):
        limbo.append(user_entry(index, [1], 1, index - 1))
    limbo.append(decision_entry(3, 2, 1, 2))
    assert limbo.clamp(2) == 1
    assert limbo.clamp(3) == 3
    with pytest.raises(AssertionError, match="T5"):
        limbo.confirm(2)
    taken, removed = limbo.confirm(3)
    assert [entry.batch.first_index for entry in taken] == [1, 3]
    assert [entry.batch.first_index for entry in removed] == [2]
    assert limbo.rolled_back_rows == 1


def test_written_rollback_restores_previous_configuration(configuration: Configuration) -> None:
    limbo = Limbo(0, {}, configuration)
    second = ClusterMember(2, "b", "n2", "voter", True)
    limbo.append(member_entry(1, [put_member(second)], 0))
    assert [m.uuid for m in limbo.configuration.voters] == ["a", "b"]
    limbo.append(decision_entry(2, 1, 1, 1))
    assert limbo.configuration == configuration  # applies when written, not when confirmed
    assert limbo.has_pending_membership  # the next change waits for the decision
    limbo.confirm(2)
    assert limbo.configuration == limbo.confirmed_configuration == configuration
    assert not limbo.has_pending_membership


def test_covered_rollback_brings_membership_row_back(configuration: Configuration) -> None:
    limbo = Limbo(0, {}, configuration)
    second = ClusterMember(2, "b", "n2", "voter", True)
    limbo.append(member_entry(1, [put_member(second)], 0))
    wider = limbo.configuration
    limbo.append(decision_entry(2, 1, 1, 1))
    limbo.append(decision_entry(3, 2, 1, 2))  # covers the first ROLLBACK
    assert limbo.configuration == wider
    limbo.cut(2)
    assert limbo.configuration == configuration
    limbo.cut(1)
    assert limbo.configuration == wider


def test_a_cut_restores_the_configuration_before(configuration: Configuration) -> None:
    limbo = Limbo(0, {}, configuration)
    second = ClusterMember(2, "b", "n2", "voter", True)
    limbo.append(member_entry(1, [put_member(second)], 0))
    limbo.confirm(1)
    wider = limbo.configuration
    limbo.append(member_entry(2, delete_member(second), 1))
    assert "b" in limbo.configuration.removed
    limbo.cut(1)
    assert limbo.configuration == wider == limbo.confirmed_configuration


def test_a_freed_id_is_given_again(configuration: Configuration) -> None:
    second = ClusterMember(2, "b", "n2", "voter", True)
    wider = configuration.with_member(second)
    assert (configuration.free_id(), wider.free_id()) == (2, 3)
    rows = member_entry(1, delete_member(second), 0).rows
    left = configuration_after(rows, wider)
    assert left.free_id() == 2
    assert left.removed == {"b"}


def test_only_own_written_waiting_entries_time_out() -> None:
    limbo = Limbo(0, {}, Configuration())
    inherited, waiting, second = (user_entry(i, [1], 1, i - 1) for i in (1, 2, 3))
    inherited.is_own = False
    for entry in (inherited, waiting, second):
        limbo.append(entry)
    assert limbo.first_timed_out(99 * SECOND, SECOND, 0) is None  # not written yet
    inherited.written_at = waiting.written_at = second.written_at = 10 * SECOND
    assert limbo.first_timed_out(11 * SECOND, SECOND, 0) is waiting
    assert limbo.first_timed_out(11 * SECOND - 1, SECOND, 0) is None
    assert limbo.first_timed_out(11 * SECOND, SECOND, 11 * SECOND) is None
    limbo.append(decision_entry(4, 2, 1, 3))
    assert limbo.first_timed_out(99 * SECOND, SECOND, 0) is None  # a ROLLBACK covers them


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.data())
def test_a_batch_is_split_between_transactions_only(
    transactions: list[int], data: st.DataObject
) -> None:
    limbo = Limbo(0, {}, Configuration())
    limbo.append(user_entry(1, transactions, 1, 0))
    ends = [sum(transactions[: n + 1]) for n in range(len(transactions))]
    index = data.draw(st.integers(1, ends[-1]))
    if index in ends:
        taken, _ = limbo.confirm(index)
        assert sum(len(entry.rows) for entry in taken) == index
    else:
        with pytest.raises((AssertionError, ValueError)):
            limbo.confirm(index)


@pytest.fixture(name="configuration")
def _configuration() -> Configuration:
    return Configuration((ClusterMember(1, "a", "n1", "voter", True),))


def test_schema_change_inside_a_decision_without_effect_is_confirmed_with_it() -> None:
    limbo = Limbo(0, {}, Configuration(()))
    limbo.append(user_entry(1, [1], 1, 0))
    body = msgpack.packb({Key.SPACE_ID: SystemSpace.INDEX, Key.TUPLE: [512, 1]})
    data, _ = encode_transactions([[(int(Type.INSERT), body, None)]], 1, 2, 1.0, 6)
    limbo.append(Entry(LogBatch(2, 2, 1, 2, data), 1))
    limbo.append(decision_entry(3, 1, 1, 2))
    limbo.append(decision_entry(4, 3, 1, 3))
    assert limbo.decisions == [Decision(1, 3), Decision(3, 4)]
    stub: Any = SimpleNamespace(
        context=SimpleNamespace(limbo=limbo), repair=SimpleNamespace(is_state_wrong=False)
    )
    index = Builds.limit(stub, limbo.step_towards(4, 1))
    taken, removed = limbo.confirm(index)
    assert index == 4
    assert [entry.batch.last_index for entry in taken] == [1, 2, 4]
    assert [entry.batch.last_index for entry in removed] == [3]
