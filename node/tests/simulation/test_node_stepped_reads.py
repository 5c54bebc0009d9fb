"""Reads that take many steps: how many are paused, and what ends them (G1, T11)."""

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import SECOND
from qsync_node.errors import ErrorCode
from qsync_node.transactions.stepped_reads import PAUSED_MAX
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import REPLACE, SELECT, Driven, node_of, put

ROWS = 300
SESSION = 300


def everything(isolation: int = 0) -> bytes:
    return build_body(SPACE, limit=0xFFFFFFFF, iterator=2, key=[], isolation=isolation)


def filled() -> tuple[Driven, Shell, Shell]:
    """Return a cluster whose reads of all rows take many steps, its leader and a follower."""
    driven = Driven(3, read_part_tuples=10, work_per_step=40_000)
    for key in range(ROWS):
        assert driven.ask(driven.leader(), REPLACE, put(key, "x" * 50)).code == 0
    driven.run(500)
    return driven, driven.leader(), driven.followers()[0]


def test_number_of_paused_reads_is_limited() -> None:
    """Each holds the tuples that it has found."""
    driven, leader, _ = filled()
    reads = [driven.send(leader, SELECT, everything()) for _ in range(2 * PAUSED_MAX)]
    stepped = node_of(leader).stepped_reads
    most = 0
    while not set(reads) <= set(driven.answers):
        most = max(most, len(stepped._paused))
        driven.run(0.2)
    assert most == PAUSED_MAX
    assert {len(driven.answers[sync].tuples) for sync in reads} == {ROWS}


def test_reads_of_a_lost_link_end() -> None:
    driven, leader, follower = filled()
    for number in range(2 * PAUSED_MAX):
        driven.send(follower, SELECT, everything(), stream=50 + number, session=SESSION)
    stepped = node_of(leader).stepped_reads
    assert driven.run(100, lambda: bool(stepped._paused and stepped._queued))
    links = {one.call.link for one in stepped._paused} | {one.call.link for one in stepped._queued}
    (link,) = links
    leader.step([fx.LinkDown(link)])
    assert not stepped.is_waiting


def test_reads_of_a_state_that_is_replaced_are_refused() -> None:
    driven, leader, _ = filled()
    reads = [driven.send(leader, SELECT, everything()) for _ in range(PAUSED_MAX)]
    node = node_of(leader)
    assert len(node.stepped_reads) == PAUSED_MAX
    leader.run(node.stepped_reads.on_state_replaced)
    driven.run(5)
    assert {driven.answers[sync].code for sync in reads} == {ErrorCode.LOADING}


def test_read_of_pending_rows_that_had_to_wait_shows_them() -> None:
    driven, leader, follower = filled()
    for one in driven.followers():
        one.disk_delay_ns = SECOND
    driven.send(leader, REPLACE, put(ROWS, "pending"))
    own = [driven.send(leader, SELECT, everything()) for _ in range(PAUSED_MAX)]
    dirty = [
        driven.send(follower, SELECT, everything(isolation=1), stream=50 + number, session=SESSION)
        for number in range(2)
    ]
    stepped = node_of(leader).stepped_reads
    assert driven.run(100, lambda: bool(stepped._queued))
    assert driven.run(900, lambda: {*own, *dirty} <= set(driven.answers))
    assert {len(driven.answers[sync].tuples) for sync in own} == {ROWS}
    assert {len(driven.answers[sync].tuples) for sync in dirty} == {ROWS + 1}


def test_reads_that_wait_are_refused_by_a_member_that_stops() -> None:
    """Its state may have another history than the cluster meanwhile (L4)."""
    driven, leader, follower = filled()
    reads = [
        driven.send(follower, SELECT, everything(), stream=50 + number, session=SESSION)
        for number in range(2 * PAUSED_MAX)
    ]
    stepped = node_of(leader).stepped_reads
    assert driven.run(100, lambda: len(stepped._queued) == PAUSED_MAX)
    node_of(leader).context.split_brain = "another history"
    assert driven.run(1_000, lambda: set(reads) <= set(driven.answers))
    codes = [driven.answers[sync].code for sync in reads]
    assert codes.count(ErrorCode.SPLIT_BRAIN) == PAUSED_MAX
