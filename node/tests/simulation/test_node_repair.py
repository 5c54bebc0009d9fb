"""The repair of a state that lacks a confirmed row (T7)."""

from qsync_node.consensus.settings import MILLISECOND
from qsync_testing.worlds import REPLACE, SELECT, Driven, get, node_of, put


def test_state_that_takes_long_to_arrive_is_transferred_once() -> None:
    """Its chunks arrive all the time, so its source does not count as silent."""
    driven = Driven(3, relay_chunk_bytes=200)
    leader, (member, _) = driven.leader(), driven.followers()
    for key in range(60):
        assert driven.ask(leader, REPLACE, put(key, "x" * 50)).code == 0
    driven.run(200)
    driven.world.network.latency_ns = 15 * MILLISECOND
    node = node_of(member)
    repair, began_ns = node.replica.repair, driven.world.now_ns
    repair.open(node.context.limbo.confirmed_index)
    assert driven.run(10_000, lambda: not repair.is_open)
    assert driven.world.now_ns - began_ns > 2 * node.settings.election_timeout_ns
    assert driven.ask(member, SELECT, get(1)).tuples
