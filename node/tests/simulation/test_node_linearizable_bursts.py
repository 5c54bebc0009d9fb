"""Many linearizable reads at once: a step examines each of them once (G1, R2)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import ReadIndexReply
from qsync_node.transactions.calls import Call
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import LINEARIZABLE, REPLACE, SELECT, Driven, get, node_of, put

READS = 300
ROWS = 30
SESSION = 100


def send_together(driven: Driven, shell: Shell, body: bytes) -> list[int]:
    """Send reads that arrive in one turn of the event loop, and return their numbers."""
    syncs = [driven.next_sync() for _ in range(READS)]
    shell.step([fx.Request(SESSION, sync, SELECT, body, 0, "admin", None) for sync in syncs])
    return syncs


def test_a_read_does_not_examine_those_that_wait_already() -> None:
    """4,000 of one connection took seconds, so that the leader lost its leadership."""
    driven = Driven(3)
    leader, follower = driven.leader(), driven.followers()[0]
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    reads = node_of(leader).linearizable_reads
    examine, examined = reads.on_round, list[int]()

    def count() -> None:
        examined.append(len(reads.proofs))
        examine()

    reads.on_round = count  # type: ignore[method-assign]  # counts and examines
    syncs = send_together(driven, leader, get(1, LINEARIZABLE))
    assert sum(examined) <= 2 * READS
    syncs += send_together(driven, follower, get(1, LINEARIZABLE))
    assert driven.run(2_000, lambda: set(syncs) <= set(driven.answers))
    assert {driven.answers[sync].code for sync in syncs} == {0}


def test_a_follower_serves_reads_within_the_budget_of_a_step() -> None:
    """The read indexes of many reads may arrive in one message of the network."""
    driven = Driven(3, work_per_step=40_000, read_part_tuples=1_000)
    leader, follower = driven.leader(), driven.followers()[0]
    for key in range(ROWS):
        assert driven.ask(leader, REPLACE, put(key, "x" * 50)).code == 0
    driven.run(500)
    driven.mute(follower, leader)
    everything = build_body(SPACE, limit=ROWS, iterator=2, key=[], isolation=LINEARIZABLE)
    syncs = send_together(driven, follower, everything)
    node = node_of(follower)
    serve, served = node.stepped_reads.serve, list[Call]()

    def count(call: Call, log_index: int = 0, *, is_dirty: bool = False) -> None:
        served.append(call)
        serve(call, log_index, is_dirty=is_dirty)

    node.stepped_reads.serve = count  # type: ignore[method-assign]  # counts and serves
    link = node.context.link_to(node_of(leader).uuid)
    assert link is not None
    index = node.context.limbo.confirmed_index
    asked = sorted(node.linearizable_reads.asked)
    follower.step([fx.Received(link.number, ReadIndexReply(number, index)) for number in asked])
    assert 0 < len(served) < READS // 4
    driven.world.network.heal()
    assert driven.run(2_000, lambda: set(syncs) <= set(driven.answers))
    assert {len(driven.answers[sync].tuples) for sync in syncs} == {ROWS}
