"""No step and no thread holds the interpreter for long, however large the state is (G1, G2).

Times are CPU times of one thread, relative to one `sorted()` of the same keys in the same process.
A busy machine therefore does not matter. Sorting, copying or loading everything in one call fails
the tests.
"""

import gc
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgpack import packb

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.effects import Report
from qsync_node.consensus.settings import MILLISECOND, SECOND, ConsensusSettings
from qsync_node.engine.database import Database
from qsync_node.engine.tuples import array_header
from qsync_node.format.batch import LogBatch
from qsync_node.format.body import put_body
from qsync_node.node import Node
from qsync_node.storage.scheduler import ReadLane
from qsync_node.storage.storage import Storage
from qsync_node.transactions.snapshot import SnapshotView
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE as SPACE_OF_WORLD
from qsync_sim.shell import Shell
from qsync_sim.world import World
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    SELECT,
    UPSERT,
    Driven,
    node_of,
    put,
)

TUPLES = 700_000
SPACE, HASH_SPACE = 600, 601
CHECKPOINT_BYTES = 20_000


def space_rows(space: int, kind: str) -> list[bytes]:
    parts = [[0, "string"], [1, "unsigned"]]
    return [
        put_body(SystemSpace.SPACE, packb([space, 1, f"s{space}", "memtx", 0, {}, []])),
        put_body(SystemSpace.INDEX, packb([space, 0, "pk", kind, {"unique": True}, parts])),
    ]


@pytest.fixture(scope="module")
def keys() -> list[tuple[str, int]]:
    rng = Random(5)
    return [(f"{rng.getrandbits(32):08x}", number) for number in range(TUPLES)]


@pytest.fixture(scope="module")
def one_sort_s(keys: list[tuple[str, int]]) -> float:
    started = time.thread_time()
    sorted(keys)
    return time.thread_time() - started


def fill(database: Database, space: int, keys: list[tuple[str, int]]) -> None:
    index = database.space(space).indexes[0]
    for key in keys:
        index.put(key, packb(key))


@pytest.mark.parametrize("kind", ["tree", "hash"])
def test_thread_that_draws_a_snapshot_leaves_the_interpreter_to_others(
    keys: list[tuple[str, int]], one_sort_s: float, kind: str
) -> None:
    database = Database.bootstrap("7cb6a1b1-0000-4000-8000-000000000001")
    for body in space_rows(SPACE, kind):
        database.load(body)
    fill(database, SPACE, keys)
    started = time.thread_time()
    bodies = database.snapshot_bodies()
    assert time.thread_time() - started < one_sort_s / 8
    drawn: list[bytes] = []
    spent: list[float] = []  # the worker's CPU time at each turn of this thread
    is_drawn = threading.Event()

    def draw() -> None:
        drawn.extend(bodies)
        is_drawn.wait()

    worker = threading.Thread(target=draw)
    worker.start()
    assert worker.ident is not None
    clock = time.pthread_getcpuclockid(worker.ident)
    while len(drawn) < TUPLES:
        time.sleep(0.001)
        spent.append(time.clock_gettime(clock))
    is_drawn.set()
    worker.join()
    longest = max(after - before for before, after in pairwise([0.0, *spent]))
    assert longest < one_sort_s / 3, f"{longest:.3f} s without a turn, one sort {one_sort_s:.3f} s"
    assert drawn[-TUPLES:] == [put_body(SPACE, packb(key)) for key in sorted(keys)]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, collector_of_a_server: None) -> dict[str, float]:
    """Return a dict that records the longest step of each node, in seconds of CPU time."""
    longest: dict[str, float] = {}
    step = Node.step

    def timed(node: Node, *arguments: Any) -> Any:
        started = time.thread_time()
        try:
            return step(node, *arguments)
        finally:
            taken = time.thread_time() - started
            longest[node.uuid] = max(longest.get(node.uuid, 0.0), taken)

    monkeypatch.setattr(Node, "step", timed)
    return longest


def test_join_of_a_large_state_takes_short_steps_only(
    keys: list[tuple[str, int]], one_sort_s: float, steps: dict[str, float]
) -> None:
    world = World(3, ConsensusSettings(heartbeat_ns=SECOND // 20, election_timeout_ns=SECOND // 2))
    world.bootstrap(1)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    for body in [*space_rows(SPACE, "tree"), *space_rows(HASH_SPACE, "hash")]:
        leader.node.database.load(body)
    half = TUPLES // 2
    fill(leader.node.database, SPACE, keys[:half])
    fill(leader.node.database, HASH_SPACE, keys[half:])
    gc.collect()
    steps.clear()
    reader = world.add("anonymous")
    reader.start()

    def has_all() -> bool:
        return reader.node is not None and reader.node.replica.source.state.value == "following"

    assert world.run_for(60 * SECOND, has_all)
    assert reader.node is not None
    held = reader.node.database
    assert len(held.space(SPACE).indexes[0]) == half
    assert len(held.space(HASH_SPACE).indexes[0]) == TUPLES - half
    assert list(held.snapshot_bodies()) == list(leader.node.database.snapshot_bodies())
    for uuid, longest in steps.items():
        assert longest < one_sort_s / 4, f"{uuid}: {longest:.3f} s, one sort {one_sort_s:.3f} s"


@pytest.mark.parametrize("kind", ["tree", "hash"])
@pytest.mark.parametrize("isolation", [0, 4])
def test_read_of_a_large_space_takes_short_steps_only(
    keys: list[tuple[str, int]],
    one_sort_s: float,
    steps: dict[str, float],
    kind: str,
    isolation: int,
) -> None:
    usual = ConsensusSettings()
    driven = Driven(3, work_per_step=usual.work_per_step, read_part_tuples=usual.read_part_tuples)
    leader = driven.leader()
    assert leader.node is not None
    for body in space_rows(SPACE, kind):
        leader.node.database.load(body)
    fill(leader.node.database, SPACE, keys)
    gc.collect()
    everything = build_body(SPACE, limit=0xFFFFFFFF, iterator=2, key=[], isolation=isolation)
    driven.ask(leader, SELECT, build_body(SPACE, limit=1, iterator=2, key=[]))  # sorts the new keys
    steps.clear()
    asked = [driven.send(leader, SELECT, everything) for _ in range(2)]
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    assert not set(asked) & set(driven.answers), "the write did not wait for the reads"
    wanted = sorted(map(packb, keys))
    for sync in asked:
        assert driven.run(60_000, lambda sync=sync: sync in driven.answers)
        assert sorted(driven.answers[sync].tuples) == wanted
    assert steps[leader.uuid] < one_sort_s / 8


def test_costly_requests_of_one_client_do_not_add_up_in_a_step(steps: dict[str, float]) -> None:
    """An UPSERT is short and returns no rows; a COMMIT runs all of its statements again."""
    usual = ConsensusSettings()
    driven = Driven(3, work_per_step=usual.work_per_step)
    leader = driven.leader()
    items = array_header(100_000) + b"\x01" * 100_000
    wide = b"\x82\x10\xcd" + SPACE_OF_WORLD.to_bytes(2, "big") + b"\x21\x94\x01\xa1x\x00" + items
    assert driven.ask(leader, REPLACE, wide).code == 0
    ops = [["=", f"[4][{place}]", 5] for place in range(1, 60_000, 30)]
    upsert = build_body(SPACE_OF_WORLD, tuple=[1, "x", 0], ops=ops)
    steps.clear()
    assert driven.ask(leader, UPSERT, upsert).code == 0
    one = steps[leader.uuid]
    syncs = [driven.next_sync() for _ in range(20)]
    leader.step([fx.Request(100, sync, UPSERT, upsert, 0, "admin", None) for sync in syncs])
    assert driven.run(60_000, lambda: set(syncs) <= set(driven.answers))
    assert {driven.answers[sync].code for sync in syncs} == {0}
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    for _ in range(20):
        assert driven.ask(leader, UPSERT, upsert, stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert max(steps.values()) < 6 * one, f"{steps}, one UPSERT takes {one:.3f} s"


def test_forwarded_reads_that_must_wait_are_answered_and_belong_to_no_local_session() -> None:
    """Session 300 of a follower and session 300 of the leader are different clients."""
    driven = Driven(3, read_part_tuples=10, work_per_step=40_000)
    leader, follower = driven.leader(), driven.followers()[0]
    for key in range(300):
        assert driven.ask(leader, REPLACE, put(key, "x" * 50)).code == 0
    everything = build_body(SPACE_OF_WORLD, limit=0xFFFFFFFF, iterator=2, key=[])
    own = [driven.send(leader, SELECT, everything) for _ in range(8)]
    forwarded = [
        driven.send(follower, SELECT, everything, stream=50 + number, session=300)
        for number in range(8)
    ]
    for _ in range(20):
        driven.run(1)
        leader.step([fx.SessionClosed(300)])
    assert driven.run(10_000, lambda: {*own, *forwarded} <= set(driven.answers))
    assert {len(driven.answers[sync].tuples) for sync in (*own, *forwarded)} == {300}


def test_reads_leave_room_for_writes() -> None:
    """Reads that could fill each step take half of it, so several writes run in the other half."""
    driven = Driven(3, work_per_step=20_000)
    leader = driven.leader()
    read = build_body(SPACE_OF_WORLD, limit=1, key=[1])

    def requests(count: int, type_: int, body: bytes) -> list[fx.Request]:
        syncs = [driven.next_sync() for _ in range(count)]
        return [fx.Request(100, sync, type_, body, 0, "admin", None) for sync in syncs]

    assert leader.node is not None
    clients = leader.node.clients
    leader.step([*requests(40, SELECT, read), *requests(40, REPLACE, put(1, "x"))])
    steps = 1
    while clients.queue:
        steps += 1
        leader.step(requests(40, SELECT, read))
    assert steps <= 40 // 5


def test_members_of_one_log_write_their_checkpoints_at_different_rows() -> None:
    world = World(
        3, ConsensusSettings(heartbeat_ns=SECOND // 20, checkpoint_bytes=CHECKPOINT_BYTES)
    )
    rows: dict[str, list[int]] = {}

    def on_event(shell: Shell, report: Report) -> None:
        if report.event == "checkpoint":
            rows.setdefault(shell.name, []).append(report.fields["index"])

    world.on_event = on_event
    world.bootstrap(3)
    for number in range(6 * CHECKPOINT_BYTES // 100):
        world.insert(SPACE_OF_WORLD, [number, "x" * 100])
    assert world.run_for(SECOND, lambda: len(rows) == 3)
    members = list(rows.values())
    assert all(len(indexes) >= 3 for indexes in members)
    for starts in zip(*(indexes[:3] for indexes in members), strict=True):
        assert max(starts) - min(starts) >= 5, starts
    # A row and its CONFIRM occupy at most 250 bytes.
    for indexes in members:
        for before, after in pairwise(indexes):
            assert 2 * CHECKPOINT_BYTES // 250 <= after - before <= 3 * CHECKPOINT_BYTES // 100


def test_state_that_was_replaced_is_freed_in_small_parts(keys: list[tuple[str, int]]) -> None:
    database = Database()
    for body in space_rows(SPACE, "tree"):
        database.load(body)
    fill(database, SPACE, keys[:10_000])
    view = database.view()
    assert not database.dismantle(1_000_000)
    assert len(list(view.bodies())) > 10_000
    del view
    steps = 1
    while not database.dismantle(100):
        steps += 1
    assert steps >= 100
    assert not len(database.space(SPACE).indexes[0])


def test_snapshot_with_a_row_that_does_not_fit_is_refused_and_fetched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(3)
    world.bootstrap(2)
    bodies = SnapshotView.bodies
    stray = put_body(9999, packb([1]))

    def with_stray_row(view: SnapshotView) -> Iterator[bytes]:
        yield from bodies(view)
        yield stray

    monkeypatch.setattr(SnapshotView, "bodies", with_stray_row)
    reader = world.add("anonymous")
    reader.start()
    world.run_for(2 * SECOND)
    assert world.counters["event snapshot_refused"] >= 1
    assert reader.node is not None
    assert not reader.node.context.has_origin
    monkeypatch.undo()
    world.run_for(3 * SECOND)
    assert reader.node.replica.source.state.value == "following"
    assert world.counters["event restart"] == 0


def least_confirmed(driven: Driven) -> int:
    return min(node_of(shell).context.limbo.confirmed_index for shell in driven.shells)


def test_schema_changes_of_a_large_space_take_short_steps_only(
    keys: list[tuple[str, int]], one_sort_s: float, steps: dict[str, float]
) -> None:
    usual = ConsensusSettings()
    driven = Driven(3, work_per_step=usual.work_per_step, build_tuples_max=usual.build_tuples_max)
    leader = driven.leader()
    tuples = keys[: TUPLES // 3]
    for shell in driven.shells:
        assert shell.node is not None
        for body in space_rows(SPACE, "tree"):
            shell.node.database.load(body)
        fill(shell.node.database, SPACE, tuples)
    gc.collect()
    term = node_of(leader).context.term
    by_number = [SPACE, 1, "by_number", "tree", {"unique": True}, [[1, "unsigned"]]]
    fields = [{"name": "text", "type": "string"}, {"name": "number", "type": "unsigned"}]
    changes = {
        "index": (INSERT, build_body(288, tuple=by_number)),
        "format": (REPLACE, build_body(280, tuple=[SPACE, 1, "s600", "memtx", 0, {}, fields])),
        "drop of the index": (DELETE, build_body(288, key=[SPACE, 1])),
        "truncation": (REPLACE, build_body(330, tuple=[SPACE, 1])),
    }
    for name, (kind, body) in changes.items():
        steps.clear()
        asked = driven.send(leader, kind, body)
        assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
        assert driven.run(120_000, lambda asked=asked: asked in driven.answers), name
        assert driven.answers[asked].code == 0, driven.answers[asked].reason
        goal = node_of(leader).context.limbo.confirmed_index
        assert driven.run(120_000, lambda goal=goal: least_confirmed(driven) >= goal), name
        driven.run(100)
        for uuid, longest in steps.items():
            assert longest < one_sort_s / 8, f"{name}, {uuid}: {longest:.3f} of {one_sort_s:.3f} s"
    assert node_of(leader).context.term == term
    assert not len(node_of(leader).database.space(SPACE).indexes[0])


def test_rows_that_are_not_durable_yet_are_not_read_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that lags needs them, and the memory holds newer ones only (T11)."""
    driven = Driven(3, relay_window_bytes=1_000, synchro_timeout_ns=10**10)
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        driven.mute(follower, leader)
    leader.disk_delay_ns = 350 * MILLISECOND
    answers = [driven.send(leader, REPLACE, put(9, "x" * 900))]
    driven.run(2)  # until the disk is busy
    for key in range(6):
        answers.append(driven.send(leader, REPLACE, put(key, "x" * 900)))
        driven.run(2)
    leader.disk_delay_ns = 200_000
    reads: list[int] = []
    perform = ReadLane.perform

    def count(lane: ReadLane, storage: Storage, task: fx.ReadLog) -> list[LogBatch] | None:
        reads.append(task.after_index)
        return perform(lane, storage, task)

    monkeypatch.setattr(ReadLane, "perform", count)
    driven.world.network.heal()
    assert driven.run(5_000, lambda: all(number in driven.answers for number in answers))
    assert len(reads) < 30


def test_rows_are_sent_once_they_are_durable() -> None:
    """Without a row to confirm, only the ACK to the next heartbeat would send them."""
    driven = Driven(
        3, synchro_timeout_ns=10**10, election_timeout_ns=10 * SECOND, heartbeat_ns=2 * SECOND
    )
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        follower.stop(power_loss=False)
    leader.disk_delay_ns = 3 * SECOND
    rows = [driven.send(leader, REPLACE, put(9, "x" * 900))]
    driven.run(2)  # until the disk is busy
    rows += [driven.send(leader, REPLACE, put(key, "x" * 900)) for key in range(6)]
    driven.run(2)
    leader.disk_delay_ns = 200_000
    for follower in followers:
        follower.start()
    tail = node_of(leader).context.tail
    durable = tail.durable_index
    assert driven.run(6_000, lambda: tail.durable_index > durable)
    assert not driven.answers
    assert driven.run(20, lambda: all(number in driven.answers for number in rows))
