"""Schedules of single members that once failed."""

from dataclasses import replace
from functools import partial

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import OldBallotError
from qsync_node.consensus.messages import Follow
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.format.keys import REPLACE
from qsync_node.storage.scheduler import Seal
from qsync_node.storage.storage import Storage
from qsync_sim.clients import build_body
from qsync_sim.cluster import ADMIN_SESSION
from qsync_sim.model import SPACE
from qsync_sim.shell import DIRECTORY, LIMITS, Shell
from qsync_sim.world import World

PATIENCE = 30 * SECOND
"""Longer than a member waits for an address that does not answer."""


def insert(world: World, first: int, count: int) -> None:
    for key in range(first, first + count):
        world.insert(SPACE, [key, "x" * 50, 0])


def confirmed_of(shell: Shell) -> int:
    assert shell.node is not None
    return shell.node.context.limbo.confirmed_index


def replica_with_a_newer_term() -> tuple[World, Shell]:
    """Return an anonymous replica that has rows of a term, but no heartbeat of its leader."""
    world = World(3)
    world.bootstrap(3)
    anonymous = world.add("anonymous")
    anonymous.start()
    world.run_for(300 * MILLISECOND)
    old = world.leader()
    assert old is not None
    rival, third = (s for s in world.alive() if s not in (old, anonymous))
    for one in (old, rival):
        world.network.cut(one, anonymous)
        world.network.cut(anonymous, one)
    world.network.break_cut_off()
    assert rival.node is not None
    world.command(rival, "nominate", term=rival.node.context.term)
    world.run_for(50 * MILLISECOND, lambda: world.leader() is rival)
    assert world.leader() is rival
    insert(world, 1, 3)
    world.run_for(3 * SECOND, lambda: confirmed_of(anonymous) >= confirmed_of(third))
    world.run_for(50 * MILLISECOND)  # until its disk has the rows
    assert anonymous.node is not None
    assert anonymous.node.context.tail.last_term == rival.node.context.term
    return world, anonymous


def test_an_anonymous_replica_hears_of_a_term_by_its_rows() -> None:
    """The replica may follow a member that does not lead, and must still restart correctly."""
    _, anonymous = replica_with_a_newer_term()
    assert anonymous.node is not None
    term = anonymous.node.context.tail.last_term
    anonymous.stop(power_loss=False)
    anonymous.start()
    assert anonymous.node is not None
    assert anonymous.node.context.term >= term


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_anonymous_replica_with_a_newer_term_becomes_a_voter(is_restarted: bool) -> None:
    world, anonymous = replica_with_a_newer_term()
    if is_restarted:
        anonymous.stop(power_loss=False)
        anonymous.settings = replace(anonymous.settings, role="voter")
        anonymous.start()
    else:
        world.command(anonymous, "configure", role="voter")
    world.network.heal()
    assert anonymous.node is not None
    context = anonymous.node.context
    assert world.run_for(PATIENCE, lambda: context.uuid in context.configuration.voter_uuids)
    insert(world, 4, 3)
    leader = world.leader()
    assert leader is not None
    assert world.run_for(PATIENCE, lambda: confirmed_of(anonymous) == confirmed_of(leader))
    assert context.ballot.term == context.tail.last_term
    anonymous.stop(power_loss=True)
    anonymous.start()
    assert anonymous.node is not None
    assert anonymous.node.context.ballot.term == context.ballot.term


def test_an_older_copy_of_a_ballot_is_refused() -> None:
    """The member has forgotten its votes since then, so it must not start."""
    world = World(3)
    world.bootstrap(3)
    shell, other = world.alive()[:2]
    assert world.leader() is shell
    assert shell.node is not None
    old = shell.node.context.ballot
    assert other.node is not None
    world.command(other, "nominate", term=other.node.context.term)
    assert world.run_for(PATIENCE, lambda: world.leader() is other)
    insert(world, 1, 3)
    shell.stop(power_loss=False)
    storage, _ = Storage.open(shell.disk, DIRECTORY, LIMITS)
    storage.store_ballot(old.encode())
    storage.close()
    with pytest.raises(OldBallotError, match=r"states term 1, .* term 2.* as a new instance"):
        shell.start()


def test_an_anonymous_replica_gets_the_confirmed_part_of_a_joined_batch() -> None:
    """The source serves a file that joins confirmed and pending rows, while the quorum is lost."""
    world = World(1)
    world.bootstrap(3, tail_cache_bytes=1)
    leader = world.leader()
    assert leader is not None
    anonymous = world.add("anonymous")
    anonymous.start()
    world.run_for(300 * MILLISECOND)
    world.network.cut(leader, anonymous)
    world.network.cut(anonymous, leader)
    leader.disk_delay_ns = 10 * MILLISECOND
    assert leader.tasks is not None
    leader.tasks.scheduler.log.submit(Seal())  # the disk is busy, so the writes wait and are joined

    def write(key: int) -> None:
        body = build_body(SPACE, tuple=[key, "joined", 0])
        leader.step([fx.Request(500, key, 3, body, 0, "admin", None)])

    write(1)
    world.run_for(2 * MILLISECOND)
    write(2)
    world.run_for(2 * MILLISECOND)
    for other in world.alive():
        if other not in (leader, anonymous):
            world.network.cut(other, leader)
            world.network.cut(other, anonymous)
            world.network.cut(leader, other)
    write(3)
    world.run_for(40 * MILLISECOND)
    confirmed = confirmed_of(leader)
    assert leader.node is not None
    assert leader.node.context.tail.durable_index > confirmed
    assert leader.storage is not None
    joined = leader.storage.read(confirmed - 1, 1)[0]
    assert joined.first_index <= confirmed < joined.last_index
    assert confirmed_of(anonymous) < confirmed
    world.network.break_cut_off()  # the replica subscribes again and is served from the file
    world.network.cuts.discard((leader.uuid, anonymous.uuid))
    world.network.cuts.discard((anonymous.uuid, leader.uuid))
    world.run_for(200 * MILLISECOND, lambda: confirmed_of(anonymous) >= confirmed)
    assert confirmed_of(anonymous) == confirmed
    assert anonymous.node is not None
    assert anonymous.node.context.tail.last_index == confirmed


def test_no_member_receives_a_divergent_state() -> None:
    """While the state lacks a confirmed row, the member makes no checkpoint or snapshot of it."""
    world = World(6)
    world.bootstrap(3)
    follower = next(s for s in world.alive() if s is not world.leader())
    node = follower.node
    assert node is not None
    node.replica.repair.open(confirmed_of(follower))
    assert node.replica.repair.is_state_wrong
    assert not node.checkpoint()
    world.run_for(5 * SECOND, lambda: not node.replica.repair.is_open)
    assert not node.replica.repair.is_open
    assert node.checkpoint()


def test_divergent_state_is_replaced_while_clients_write() -> None:
    """Rows of the leader arrive during the transfer, which takes many chunks."""
    world = World(6)
    world.base = replace(world.base, relay_chunk_bytes=100)
    world.bootstrap(3)
    insert(world, 0, 60)
    leader = world.leader()
    assert leader is not None
    follower = next(s for s in world.alive() if s is not leader)
    node = follower.node
    assert node is not None

    def write(number: int) -> None:
        body = build_body(SPACE, tuple=[number, "y", 0])
        leader.step([fx.Request(55, number, REPLACE, body, 0, "admin", None)])
        world.after(3 * MILLISECOND, lambda: write(number + 1))

    write(1000)
    world.run_for(100 * MILLISECOND)
    node.replica.repair.open(confirmed_of(follower))
    assert world.run_for(3 * SECOND, lambda: not node.replica.repair.is_open)
    assert world.run_for(SECOND, lambda: confirmed_of(follower) == confirmed_of(leader))


def test_long_transfer_of_a_state_holds_no_more_rows_than_the_queue_may() -> None:
    world = World(6)
    world.base = replace(world.base, limbo_bytes_max=4000)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    follower = next(s for s in world.alive() if s is not leader)
    node = follower.node
    assert node is not None
    context = node.context
    replica = node.replica
    replica.repair.open(confirmed_of(follower))
    assert world.run_for(3 * SECOND, lambda: replica.repair.latest_index() is not None)
    world.network.cut(follower, leader)  # the rest of the state is not asked for
    insert(world, 0, 60)
    world.run_for(200 * MILLISECOND)
    assert context.limbo.bytes < 8000
    assert confirmed_of(follower) == confirmed_of(leader)


def followed_by(shell: Shell) -> str:
    """Return the UUID of the member that `shell` follows."""
    assert shell.node is not None
    return shell.node.replica.source.uuid


def test_replicas_that_follow_each_other_return_to_the_voters() -> None:
    world = World(5)
    world.bootstrap(3)
    voters = world.alive()
    first, second = world.add("anonymous"), world.add("anonymous")
    for shell in (first, second):
        shell.start()
    world.run_for(300 * MILLISECOND)
    for shell in (first, second):
        for voter in voters:
            world.network.cut(shell, voter)
            world.network.cut(voter, shell)
    world.network.break_cut_off()
    assert world.run_for(
        5 * SECOND,
        lambda: followed_by(first) == second.uuid and followed_by(second) == first.uuid,
    )
    world.network.heal()
    insert(world, 1, 3)
    world.run_for(2 * SECOND)
    assert confirmed_of(first) == confirmed_of(second) == confirmed_of(voters[0])


@pytest.mark.parametrize("is_alone", [False, True])
def test_outdated_leader_that_lacks_confirmed_rows_is_no_split_brain(is_alone: bool) -> None:
    """A replica can have rows of a term before a heartbeat of that term's leader."""
    world = World(5)
    world.bootstrap(3)
    anonymous = world.add("anonymous")
    anonymous.start()
    world.run_for(300 * MILLISECOND)
    old = world.leader()
    assert old is not None
    rival, third = (shell for shell in world.alive() if shell not in (old, anonymous))
    for one, other in ((old, rival), (old, third), (old, anonymous), (rival, anonymous)):
        world.network.cut(one, other)
        world.network.cut(other, one)
    world.network.break_cut_off()
    assert rival.node is not None
    assert anonymous.node is not None
    assert old.node is not None
    world.command(rival, "nominate", term=rival.node.context.term)
    world.run_for(50 * MILLISECOND, lambda: world.leader() is rival)
    insert(world, 1, 3)
    context = anonymous.node.context
    assert world.run_for(200 * MILLISECOND, lambda: context.tail.last_term > context.term)
    if is_alone:
        world.network.cut(third, anonymous)
        world.network.cut(anonymous, third)
        world.network.break_cut_off()
    world.network.cuts -= {(old.uuid, anonymous.uuid), (anonymous.uuid, old.uuid)}
    assert old.node.replica.leader is not None, "the old leader does not know the new term"
    world.run_for(300 * MILLISECOND)
    world.network.heal()
    world.run_for(2 * SECOND)
    assert not anonymous.node.context.split_brain
    assert confirmed_of(anonymous) == confirmed_of(rival)


def test_replica_with_a_slow_disk_does_not_become_a_voter() -> None:
    """M4: each of its rounds takes longer than an election timeout."""
    world = World(3)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    learner = world.add()
    learner.disk_delay_ns = SECOND
    learner.start()
    limbo = leader.node.context.limbo

    def write(number: int) -> None:
        body = build_body(SPACE, tuple=[number, "y", 0])
        leader.step([fx.Request(55, number, REPLACE, body, 0, "admin", None)])
        world.after(30 * MILLISECOND, lambda: write(number + 1))

    write(1)
    assert world.run_for(20 * SECOND, lambda: limbo.configuration.by_uuid(learner.uuid) is not None)
    world.run_for(20 * SECOND)
    assert learner.uuid not in limbo.configuration.voter_uuids
    learner.disk_delay_ns = MILLISECOND
    assert world.run_for(10 * SECOND, lambda: learner.uuid in limbo.configuration.voter_uuids)


def test_voter_is_not_removed_if_the_quorum_would_need_a_slow_disk() -> None:
    """M3: the voters that stay must be alive, and must have caught up."""
    world = World(3)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    limbo = leader.node.context.limbo
    slow, quick = (shell for shell in world.alive() if shell is not leader)
    slow.disk_delay_ns = 3 * SECOND

    def write(number: int) -> None:
        body = build_body(SPACE, tuple=[number, "y", 0])
        leader.step([fx.Request(55, number, REPLACE, body, 0, "admin", None)])
        world.after(30 * MILLISECOND, lambda: write(number + 1))

    def unregister(sync: int) -> fx.Command:
        return fx.Command(ADMIN_SESSION, sync, "unregister", {"uuid": quick.uuid})

    write(1)
    world.run_for(4 * SECOND)
    answer = world.ask(leader, unregister, wait_ns=SECOND)
    assert answer is not None
    assert "2 of the 2 remaining voters must answer and have caught up (now 1)" in answer.reason
    assert quick.uuid in limbo.configuration.voter_uuids
    slow.disk_delay_ns = MILLISECOND
    world.run_for(4 * SECOND)
    answer = world.ask(leader, unregister, wait_ns=SECOND)
    assert answer is not None
    assert not answer.code, answer.reason
    assert quick.uuid not in limbo.configuration.voter_uuids


def test_late_subscription_does_not_replace_a_newer_one() -> None:
    """Two members have two connections, and the newer message may arrive first."""
    world = World(2)
    world.bootstrap(3)
    insert(world, 0, 5)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    follower = next(shell for shell in world.alive() if shell is not leader)
    assert follower.node is not None
    follower.node.replica.source.restart()
    relays, tail = leader.node.replica.relays.by_peer, leader.node.context.tail
    before = relays[follower.uuid]
    assert world.run_for(PATIENCE, lambda: relays[follower.uuid] is not before)
    assert relays[follower.uuid].subscription > before.subscription
    late = Follow(before.subscription, before.term, 1, tail.term_at(1))
    leader.step([fx.Received(before.link, late)])
    insert(world, 5, 5)
    assert world.run_for(SECOND, lambda: confirmed_of(follower) == confirmed_of(leader))


def test_transfer_begins_again_at_a_source_whose_state_is_another_one() -> None:
    """The first source continues at the position that the second one's chunk has reached."""
    world = World(2)
    world.base = replace(world.base, relay_chunk_bytes=200)
    world.bootstrap(3)
    insert(world, 0, 40)
    first, second, third = world.alive()
    joiner = world.add("anonymous")

    def reach_only(source: Shell) -> None:
        for one in (first, second, third):
            for ends in ((one, joiner), (joiner, one)):
                world.network.cuts.discard((ends[0].uuid, ends[1].uuid))
                if one is not source:
                    world.network.cut(*ends)
        world.network.break_cut_off()

    def has_chunk_of(index: int) -> bool:
        assert joiner.node is not None
        rejoin = joiner.node.replica.applier.rejoin
        has_rows = rejoin.loader is not None and rejoin.loader.rows > 0
        return has_rows and rejoin.transfer_index == index

    reach_only(first)
    joiner.start()
    old = confirmed_of(first)
    assert world.run_for(PATIENCE, lambda: has_chunk_of(old))
    reach_only(second)
    insert(world, 40, 3)
    world.run_for(10 * MILLISECOND)
    new = confirmed_of(second)
    assert new > old
    assert world.run_for(PATIENCE, lambda: has_chunk_of(new))
    reach_only(first)
    assert joiner.node is not None
    context = joiner.node.context
    assert world.run_for(PATIENCE, lambda: context.has_origin)


def test_state_is_repaired_from_a_voter_while_the_leader_needs_a_repair_too() -> None:
    """A divergent member leads, because the only sound one may not, and sends no state."""
    world = World(7)
    world.bootstrap(3)
    insert(world, 0, 10)
    first = world.leader()
    assert first is not None
    divergent, sound = (shell for shell in world.alive() if shell is not first)
    for one in (first, divergent):
        world.network.cut(one, sound)
        world.network.cut(sound, one)
    world.network.break_cut_off()
    insert(world, 10, 3)  # the sound member has an older log
    assert confirmed_of(divergent) > confirmed_of(sound)
    assert divergent.node is not None
    divergent.node.replica.repair.open(confirmed_of(divergent))
    first.stop(power_loss=False)
    world.network.heal()
    assert world.run_for(PATIENCE, lambda: has_refused(divergent))
    world.command(sound, "configure", election_mode="voter")
    assert world.run_for(PATIENCE, lambda: world.leader() is divergent)
    first.start()
    assert first.node is not None
    repair = first.node.replica.repair
    repair.open(confirmed_of(first))
    assert repair.is_open
    assert world.run_for(PATIENCE, lambda: not repair.is_open)
    assert world.run_for(PATIENCE, lambda: world.leader() is first)
    divergent_repair = divergent.node.replica.repair
    assert world.run_for(PATIENCE, lambda: not divergent_repair.is_open)


def has_refused(shell: Shell) -> bool:
    """Return whether a member has refused its vote, because its log is newer."""
    assert shell.node is not None
    return shell.node.replica.election.refused_term == shell.node.context.term


def test_a_member_says_why_it_is_not_registered_until_it_is() -> None:
    """All 31 ids are taken, and one becomes free later."""
    world = World(1)
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    assert leader.node is not None
    registrar = leader.node.registrar
    known = leader.node.context
    uuids = [f"00000000-0000-4000-8000-{number:012}" for number in range(28)]
    for uuid in uuids:
        leader.run(partial(registrar.register_tarantool, uuid))
        assert world.run_for(SECOND, lambda: not known.limbo.has_pending_membership)
    assert not known.configuration.free_id()
    joining = world.add()
    joining.start()
    world.run_for(3 * SECOND)
    node = joining.node
    assert node is not None
    reason = "no replica id is free: 31 replicas are registered; unregister one first"
    assert node.status.report()["refused"] == reason
    world.command(leader, "unregister", uuid=uuids[0])
    assert world.run_for(5 * SECOND, lambda: node.context.replica_id != 0)
    assert world.run_for(SECOND, lambda: node.status.report()["refused"] == "")


def test_an_anonymous_replica_without_a_leader_removes_its_log() -> None:
    """It follows another member, and hears from no leader how much the others have (S5)."""
    world, anonymous = replica_with_a_newer_term()
    insert(world, 4, 300)
    leader = world.leader()
    assert leader is not None
    assert world.run_for(PATIENCE, lambda: confirmed_of(anonymous) >= confirmed_of(leader))
    assert anonymous.node is not None
    tail = anonymous.node.context.tail
    world.command(anonymous, "snapshot")
    world.run_for(SECOND)
    insert(world, 400, 3)
    world.command(anonymous, "snapshot")
    assert world.run_for(5 * SECOND, lambda: tail.first_available_index > 100)
