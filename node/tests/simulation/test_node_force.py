"""E11: after the permanent loss of a quorum, an operator's order lets the survivor continue."""

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.context import Context
from qsync_node.consensus.settings import SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.shell import Shell
from qsync_sim.world import World
from qsync_testing.worlds import INSERT, REPLACE, SELECT, Driven, get, put


def order(world: World, shell: Shell, verb: str, **arguments: object) -> fx.Answer:
    answer = world.ask(
        shell, lambda sync: fx.Command(7, sync, verb, arguments), wait_ns=20 * SECOND
    )
    assert answer is not None
    return answer


def context_of(shell: Shell) -> Context:
    assert shell.node is not None
    return shell.node.context


def last_index(shell: Shell) -> int:
    return context_of(shell).tail.last_index


def lose(shells: list[Shell]) -> list[str]:
    """Destroy the disks of members, and return their UUIDs."""
    for shell in shells:
        shell.stop(power_loss=True)
        shell.is_removed = True
    return [shell.uuid for shell in shells]


def lose_two_of_three(world: World) -> tuple[Shell, list[str]]:
    """Destroy the disks of two of three voters, the leader included.

    Returns:
        The survivor, and the UUIDs of the lost members.
    """
    world.bootstrap(3)
    leader = world.leader()
    assert leader is not None
    survivor = next(shell for shell in world.alive() if shell is not leader)
    lost = lose([shell for shell in world.alive() if shell is not survivor])
    world.run_for(5 * SECOND)
    return survivor, lost


@pytest.mark.parametrize("verb", ["force-confirm", "force-rollback"])
@pytest.mark.parametrize("seed", range(5))
def test_the_survivor_continues_alone_and_grows_again(seed: int, verb: str) -> None:
    world = World(seed)
    survivor, lost = lose_two_of_three(world)
    assert world.leader() is None
    if verb == "force-rollback":
        # The order discards all rows that the survivor does not know to be confirmed.
        assert survivor.node is not None
        known = survivor.node.context.limbo.confirmed_index
        world.ledger = {index: row for index, row in world.ledger.items() if index <= known}
    assert order(world, survivor, verb, lost=lost, disks_destroyed=True).code == 0
    world.insert(SystemSpace.SCHEMA, ["written after", seed])
    for _ in range(2):
        world.add().start()
    node = survivor.node
    assert node is not None
    done = world.run_for(
        30 * SECOND, lambda: len(node.context.limbo.confirmed_configuration.voters) == 3
    )
    assert done
    assert not node.context.ballot.forced_voters
    assert node.context.ballot.was_forced
    assert set(lost) <= set(node.context.limbo.confirmed_configuration.removed)


def test_a_lost_voter_that_comes_back_is_ignored_with_its_terms() -> None:
    world = World(1)
    survivor, lost = lose_two_of_three(world)
    assert order(world, survivor, "force-confirm", lost=lost, disks_destroyed=True).code == 0
    node = survivor.node
    assert node is not None
    term = node.context.term
    for uuid in lost:
        world.shells[uuid].start()
    world.run_for(10 * SECOND)
    assert node.context.term == term
    assert node.replica.leader is not None


@pytest.mark.parametrize("assurance", [None, False, 1, "false", "true", ["yes"]])
def test_nothing_is_forced_without_the_assurance_that_disks_are_destroyed(
    assurance: object,
) -> None:
    """Lost voters that still run could elect a second leader."""
    world = World(0)
    survivor, lost = lose_two_of_three(world)
    for verb in ("force-confirm", "force-rollback"):
        answer = order(world, survivor, verb, lost=lost, disks_destroyed=assurance)
        assert answer.code == ErrorCode.ILLEGAL_PARAMS
    assert world.leader() is None


def test_nothing_is_forced_while_a_quorum_answers() -> None:
    world = World(2)
    world.bootstrap(3)
    follower = next(shell for shell in world.alive() if shell is not world.leader())
    lost = [shell.uuid for shell in world.alive() if shell is not follower]
    assert order(world, follower, "force-confirm", lost=lost, disks_destroyed=True).code == 5
    answer = order(world, follower, "force-confirm", lost=lost)
    assert answer.code == 1
    assert "disks" in answer.reason


def order_in_vain(world: World, survivors: int, verb: str) -> tuple[list[Shell], list[str]]:
    """Destroy the other disks, and give an order to the survivor whose log lacks a row.

    Returns:
        The survivors, that one first, and the UUIDs of the lost members.
    """
    leader = world.leader()
    assert leader is not None
    older, *others = (shell for shell in world.alive() if shell is not leader)
    left, lost = [older, *others[: survivors - 1]], [leader, *others[survivors - 1 :]]
    world.network.cut(leader, older)
    world.insert(SystemSpace.SCHEMA, ["first", 1])
    assert world.run_for(SECOND, lambda: last_index(left[-1]) > last_index(older))
    uuids = lose(lost)
    world.network.heal()
    world.run_for(5 * SECOND)
    order(world, older, verb, lost=uuids, disks_destroyed=True)
    assert not context_of(older).is_leading
    return left, uuids


def test_forced_rollback_that_found_no_votes_rolls_back_nothing_later() -> None:
    """The other survivor has the newer log, and gets an order of its own."""
    world = World(3)
    world.bootstrap(5)
    (older, newer), uuids = order_in_vain(world, 2, "force-rollback")
    assert order(world, newer, "force-confirm", lost=uuids, disks_destroyed=True).code == 0
    added = world.add()
    added.start()

    def is_grown() -> bool:
        voters = context_of(older).limbo.confirmed_configuration.voters
        return added.uuid in {voter.uuid for voter in voters}

    assert world.run_for(30 * SECOND, is_grown)
    assert not context_of(older).ballot.forced_voters
    world.command(added, "configure", election_mode="voter")
    written = last_index(newer) + 1
    body = build_body(SystemSpace.SCHEMA, tuple=["second", 2])
    newer.step([fx.Request(7, 1, INSERT, body, 0, "admin", None)])
    assert world.run_for(SECOND, lambda: last_index(older) >= written)
    world.network.cut(newer, older)
    assert world.run_for(SECOND, lambda: context_of(newer).limbo.confirmed_index >= written)
    assert context_of(older).limbo.confirmed_index < written
    newer.stop(power_loss=False)
    assert world.run_for(30 * SECOND, lambda: world.leader() is older)
    assert world.run_for(SECOND, lambda: context_of(older).limbo.confirmed_index > written)
    assert not context_of(older).limbo.rolled_back_rows


def test_order_that_another_leader_has_overtaken_is_over() -> None:
    """Its member was away, and confirms the forced configuration and later ones in one step."""
    world = World(5)
    world.bootstrap(6, confirm_rows_max=1000, relay_chunk_bytes=1 << 20)
    (older, newer, _), uuids = order_in_vain(world, 3, "force-confirm")
    world.command(newer, "force-confirm", lost=uuids, disks_destroyed=True)
    assert world.run_for(SECOND, lambda: world.leader() is newer)
    older.stop(power_loss=False)  # it has voted, and has not heard the leader yet
    for _ in range(2):
        world.add().start()
    configuration = context_of(newer).limbo

    def voters() -> int:
        return len(configuration.confirmed_configuration.voters)

    assert world.run_for(30 * SECOND, lambda: voters() == 5)
    older.start()
    assert context_of(older).ballot.forced_voters
    assert world.run_for(
        30 * SECOND,
        lambda: context_of(older).limbo.confirmed_index == configuration.confirmed_index,
    )
    assert not context_of(older).ballot.forced_voters
    world.command(newer, "switchover", target=older.uuid)
    assert world.run_for(10 * SECOND, lambda: world.leader() is older)
    world.run_for(SECOND)
    assert voters() == 5


def test_nothing_is_forced_while_a_leader_answers() -> None:
    """Only the other voters are unreachable: a second configuration would split the cluster."""
    world = World(2)
    world.bootstrap(5)
    leader = world.leader()
    assert leader is not None
    follower, *others = (shell for shell in world.alive() if shell is not leader)
    for other in others:
        world.network.cut(follower, other)
        world.network.cut(other, follower)
    world.network.break_cut_off()
    world.run_for(SECOND)
    linked = {link.peer_uuid for link in context_of(follower).links.values()}
    assert linked == {leader.uuid}
    lost = [shell.uuid for shell in world.alive() if shell is not follower]
    answer = order(world, follower, "force-confirm", lost=lost, disks_destroyed=True)
    assert answer.code == 5
    assert "a leader answers" in answer.reason
    assert not context_of(follower).ballot.forced_voters


def test_survivor_with_a_divergent_state_is_refused() -> None:
    """It would never take writes; another survivor may have a sound state (T7)."""
    world = World(2)
    survivor, lost = lose_two_of_three(world)
    assert survivor.node is not None
    survivor.node.replica.repair.open(context_of(survivor).limbo.confirmed_index)
    answer = order(world, survivor, "force-confirm", lost=lost, disks_destroyed=True)
    assert answer.code == 5
    assert "another surviving voter" in answer.reason
    assert not context_of(survivor).ballot.forced_voters


def test_mark_of_a_forced_configuration_outlives_the_process() -> None:
    world = World(1)
    survivor, lost = lose_two_of_three(world)
    assert order(world, survivor, "force-confirm", lost=lost, disks_destroyed=True).code == 0
    assert world.run_for(5 * SECOND, lambda: world.leader() is survivor)
    world.run_for(SECOND)
    for _ in range(2):  # the first process stores another ballot
        survivor.stop(power_loss=False)
        survivor.start()
        assert world.run_for(5 * SECOND, lambda: world.leader() is survivor)
        assert survivor.node is not None
        assert survivor.node.status.report()["was_forced"]


def test_later_order_replaces_the_one_before() -> None:
    """The first order would discard the pending rows, and has found no votes yet."""
    world = World(6)
    world.bootstrap(5)
    leader = world.leader()
    assert leader is not None
    survivor, helper, *others = (shell for shell in world.alive() if shell is not leader)
    for shell in (helper, *others):
        world.network.cut(leader, shell)
    pending = last_index(survivor) + 1
    body = build_body(SystemSpace.SCHEMA, tuple=["pending", 1])
    leader.step([fx.Request(7, 1, INSERT, body, 0, "admin", None)])
    assert world.run_for(SECOND, lambda: last_index(survivor) >= pending)
    helper.stop(power_loss=False)
    lost = lose([leader, *others])
    world.network.heal()
    world.run_for(5 * SECOND)
    assert context_of(survivor).limbo.confirmed_index < pending
    for verb in ("force-rollback", "force-confirm"):
        world.command(survivor, verb, lost=lost, disks_destroyed=True)
        world.run_for(SECOND)
        assert context_of(survivor).ballot.forced_voters
    helper.start()
    assert world.run_for(10 * SECOND, lambda: world.leader() is survivor)
    assert world.run_for(SECOND, lambda: context_of(survivor).limbo.confirmed_index > pending)
    assert not context_of(survivor).limbo.rolled_back_rows


def alone_with_another(driven: Driven) -> tuple[Shell, list[str]]:
    """Confirm a row without two followers, and lose all others but the leader.

    Returns:
        One of the two, which still reach no other member, and the lost instances.
    """
    leader, (one, two, *others) = driven.leader(), driven.followers()
    for shell in (one, two):
        for other in (leader, *others):
            driven.mute(shell, other)
            driven.mute(other, shell)
    assert driven.ask(leader, REPLACE, put(1, "confirmed")).code == 0
    lost = lose(others)
    driven.run(5_000)
    return one, lost


def test_order_that_leaves_a_quorum_is_refused() -> None:
    """A survivor that is cut off may be the last one with a confirmed row (L3)."""
    driven = Driven(5)
    one, lost = alone_with_another(driven)
    answer = order(driven.world, one, "force-confirm", lost=lost, disks_destroyed=True)
    assert answer.code == 5
    assert "are a quorum" in answer.reason
    driven.world.network.heal()
    assert driven.run(20_000, lambda: driven.world.leader() is not None)
    assert driven.ask(driven.leader(), SELECT, get(1)).tuples


def test_forced_survivors_keep_the_row_that_one_of_them_holds() -> None:
    """Half of the voters are lost: a majority of the others may lack a confirmed row (L3)."""
    driven = Driven(6)
    leader = driven.leader()
    one, lost = alone_with_another(driven)
    driven.world.command(one, "force-confirm", lost=lost, disks_destroyed=True)
    driven.run(2_000)
    assert context_of(one).ballot.forced_voters
    assert driven.world.leader() is None, "the third survivor may have confirmed rows"
    driven.world.network.heal()
    driven.run(2_000)
    order(driven.world, leader, "force-confirm", lost=lost, disks_destroyed=True)
    assert driven.run(20_000, lambda: driven.world.leader() is leader)
    assert driven.ask(leader, SELECT, get(1)).tuples


def with_a_pending_demotion() -> tuple[Driven, Shell, Shell]:
    """Return four voters; one follower has the pending row that ends the vote of another one.

    Returns:
        The cluster, the follower, and the other one.
    """
    driven = Driven(4)
    leader, (holder, other, member) = driven.leader(), driven.followers()
    driven.mute(leader, other)
    driven.mute(holder, leader)
    driven.world.command(leader, "set_role", uuid=member.uuid, role="async")
    context = context_of(holder)
    assert driven.run(300, lambda: member.uuid not in context.voter_uuids())
    return driven, holder, member


def with_a_pending_promotion() -> tuple[Driven, Shell]:
    """Return three voters, and a new member that has the pending row that lets it vote."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.world.add()
    member.start()
    assert driven.run(5_000, lambda: member.is_alive and context_of(member).replica_id > 0)
    for shell in driven.followers():
        if shell is not member:
            driven.mute(leader, shell)
    assert driven.run(300, lambda: context_of(member).is_voting)
    driven.run(10)
    return driven, member


def roll_back(driven: Driven, survivor: Shell, lost: list[Shell]) -> fx.Answer:
    """Destroy members, and order the survivor to continue with the confirmed rows it knows."""
    uuids = lose(lost)
    driven.world.network.heal()
    driven.run(5_000)
    known = context_of(survivor).limbo.confirmed_index
    ledger = driven.world.ledger
    driven.world.ledger = {index: row for index, row in ledger.items() if index <= known}
    return order(driven.world, survivor, "force-rollback", lost=uuids, disks_destroyed=True)


def test_forced_rollback_of_a_demotion_removes_no_survivor() -> None:
    driven, holder, member = with_a_pending_demotion()
    lost = [shell for shell in driven.shells if shell not in (holder, member)]
    assert roll_back(driven, holder, lost).code == 0
    assert driven.ask(holder, REPLACE, put(1, "x")).code == 0
    assert set(context_of(holder).voter_uuids()) == {holder.uuid, member.uuid}


def test_forced_rollback_of_a_promotion_is_refused_by_its_member() -> None:
    """Without the row, the survivor would lead permanently without a voter."""
    driven, member = with_a_pending_promotion()
    answer = roll_back(driven, member, driven.shells)
    assert answer.code == 5
    assert "force-confirm" in answer.reason
    lost = [shell.uuid for shell in driven.shells]
    assert order(driven.world, member, "force-confirm", lost=lost, disks_destroyed=True).code == 0
    assert driven.ask(member, REPLACE, put(1, "x")).code == 0
    assert context_of(member).voter_uuids() == (member.uuid,)


def test_forced_rollback_of_a_promotion_whose_voters_are_lost() -> None:
    """The survivors are a quorum of the confirmed voters, but one of them counts a fourth."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.world.add()
    member.start()
    assert driven.run(5_000, lambda: context_of(member).replica_id > 0)
    one, two = (shell for shell in driven.followers() if shell is not member)
    driven.mute(leader, two)  # the promotion reaches one follower, and no ACK the leader
    driven.mute(one, leader)
    driven.mute(member, leader)
    assert driven.run(3_000, lambda: member.uuid in context_of(one).voter_uuids())
    lost = lose([leader, member])
    driven.world.network.heal()
    driven.run(30_000)
    assert driven.world.leader() is None
    answer = order(driven.world, one, "force-rollback", lost=lost, disks_destroyed=True)
    assert answer.code == 0, answer.reason
    assert driven.run(5_000, lambda: set(context_of(two).voter_uuids()) == {one.uuid, two.uuid})
    assert driven.ask(one, REPLACE, put(1, "x")).code == 0


def test_forced_rollback_that_a_restart_interrupts_keeps_its_voters() -> None:
    """The rows are kept then, and the member whose vote they end counts until it has them."""
    driven, holder, member = with_a_pending_demotion()
    member.stop(power_loss=False)
    lost = [shell for shell in driven.shells if shell not in (holder, member)]
    assert roll_back(driven, holder, lost).code
    holder.stop(power_loss=False)
    holder.start()
    member.start()
    assert driven.run(20_000, lambda: driven.world.leader() is holder)
    assert driven.ask(holder, REPLACE, put(1, "x")).code == 0
    assert not context_of(holder).ballot.forced_voters
