"""Builds that an event ends before they are complete: a repair, or the end of a leadership."""

from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_testing.builds import (
    BY_VALUE,
    check_indexes,
    count_parts,
    create,
    filled,
    is_building,
    is_everywhere,
)
from qsync_testing.worlds import INSERT, node_of


def test_build_begins_again_over_the_state_of_a_repair() -> None:
    """Without its build, the row would be applied in one step (G1)."""
    driven = filled()
    former, followers = driven.leader(), driven.followers()
    advances = {shell.name: node_of(shell).builds.advance for shell in followers}
    for shell in followers:
        node_of(shell).builds.advance = lambda: None  # type: ignore[method-assign]  # a long build
    assert driven.ask(former, INSERT, create(BY_VALUE)).code == 0
    assert driven.run(1000, lambda: all(is_building(shell) for shell in followers))
    former.stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() not in (None, former))
    (member,) = driven.followers()
    node = node_of(member)
    repair, before = node.replica.repair, node.database
    repair.open(node.context.limbo.confirmed_index)
    assert driven.run(10_000, lambda: node.database is not before)
    for shell in followers:
        node_of(shell).builds.advance = advances[shell.name]  # type: ignore[method-assign]  # continue
    parts = count_parts(member)
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    assert len(parts) > 5
    driven.run(1000)
    check_indexes(driven)


def test_statement_of_a_former_leader_has_a_deadline() -> None:
    """Its build had none, and the answer of the next leader may be lost."""
    driven = filled(request_timeout_ns=1000 * MILLISECOND)
    leader, followers = driven.leader(), driven.followers()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    assert is_building(leader)
    node_of(leader).replica.step_down("test")
    for follower in followers:
        answers = node_of(follower).clients.answers
        answers.reply = lambda *_: None  # type: ignore[method-assign]  # no answer arrives
    assert driven.run(3000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == ErrorCode.OUTCOME_UNKNOWN
    assert is_everywhere(driven, 1), "the next leader has handled it"
