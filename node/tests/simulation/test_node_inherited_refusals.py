"""Rows that most members cannot apply (T7, E12): those of the leader, and inherited ones."""

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.errors import ErrorCode
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    DELETE,
    INSERT,
    LINEARIZABLE,
    REPLACE,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)


def with_inherited_row() -> Driven:
    """Return a world whose leader inherited a row, which both followers refuse in its term."""
    driven = Driven(3, seed=3)
    leader, followers = driven.leader(), driven.followers()
    for follower in followers:
        driven.mute(leader, follower)
        driven.world.command(follower, "configure", election_mode="voter")
    driven.send(leader, REPLACE, put(1, "inherited"))
    driven.run(5)
    assert (
        node_of(leader).context.tail.durable_index > node_of(followers[0]).context.tail.last_index
    )
    leader.stop(power_loss=False)
    driven.world.network.heal()
    leader.start()
    driven.run(100)
    for follower in followers:
        node_of(follower).refuse_rows = True
    node = node_of(leader)
    driven.world.command(leader, "nominate", term=node.context.term)
    assert driven.run(300, lambda: node.replica.leader is not None)
    return driven


def test_writes_are_accepted_after_most_members_refused_an_inherited_row() -> None:
    driven = with_inherited_row()
    driven.run(300)
    for shell in driven.world.alive():
        node_of(shell).refuse_rows = False

    def is_writable() -> bool:
        found = driven.world.leader()
        leader = node_of(found).replica.leader if found is not None else None
        return leader is not None and leader.is_confirmed

    assert driven.run(10_000, is_writable)
    assert driven.ask(driven.leader(), INSERT, put(2, "later")).code == 0


def test_leader_stays_after_a_rollback_was_confirmed() -> None:
    """It steps down only if no quorum confirms the ROLLBACK within a timeout (T4)."""
    driven = Driven(3)
    leader = driven.leader()
    for follower in driven.followers():
        node_of(follower).refuse_rows = True
    assert driven.ask(leader, INSERT, put(1, "refused")).code
    for follower in driven.followers():
        node_of(follower).refuse_rows = False
    node = node_of(leader)
    term, timeout_ns = node.context.term, node.settings.synchro_timeout_ns
    driven.run(2 * timeout_ns / MILLISECOND)
    assert driven.ask(leader, INSERT, put(1, "later")).code == 0
    driven.run(100)
    assert node.context.is_leading
    assert node.context.term == term


def test_leader_rolls_back_again_after_a_rollback_was_confirmed() -> None:
    timeout_ns = 300 * MILLISECOND
    driven = Driven(3, synchro_timeout_ns=timeout_ns)
    leader, followers = driven.leader(), driven.followers()
    delay_ns = followers[0].disk_delay_ns
    term = node_of(leader).replica.leader
    assert term is not None
    for _ in range(2):
        for follower in followers:
            follower.disk_delay_ns = timeout_ns * 3 // 2
        sync = driven.send(leader, INSERT, put(1, "slow"))
        assert driven.run(2 * timeout_ns / MILLISECOND, lambda: term.rollback_at)
        for follower in followers:
            follower.disk_delay_ns = delay_ns
        assert driven.run(1_000, lambda sync=sync: sync in driven.answers)
        assert driven.answers[sync].code == ErrorCode.SYNC_QUORUM_TIMEOUT
        assert driven.run(1_000, lambda: not term.rollback_at)
    assert node_of(leader).context.is_leading


def test_a_row_of_the_leader_itself_that_most_members_refuse_is_rolled_back() -> None:
    """Only writes of clients time out (T4), but each row without a possible quorum must go (T7)."""
    driven = Driven(3)
    leader = driven.leader()
    for follower in driven.followers():
        node_of(follower).refuse_rows = True
    driven.world.command(leader, "set_key_window", rows=1_200)
    driven.run(50)
    for follower in driven.followers():
        node_of(follower).refuse_rows = False
    sync = driven.send(leader, INSERT, put(1, "later"))
    assert driven.run(1_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0
    assert node_of(leader).context.is_leading
    driven.world.command(leader, "set_key_window", rows=1_300)
    driven.run(100)
    assert {node_of(shell).state.keys.window_rows for shell in driven.shells} == {1_300}


def with_a_divergent_member() -> tuple[Driven, Shell]:
    """Return a world and its member that could not apply a confirmed row."""
    driven = Driven(3)
    member = driven.followers()[0]
    node = node_of(member)
    node.refuse_rows = True
    assert driven.ask(driven.leader(), INSERT, put(1, "refused")).code == 0
    assert driven.run(1_000, lambda: node.replica.repair.is_open)
    node.refuse_rows = False
    return driven, member


def test_member_that_led_while_it_received_a_state_is_repaired() -> None:
    """Its term confirmed rows after that state, which can therefore no longer be installed (T7)."""
    driven, member = with_a_divergent_member()
    context, repair = node_of(member).context, node_of(member).replica.repair
    repair._view_index = repair._ready_index = context.limbo.confirmed_index - 1
    assert driven.ask(driven.leader(), INSERT, put(2, "later")).code == 0
    last = node_of(driven.leader()).context.tail.last_index
    assert driven.run(20_000, lambda: not repair.is_open)
    assert driven.run(1_000, lambda: context.limbo.confirmed_index >= last)
    assert driven.ask(member, SELECT, get(1)).tuples


def test_repair_that_a_snapshot_has_ended_holds_no_confirmation() -> None:
    """The state in transfer may be newer than the snapshot of a rejoin (T7)."""
    _, member = with_a_divergent_member()
    context, repair = node_of(member).context, node_of(member).replica.repair
    repair._view_index = context.limbo.confirmed_index + 5
    repair.on_state_replaced(context.limbo.confirmed_index)
    assert not repair.is_open
    assert repair.latest_index() is None


def test_repaired_member_knows_the_rights_of_the_new_state() -> None:
    """The row that it could not apply took a right from a user who had read at this member."""
    driven = Driven(3)
    leader, member = driven.leader(), driven.followers()[0]
    for space, fields in (
        (SystemSpace.USER, [40, 1, "joe", "user", {}]),
        (SystemSpace.PRIV, [1, 40, "universe", 0, 24]),
        (SystemSpace.PRIV, [1, 40, "space", SPACE, 1]),
    ):
        assert driven.ask(leader, INSERT, build_body(space, tuple=fields)).code == 0
    driven.run(100)
    assert driven.ask(member, SELECT, get(1), user="joe").code == 0
    node = node_of(member)
    node.refuse_rows = True
    revocation = build_body(SystemSpace.PRIV, key=[40, "space", SPACE])
    assert driven.ask(leader, DELETE, revocation).code == 0
    assert driven.run(1_000, lambda: node.replica.repair.is_open)
    node.refuse_rows = False
    assert driven.ask(member, SELECT, get(1), user="joe").code == ErrorCode.LOADING
    assert driven.run(20_000, lambda: not node.replica.repair.is_open)
    assert driven.ask(member, SELECT, get(1), user="joe").code == ErrorCode.ACCESS_DENIED


def test_linearizable_read_that_waits_is_not_served_from_a_divergent_state() -> None:
    """The member could not apply a row that the read waits for."""
    driven = Driven(
        3, relay_chunk_bytes=1_500, relay_window_bytes=1_500, retention_ns=1_000 * SECOND
    )
    leader, member = driven.leader(), driven.followers()[0]
    driven.cut_off(member)
    driven.world.network.break_cut_off()
    for key in range(100):
        assert driven.ask(leader, REPLACE, put(key, "x")).code == 0
    driven.world.network.heal()
    node = node_of(member)
    assert driven.run(5_000, node.forwarding.can_forward)
    member.disk_delay_ns = 50 * MILLISECOND
    read = driven.send(member, SELECT, get(99, LINEARIZABLE))
    assert driven.run(1_000, lambda: bool(node.linearizable_reads.applying))
    node.refuse_rows = True
    assert driven.run(10_000, lambda: read in driven.answers)
    assert node.replica.repair.is_open
    assert driven.answers[read].code == ErrorCode.LOADING, driven.answers[read]


def test_only_the_first_write_of_a_rollback_had_no_quorum_itself() -> None:
    """Each later one is rolled back because of it (T6)."""
    driven = Driven(3, synchro_timeout_ns=100 * MILLISECOND)
    leader = driven.leader()
    relays = node_of(leader).replica.relays
    on_ack = relays.on_ack
    relays.on_ack = lambda uuid, message: False  # type: ignore[method-assign]  # no ACK counts
    together = [driven.send(leader, REPLACE, put(key, "x")) for key in range(2)]
    driven.run(20)
    sent = [*together, driven.send(leader, REPLACE, put(2, "x"))]
    assert driven.run(2_000, lambda: driven.world.counters["event rollback"] > 0)
    assert not any(sync in driven.answers for sync in sent)
    relays.on_ack = on_ack  # type: ignore[method-assign]  # restored
    assert driven.run(5_000, lambda: all(sync in driven.answers for sync in sent))
    codes = [driven.answers[sync].code for sync in sent]
    assert codes == [ErrorCode.SYNC_QUORUM_TIMEOUT, *[ErrorCode.SYNC_ROLLBACK] * 2]
