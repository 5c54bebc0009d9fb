"""A session that closes at its member leaves nothing at the leader, whatever waits there (T10)."""

from msgpack import packb

from qsync_node.consensus import effects as fx
from qsync_node.transactions.clients import CLOSED_MAX
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import BEGIN, INSERT, REPLACE, SELECT, Driven, get, node_of, put

INDEXES = 288
CALL = 10
SESSION, OTHER = 400, 401
BY_VALUE = [SPACE, 7, "i7", "tree", {"unique": False}, [[1, "string"]]]


def with_a_pending_schema_change() -> tuple[Driven, Shell, Shell]:
    """Return a cluster whose leader lets requests wait, its leader and its other member."""
    driven = Driven(3)
    leader, (member, lost) = driven.leader(), driven.followers()
    lost.stop(power_loss=False)
    member.disk_delay_ns = 300_000_000
    driven.send(leader, INSERT, build_body(INDEXES, tuple=BY_VALUE))
    driven.run(50)
    return driven, leader, member


def held_for_clients(shell: Shell) -> list[int]:
    """Return how many calls, forwarded calls and transactions a member has."""
    clients = node_of(shell).clients
    return [
        len(clients.answers.waiting),
        len(clients.streams.open),
        len(clients.homes),
        len(clients.queue),
    ]


def test_requests_that_wait_at_the_leader_end_with_their_session() -> None:
    """A schema change lets the forwarded requests wait. Two sessions sent them; one closes."""
    driven, leader, member = with_a_pending_schema_change()
    for stream in range(1, 4):
        driven.send(member, BEGIN, stream=stream, session=SESSION)
    driven.send(member, INSERT, put(1, "closed"), session=SESSION)
    begun = driven.send(member, BEGIN, stream=1, session=OTHER)
    driven.run(50)
    assert len(node_of(leader).clients.queue) == 5
    member.step([fx.SessionClosed(SESSION)])
    forwarding = node_of(member).clients.forwarding
    assert [one.call.session for one in forwarding.outgoing.values()] == [OTHER]
    assert list(node_of(member).clients.answers.waiting) == [
        one.call for one in forwarding.outgoing.values()
    ]
    member.disk_delay_ns = 200_000
    driven.run(2_000)
    assert driven.answers[begun].code == 0
    streams = node_of(leader).clients.streams
    assert [owner[1] for owner, _ in streams.open] == [OTHER]
    assert driven.ask(leader, SELECT, get(1)).tuples == []
    member.step([fx.SessionClosed(OTHER)])
    driven.run(100)
    assert held_for_clients(leader) == [0, 0, 0, 0]


def test_sessions_without_requests_are_forgotten_while_others_wait() -> None:
    """Under load the queue may never be empty, and clients connect again and again."""
    driven, leader, member = with_a_pending_schema_change()
    dropped = driven.send(leader, INSERT, put(1, "closed"), session=SESSION)
    kept = driven.send(leader, INSERT, put(2, "kept"), session=OTHER)
    clients = node_of(leader).clients
    assert len(clients.queue) == 2
    leader.step([fx.SessionClosed(SESSION)])
    for session in range(OTHER + 1, OTHER + 3 * CLOSED_MAX):
        leader.step([fx.SessionClosed(session)])
        assert len(clients._closed) <= CLOSED_MAX + 4
    member.disk_delay_ns = 200_000
    driven.run(2_000)
    assert driven.answers[kept].code == 0
    assert dropped not in driven.answers
    assert driven.ask(leader, SELECT, get(1)).tuples == []


def test_leader_loses_its_term_after_the_session_of_a_build_closed() -> None:
    """The statement has been built and waits in the queue when its session closes."""
    driven = Driven(3)
    leader, (member, target) = driven.leader(), driven.followers()
    for key in range(60):
        assert driven.ask(leader, REPLACE, put(key, f"v{key % 10}")).code == 0
    assert driven.ask(member, BEGIN, stream=1, session=SESSION).code == 0
    driven.send(member, INSERT, build_body(INDEXES, tuple=BY_VALUE), session=SESSION)
    node = node_of(leader)
    assert driven.run(1_000, lambda: node.builds.is_active)
    target.disk_delay_ns = 200_000_000
    driven.send(leader, REPLACE, put(1, "other"))
    driven.world.command(leader, "switchover", target=target.uuid)
    assert driven.run(1_000, lambda: bool(node.clients.queue))
    member.step([fx.SessionClosed(SESSION)])
    driven.run(20)
    target.disk_delay_ns = 200_000
    assert driven.run(3_000, lambda: node_of(target).context.is_leading)
    driven.run(1_000)
    assert held_for_clients(leader) == [0, 0, 0, 0]


def test_calls_that_wait_end_with_their_session() -> None:
    driven = Driven(3)
    member = driven.followers()[0]
    wait = packb({0x22: "box.ctl.wait_rw", 0x21: [1e6]})
    driven.send(member, CALL, wait, session=SESSION)
    kept = driven.send(member, CALL, wait, session=OTHER)
    driven.run(100)
    member.step([fx.SessionClosed(SESSION)])
    driven.run(100)
    waits = node_of(member).procedures.waits
    assert [wait.call.sync for wait in waits] == [kept]
