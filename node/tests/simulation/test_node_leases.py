"""Leases of brokers: the leader removes a row that is no longer renewed."""

from typing import Any

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import (
    BROKER_SPACE,
    BrokerId,
    BrokerRow,
    definitions,
    encode_row,
)
from qsync_node.transactions.leases import POLL_MAX, POLL_NS
from qsync_sim.clients import build_body
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    SELECT,
    Driven,
    node_of,
    put,
    without_acks,
)

_INDEX = 288
LEASE_MS = 3_000
POLL_MS = POLL_NS // 1_000_000
A, B = BrokerId("z", "broker-a"), BrokerId("z", "broker-b")


def row(broker: BrokerId, renewals: int = 0, lease_ms: int = LEASE_MS) -> bytes:
    fields = BrokerRow(broker, "http://a:1", "a:2", 8, False, lease_ms, "process", renewals, 1, 1)
    return build_body(BROKER_SPACE, tuple=encode_row(fields))


def enabled(voters: int = 3, **settings: Any) -> Driven:
    driven = Driven(voters, **settings)
    for space, fields in definitions():
        assert driven.ask(driven.leader(), INSERT, build_body(space, tuple=fields)).code == 0
    return driven


def renew(driven: Driven, broker: BrokerId, renewals: int = 0) -> None:
    assert driven.ask(driven.leader(), REPLACE, row(broker, renewals)).code == 0


def brokers(driven: Driven, shell: Shell | None = None) -> list[str]:
    asked = build_body(BROKER_SPACE, index=0, key=[], limit=1000, iterator=2)
    answer = driven.ask(shell or driven.leader(), SELECT, asked)
    assert answer.code == 0
    return [name for name in ("broker-a", "broker-b") if name.encode() in b"".join(answer.tuples)]


def test_only_the_broker_that_stopped_renewing_is_removed() -> None:
    driven = enabled()
    renew(driven, A)
    for renewals in range(8):
        renew(driven, B, renewals)
        driven.run(LEASE_MS / 4)
    assert brokers(driven) == ["broker-b"]
    for shell in driven.followers():
        assert brokers(driven, shell) == ["broker-b"]


def test_lease_lasts_its_whole_time_and_little_longer() -> None:
    driven = enabled()
    renew(driven, A)
    driven.run(LEASE_MS - 100)
    assert brokers(driven) == ["broker-a"]
    driven.run(2 * POLL_MS + 200)
    assert brokers(driven) == []


def test_new_leader_grants_a_full_period() -> None:
    driven = enabled()
    renew(driven, A)
    former = driven.leader()
    driven.run(LEASE_MS - 500)
    former.stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() not in (None, former))
    driven.run(LEASE_MS - 300)
    assert brokers(driven) == ["broker-a"]
    driven.run(1_000)
    assert brokers(driven) == []


def test_leader_that_leads_again_does_not_count_its_former_time() -> None:
    driven = enabled()
    renew(driven, A)
    first, second = driven.leader(), driven.followers()[0]
    driven.run(LEASE_MS - 500)
    for target in (second, first):
        driven.world.command(driven.leader(), "switchover", target=target.uuid)
        assert driven.run(5_000, lambda: is_leading(target))  # noqa: B023
    driven.run(LEASE_MS - 300)
    assert brokers(driven) == ["broker-a"]
    driven.run(1_000)
    assert brokers(driven) == []


def is_leading(shell: Shell) -> bool:
    leader = node_of(shell).replica.leader
    return leader is not None and leader.is_confirmed


def test_renewal_that_is_not_confirmed_yet_keeps_the_row() -> None:
    driven = enabled(synchro_timeout_ns=60_000_000_000, request_timeout_ns=60_000_000_000)
    leader = driven.leader()
    renew(driven, A)
    driven.run(LEASE_MS - 200)
    with without_acks(leader):
        asked = driven.send(leader, REPLACE, row(A, 1))
        driven.run(2_000)
        assert asked not in driven.answers
    driven.run(500)
    assert driven.answers[asked].code == 0
    assert brokers(driven) == ["broker-a"]


def test_removal_that_was_refused_is_tried_again() -> None:
    driven = enabled(voters=1)
    renew(driven, A)
    leader = driven.leader()
    leader.step([fx.SpaceLow(True)])
    driven.run(LEASE_MS + 500)
    assert brokers(driven) == ["broker-a"]
    assert driven.world.counters["event lease_expired"] == 1, "its removal was refused"
    leader.step([fx.SpaceLow(False)])
    driven.run(2 * POLL_MS + 200)
    assert brokers(driven) == []


def test_lease_that_ends_while_the_index_is_being_dropped_is_left_alone() -> None:
    driven = enabled(synchro_timeout_ns=60_000_000_000, request_timeout_ns=60_000_000_000)
    leader = driven.leader()
    renew(driven, A)
    driven.run(LEASE_MS - 200)
    with without_acks(leader):
        asked = driven.send(leader, DELETE, build_body(_INDEX, index=0, key=[BROKER_SPACE, 0]))
        driven.run(2_000)
        assert asked not in driven.answers
    driven.run(500)
    assert driven.answers[asked].code == 0
    assert driven.leader() is leader


def test_removal_ends_with_the_leadership_that_decided_it() -> None:
    driven = enabled()
    renew(driven, A)
    former = driven.leader()
    node = node_of(former)
    limits = node.clients._can_execute
    node.clients._can_execute = lambda: False  # type: ignore[method-assign]  # requests wait
    assert driven.run(LEASE_MS + 500, lambda: bool(node.clients.queue))
    for follower in driven.followers():
        driven.mute(former, follower)
        driven.mute(follower, former)
    assert driven.run(10_000, lambda: node.replica.leader is None)
    node.clients._can_execute = limits  # type: ignore[method-assign]  # restored
    assert not node.clients.queue


def test_look_handles_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = enabled()
    leader = driven.leader()
    many = 2 * POLL_MAX + 5
    for number in range(many):
        one = row(BrokerId("z", f"broker-{number:04}"))
        assert driven.ask(leader, REPLACE, one).code == 0
    observed: list[int] = []
    leases = node_of(leader).leases
    observe, tick = leases._observe, leases.tick

    def counted_tick() -> None:
        observed.append(0)
        tick()

    def counted(key: object, packed: bytes) -> None:
        observed[-1] += 1
        observe(key, packed)

    monkeypatch.setattr(leases, "_observe", counted, raising=False)
    monkeypatch.setattr(leases, "tick", counted_tick, raising=False)
    driven.run(LEASE_MS + 2_000)
    assert max(observed) == POLL_MAX
    everything = build_body(BROKER_SPACE, index=0, key=[], limit=many, iterator=2)
    assert driven.ask(leader, SELECT, everything).tuples == []


def test_foreign_tuple_is_left_alone() -> None:
    driven = enabled()
    leader = driven.leader()
    fields = encode_row(BrokerRow(A, "", "", 1, False, 0, "", 0, 1, 1))
    assert driven.ask(leader, REPLACE, build_body(BROKER_SPACE, tuple=[*fields, "more"])).code == 0
    driven.run(1_000)
    assert brokers(driven) == ["broker-a"]


def test_rows_of_brokers_delay_no_other_write() -> None:
    driven = enabled()
    leader = driven.leader()
    renew(driven, A)
    node = node_of(leader)
    driven.send(leader, REPLACE, put(1, "x"))
    driven.send(leader, REPLACE, row(A, 1))
    before = node.state.ddl_barrier
    driven.run(200)
    assert node.state.ddl_barrier == before


def test_transaction_compares_and_changes_rows_of_the_key_space() -> None:
    driven = enabled()
    leader = driven.leader()
    renew(driven, A)
    asked = build_body(BROKER_SPACE, index=0, key=list(A), limit=1, iterator=0)
    for stream in (1, 2):
        assert driven.ask(leader, BEGIN, stream=stream).code == 0
        assert len(driven.ask(leader, SELECT, asked, stream=stream).tuples) == 1
        assert driven.ask(leader, REPLACE, row(A, stream), stream=stream).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=2).code == ErrorCode.TRANSACTION_CONFLICT
    gone = build_body(BROKER_SPACE, key=list(A))
    assert driven.ask(leader, DELETE, gone).code == 0
