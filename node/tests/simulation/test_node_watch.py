"""Checks of the simulator on leaderships, orders and links, and bugs that they found."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.lease import LeaderLease
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.consensus.source import SourceState
from qsync_node.errors import ErrorCode
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK
from qsync_sim.members import check
from qsync_sim.schedule import Schedule
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World
from qsync_testing.worlds import INSERT, SELECT, Driven, get, node_of, put


def test_leader_without_a_quorum_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    for other in world.alive():
        world.network.cut(leader, other)
        world.network.cut(other, leader)
    monkeypatch.setattr(LeaderLease, "is_lost", lambda lease: False)
    with pytest.raises(InvariantViolation, match="E4"):
        world.run_for(2 * SECOND)


def test_unanswered_order_is_reported() -> None:
    world = World(3)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    world.command(leader, "snapshot")
    assert leader.node is not None
    leader.node.procedures.snapshot_calls.clear()
    world.run_for(11 * SECOND)
    with pytest.raises(InvariantViolation, match="G3: snapshot"):
        world.watch.check_orders()


def test_returned_instance_is_reported() -> None:
    schedule = Schedule(1, is_plain=True)
    schedule.run()
    world = schedule.world
    check(world)
    row = next(row for row in world.ledger.values() if b"voter" in row[2] and row[3])
    last = world.confirmed_anywhere
    removal = b"\x83\x10\xcd\x01\x40\x11\x00\x20\x91\x02"
    world.ledger[last + 1] = (*row[:2], removal, True, 5)
    world.ledger[last + 2] = row
    world.confirmed_anywhere = last + 2
    with pytest.raises(InvariantViolation, match="M5"):
        check(world)


def test_link_that_is_missing_is_reported() -> None:
    world = World(3)
    world.bootstrap(3)
    world.run_for(100 * MILLISECOND)
    assert not world.watch.unfinished_links()
    shell = world.alive()[0]
    assert shell.peers is not None
    shell.peers.links.clear()
    assert len(world.watch.unfinished_links()) == 2


def test_transactions_of_a_removed_member_end_with_their_connections() -> None:
    world = World(3)
    world.bootstrap(3)
    member = world.add("async")
    member.start()
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    context, streams = leader.node.context, leader.node.streams
    world.run_for(5 * SECOND, lambda: context.limbo.configuration.by_uuid(member.uuid) is not None)
    world.run_for(SECOND)
    member.step([fx.Request(900, 1, BEGIN, b"", 1, "admin", None)])
    world.run_for(SECOND, lambda: bool(streams.open))
    world.command(leader, "unregister", uuid=member.uuid)
    world.run_for(5 * SECOND, lambda: context.is_removed(member.uuid))
    assert streams.open
    member.step([fx.SessionClosed(900)])
    world.run_for(SECOND)
    assert not streams.open


@pytest.mark.parametrize(
    ("is_begun", "kind", "code"),
    [
        (False, BEGIN, ErrorCode.TRANSACTION_CONFLICT),
        (True, SELECT, ErrorCode.TRANSACTION_CONFLICT),
        (True, INSERT, ErrorCode.TRANSACTION_CONFLICT),
        (True, ROLLBACK, 0),
        (True, COMMIT, ErrorCode.OUTCOME_UNKNOWN),
        (False, SELECT, ErrorCode.NOT_LEADER),
    ],
)
def test_only_requests_that_may_be_logged_are_unknown_after_a_lost_link(
    is_begun: bool, kind: int, code: int
) -> None:
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    if is_begun:
        driven.ask(member, BEGIN, stream=1)
        driven.ask(member, INSERT, put(1, "value"), stream=1)
    driven.mute(leader, member)
    body = {SELECT: get(1), INSERT: put(2, "value")}.get(kind, b"")
    sync = driven.send(member, kind, body, stream=1)
    driven.run(5)
    assert sync not in driven.answers
    (outgoing,) = node_of(member).forwarding.outgoing.values()
    member.step([fx.LinkDown(outgoing.link)])
    assert driven.answers[sync].code == code


def with_late_statement() -> tuple[Driven, int]:
    """Return a world whose follower forwards an INSERT in stream 1, and hears no answer."""
    driven = Driven(3, request_timeout_ns=200 * MILLISECOND)
    leader, member = driven.leader(), driven.followers()[0]
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.mute(leader, member)
    return driven, driven.send(member, INSERT, put(1, "value"), stream=1)


def test_statement_past_its_deadline_aborts_its_transaction() -> None:
    driven, late = with_late_statement()
    leader, member = driven.leader(), driven.followers()[0]
    driven.run(250)
    assert driven.answers[late].code == ErrorCode.TIMEOUT, "a statement logs nothing"
    driven.world.network.heal()
    assert driven.ask(member, INSERT, put(2, "value"), stream=1).code == (
        ErrorCode.TRANSACTION_CONFLICT
    )
    assert driven.ask(member, COMMIT, stream=1).code == ErrorCode.TRANSACTION_CONFLICT
    assert driven.ask(member, BEGIN, stream=1).code == 0
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == []


def test_late_statement_spares_the_next_transaction_of_its_stream() -> None:
    driven, late = with_late_statement()
    leader, member = driven.leader(), driven.followers()[0]
    driven.send(member, COMMIT, stream=1)
    driven.run(100)
    begun = driven.send(member, BEGIN, stream=1)
    driven.run(150, lambda: late in driven.answers)
    assert "COMMIT" in driven.answers[late].reason
    driven.world.network.heal()
    driven.run(20, lambda: begun in driven.answers)
    assert driven.ask(member, INSERT, put(2, "value"), stream=1).code == 0
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(2)).tuples


def test_request_that_a_removed_leader_never_answered_is_unknown_at_once() -> None:
    driven = Driven(4)
    world, old = driven.world, driven.leader()
    member = driven.followers()[0]
    for other in driven.followers():
        driven.mute(old, other)
    sync = driven.send(member, INSERT, put(1, "value"))
    world.run_for(2 * MILLISECOND)
    for other in driven.followers():
        driven.mute(other, old)
    assert world.run_for(5 * SECOND, lambda: world.leader() not in {old, None})
    leader = driven.leader()
    driven.ask(leader, INSERT, put(2, "value"))
    world.command(leader, "unregister", uuid=old.uuid)
    assert driven.run(2000, lambda: node_of(member).context.is_removed(old.uuid))
    driven.run(1)
    assert driven.answers[sync].code == ErrorCode.OUTCOME_UNKNOWN
    assert "removed" in driven.answers[sync].reason


def test_follower_whose_link_breaks_during_a_truncation_follows_again() -> None:
    driven = Driven(3)
    world, old = driven.world, driven.leader()
    driven.cut_off(old)
    driven.send(old, INSERT, put(1, "lost"))
    assert driven.run(5000, lambda: driven.world.leader() not in {old, None})
    driven.ask(driven.leader(), INSERT, put(2, "kept"))
    old.disk_delay_ns = SECOND
    world.network.heal()
    source = node_of(old).replica.source
    assert driven.run(10_000, lambda: source.state is SourceState.CUTTING)
    world.network.break_some(2.0)
    old.disk_delay_ns = MILLISECOND
    driven.run(3000)
    driven.ask(driven.leader(), INSERT, put(3, "new"))
    goal = node_of(driven.leader()).context.limbo.confirmed_index
    assert driven.run(3000, lambda: node_of(old).context.limbo.confirmed_index >= goal)
