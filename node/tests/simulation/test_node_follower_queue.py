"""The queue of a follower is bounded, and bounds neither the quorum nor the leader (T4, T11)."""

import pytest

from qsync_node.consensus.messages import Ack, PeerMessage
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.costs import Costs, Machine
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import INSERT, REPLACE, Driven, node_of, put

CHUNK = 4_096
SLOW = Machine(Costs(steps=2 * MILLISECOND))
"""A chunk has more rows than a few steps confirm, and the next one arrives after a few steps."""
INDEXES = 288
ENTRY_BYTES_MIN = 60


def lagging(rows: int, first: bytes = b"", **settings: int) -> tuple[Driven, Shell]:
    """Return a cluster and its member that has just reconnected and lacks many rows.

    Args:
        rows: number of tuples written meanwhile.
        first: body of an INSERT before them.
        settings: settings of the members.
    """
    driven = Driven(
        3,
        confirm_rows_max=5,
        relay_chunk_bytes=CHUNK,
        relay_window_bytes=1_500,
        retention_ns=10**12,
        **settings,
    )
    for key in range(60):
        assert driven.ask(driven.leader(), REPLACE, put(key, "old")).code == 0
    driven.run(500)
    behind = driven.followers()[0]
    driven.cut_off(behind)
    driven.world.network.break_cut_off()
    if first:
        assert driven.ask(driven.leader(), INSERT, first).code == 0
    for key in range(rows):
        assert driven.ask(driven.leader(), REPLACE, put(key % 7, f"v{key}")).code == 0
    driven.world.network.heal()
    return driven, behind


def longest_queue(driven: Driven, member: Shell) -> tuple[int, int]:
    """Let a member catch up; return the greatest number of bytes and entries in its queue."""
    context = node_of(member).context
    goal = node_of(driven.leader()).context.tail.last_index
    size = entries = 0

    def has_caught_up() -> bool:
        nonlocal size, entries
        size, entries = max(size, context.limbo.bytes), max(entries, len(context.limbo))
        return context.limbo.confirmed_index >= goal

    assert driven.run(60_000, has_caught_up)
    return size, entries


def test_bytes_of_a_follower_that_catches_up_are_bounded() -> None:
    limit = 4_000
    driven, behind = lagging(400, limbo_bytes_max=limit)
    driven.world.machine = SLOW
    size, _ = longest_queue(driven, behind)
    assert limit < size < limit + 2 * CHUNK


def test_entries_of_a_follower_that_catches_up_are_bounded() -> None:
    limit = 40
    driven, behind = lagging(400, limbo_entries_max=limit)
    driven.world.machine = SLOW
    _, entries = longest_queue(driven, behind)
    assert limit < entries < limit + 2 * CHUNK // ENTRY_BYTES_MIN


def test_queue_is_bounded_while_an_index_is_built() -> None:
    limit = 4_000
    index = [SPACE, 1, "i1", "tree", {"unique": False}, [[1, "string"]]]
    driven, behind = lagging(
        400, build_body(INDEXES, tuple=index), limbo_bytes_max=limit, build_tuples_max=5
    )
    node = node_of(behind)
    advance, node.builds.advance = node.builds.advance, lambda: None  # type: ignore[method-assign]  # it takes long
    acks: list[Ack] = []
    send = node.context.send

    def see(link: int, message: PeerMessage) -> None:
        if isinstance(message, Ack):
            acks.append(message)
        send(link, message)

    node.context.send = see  # type: ignore[method-assign]  # and sends it
    seconds = 2
    driven.run(seconds * 1000)
    limbo = node.context.limbo
    assert limit < limbo.bytes < limit + 2 * CHUNK
    written = len({ack.log_index for ack in acks})
    beats = seconds * SECOND // node.settings.heartbeat_ns
    assert len(acks) < written + 2 * beats, "an ACK is repeated in each step"
    node.builds.advance = advance  # type: ignore[method-assign]  # restored
    longest_queue(driven, behind)


def test_quorum_waits_for_no_build() -> None:
    driven, behind = lagging(0, limbo_bytes_max=4_000, build_tuples_max=5)
    followers = driven.followers()
    builds = [node_of(follower).builds for follower in followers]
    advances = [build.advance for build in builds]
    for build in builds:
        build.advance = lambda: None  # type: ignore[method-assign]  # it takes long
    index = [SPACE, 1, "i1", "tree", {"unique": False}, [[1, "string"]]]
    leader = driven.leader()
    assert driven.ask(leader, INSERT, build_body(INDEXES, tuple=index)).code == 0
    for key in range(100):
        assert driven.ask(leader, REPLACE, put(key % 7, f"v{key}")).code == 0
    assert all(node_of(follower).context.limbo.bytes > 4_000 for follower in followers)
    for build, advance in zip(builds, advances, strict=True):
        build.advance = advance  # type: ignore[method-assign]  # restored
    longest_queue(driven, behind)


def test_full_queue_is_acknowledged_as_it_is_confirmed() -> None:
    heartbeat_ns = 5 * SECOND
    driven, behind = lagging(
        400, heartbeat_ns=heartbeat_ns, election_timeout_ns=4 * heartbeat_ns, limbo_bytes_max=4_000
    )
    context, goal = node_of(behind).context, node_of(driven.leader()).context.tail.last_index
    assert driven.run(60_000, lambda: len(context.limbo) > 0)
    driven.world.machine = SLOW
    began_ns = driven.world.now_ns
    assert driven.run(60_000, lambda: context.tail.durable_index >= goal)
    assert driven.world.now_ns - began_ns < heartbeat_ns


def test_queue_that_waits_for_the_leader_is_acknowledged() -> None:
    driven = Driven(3, limbo_bytes_max=4_000)
    leader = driven.leader()
    for follower in driven.followers():
        follower.disk_delay_ns = 150 * MILLISECOND  # the whole queue arrives before it is written
    for key in range(400):
        driven.send(leader, REPLACE, put(key, "x"))
    assert node_of(leader).context.limbo.bytes > 4_000
    assert driven.run(5_000, lambda: len(driven.answers) >= 400)
    codes = [answer.code for answer in driven.answers.values()]
    assert codes.count(0) > 10
    assert set(codes) == {0, ErrorCode.SYNC_QUEUE_FULL}


@pytest.mark.parametrize("rows", [400, 1_300])
def test_writes_wait_for_a_voter_that_catches_up(rows: int) -> None:
    driven, behind = lagging(rows, limbo_bytes_max=4_000)
    driven.world.machine = Machine(Costs(steps=4 * MILLISECOND))
    other = next(shell for shell in driven.followers() if shell is not behind)
    driven.cut_off(other)  # each write needs the member that catches up
    leader = driven.leader()
    term = node_of(leader).context.term
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    assert node_of(leader).context.term == term


def test_rollback_waits_for_a_voter_that_catches_up() -> None:
    timeout_ns = 300 * MILLISECOND
    driven, behind = lagging(1_300, limbo_bytes_max=4_000, synchro_timeout_ns=timeout_ns)
    driven.world.machine = Machine(Costs(steps=4 * MILLISECOND))
    other = next(shell for shell in driven.followers() if shell is not behind)
    leader = driven.leader()
    delay_ns, behind.disk_delay_ns = behind.disk_delay_ns, timeout_ns * 5 // 4
    driven.run(100)
    driven.cut_off(other)  # each decision needs the member that catches up
    asked = driven.send(leader, REPLACE, put(1, "x"))
    term = node_of(leader).replica.leader
    assert term is not None
    assert driven.run(10_000, lambda: term.rollback_at)
    behind.disk_delay_ns = delay_ns
    began_ns = driven.world.now_ns
    assert driven.run(30_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == ErrorCode.SYNC_QUORUM_TIMEOUT
    assert driven.world.now_ns - began_ns > 2 * timeout_ns, "the member caught up at once"
    assert node_of(leader).context.is_leading


def test_voter_that_refused_a_row_delays_no_rollback() -> None:
    timeout_ns = 1000 * MILLISECOND
    driven = Driven(3, synchro_timeout_ns=timeout_ns)
    leader, (refusing, other) = driven.leader(), driven.followers()
    driven.cut_off(other)
    node_of(refusing).refuse_rows = True
    asked = driven.send(leader, REPLACE, put(1, "x"))
    began_ns = driven.world.now_ns
    driven.run(50)
    node_of(refusing).refuse_rows = False
    for key in range(2, 10):  # its log grows after that row, too
        driven.send(leader, REPLACE, put(key, "x"))
        driven.run(50)
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == ErrorCode.SYNC_QUORUM_TIMEOUT
    assert driven.world.now_ns - began_ns < 1.2 * timeout_ns


def test_entries_that_wait_for_a_state_are_bounded() -> None:
    limit = 20
    driven = Driven(3, limbo_entries_max=limit, retention_ns=10**12, relay_chunk_bytes=300)
    leader, behind = driven.leader(), driven.followers()[0]
    node = node_of(behind)
    for key in range(60):
        assert driven.ask(leader, REPLACE, put(key, f"v{key}")).code == 0
    driven.run(300)
    node.refuse_rows = True
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    node.refuse_rows = False
    repair, context = node.replica.repair, node.context
    ask = repair._ask

    def ask_once() -> None:
        """Ask for the first chunk only, so that the state never arrives as a whole."""
        if repair._loader is None:
            ask()

    repair._ask = ask_once  # type: ignore[method-assign]  # the transfer takes long
    assert driven.run(5_000, lambda: repair.latest_index() is not None)
    longest = 0
    for key in range(10 * limit):
        assert driven.ask(leader, REPLACE, put(key % 7, "w")).code == 0
        longest = max(longest, len(context.limbo))
    assert limit <= longest < 3 * limit
