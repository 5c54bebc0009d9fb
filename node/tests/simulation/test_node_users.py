"""The users of requests: a member remembers them, and their rights change (P3)."""

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import Type
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.publishing import call
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    SELECT,
    Driven,
    get,
    node_of,
)

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


def test_user_takes_no_space_of_another_user() -> None:
    """The owner before the change decides, not the one that the statement names."""
    driven = with_reader()
    leader = driven.leader()
    grant = build_body(SystemSpace.PRIV, tuple=[1, 40, "space", int(SystemSpace.SPACE), 3])
    assert driven.ask(leader, INSERT, grant).code == 0
    owned_by_joe = [SPACE, 40, f"s{SPACE}", "memtx", 0, {"is_sync": True}, []]
    body = build_body(SystemSpace.SPACE, tuple=owned_by_joe)
    refused = driven.ask(leader, REPLACE, body, user="joe")
    assert refused.code == ErrorCode.ACCESS_DENIED
    assert f"Alter access to space 's{SPACE}' is denied" in refused.reason
    assert node_of(leader).database.space(SPACE).definition.owner == 1


EXECUTE = 4
CALL = int(Type.CALL)


@pytest.mark.parametrize("name", ["box.ctl.promote", "box.ctl.demote", "box.snapshot"])
def test_user_that_only_executes_moves_no_leadership(name: str) -> None:
    driven = with_reader()
    leader, member = driven.leader(), driven.followers()[0]
    grant = build_body(SystemSpace.PRIV, tuple=[1, 40, "universe", 0, 24 | EXECUTE])
    assert driven.ask(leader, REPLACE, grant).code == 0
    driven.run(500)
    for shell in (leader, member):
        assert driven.ask(shell, CALL, call("box.info"), user="joe").code == 0
        answer = driven.ask(shell, CALL, call(name), user="joe")
        assert answer.code == ErrorCode.ACCESS_DENIED
        assert f"Execute access to function '{name}' is denied" in answer.reason
    driven.run(1_000)
    assert driven.leader() is leader


QUERIES = ["box.info", "box.info.replication", "box.stat", "box.ctl.wait_rw", "qsync.status"]


@pytest.mark.parametrize("name", QUERIES)
def test_user_that_executes_nothing_queries_no_member(name: str) -> None:
    """A part of `box.info` needs the right of the whole, also in a line of a console."""
    driven = with_reader()
    for shell in (driven.leader(), driven.followers()[0]):
        answer = driven.ask(shell, CALL, call(name), user="joe")
        assert answer.code == ErrorCode.ACCESS_DENIED
        line = driven.ask(shell, CALL, call("qsync.console", name), user="joe")
        is_query = name != "box.ctl.wait_rw"
        assert (b"is denied for user 'joe'" if is_query else b"cannot be") in line.tuples[0]


MEMBERS = int(SystemSpace.CLUSTER)
SCHEMA = int(SystemSpace.SCHEMA)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (REPLACE, build_body(MEMBERS, tuple=[9, "another instance", "m9", "voter", True, 1])),
        (DELETE, build_body(MEMBERS, index=0, key=[2])),
        (DELETE, build_body(SCHEMA, index=0, key=["qsync_open"])),
        (REPLACE, build_body(SCHEMA, tuple=["qsync_key_window", 1, 0])),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_transaction_changes_no_row_of_the_node(kind: int, body: bytes, is_last: bool) -> None:
    """Also not beside rows that its user may change, at any place among them (M2)."""
    driven = Driven(3)
    leader = driven.leader()
    before = node_of(leader).context.configuration
    harmless = build_body(SystemSpace.USER, tuple=[40, 1, "joe", "user", {}])
    statements = [(INSERT, harmless), (kind, body)]
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    for one, content in statements if is_last else reversed(statements):
        driven.ask(leader, one, content, stream=1)
    assert driven.ask(leader, COMMIT, stream=1).code
    driven.run(500)
    assert node_of(leader).context.configuration == before
    assert node_of(leader).registrar.is_open()
    assert node_of(leader).keys.window_rows > 1
    assert driven.ask(leader, INSERT, harmless).code == 0, "the transaction changed nothing"
