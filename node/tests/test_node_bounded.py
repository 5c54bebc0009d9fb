"""No step and no thread holds the interpreter for long, however large the state is (G1, G2).

Times are CPU times of one thread, compared with one `sorted()` of the same keys in the same run: so
a busy machine does not matter, and sorting, copying or loading everything in one call fails.
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

from qsync_node.core.effects import Report
from qsync_node.core.engine.database import Database
from qsync_node.core.engine.requests import put_body
from qsync_node.core.node import Node
from qsync_node.core.settings import SECOND, Settings
from qsync_node.core.snapshots import View
from qsync_sim.model import SPACE as SPACE_OF_WORLD
from qsync_sim.shell import Shell
from qsync_sim.world import World

TUPLES = 700_000
SPACE, HASH_SPACE = 600, 601
CHECKPOINT_BYTES = 20_000


def space_rows(space: int, kind: str) -> list[bytes]:
    parts = [[0, "string"], [1, "unsigned"]]
    return [
        put_body(280, packb([space, 1, f"s{space}", "memtx", 0, {}, []])),
        put_body(288, packb([space, 0, "pk", kind, {"unique": True}, parts])),
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
    worker = threading.Thread(target=lambda: drawn.extend(bodies))
    longest, last = 0.0, time.perf_counter()
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < one_sort_s / 3, f"{longest:.3f} s without a turn, one sort {one_sort_s:.3f} s"
    assert drawn[-TUPLES:] == [put_body(SPACE, packb(key)) for key in sorted(keys)]


@pytest.fixture
def collector_of_a_server() -> Iterator[None]:
    """The collector set as a server sets it (loop.py): it need not walk what was there before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, collector_of_a_server: None) -> dict[str, float]:
    """The longest step of each node, in seconds of CPU time."""
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
    world = World(3, Settings(heartbeat_ns=SECOND // 20, election_timeout_ns=SECOND // 2))
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
        return reader.node is not None and reader.node.replica.applier.state.value == "following"

    assert world.run_for(60 * SECOND, has_all)
    assert reader.node is not None
    held = reader.node.database
    assert len(held.space(SPACE).indexes[0]) == half
    assert len(held.space(HASH_SPACE).indexes[0]) == TUPLES - half
    assert list(held.snapshot_bodies()) == list(leader.node.database.snapshot_bodies())
    for uuid, longest in steps.items():
        assert longest < one_sort_s / 4, f"{uuid}: {longest:.3f} s, one sort {one_sort_s:.3f} s"


def test_members_of_one_log_write_their_checkpoints_at_different_rows() -> None:
    world = World(3, Settings(heartbeat_ns=SECOND // 20, checkpoint_bytes=CHECKPOINT_BYTES))
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
    # A row and its CONFIRM take up 250 bytes at most.
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
    bodies = View.bodies
    stray = put_body(9999, packb([1]))

    def with_stray_row(view: View) -> Iterator[bytes]:
        yield from bodies(view)
        yield stray

    monkeypatch.setattr(View, "bodies", with_stray_row)
    reader = world.add("anonymous")
    reader.start()
    world.run_for(2 * SECOND)
    assert world.counters["event snapshot_refused"] >= 1
    assert reader.node is not None
    assert not reader.node.replica.has_origin
    monkeypatch.undo()
    world.run_for(3 * SECOND)
    assert reader.node.replica.applier.state.value == "following"
    assert world.counters["event restart"] == 0
