"""State that must be reset or released: places of guests, barriers, NACKs and pinned views."""

from functools import partial
from uuid import UUID

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.consensus.snapshots import VIEW_LIFETIME_NS
from qsync_node.consensus.source import SourceState
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import Key
from qsync_node.format.mp import pack
from qsync_node.transactions.checkpoints import RELIEF_INTERVAL_NS
from qsync_node.transactions.streams import GUESTS_BYTES_MAX, GUESTS_STREAMS_MAX
from qsync_sim.clients import build_body
from qsync_sim.model import SPACE
from qsync_sim.shell import Shell
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    INSERT,
    REPLACE,
    ROLLBACK,
    SELECT,
    Driven,
    get,
    node_of,
    put,
)

SPACES, PRIVILEGES = 280, 312
JOIN = 65
GUEST_ID, READ_AND_WRITE = 0, 3


def void(_: object) -> None:
    """Ignore a result."""


def ask_as_guest(driven: Driven, shell: Shell, kind: int, body: bytes = b"") -> fx.Answer:
    sync = driven.next_sync()
    shell.step([fx.Request(500, sync, kind, body, 1, "guest", None)])
    assert driven.run(10_000, lambda: sync in driven.answers)
    return driven.answers[sync]


def test_guests_get_places_and_bytes_of_ended_transactions_back() -> None:
    driven = Driven(3)
    leader = driven.leader()
    grant = [1, GUEST_ID, "space", SPACE, READ_AND_WRITE]
    assert driven.ask(leader, INSERT, build_body(PRIVILEGES, tuple=grant)).code == 0
    content = "x" * (GUESTS_BYTES_MAX // GUESTS_STREAMS_MAX)
    for key in range(GUESTS_STREAMS_MAX + 10):
        assert ask_as_guest(driven, leader, BEGIN).code == 0
        answer = ask_as_guest(driven, leader, REPLACE, put(key, content))
        assert answer.code == 0, answer.reason
        assert ask_as_guest(driven, leader, ROLLBACK).code == 0


def test_writes_do_not_wait_for_a_schema_change_that_was_truncated() -> None:
    """Its index may be greater than the last one when the member leads again."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    later = build_body(SPACES, tuple=[900, 1, "later", "memtx", 0, {}, []])
    assert driven.ask(leader, INSERT, later, stream=1).code == 0
    for key in range(40):
        assert driven.ask(leader, REPLACE, put(key, "pending"), stream=1).code == 0
    driven.cut_off(leader)
    driven.send(leader, COMMIT, stream=1)
    driven.run(50)
    assert node_of(leader).state.ddl_barrier == node_of(leader).context.tail.last_index
    driven.depose_and_return(leader)
    assert driven.ask(leader, REPLACE, put(1, "later")).code == 0


def test_refusal_of_a_truncated_row_counts_for_no_other_row() -> None:
    """Other rows are confirmed at its index, and the member could apply them (T7)."""
    driven = Driven(5)
    leader, (member, *others) = driven.leader(), driven.followers()
    driven.mute(leader, *others)
    node_of(member).refuse_rows = True
    driven.send(leader, REPLACE, put(1, "refused"))
    context = node_of(member).context
    assert driven.run(200, lambda: context.ballot.nacks)
    index = context.ballot.nacks[0].index
    node_of(member).refuse_rows = False
    driven.cut_off(member)
    leader.stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() in others)
    for key in range(10):
        assert driven.ask(driven.leader(), REPLACE, put(key, "kept")).code == 0
    driven.world.network.heal()
    assert driven.run(10_000, lambda: context.limbo.confirmed_index > index)
    assert driven.world.counters["event state_diverged"] == 0
    assert not context.ballot.nacks


def test_member_with_a_wrong_state_sends_it_to_nobody() -> None:
    driven = Driven(3)
    leader, (member, other) = driven.leader(), driven.followers()
    node = node_of(member)
    node.refuse_rows = True
    driven.mute(other, member)  # neither of the two sends its state
    driven.mute(leader, member)
    driven.world.network.heal()
    assert driven.ask(leader, REPLACE, put(1, "refused")).code == 0
    assert driven.run(1_000, lambda: node.replica.repair.is_open)
    node.refuse_rows = False
    link = node.context.link_to(other.uuid)
    assert link is not None
    confirmed = node.context.limbo.confirmed_index
    request = fx.Received(link.number, msg.SnapshotRequest(1, 0, confirmed))
    effects = node.step(member.now_ns(), 0.0, [request])
    assert node.replica.repair.is_state_wrong
    sent = [effect.message for effect in effects if isinstance(effect, fx.Send)]
    assert not [one for one in sent if isinstance(one, msg.SnapshotChunk)]


def test_view_of_a_receiver_that_has_gone_is_released() -> None:
    driven = Driven(3, relay_chunk_bytes=200)
    leader = driven.leader()
    for key in range(60):
        assert driven.ask(leader, REPLACE, put(key, "x" * 50)).code == 0
    node = node_of(leader)
    link = node.context.link_to(driven.followers()[0].uuid)
    assert link is not None
    leader.step([fx.Received(link.number, msg.SnapshotRequest(1, 0, 1))])
    driven.run(20)
    snapshots = node.replica.snapshots
    assert snapshots.pinned_index() is not None
    driven.run(VIEW_LIFETIME_NS / MILLISECOND + 1_000)
    assert snapshots.pinned_index() is None


def test_no_row_follows_the_order_of_a_switchover() -> None:
    """It would make the log of the target older than the one of the leader (E9)."""
    driven = Driven(3, confirm_delay_ns=200 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader, target = driven.leader(), driven.followers()[0]
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    term = node_of(leader).replica.leader
    assert term is not None
    assert term.confirm_due_ns
    driven.world.command(leader, "switchover", target=target.uuid)
    driven.mute(leader, target)
    assert driven.run(150, lambda: term.transfer.has_nominated)
    last = node_of(leader).context.tail.last_index
    driven.run(300)
    assert node_of(leader).context.tail.last_index == last


def test_forwarded_write_that_the_leader_confirmed_is_not_unknown() -> None:
    """The link breaks while the answer waits until the member can show the row (T10)."""
    driven = Driven(3)
    leader, (member, _) = driven.leader(), driven.followers()
    node = node_of(member)
    member.disk_delay_ns = 400 * MILLISECOND
    sync = driven.send(member, INSERT, put(1, "confirmed"))
    assert driven.run(300, lambda: bool(node.forwarding.covering))
    driven.mute(leader, member)
    driven.world.network.break_cut_off()
    assert driven.run(10_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0


def test_new_leader_keeps_the_rows_of_a_replica_that_it_has_not_heard_yet() -> None:
    """The retention begins with the term, however long the process has run (S5)."""
    retention_ns = 20 * SECOND
    driven = Driven(3, retention_ns=retention_ns)
    driven.run(2 * retention_ns / MILLISECOND)
    leader, (target, away) = driven.leader(), driven.followers()
    away.stop(power_loss=False)
    driven.world.command(leader, "switchover", target=target.uuid)
    assert driven.run(10_000, lambda: driven.world.leader() is target)
    assert driven.ask(target, INSERT, put(1, "x")).code == 0
    term = node_of(target).replica.leader
    assert term is not None
    assert term.retention.floor_index() == 0


def test_transaction_that_failed_holds_nothing() -> None:
    """Its client may never end it: the session is of a pool (T8, T11)."""
    driven = Driven(3, request_timeout_ns=500 * MILLISECOND, synchro_timeout_ns=60 * SECOND)
    leader, followers = driven.leader(), driven.followers()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, REPLACE, put(1, "x" * 10_000), stream=1).code == 0
    streams = node_of(leader).clients.streams
    assert streams.held_bytes > 10_000
    for follower in followers:
        follower.disk_delay_ns = 2 * SECOND
    driven.send(leader, REPLACE, put(2, "pending"))
    sync = driven.send(leader, SELECT, get(2, isolation=1), stream=1)
    assert driven.run(2_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code
    assert streams.held_bytes == 0
    answer = driven.ask(leader, COMMIT, stream=1)
    assert answer.code == ErrorCode.TRANSACTION_CONFLICT


def test_snapshot_that_is_being_installed_is_written_once() -> None:
    """Two writers of one file: the second would remove the file of the first (S3)."""
    driven = Driven(3)
    assert driven.ask(driven.leader(), REPLACE, put(1, "x")).code == 0
    driven.run(500)
    member = driven.followers()[0]
    node = node_of(member)
    node.checkpoints.index = 0
    low = fx.SpaceLow(True)
    source = node.replica.source
    state, source.state = source.state, SourceState.INSTALLING
    effects = node.step(member.now_ns(), 0.0, [low])
    assert not [one for one in effects if isinstance(one, fx.WriteSnapshot)]
    source.state = state
    assert node.checkpoints.begin()


def test_heartbeats_do_not_collect_while_a_ballot_is_written() -> None:
    """A full disk may take no ballot for days (T11)."""
    driven = Driven(3)
    leader, (member, other) = driven.leader(), driven.followers()
    context = node_of(member).context
    member.disk_delay_ns = 30 * SECOND
    driven.world.command(other, "nominate", term=node_of(other).context.term)
    assert driven.run(2_000, lambda: not context.is_settled)
    driven.run(10_000)
    assert not context.is_settled
    assert len(context._after_ballot) <= 10
    member.disk_delay_ns = 200_000
    assert driven.run(40_000, lambda: context.is_settled)
    assert driven.ask(driven.leader(), REPLACE, put(1, "x")).code == 0
    assert leader is not member


def test_state_that_was_fetched_in_vain_is_dropped() -> None:
    """The next leader still has the rows, so the log continues without that state (S3)."""
    driven = Driven(3)
    member = driven.followers()[0]
    rejoin = node_of(member).replica.applier.rejoin
    rejoin.loader = rejoin.machine.new_loader()
    driven.leader().stop(power_loss=False)
    assert driven.run(10_000, lambda: driven.world.leader() is not None)
    driven.run(1_000)
    if driven.leader() is member:
        driven.world.command(member, "switchover", target="")
        driven.run(3_000)
    assert rejoin.loader is None


def test_rows_are_kept_again_for_a_tarantool_replica_that_joins_again() -> None:
    """A full disk has ended their retention; the replica then got a newer state (S5)."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    replica = str(UUID(int=7, version=4))
    leader.run(partial(node.registrar.register_tarantool, replica))
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    term = node.replica.leader
    assert term is not None
    checkpoint = node.context.limbo.confirmed_index
    driven.run(500)
    assert term.retention.floor_index() == 0
    term.retention.evict_slowest(checkpoint)
    assert term.retention.floor_index() >= checkpoint
    join = fx.TarantoolRequest(700, 0, JOIN, pack({int(Key.INSTANCE_UUID): replica}), "admin")
    leader.step([join])
    joined = node.context.limbo.confirmed_index
    for key in range(5):
        assert driven.ask(leader, REPLACE, put(key, "x")).code == 0
    driven.run(500)
    assert node.context.limbo.confirmed_index > joined
    assert term.retention.floor_index() == joined


def test_expired_statement_does_not_end_the_next_transaction_of_its_stream() -> None:
    """The end of its own transaction was forwarded before it expired (G3, T10)."""
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader, (member, _) = driven.leader(), driven.followers()
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.mute(leader, member)
    first = driven.send(member, REPLACE, put(1, "first"), stream=1)
    driven.run(400)
    commit = driven.send(member, COMMIT, stream=1)
    driven.send(member, BEGIN, stream=1)
    driven.send(member, REPLACE, put(2, "second"), stream=1)
    driven.run(250)
    assert driven.answers[first].code == ErrorCode.TIMEOUT
    assert commit not in driven.answers
    driven.world.network.heal()
    assert driven.ask(member, COMMIT, stream=1).code == 0
    assert driven.ask(member, SELECT, get(2)).tuples


def test_expired_rollback_does_not_end_the_next_transaction_of_its_stream() -> None:
    """Its own transaction ended when it was forwarded; a statement must not leave the next one."""
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader, (member, _) = driven.leader(), driven.followers()
    assert driven.ask(member, BEGIN, stream=1).code == 0
    driven.mute(leader, member)
    rollback = driven.send(member, ROLLBACK, stream=1)
    driven.run(400)
    driven.send(member, BEGIN, stream=1)
    driven.run(250)
    assert driven.answers[rollback].code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    assert driven.ask(member, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == [], "a statement left its transaction"
    assert driven.ask(member, COMMIT, stream=1).code == 0


def test_expired_commit_does_not_end_the_next_transaction_of_its_stream() -> None:
    """A COMMIT without rows has run, and its answer waits for the rows that it read."""
    driven = Driven(3, request_timeout_ns=600 * MILLISECOND, election_timeout_ns=5 * SECOND)
    leader = driven.leader()
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1), stream=1).code == 0
    driven.mute(leader, *driven.followers())
    driven.send(leader, REPLACE, put(5, "pending"), session=7)
    commit = driven.send(leader, COMMIT, stream=1)
    driven.run(400)
    assert driven.ask(leader, BEGIN, stream=1).code == 0
    driven.run(250)
    assert driven.answers[commit].code == ErrorCode.TIMEOUT
    driven.world.network.heal()
    driven.run(500)
    assert driven.ask(leader, REPLACE, put(1, "x"), stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples == [], "a statement left its transaction"
    assert driven.ask(leader, COMMIT, stream=1).code == 0
    assert driven.ask(leader, SELECT, get(1)).tuples


def test_replica_is_evicted_although_no_checkpoint_fits() -> None:
    """The log would stay, and writes would be refused, until its retention ends (S5)."""
    driven = Driven(3, retention_ns=600 * SECOND)
    leader, (away, _) = driven.leader(), driven.followers()
    node = node_of(leader)
    checkpoints, context = node.checkpoints, node.context
    away.stop(power_loss=False)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    leader.run(lambda: void(checkpoints.begin()))
    assert driven.run(5_000, lambda: not checkpoints.is_writing)
    assert driven.ask(leader, REPLACE, put(2, "x")).code == 0
    term = node.replica.leader
    assert term is not None
    floor = term.retention.floor_index()
    assert floor < checkpoints.index < context.limbo.confirmed_index

    def find_no_space() -> None:
        checkpoints.on_space_low()
        begun = [one for one in context.out if isinstance(one, fx.WriteSnapshot)]
        for one in begun:
            context.out.remove(one)
            checkpoints.on_written(fx.SnapshotWritten(one.log_index, "no space left on device"))

    leader.run(find_no_space)
    assert term.retention.floor_index() == floor, "a checkpoint is tried first"
    driven.run(2 * RELIEF_INTERVAL_NS / MILLISECOND)
    leader.run(find_no_space)
    assert term.retention.floor_index() > floor


def test_write_from_before_a_truncation_makes_no_row_durable() -> None:
    """Its report arrives after the truncation, and names rows of the former log (D1, L6)."""
    driven = Driven(3)
    leader = driven.leader()
    tail = node_of(leader).context.tail
    leader.disk_delay_ns = SECOND
    driven.send(leader, REPLACE, put(1, "x"))
    driven.run(10)
    durable = tail.durable_index
    assert durable < tail.last_index
    leader.step([fx.LogWritten(tail.epoch - 1, tail.last_index)])
    assert tail.durable_index == durable


def test_write_from_before_a_truncation_that_failed_restarts_the_member() -> None:
    """Rows are missing below the new ones: no free space brings them back (D4, D5)."""
    driven = Driven(3)
    follower = driven.followers()[0]
    node = node_of(follower)
    follower.step([fx.LogFailed(node.context.tail.epoch - 1, True, "no space left on device")])
    assert not node.context.is_disk_full
    assert driven.run(5_000, lambda: follower.is_alive and follower.node is not node)


def begun(shell: Shell) -> int:
    """Report a nearly full disk to a member; return how many checkpoints it begins."""
    effects = node_of(shell).step(shell.now_ns(), 0.0, [fx.SpaceLow(True)])
    checkpoints = [one for one in effects if isinstance(one, fx.WriteSnapshot)]
    for one in checkpoints:
        shell.step([fx.SnapshotWritten(one.log_index, "no space left on device")])
    return len(checkpoints)


def test_full_disk_gets_checkpoints_at_intervals_and_again_after_failures() -> None:
    """Each one takes the whole state, and the disk is checked every second (S5)."""
    driven = Driven(3)
    leader = driven.leader()
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(RELIEF_INTERVAL_NS / MILLISECOND)
    attempts = []
    for _ in range(4):
        attempts.append([begun(leader), begun(leader)])
        driven.run(RELIEF_INTERVAL_NS / MILLISECOND)
    assert attempts == [[1, 0], [0, 0], [1, 0], [0, 0]]


def test_replica_is_evicted_at_once_if_a_checkpoint_has_all_rows() -> None:
    """Another checkpoint of the same rows frees nothing (S5)."""
    driven = Driven(3, retention_ns=600 * SECOND)
    leader, (away, _) = driven.leader(), driven.followers()
    node = node_of(leader)
    away.stop(power_loss=False)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(500)
    leader.run(lambda: void(node.checkpoints.begin()))
    assert driven.run(5_000, lambda: not node.checkpoints.is_writing)
    assert node.checkpoints.index == node.context.limbo.confirmed_index
    driven.run(RELIEF_INTERVAL_NS / MILLISECOND)
    term = node.replica.leader
    assert term is not None
    floor = term.retention.floor_index()
    assert begun(leader) == 0
    assert term.retention.floor_index() > floor


def test_each_replica_that_lags_is_evicted_in_turn() -> None:
    driven = Driven(5, retention_ns=600 * SECOND)
    leader, (first, second, *_) = driven.leader(), driven.followers()
    tracker = node_of(leader).replica.leader
    assert tracker is not None
    retention, context = tracker.retention, node_of(leader).context
    first.stop(power_loss=False)
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(500)
    second.stop(power_loss=False)
    assert driven.ask(leader, REPLACE, put(2, "x")).code == 0
    driven.run(500)
    lagging = tracker.tracker.follower(second.uuid).match
    confirmed = context.limbo.confirmed_index
    assert tracker.tracker.follower(first.uuid).match < lagging < confirmed
    leader.run(partial(retention.evict_slowest, lagging))
    assert retention.floor_index() == lagging
    leader.run(partial(retention.evict_slowest, lagging))
    assert retention.floor_index() == lagging, "it has all rows of the checkpoint"
    leader.run(partial(retention.evict_slowest, confirmed))
    assert retention.floor_index() > lagging


def test_leader_keeps_rows_that_its_own_disk_lacks() -> None:
    """A quorum of others confirms them, and a checkpoint may have them already (S5)."""
    driven = Driven(3)
    leader = driven.leader()
    node = node_of(leader)
    leader.disk_delay_ns = SECOND
    assert driven.ask(leader, REPLACE, put(1, "x")).code == 0
    driven.run(50)
    tail = node.context.tail
    assert tail.durable_index < node.context.limbo.confirmed_index
    term = node.replica.leader
    assert term is not None
    assert term.retention.floor_index() <= tail.durable_index


def test_stopped_member_removes_no_rows() -> None:
    """An administrator may need each row of a history that differs (L4, S5)."""
    driven = Driven(3)
    member = driven.followers()[0]
    node = node_of(member)
    assert driven.ask(driven.leader(), REPLACE, put(1, "x")).code == 0
    driven.run(500)
    member.run(lambda: void(node.checkpoints.begin()))
    assert driven.run(5_000, lambda: not node.checkpoints.is_writing)
    driven.run(500)
    node.context.split_brain = "another history"
    node.checkpoints.collect_garbage()
    assert not [one for one in node.context.out if isinstance(one, fx.RemoveSegments)]
    node.context.split_brain = ""
    node.checkpoints.collect_garbage()
    assert [one for one in node.context.out if isinstance(one, fx.RemoveSegments)]
