"""The simulator is deterministic: a seed defines a schedule, and every finding is reported."""

from collections import Counter
from collections.abc import Sequence

import pytest

from qsync_node.consensus import messages as msg
from qsync_sim.__main__ import (
    FAULTS,
    MUST_HAPPEN,
    SeedResult,
    run_range,
    run_seed,
    swarm_of,
)
from qsync_sim.schedule import FAULTS_MIN, OPERATIONS_MIN, Schedule
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World
from qsync_testing.worlds import INSERT, Driven, put


# Each of these seeds once found a bug; the history of the repository describes it.
@pytest.mark.parametrize(
    "seed",
    [
        4,
        37,
        179,
        197,
        1646,
        1049,
        1946,
        3236,
        3670,
        6210,  # a disk failed that a paused leader of an earlier term considered replaceable
        8954,  # a registration was rolled back in the step that sent unconfirmed rows for it
        7813,
        5166,
        99,
        1482,
        2260,
        2309,
        2379,
        2478,
        2530,
        2957,
        10718,
        11817,
        12136,
        13536,
        14453,
        14676,
        14985,
        16059,
        16481,
        17009,
        17636,
        17712,
        17713,
        21004,
        23812,
        24746,
        28271,
        29085,
        29359,
        37917,
        71078,
        30229,
        31548,
        31888,
        34605,
        34675,
        134,
        524,
    ],
)
def test_seed_that_once_failed(seed: int) -> None:
    assert run_seed(seed).problem == ""


@pytest.mark.parametrize(
    ("seed", "frequent"),
    [
        # The first attempt of a keyed request came after its retry, which had changed nothing.
        (50, ["kill", "snapshot", "lose_disk"]),
        # A member led while the state for its repair was in transfer, and kept the outdated state.
        (991192, ["lose_disk", "isolate_leader", "stop"]),
        # A subscription arrived after a later one, over the other connection, and replaced it.
        (10244, ["low_disk", "ambush"]),
        # Requests of a closed session ran at the leader, where they had waited.
        (45312, ["strand_a_promote", "remove_member", "diverge_inside_a_block"]),
        # A replica asked its leader by a connection that was lost, though another one worked.
        (44382, ["lossy_network", "partition", "low_disk"]),
        # Most members refused a row that the leader wrote for itself, and it was never rolled back.
        (48540, ["nack", "lose_what_was_promised"]),
        # The first attempt of a keyed request came after its retry, which was rolled back.
        (57577, ["partition", "garbage", "snapshot"]),
        # A calm end began while a connection still waited for a packet that had been lost.
        (10189, ["lossy_network", "remove_member"]),
        # The checker noticed a late end of a stopped process, and with it of a quorum, too late.
        (69954, ["lose_what_was_promised", "add_member"]),
        # The cuts of a chain of faults lasted until the end, because no successor could be elected.
        (71992, ["demote", "strand_a_longer_log", "failed_fsync"]),
        # A request preceded the first snapshot of a member in one step, and was refused rightly.
        (72107, ["garbage", "snapshot"]),
        # A follower acknowledged rows faster than it confirmed them, and its queue had no bound.
        (71504, ["clock", "kill", "election_mode"]),
        # A member alone had the row that ended its vote: it refused its vote, and could not stand.
        (85662, ["demote", "election_mode", "stop"]),
        # A leader answered no request of a session that closed, and its member waited for answers.
        (87012, ["strand_a_promote", "clock"]),
        # The stand-in for brokers read a state that lacked a confirmed row.
        (77871, ["lose_what_was_promised", "full_disk", "lossy_network"]),
        # The checker took the unknown outcome of a BEGIN for a refusal.
        (109323, ["kill", "set_role"]),
        # Writes that arrived after the deadline of their BEGIN counted for its transaction.
        (110428, ["lose_what_was_promised", "slow_disk", "slow_network"]),
        (109726, ["bit_rot", "slow_network"]),
    ],
)
def test_seed_with_frequent_faults_that_once_failed(seed: int, frequent: list[str]) -> None:
    assert run_seed(seed, frequent=frequent).problem == ""


def test_same_seed_gives_the_same_schedule() -> None:
    runs = []
    for _ in range(2):
        schedule = Schedule(7, is_tracing=True)
        schedule.run()
        history = [
            (o.client, o.kind, o.value, o.member, o.called_ns, o.returned_ns, o.outcome, o.index)
            for o in schedule.world.history
        ]
        runs.append((schedule.world.trace, history, schedule.world.ledger))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) > 20


def test_different_seeds_give_different_schedules() -> None:
    assert run_seed(1).counters != run_seed(2).counters


def test_a_schedule_is_no_less_than_promised() -> None:
    schedule = Schedule(3)
    schedule.run()
    assert len(schedule.world.history) >= OPERATIONS_MIN >= 200
    assert schedule.faults_done >= FAULTS_MIN >= 5


def test_a_checkpoint_is_no_longer_slow_than_its_disk() -> None:
    driven = Driven(3)
    driven.world.disks.checkpoint_delays = 500
    shell = driven.leader()
    for key in range(1, 4):
        assert driven.ask(shell, INSERT, put(key, "value")).code == 0
        shell.disk_delay_ns = 1_500_000_000
        driven.world.command(shell, "snapshot")
        driven.run(100)
        assert shell.checkpoint is not None, "a checkpoint is under way"
        shell.disk_delay_ns = 200_000
        assert driven.run(15_000, lambda: shell.checkpoint is None)


def test_what_must_happen_is_counted_by_names_that_exist() -> None:
    """`make test` and CI run these seeds and many more afterwards."""
    seen: set[str] = set()
    for seed in range(25):
        found = run_seed(seed)
        assert found.problem == "", f"python -m qsync_sim --show {seed}: {found.problem}"
        seen.update(found.counters)
    # Rare events need hundreds of seeds; most events occur within these few.
    assert len(seen.intersection(MUST_HAPPEN)) >= 0.7 * len(MUST_HAPPEN)


class TestOnlooker:
    """The observer reports a promise at once if the member's disk does not support it."""

    def world(self) -> World:
        world = World(5)
        world.bootstrap(3)
        return world

    def test_acknowledging_what_is_not_on_disk(self) -> None:
        world = self.world()
        shell = next(iter(world.shells.values()))
        assert shell.storage is not None
        assert shell.node is not None
        beyond = shell.storage.last_index + 1
        ack = msg.Ack(1, shell.node.context.term, beyond, 1, 0, 0)
        with pytest.raises(InvariantViolation, match="D1"):
            world.onlooker.on_send(shell, "anybody", ack)

    def test_acknowledging_in_a_term_that_was_left(self) -> None:
        world = self.world()
        shell = next(iter(world.shells.values()))
        with pytest.raises(InvariantViolation, match="D2"):
            world.onlooker.on_send(shell, "anybody", msg.Ack(1, 0, 1, 0, 0, 0))

    def test_a_vote_that_is_not_stored(self) -> None:
        world = self.world()
        shell = next(iter(world.shells.values()))
        vote = msg.VoteReply(99, True, False, 1, 1, 1, 0, False)
        with pytest.raises(InvariantViolation, match="D2"):
            world.onlooker.on_send(shell, "anybody", vote)

    def test_a_prevote_binds_no_voter(self) -> None:
        world = self.world()
        shell = next(iter(world.shells.values()))
        world.onlooker.on_send(shell, "anybody", msg.VoteReply(99, True, True, 1, 1, 1, 0, False))

    def test_a_leader_without_votes(self) -> None:
        world = self.world()
        follower = next(s for s in world.shells.values() if s is not world.leader())
        with pytest.raises(InvariantViolation, match="E1"):
            world.onlooker.on_leader(follower, 50)

    def test_confirming_what_no_quorum_has(self) -> None:
        world = self.world()
        leader = world.leader()
        assert leader is not None
        assert leader.node is not None
        beyond = leader.node.context.tail.last_index + 5
        with pytest.raises(InvariantViolation, match="L2"):
            world.onlooker.on_confirmed(leader, leader.node, beyond, True)


def test_swarm_has_a_mixture_for_each_seed() -> None:
    mixtures = [swarm_of(seed) for seed in range(200)]
    assert mixtures == [swarm_of(seed) for seed in range(200)]
    assert {len(set(one)) for one in mixtures} == {2, 3}
    assert {name for one in mixtures for name in one} == set(FAULTS)


def test_failure_of_a_swarm_shows_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qsync_sim.__main__.run_seed", fails_with_a_kill)
    assert run_range({4: ("kill", "stop"), 5: ("stop",)}, workers=1) == 1
    shown = capsys.readouterr().out
    assert "1 passed, 1 failed" in shown
    assert "of 2 schedules" not in shown  # a short run reports no progress in a file
    assert "python -m qsync_sim --show 4 --faults 7 --frequent kill stop\n" in shown


def fails_with_a_kill(
    seed: int, faults_limit: int | None = None, frequent: Sequence[str] = ()
) -> SeedResult:
    """Stand in for a schedule that needs seven faults and a kill to fail."""
    is_enough = faults_limit is None or faults_limit >= 7
    problem = "planted" if "kill" in frequent and is_enough else ""
    return SeedResult(seed, problem, Counter(), 1, 1)
