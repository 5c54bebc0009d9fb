"""Answers that depend on rows before them wait until those rows are decided (T1, T8)."""

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.messages import Ack
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_testing.worlds import BEGIN, INSERT, REPLACE, SELECT, Driven, get, node_of, put

LOCAL = 700
"""Id of a space whose writes wait for no quorum."""


def test_answer_in_a_transaction_waits_for_a_write_of_the_same_step() -> None:
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.run(500)
    for follower in driven.followers():
        driven.mute(follower, leader)
    write, read = driven.next_sync(), driven.next_sync()
    leader.step(
        [
            fx.Request(100, write, INSERT, put(7, "pending"), 0, "admin", None),
            fx.Request(100, read, SELECT, get(7), 1, "admin", None),
        ]
    )
    driven.run(50)
    assert write not in driven.answers
    assert read not in driven.answers, "it shows a row that can still be rolled back"
    driven.world.network.heal()
    assert driven.run(5_000, lambda: {write, read} <= set(driven.answers))
    assert driven.answers[read].tuples == driven.answers[write].tuples


def test_asynchronous_write_waits_for_the_synchronous_one_before_it() -> None:
    """A rollback of the synchronous write includes the rows after it (T1)."""
    driven = Driven(3)
    leader = driven.leader()
    for space, fields in (
        (SystemSpace.SPACE, [LOCAL, 1, "local", "memtx", 0, {"is_sync": False}, []]),
        (SystemSpace.INDEX, [LOCAL, 0, "pk", "tree", {}, [[0, "unsigned"]]]),
    ):
        assert driven.ask(leader, INSERT, build_body(space, tuple=fields)).code == 0
    driven.run(1_000)
    for follower in driven.followers():
        driven.mute(follower, leader)
    synchronous = driven.send(leader, REPLACE, put(1, "x"))
    asynchronous = [
        driven.send(leader, REPLACE, build_body(LOCAL, tuple=[key])) for key in range(2)
    ]
    driven.run(50)
    assert not driven.answers.keys() & {synchronous, *asynchronous}
    driven.world.network.heal()
    assert driven.run(5_000, lambda: {synchronous, *asynchronous} <= set(driven.answers))
    assert {driven.answers[sync].code for sync in (synchronous, *asynchronous)} == {0}


def test_answer_waits_for_the_last_row_of_a_batch_that_follows_a_confirm() -> None:
    """A CONFIRM that precedes the batch in the log shifts its rows by one."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    tail, term = node.context.tail, node.replica.leader
    assert term is not None
    assert driven.ask(leader, REPLACE, put(1, "recorded by a CONFIRM")).code == 0
    before = tail.last_index
    relays = node.replica.relays
    on_ack = relays.on_ack
    relays.on_ack = lambda uuid, message: False  # type: ignore[method-assign]  # no ACK counts
    written, refused = driven.next_sync(), driven.next_sync()
    requests = [(written, REPLACE), (refused, INSERT)]
    leader.step(
        [fx.Request(100, sync, kind, put(5, "x"), 0, "admin", None) for sync, kind in requests]
    )
    assert tail.last_index == before + 2, "a CONFIRM and the row"
    driven.run(20)
    for follower in driven.followers():
        index = tail.last_index - 1
        term.on_ack(follower.uuid, Ack(0, tail.last_term, index, tail.last_term, 0, index))
    driven.run(200)
    assert node.context.limbo.confirmed_index == tail.last_index - 1
    assert not {written, refused} & set(driven.answers), "the row can be rolled back"
    relays.on_ack = on_ack  # type: ignore[method-assign]  # restored
    assert driven.run(2_000, lambda: {written, refused} <= set(driven.answers))
    assert driven.answers[written].code == 0
    assert driven.answers[refused].code == ErrorCode.TUPLE_FOUND
