"""Requests whose content is malformed, and users whose names change: no member ends by them."""

import math

import msgpack
import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import JOURNAL_SPACE
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_testing.publications import call, publishing_cluster
from qsync_testing.worlds import INSERT, REPLACE, UPDATE, Driven, node_of, put

CALL, SCHEMA, USERS, PRIVILEGES = 10, 272, 304, 312
READ_AND_WRITE, SESSION_AND_USAGE = 3, 24


@pytest.mark.parametrize("value", [[1], [1] * 40, "x", "a" * 40, 7, None])
def test_call_whose_body_is_no_map_is_refused(value: object) -> None:
    driven = Driven(1)
    leader = driven.leader()
    answer = driven.ask(leader, CALL, msgpack.packb(value))
    assert answer.code == ErrorCode.INVALID_MSGPACK
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0


@pytest.mark.parametrize("timeout", [None, "x", True, [], math.nan, math.inf, 1e300, -(2**63)])
def test_timeout_of_any_value_ends_no_member(timeout: object) -> None:
    driven = Driven(1)
    leader = driven.leader()
    node = node_of(leader)
    assert driven.ask(leader, CALL, call("box.ctl.wait_rw", timeout)).code == 0
    assert leader.node is node


def test_mark_whose_content_cannot_be_decoded_is_refused() -> None:
    """It may be one that only the cluster writes."""
    driven = Driven(1)
    leader = driven.leader()
    key = msgpack.packb("foo")
    body = b"\x82\x10\xcd\x01\x10\x21\x92" + key + b"\x81\x91\x01\x02"  # {[1]: 2}
    assert driven.ask(leader, INSERT, body).code
    assert driven.ask(leader, INSERT, put(1, "x")).code == 0
    assert driven.ask(leader, INSERT, build_body(SCHEMA, tuple=["foo", {"a": 2}])).code == 0


@pytest.mark.parametrize(("name", "last"), [("qsync.publish", b"abc"), ("qsync.publication", 1)])
def test_journal_that_no_broker_has_written_is_unknown(name: str, last: object) -> None:
    driven = publishing_cluster()
    leader = driven.leader()
    node = node_of(leader)
    row = ["bad", {}, 0, 0, 0, 0, ["x"], 1, 1, [], []]
    assert driven.ask(leader, REPLACE, build_body(JOURNAL_SPACE, tuple=row)).code == 0
    answer = driven.ask(leader, CALL, call(name, "bad", last))
    assert answer.code == (ErrorCode.NO_SUCH_JOURNAL if name == "qsync.publish" else 0)
    assert leader.node is node


def test_user_with_the_former_name_of_another_one_has_its_own_rights() -> None:
    driven = Driven(1)
    leader = driven.leader()

    def write_as(user: str) -> int:
        sync = driven.next_sync()
        leader.step([fx.Request(100, sync, REPLACE, put(1, "x"), 0, user, None)])
        driven.run(10_000, lambda: sync in driven.answers)
        return driven.answers[sync].code

    def insert(space: int, fields: list[object]) -> None:
        assert driven.ask(leader, INSERT, build_body(space, tuple=fields)).code == 0

    insert(USERS, [40, 1, "a", "user", {}])
    insert(PRIVILEGES, [1, 40, "universe", 0, SESSION_AND_USAGE])
    insert(PRIVILEGES, [1, 40, "space", SPACE, READ_AND_WRITE])
    assert write_as("a") == 0
    renamed = build_body(USERS, key=[40], tuple=[["=", 2, "b"]], index=0)
    assert driven.ask(leader, UPDATE, renamed).code == 0
    assert write_as("a") == ErrorCode.NO_SUCH_USER
    insert(USERS, [41, 1, "a", "user", {}])
    insert(PRIVILEGES, [1, 41, "universe", 0, SESSION_AND_USAGE])
    assert write_as("a") == ErrorCode.ACCESS_DENIED
    assert write_as("b") == 0
