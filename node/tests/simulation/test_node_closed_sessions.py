"""A session that closes at its member leaves nothing at the leader, whatever waits there (T10)."""

from qsync_node.consensus import effects as fx
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_testing.worlds import BEGIN, INSERT, SELECT, Driven, get, node_of, put

INDEXES = 288
SESSION, OTHER = 400, 401


def test_requests_that_wait_at_the_leader_end_with_their_session() -> None:
    """A schema change lets the forwarded requests wait. Two sessions sent them; one closes."""
    driven = Driven(3)
    leader, (member, lost) = driven.leader(), driven.followers()
    lost.stop(power_loss=False)
    member.disk_delay_ns = 300_000_000
    index = [SPACE, 7, "i7", "tree", {"unique": False}, [[1, "string"]]]
    changed = driven.send(leader, INSERT, build_body(INDEXES, tuple=index))
    driven.run(50)
    for stream in range(1, 4):
        driven.send(member, BEGIN, stream=stream, session=SESSION)
    driven.send(member, INSERT, put(1, "closed"), session=SESSION)
    begun = driven.send(member, BEGIN, stream=1, session=OTHER)
    driven.run(50)
    assert len(node_of(leader).clients.queue) == 5
    member.step([fx.SessionClosed(SESSION)])
    member.disk_delay_ns = 200_000
    driven.run(2_000)
    assert driven.answers[changed].code == driven.answers[begun].code == 0
    streams = node_of(leader).clients.streams
    assert [owner[1] for owner, _ in streams.open] == [OTHER]
    assert driven.ask(leader, SELECT, get(1)).tuples == []
    member.step([fx.SessionClosed(OTHER)])
    driven.run(100)
    assert not streams.open
