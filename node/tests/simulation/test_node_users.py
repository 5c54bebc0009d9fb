"""The users of requests: a member remembers them, and their rights change (P3)."""

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import DELETE, INSERT, SELECT, Driven, get, node_of

READ = 1


def with_reader() -> Driven:
    """Return a cluster whose user `joe` reads a space."""
    driven = Driven(3)
    for space, fields in (
        (SystemSpace.USER, [40, 1, "joe", "user", {}]),
        (SystemSpace.PRIV, [1, 40, "universe", 0, 24]),
        (SystemSpace.PRIV, [1, 40, "space", SPACE, READ]),
        (SPACE, [1, "x", 0]),
    ):
        assert driven.ask(driven.leader(), INSERT, build_body(space, tuple=fields)).code == 0
    driven.run(500)
    return driven


def read(driven: Driven, shell: Shell, user: str) -> int:
    return driven.ask(shell, SELECT, get(1), user=user).code


def test_right_that_is_revoked_after_a_repair_is_lost() -> None:
    """The member has another state then, whose users are other objects."""
    driven = with_reader()
    member = driven.followers()[0]
    assert read(driven, member, "joe") == 0
    node = node_of(member)
    before = node.database
    repair = node.replica.repair
    repair.open(node.context.limbo.confirmed_index)
    assert driven.run(10_000, lambda: not repair.is_open)
    assert node.database is not before
    assert read(driven, member, "joe") == 0
    grant = build_body(SystemSpace.PRIV, key=[40, "space", SPACE])
    assert driven.ask(driven.leader(), DELETE, grant).code == 0
    driven.run(500)
    assert read(driven, member, "joe") == ErrorCode.ACCESS_DENIED
