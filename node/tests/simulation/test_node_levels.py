"""Feature levels: processes of two versions in one cluster (P2)."""

from random import Random

import pytest

from qsync_node.archive.restore.origin import LevelError, restored_bodies
from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.membership import LEVEL, ClusterMember, Configuration
from qsync_node.errors import ErrorCode
from qsync_node.node import Node
from qsync_sim.cluster import ADMIN_SESSION
from qsync_sim.shell import Shell
from qsync_sim.versions import LATER, Versions
from qsync_testing.worlds import REPLACE, SELECT, Driven, get, node_of, put

UUID = "00000000-0000-4000-8000-00000000000{}"
LINK = 99_999


def member(number: int, level: int, role: str = "voter") -> ClusterMember:
    return ClusterMember(number, UUID.format(number), f"n{number}", role, role == "voter", level)


def versions_of(driven: Driven) -> Versions:
    versions = Versions(driven.world, Random(1))
    driven.world.versions = versions
    for shell in driven.shells:
        versions.on_started(shell)
    return versions


def level_at(shell: Shell) -> int:
    return int(node_of(shell).status.report()["feature_level"])


def run_as(driven: Driven, versions: Versions, shell: Shell, level: int) -> None:
    """Replace the process of a member by one of another version, and wait for its registration."""
    versions.start_version(shell, level)

    def is_registered() -> bool:
        leader = driven.world.leader()
        if leader is None or shell.node is None:
            return False
        found = node_of(leader).context.limbo.confirmed_configuration.by_uuid(shell.uuid)
        return found is not None and found.level == level

    assert driven.run(10_000, is_registered)


def test_level_is_the_lowest_one_of_all_members_except_tarantool_replicas() -> None:
    assert Configuration().level == 1
    assert Configuration((member(1, 3), member(2, 2, "async"))).level == 2
    assert Configuration((member(1, 3), member(2, 1, "stock"))).level == 3


def test_lower_levels_are_registered_first_and_never_below_the_level_of_the_cluster() -> None:
    members = member(1, 2), member(2, 3), member(3, 2)
    configuration = Configuration(members)
    announced = {UUID.format(1): 3, UUID.format(2): 2, UUID.format(3): 1}
    assert configuration.misregistered(announced) == member(2, 2)
    assert configuration.misregistered({UUID.format(1): 3}) == member(1, 3)
    assert configuration.misregistered({UUID.format(3): 1}) is None
    assert configuration.misregistered({UUID.format(3): 2}) is None


def test_level_rises_once_all_members_support_it() -> None:
    driven = Driven(3)
    versions = versions_of(driven)
    for shell in driven.shells:
        assert {level_at(other) for other in driven.world.alive()} == {LEVEL}
        run_as(driven, versions, shell, LATER)
    assert driven.run(3000, lambda: {level_at(shell) for shell in driven.shells} == {LATER})


def test_downgraded_member_keeps_the_level_down() -> None:
    driven = Driven(3)
    versions = versions_of(driven)
    one, two, three = driven.shells
    run_as(driven, versions, one, LATER)
    run_as(driven, versions, two, LATER)
    run_as(driven, versions, one, LEVEL)
    run_as(driven, versions, three, LATER)
    driven.run(3000)
    assert {level_at(shell) for shell in driven.shells} == {LEVEL}


def test_earlier_version_stops_and_the_later_one_resumes_with_its_files() -> None:
    driven = Driven(3)
    versions = versions_of(driven)
    for shell in driven.shells:
        run_as(driven, versions, shell, LATER)
    assert driven.ask(driven.leader(), REPLACE, put(7, "later")).code == 0
    driven.run(200)
    shell = driven.followers()[0]
    versions.start_version(shell, LEVEL)
    assert driven.run(2000, lambda: shell.is_alive)
    driven.run(5)
    node = node_of(shell)
    assert shell.storage is not None
    assert node.context.tail.last_index < shell.storage.last_index, "it reads no later row"
    assert not node.checkpoint(), "it writes no state that lacks rows"
    assert node.context.unsupported_level == LATER
    status = node.status.report()
    assert status["supported_level"] == LEVEL
    assert "feature level 2" in status["ro_reason"]
    assert "upgrade the member" in status["ro_reason"]
    assert not status["can_stand"]
    for kind, body in ((SELECT, get(1)), (SELECT, get(1, 4))):
        answer = driven.ask(shell, kind, body)
        assert answer.code == ErrorCode.LOADING
        assert "upgrade the member" in answer.reason
    assert driven.run(5000, lambda: shell.settings.level == LATER and shell.is_alive)
    sync = driven.send(driven.leader(), REPLACE, put(1, "x"))
    assert driven.run(5000, lambda: sync in driven.answers)
    assert driven.run(5000, lambda: driven.ask(shell, SELECT, get(1)).code == 0)


def test_member_is_not_removed_if_the_rest_needs_a_later_version() -> None:
    driven = Driven(3)
    versions = versions_of(driven)
    one, two, three = driven.shells
    run_as(driven, versions, one, LATER)
    run_as(driven, versions, two, LATER)
    leader = driven.leader() if driven.leader() is not three else None
    if leader is None:
        driven.world.command(one, "promote")
        assert driven.run(5000, lambda: driven.world.leader() is one)
        leader = one
    term = node_of(leader).replica.leader
    assert term is not None
    assert driven.run(3000, lambda: not term.changes.refusal())
    removed = node_of(leader).context.configuration.by_uuid(three.uuid)
    assert removed is not None
    assert not term.changes.refusal_to_remove(removed)
    other = next(shell for shell in (one, two) if shell is not leader)
    for link in node_of(leader).context.links.values():
        if link.peer_uuid == other.uuid:
            link.level = LEVEL  # a downgrade that is not registered yet
    assert "upgrade it" in term.changes.refusal_to_remove(removed)


def test_forced_survivor_registers_the_level_of_its_process() -> None:
    """The members that are lost had the lowest levels, and it was downgraded meanwhile (E11)."""
    driven = Driven(3)
    versions = versions_of(driven)
    survivor, *others = driven.shells
    run_as(driven, versions, survivor, LATER)
    for shell in others:
        shell.stop(power_loss=True)
        shell.is_removed = True
    versions.start_version(survivor, LEVEL)
    assert driven.run(5_000, lambda: survivor.is_alive)
    driven.run(1_000)
    order = {"lost": [shell.uuid for shell in others], "disks_destroyed": True}
    answer = driven.world.ask(
        survivor, lambda sync: fx.Command(ADMIN_SESSION, sync, "force-confirm", order)
    )
    assert answer is not None
    assert answer.code == 0, answer.reason
    assert level_at(survivor) == LEVEL
    assert driven.ask(survivor, REPLACE, put(1, "x")).code == 0


def test_member_of_an_earlier_version_is_not_registered() -> None:
    driven = Driven(3)
    versions = versions_of(driven)
    for shell in driven.shells:
        run_as(driven, versions, shell, LATER)
    leader = driven.leader()
    node = node_of(leader)
    node.step(leader.now_ns(), 0.0, [fx.LinkUp(LINK, UUID.format(9), False, LEVEL)])
    effects = node.step(
        leader.now_ns(), 0.0, [fx.Received(LINK, msg.Register(1, "n9", "voter", LEVEL))]
    )
    replies = [e.message for e in effects if isinstance(e, fx.Send) and e.link == LINK]
    (reply,) = [reply for reply in replies if isinstance(reply, msg.RegisterReply)]
    assert reply.code == ErrorCode.UNSUPPORTED
    assert "upgrade the member" in reply.reason


def test_earlier_version_does_not_restore_a_later_state() -> None:
    bodies = Node.bootstrap_bodies(UUID.format(1), "n1", UUID.format(8), 1)
    names = UUID.format(2), "n2", UUID.format(7)
    restored_bodies(bodies, 0, *names, 1)
    as_later = b"\xa5voter\xc3\x01", b"\xa5voter\xc3\x02"  # the end of the row of `_cluster`
    changed = [body.replace(*as_later) for body in bodies]
    assert changed != bodies
    with pytest.raises(LevelError, match="feature level 2"):
        restored_bodies(changed, 0, *names, 1)


def test_level_of_a_process_cannot_be_configured() -> None:
    driven = Driven(3)
    order = {"level": LATER}
    answer = driven.world.ask(
        driven.leader(), lambda sync: fx.Command(ADMIN_SESSION, sync, "configure", order)
    )
    assert answer is not None
    assert answer.code == ErrorCode.CFG


def test_level_of_a_member_with_links_of_two_processes_is_the_lower_one() -> None:
    """The link of its former process may still be open (P2)."""
    driven = Driven(3)
    driven.run(1_000)
    leader, member = driven.leader(), driven.followers()[0]
    node = node_of(leader)
    term = node.replica.leader
    assert term is not None
    node.step(leader.now_ns(), 0.0, [fx.LinkUp(LINK, member.uuid, False, LATER)])
    links = node.context.links.values()
    levels = {link.level for link in links if link.peer_uuid == member.uuid}
    assert levels == {LEVEL, LATER}
    term.changes.record_levels()
    assert not node.context.limbo.has_pending_membership
