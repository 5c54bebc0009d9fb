"""Schema changes of spaces with more tuples than one step may handle (builds.py)."""

from typing import Any

import pytest
from msgpack import packb

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.engine import database as database_module
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import ALL, EQ
from qsync_node.node import Node
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.builds import (
    BY_VALUE,
    INDEXES,
    SPACES,
    TRUNCATIONS,
    TUPLES,
    check_indexes,
    count_parts,
    create,
    database_of,
    filled,
    index_row,
    is_building,
    is_everywhere,
    size_of,
)
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    ROLLBACK,
    SELECT,
    UPDATE,
    Driven,
    node_of,
    put,
    without_acks,
)


def is_logged(shell: Shell) -> bool:
    """Return whether a row that changes the schema is in the log and not confirmed."""
    context = node_of(shell).context
    return node_of(shell).state.ddl_barrier > context.limbo.confirmed_index


def test_index_is_built_in_parts_on_every_member_while_writes_go_on() -> None:
    driven = filled()
    parts = {shell.name: count_parts(shell) for shell in driven.shells}
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    assert is_building(leader)
    during = [driven.send(leader, REPLACE, put(key, f"new{key % 3}")) for key in range(50, 70)]
    during += [driven.send(leader, DELETE, build_body(SPACE, key=[key])) for key in range(0, 40, 4)]
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    assert all(driven.answers[sync].code == 0 for sync in during)
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    assert all(len(taken) > 5 for taken in parts.values()), parts
    assert driven.world.counters["event build"] == 3, "once on every member"
    check_indexes(driven)
    found = driven.ask(leader, 1, build_body(SPACE, index=1, key=["new1"], limit=99, iterator=EQ))
    assert len(found.tuples) == 6


@pytest.mark.parametrize("unique", [False, True])
def test_tuple_that_keeps_its_indexed_value_beside_a_build_stays_in_the_index(unique: bool) -> None:
    """Its old and its new entry have the same key: the old one leaves the index first."""
    driven = filled()
    leader = driven.leader()
    for key in range(TUPLES):
        assert driven.ask(leader, REPLACE, put(key, f"unique{key}")).code == 0
    asked = driven.send(leader, INSERT, create(index_row(1, [[1, "string"]], unique=unique)))
    for key in range(TUPLES):
        driven.send(leader, REPLACE, build_body(SPACE, tuple=[key, f"unique{key}", 1]))
    assert is_building(leader)
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    check_indexes(driven)


def test_writes_of_any_rate_let_the_build_end() -> None:
    driven = filled(work_per_step=10**5)
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    for number in range(2000):
        driven.send(leader, REPLACE, put(number % TUPLES, f"w{number}"))
        driven.run(0.1)
        if asked in driven.answers:
            break
    assert driven.answers[asked].code == 0
    driven.run(2000)
    check_indexes(driven)


def test_build_catches_up_with_changes_faster_than_they_come() -> None:
    driven = filled()
    database = database_of(driven.leader())
    wanted = [create(BY_VALUE)]
    leader = driven.leader()
    driven.send(leader, INSERT, wanted[0])
    build = database.build
    assert build is not None
    tuples = [packed for _, packed in database.space(SPACE).indexes[0].entries()]
    for turn in range(2 * TUPLES):
        for packed in tuples[turn % TUPLES :][:7]:
            build.record(packed, packed)
        build.advance(1)
        if build.is_complete:
            break
    assert build.is_complete
    assert build.failure is None
    assert build.changes_bytes == 0, "no change waits"


def test_new_primary_key_rebuilds_every_index() -> None:
    driven = filled()
    assert driven.ask(driven.leader(), INSERT, create(BY_VALUE)).code == 0
    primary = index_row(0, [[1, "string"], [0, "unsigned"]], unique=True)
    changed = build_body(INDEXES, tuple=primary)
    asked = driven.send(driven.leader(), REPLACE, changed)
    assert is_building(driven.leader())
    driven.send(driven.leader(), REPLACE, put(200, "during"))
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    driven.run(1000)
    check_indexes(driven)
    key = database_of(driven.leader()).space(SPACE).indexes[0].key_def
    assert [part.field for part in key.parts] == [1, 0]


@pytest.mark.parametrize("clash", ["before", "during"])
def test_duplicate_ends_the_build_and_logs_nothing(clash: str) -> None:
    driven = filled()
    leader = driven.leader()
    for key in range(TUPLES):
        assert driven.ask(leader, REPLACE, put(key, f"unique{key}")).code == 0
    if clash == "before":
        assert driven.ask(leader, REPLACE, put(TUPLES + 1, "unique3")).code == 0
    last = node_of(leader).context.tail.last_index
    asked = driven.send(leader, INSERT, create(index_row(1, [[1, "string"]], unique=True)))
    assert is_building(leader)
    if clash == "during":
        driven.send(leader, REPLACE, put(TUPLES + 1, "unique3"))
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == ErrorCode.TUPLE_FOUND
    assert "'i1'" in driven.answers[asked].reason
    assert node_of(leader).context.tail.last_index <= last + 3
    assert database_of(leader).build is None
    assert not is_everywhere(driven, 1)
    check_indexes(driven)


def test_tuple_of_the_wrong_type_refuses_a_new_format() -> None:
    driven = filled()
    assert driven.ask(driven.leader(), REPLACE, build_body(SPACE, tuple=[500, 7, 0])).code == 0
    fields = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "string"}]
    row = [SPACE, 1, f"s{SPACE}", "memtx", 0, {"is_sync": True}, fields]
    changed = build_body(SPACES, tuple=row)
    refused = driven.ask(driven.leader(), REPLACE, changed)
    assert refused.code == ErrorCode.FIELD_TYPE
    assert driven.ask(driven.leader(), DELETE, build_body(SPACE, key=[500])).code == 0
    assert driven.ask(driven.leader(), REPLACE, changed).code == 0
    wrong = driven.ask(driven.leader(), REPLACE, build_body(SPACE, tuple=[501, 7, 0]))
    assert wrong.code == ErrorCode.FIELD_TYPE
    driven.run(1000)
    check_indexes(driven)


def test_tuple_of_the_wrong_type_beside_a_check_refuses_the_format() -> None:
    driven = filled()
    leader = driven.leader()
    fields = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "string"}]
    row = [SPACE, 1, f"s{SPACE}", "memtx", 0, {"is_sync": True}, fields]
    asked = driven.send(leader, REPLACE, build_body(SPACES, tuple=row))
    wrong = driven.send(leader, INSERT, build_body(SPACE, tuple=[500, 7, 0]))
    assert is_building(leader)
    assert driven.run(10_000, lambda: {asked, wrong} <= set(driven.answers))
    assert driven.answers[wrong].code == 0, "it came before the format"
    assert driven.answers[asked].code == ErrorCode.FIELD_TYPE
    driven.run(1000)
    check_indexes(driven)


def test_follower_acknowledges_rows_while_its_build_delays_confirmation() -> None:
    driven = filled()
    leader, (behind, other) = driven.leader(), driven.followers()
    driven.cut_off(other)
    advance = node_of(behind).builds.advance
    node_of(behind).builds.advance = lambda: None  # type: ignore[method-assign]  # it takes long
    assert driven.ask(leader, INSERT, create(BY_VALUE)).code == 0
    assert driven.ask(leader, REPLACE, put(1, "after")).code == 0
    assert is_building(behind)
    assert driven.run(3000, lambda: driven.leader() is not leader) is False
    context = node_of(behind).context
    assert context.limbo.confirmed_index < node_of(leader).context.limbo.confirmed_index
    node_of(behind).builds.advance = advance  # type: ignore[method-assign]  # restored
    driven.world.network.heal()
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    driven.run(1000)
    check_indexes(driven)


def test_rows_before_a_build_are_confirmed_without_it() -> None:
    driven = filled(retention_ns=10**12, confirm_rows_max=500, work_per_step=10**6)
    leader, (behind, _) = driven.leader(), driven.followers()
    driven.cut_off(behind)
    for key in range(30):
        assert driven.ask(leader, REPLACE, put(key, "missed")).code == 0
    assert driven.ask(leader, INSERT, create(BY_VALUE)).code == 0
    row_index = driven.answers[max(driven.answers)].log_index
    assert driven.ask(leader, REPLACE, put(1, "after")).code == 0
    node = node_of(behind)
    advance, confirm = node.builds.advance, node.replica.applier.confirming.advance
    node.builds.advance = lambda: None  # type: ignore[method-assign]  # it takes long
    node.replica.applier.confirming.advance = lambda: None  # type: ignore[method-assign]  # until all arrived
    driven.world.network.heal()
    limbo = node.context.limbo
    assert driven.run(10_000, lambda: limbo.last_index > row_index)
    driven.run(100)
    node.replica.applier.confirming.advance = confirm  # type: ignore[method-assign]  # restored
    assert driven.run(10_000, lambda: limbo.confirmed_index >= row_index - 1)
    driven.run(1000)
    assert limbo.confirmed_index == row_index - 1
    node.builds.advance = advance  # type: ignore[method-assign]  # restored
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    check_indexes(driven)


def test_row_that_is_rolled_back_needs_no_build() -> None:
    driven = filled(synchro_timeout_ns=150 * MILLISECOND)
    leader, followers = driven.leader(), driven.followers()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    assert driven.run(1000, lambda: is_logged(leader))
    for follower in followers:
        driven.mute(follower, leader)
    assert driven.run(1000, lambda: node_of(leader).context.limbo.decisions)
    driven.world.network.heal()
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == ErrorCode.SYNC_QUORUM_TIMEOUT
    driven.run(1000)
    assert driven.leader() is leader
    assert driven.world.counters["event build"] == 1, "on the leader"
    assert all(database_of(shell).build is None for shell in driven.shells)
    check_indexes(driven)


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 3, 5, 8, 20])
def test_leader_that_dies_leaves_a_whole_index_or_none(milliseconds: int) -> None:
    driven = filled()
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    driven.send(leader, REPLACE, put(3, "beside"))
    driven.run(milliseconds)
    leader.stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() not in (None, leader))
    assert driven.run(10_000, lambda: driven.ask(driven.leader(), REPLACE, put(4, "x")).code == 0)
    leader.start()
    driven.run(3000)
    check_indexes(driven)
    answer = driven.answers.get(asked)
    if answer is not None and answer.code == 0:
        assert is_everywhere(driven, 1)
    again = driven.ask(driven.leader(), REPLACE, create(BY_VALUE))
    assert again.code == 0
    driven.run(1000)
    assert is_everywhere(driven, 1)
    check_indexes(driven)


def test_statement_moves_to_the_next_leader_when_its_own_steps_down() -> None:
    driven = filled()
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    node_of(leader).replica.step_down("test")
    assert database_of(leader).build is None
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    driven.run(1000)
    assert is_everywhere(driven, 1)
    check_indexes(driven)


def test_space_that_is_emptied_during_the_build_needs_none() -> None:
    driven = filled()
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    emptied = driven.send(leader, REPLACE, build_body(TRUNCATIONS, tuple=[SPACE, 1]))
    assert driven.run(10_000, lambda: {asked, emptied} <= set(driven.answers))
    assert (driven.answers[asked].code, driven.answers[emptied].code) == (0, 0)
    driven.run(1000)
    assert is_everywhere(driven, 1)
    assert size_of(leader) == 0
    check_indexes(driven)
    assert all(not database_of(shell).discarded for shell in driven.shells), "all were freed"


def test_second_build_waits_for_the_first() -> None:
    driven = filled()
    leader = driven.leader()
    first = driven.send(leader, INSERT, create(BY_VALUE))
    second = driven.send(leader, INSERT, create(index_row(2, [[2, "unsigned"]])))
    twice = driven.send(leader, INSERT, create(BY_VALUE))
    assert driven.run(10_000, lambda: {first, second, twice} <= set(driven.answers))
    codes = [driven.answers[sync].code for sync in (first, second, twice)]
    assert codes == [0, 0, ErrorCode.TUPLE_FOUND]
    driven.run(1000)
    assert is_everywhere(driven, 1)
    assert is_everywhere(driven, 2)
    check_indexes(driven)


def test_closed_session_gives_its_build_up() -> None:
    driven = filled()
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE), session=55)
    assert is_building(leader)
    node_of(leader).clients.on_session_closed(55)
    driven.run(1000)
    assert asked not in driven.answers
    assert database_of(leader).build is None
    assert driven.ask(leader, INSERT, create(BY_VALUE)).code == 0


@pytest.mark.parametrize("quarters", range(14, 26))
def test_forwarding_member_that_stops_leaves_the_leader_alone(quarters: int) -> None:
    driven = filled()
    leader, (origin, _) = driven.leader(), driven.followers()
    driven.send(origin, INSERT, create(BY_VALUE))
    driven.run(quarters / 4)
    origin.stop(power_loss=False)
    driven.run(1000)
    origin.start()
    driven.run(3000)
    assert driven.leader() is leader
    assert database_of(leader).build is None
    check_indexes(driven)


def test_session_that_closes_lets_the_next_build_begin() -> None:
    driven = filled(request_timeout_ns=8000 * MILLISECOND)
    leader = driven.leader()
    node = node_of(leader)
    first = driven.send(leader, INSERT, create(BY_VALUE), session=55)
    second_row = create(index_row(2, [[2, "unsigned"]]))
    second = driven.send(leader, INSERT, second_row, session=56)

    def is_first_queued() -> bool:
        return any(call.sync == first for call in node.clients.queue)

    for _ in range(1000):
        if is_first_queued():
            break
        driven.send(leader, REPLACE, put(3, "x"))
        driven.run(0.2)
    assert is_first_queued()
    leader.step([fx.SessionClosed(55)])
    assert driven.run(1000, lambda: second in driven.answers)
    assert driven.answers[second].code == 0


def test_logged_statement_keeps_its_build_past_its_deadline() -> None:
    driven = filled(request_timeout_ns=300 * MILLISECOND)
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    assert driven.run(5000, lambda: is_logged(leader))
    with without_acks(leader):
        assert driven.run(5000, lambda: asked in driven.answers)
        assert driven.answers[asked].code == ErrorCode.OUTCOME_UNKNOWN
        assert database_of(leader).build is not None
        everything = build_body(SPACE, index=1, key=[], limit=999, iterator=ALL, isolation=1)
        assert len(driven.ask(leader, SELECT, everything).tuples) == TUPLES
    driven.run(1000)
    assert is_everywhere(driven, 1)
    assert database_of(leader).build is None
    check_indexes(driven)


def test_build_that_begins_again_and_again_has_a_deadline() -> None:
    driven = filled(request_timeout_ns=1000 * MILLISECOND)
    leader = driven.leader()
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    for number in range(400):
        rename = build_body(INDEXES, key=[SPACE, 0], tuple=[["=", 2, f"n{number}"]])
        driven.send(leader, UPDATE, rename)
        driven.run(5)
    assert driven.answers[asked].code == ErrorCode.TIMEOUT
    driven.run(100)
    assert database_of(leader).build is None
    check_indexes(driven)


def test_view_keeps_no_more_than_the_index_that_it_shows() -> None:
    driven = filled()
    leader = driven.leader()
    database = database_of(leader)
    view = database.view()
    for turn in range(5):
        assert driven.ask(leader, REPLACE, put(1, "again")).code == 0
        emptied = build_body(TRUNCATIONS, tuple=[SPACE, turn])
        assert driven.ask(leader, REPLACE, emptied).code == 0
    driven.run(1000)
    assert len(database.discarded) == 1
    del view
    driven.run(1000)
    assert not database.discarded


def test_build_over_many_pending_tuples_is_refused_in_their_transaction() -> None:
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    for key in range(7):
        assert driven.ask(leader, INSERT, put(key, "x"), stream=1).code == 0
    refused = driven.ask(leader, INSERT, create(BY_VALUE), stream=1)
    assert refused.code == ErrorCode.UNSUPPORTED


def test_build_in_a_transaction_is_refused() -> None:
    driven = filled()
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    refused = driven.ask(leader, INSERT, create(BY_VALUE), stream=1)
    assert refused.code == ErrorCode.UNSUPPORTED
    assert "outside" in refused.reason
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    empty = [700, 1, "empty", "memtx", 0, {}, []]
    assert driven.ask(leader, INSERT, build_body(SPACES, tuple=empty), stream=1).code == 0
    assert driven.ask(leader, COMMIT, stream=1).code == 0


def test_build_that_exceeds_the_memory_limit_is_refused() -> None:
    driven = filled()
    leader = driven.leader()
    node = node_of(leader)
    limit = node.database.memory_bytes + TUPLES * 50
    node.context.settings = _with(node, memory_bytes_max=limit)
    refused = driven.ask(leader, INSERT, create(BY_VALUE))
    assert refused.code == ErrorCode.MEMORY_ISSUE
    assert not is_building(leader)


def test_changes_beside_a_build_count_for_the_memory_limit() -> None:
    driven = filled()
    leader = driven.leader()
    node = node_of(leader)
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    build = node.database.build
    assert build is not None
    limit = node.database.memory_bytes + node.database.memory_of(build) + 2000
    node.context.settings = _with(node, memory_bytes_max=limit)
    for _ in range(20):
        build.record(None, packb([900, "x" * 100, 0]))
    driven.run(100)
    assert driven.answers[asked].code == ErrorCode.MEMORY_ISSUE
    assert node.database.build is None


def _with(node: Node, **settings: Any) -> Any:
    from dataclasses import replace  # noqa: PLC0415

    return replace(node.settings, **settings)


def test_build_takes_longer_than_the_deadline_of_a_request() -> None:
    driven = filled(request_timeout_ns=400 * MILLISECOND)
    leader = driven.leader()
    advance = node_of(leader).builds.advance
    node_of(leader).builds.advance = lambda: None  # type: ignore[method-assign]  # it takes long
    asked = driven.send(leader, INSERT, create(BY_VALUE))
    driven.run(2000)
    assert asked not in driven.answers
    node_of(leader).builds.advance = advance  # type: ignore[method-assign]  # restored
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0


@pytest.mark.parametrize("head", [b"\x82\x10\xcd\x01\x20\x21", b"\x82\x10\xce\x00\x00\x01\x20\x21"])
def test_followers_recognise_every_form_of_the_row(head: bytes) -> None:
    driven = filled()
    assert driven.ask(driven.leader(), INSERT, head + packb(BY_VALUE)).code == 0
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    assert all(node_of(shell).builds._row_index for shell in driven.followers())


def test_index_over_few_large_tuples_is_built_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of the tuples, too, are more than a step may handle."""
    driven = filled(build_tuples_max=1000)
    monkeypatch.setattr(database_module, "BUILD_BYTES_MAX", 100)
    asked = driven.send(driven.leader(), INSERT, create(BY_VALUE))
    assert is_building(driven.leader())
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.run(10_000, lambda: is_everywhere(driven, 1))
    assert driven.world.counters["event build"] == 3, "once on every member"
    check_indexes(driven)


def test_update_of_an_index_is_built_in_parts() -> None:
    driven = filled()
    leader = driven.leader()
    assert driven.ask(leader, INSERT, create(BY_VALUE)).code == 0
    operations = [["=", 5, [[2, "unsigned"]]]]
    body = build_body(INDEXES, key=[SPACE, 1], tuple=operations)
    asked = driven.send(leader, UPDATE, body)
    assert is_building(leader)
    assert driven.run(10_000, lambda: asked in driven.answers)
    assert driven.answers[asked].code == 0
    driven.run(1000)
    check_indexes(driven)
