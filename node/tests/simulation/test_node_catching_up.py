"""A member that catches up confirms rows continuously, in bounded steps (T3, T11, G1)."""

from functools import partial
from typing import Any

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import Entry
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_node.node import EntryObserver, Node
from qsync_testing.worlds import REPLACE, Driven, node_of, put

ROWS = 400


def fall_behind(driven: Driven) -> None:
    """Write `ROWS` rows while one follower is disconnected, then reconnect it."""
    behind = driven.followers()[0]
    driven.cut_off(behind)
    driven.world.network.break_cut_off()
    for key in range(ROWS):
        assert driven.ask(driven.leader(), REPLACE, put(key % 7, f"v{key}")).code == 0
    driven.world.network.heal()


def test_follower_confirms_while_it_catches_up() -> None:
    driven = Driven(3, relay_chunk_bytes=1500, relay_window_bytes=1500, retention_ns=10**12)
    behind = driven.followers()[0]
    fall_behind(driven)
    context = node_of(behind).context
    longest, goal = 0, node_of(driven.leader()).context.tail.last_index
    for _ in range(20_000):
        driven.run(0.1)
        longest = max(longest, len(context.limbo))
        if context.tail.last_index >= goal:
            break
    assert context.tail.last_index >= goal
    assert longest < ROWS / 4, f"{longest} entries were pending at once"


def test_backlog_is_confirmed_in_bounded_steps() -> None:
    driven = Driven(3, confirm_rows_max=5)
    leader = driven.leader()
    for follower in driven.followers():
        follower.disk_delay_ns = 150 * MILLISECOND
    for key in range(ROWS):
        driven.send(leader, REPLACE, put(key, "x"))
    steps: dict[str, int] = {}

    def see(name: str, before: EntryObserver, taken: list[Entry], removed: list[Entry]) -> None:
        rows = sum(e.batch.last_index - e.batch.first_index + 1 for e in [*taken, *removed])
        steps[name] = max(steps.get(name, 0), rows)
        before(taken, removed)

    for shell in driven.shells:
        node = node_of(shell)
        assert node.observer is not None
        node.observer = partial(see, shell.name, node.observer)
    assert driven.run(60_000, lambda: len(driven.answers) >= ROWS)
    driven.run(500)
    assert all(answer.code == 0 for answer in list(driven.answers.values())[-ROWS:])
    assert set(steps) == {shell.name for shell in driven.shells}
    assert max(steps.values()) <= 6, steps


def test_slow_quorum_never_rolls_back() -> None:
    driven = Driven(3, synchro_timeout_ns=300 * MILLISECOND)
    leader = driven.leader()
    for follower in driven.followers():
        follower.disk_delay_ns = 150 * MILLISECOND
    for key in range(ROWS):
        driven.send(leader, REPLACE, put(key, "x"))
    assert driven.run(60_000, lambda: len(driven.answers) >= ROWS)
    assert {answer.code for answer in driven.answers.values()} == {0}


def test_writes_are_refused_while_the_quorum_lags() -> None:
    lease_ns = 2500 * MILLISECOND  # longer than a write of these disks
    driven = Driven(3, synchro_timeout_ns=1500 * MILLISECOND, election_timeout_ns=lease_ns)
    driven.world.disks.spread = 0.0
    leader = driven.leader()
    for follower in driven.followers():
        follower.disk_delay_ns = 1000 * MILLISECOND
    first = driven.send(leader, REPLACE, put(1, "x"))
    driven.run(800)
    sync = driven.send(leader, REPLACE, put(2, "x"))
    refused = driven.answers[sync]  # immediately: it waits for no pending row
    assert refused.code == ErrorCode.SYNC_QUEUE_FULL
    assert first not in driven.answers, "the refusal waited for the queue"
    driven.run(3000, lambda: first in driven.answers)
    assert driven.answers[first].code == 0
    assert driven.ask(leader, REPLACE, put(2, "x")).code == 0


def test_step_runs_a_bounded_number_of_requests() -> None:
    driven = Driven(3, work_per_step=20_000)
    leader = driven.leader()
    driven.run(200)
    commits = node_of(leader).commits
    batches: list[int] = []
    append = commits._append

    def counted(writes: list[Any], flags: int) -> None:
        batches.append(len(writes))
        append(writes, flags)

    commits._append = counted  # type: ignore[method-assign]  # and carries them out
    requests = [
        fx.Request(100, 5_000 + key, REPLACE, put(key, "x"), 0, "admin", None)
        for key in range(ROWS)
    ]
    leader.step(requests)  # all requests arrive in one turn
    assert driven.run(5_000, lambda: len(driven.answers) >= ROWS)
    assert {answer.code for answer in driven.answers.values()} == {0}
    assert max(batches) <= 20
    assert sum(batches) == ROWS


def test_rows_without_a_confirmation_cost_no_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(3, heartbeat_ns=SECOND, election_timeout_ns=10 * SECOND)
    idle: list[str] = []
    perform = Node.step

    def step(node: Node, now_ns: int, wall_s: float, inputs: list[Any]) -> list[Any]:
        out = perform(node, now_ns, wall_s, inputs)
        if not inputs and not out:
            idle.append(node.uuid)
        return out

    monkeypatch.setattr(Node, "step", step)
    for key in range(20):
        assert driven.ask(driven.leader(), REPLACE, put(key, "x")).code == 0
    assert len(idle) < 20


def test_leader_whose_rollback_is_not_confirmed_steps_down() -> None:
    """Its members answer heartbeats, but their disks write nothing for a long time (T4)."""
    driven = Driven(3, synchro_timeout_ns=300 * MILLISECOND, election_timeout_ns=20 * SECOND)
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        follower.disk_delay_ns = 5 * SECOND
    sync = driven.send(leader, REPLACE, put(1, "x"))
    node = node_of(leader)
    term = node.replica.leader
    assert term is not None
    assert driven.run(400, lambda: term.rollback_at)
    driven.run(250)
    assert node.context.is_leading, "the members may confirm the ROLLBACK yet"
    assert driven.run(100, lambda: not node.context.is_leading)
    assert driven.answers[sync].code == ErrorCode.OUTCOME_UNKNOWN
