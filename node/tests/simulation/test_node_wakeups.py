"""When a node wants its next step, if no input arrives (G1, T3)."""

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_testing.worlds import REPLACE, SELECT, Driven, node_of, put

EVERYTHING = build_body(SPACE, limit=0xFFFFFFFF, iterator=2, key=[])
SLOW = {"heartbeat_ns": 10 * SECOND, "election_timeout_ns": 100 * SECOND}


def test_next_part_of_a_read_follows_at_once() -> None:
    driven = Driven(1, read_part_tuples=10, work_per_step=20_000, **SLOW)
    leader = driven.leader()
    for key in range(100):
        assert driven.ask(leader, REPLACE, put(key, "x")).code == 0
    driven.run(10)
    node = node_of(leader)
    assert node.next_deadline_ns() > leader.now_ns()
    read = driven.send(leader, SELECT, EVERYTHING)
    assert read not in driven.answers
    assert node.next_deadline_ns() <= leader.now_ns()


def test_confirmation_that_is_delayed_follows_at_its_time() -> None:
    driven = Driven(3, confirm_delay_ns=20 * MILLISECOND, **SLOW)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    term = node_of(leader).replica.leader
    assert term is not None
    assert term.confirm_due_ns
    assert node_of(leader).next_deadline_ns() <= term.confirm_due_ns


def test_idle_leader_writes_no_more_rows() -> None:
    """The confirmation of a CONFIRM needs no second one (T3)."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(1_000)
    last = node_of(leader).context.tail.last_index
    assert node_of(leader).context.limbo.confirmed_index == last
    driven.run(3_000)
    assert node_of(leader).context.tail.last_index == last
