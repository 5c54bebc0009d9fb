"""Each check of the simulator refuses a wrong history or state."""

from typing import Any

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import EntryKind
from qsync_node.consensus.membership import ClusterMember, Configuration
from qsync_node.consensus.messages import Ack, VoteReply, VoteRequest
from qsync_node.consensus.transfer import LeadershipTransfer
from qsync_node.errors import ErrorCode
from qsync_sim import faults, refusals, resources
from qsync_sim.checker import Checker
from qsync_sim.model import SPACE
from qsync_sim.network import LATE_NS, LATENCY_NS
from qsync_sim.operation import ClientOperation
from qsync_sim.sessions import SessionChecks
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_testing.worlds import BEGIN, REPLACE, Driven, node_of, put

SECOND = 1_000_000_000
FIRST, SECOND_TUPLE = [1, "first", 0], [1, "second", 0]
VERSIONS: dict[tuple[int, int], Any] = {(SPACE, 1): [(0, None), (10, FIRST), (20, SECOND_TUPLE)]}
HEARTBEAT_NS = 50_000_000


def operation(kind: str, at_ms: int, got: object = None, **fields: object) -> ClientOperation:
    """Return an answered operation of session 1, which took one millisecond."""
    made = ClientOperation(0, kind, 1, b"", SPACE, 1, "", "n1", at_ms * 1_000_000)
    made.returned_ns = made.called_ns + 1_000_000
    made.outcome, made.ceiling_index, made.session = "committed", 20, 1
    made.tuples = [got] if got is not None else []
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def check_sessions(*history: ClientOperation) -> int:
    return SessionChecks(VERSIONS, HEARTBEAT_NS).check(list(history))


class TestSessions:
    """The order of states that one connection shows."""

    def test_reads_that_advance_pass(self) -> None:
        history = [operation("select", 1), operation("select", 3, FIRST)]
        assert check_sessions(*history, operation("select", 5, SECOND_TUPLE)) == 1

    def test_read_that_goes_back_on_a_connection(self) -> None:
        with pytest.raises(InvariantViolation, match="R1"):
            check_sessions(operation("select", 1, SECOND_TUPLE), operation("select", 3, FIRST))

    def test_scan_that_goes_back_on_a_connection(self) -> None:
        with pytest.raises(InvariantViolation, match="R1"):
            check_sessions(operation("select", 1, SECOND_TUPLE), operation("scan", 3, FIRST))

    def test_another_connection_may_show_an_older_state(self) -> None:
        first = operation("select", 1, SECOND_TUPLE)
        check_sessions(first, operation("select", 3, FIRST, session=2))

    def test_read_without_the_own_write(self) -> None:
        with pytest.raises(InvariantViolation, match="T10"):
            check_sessions(operation("replace", 1, index=20), operation("select", 3, FIRST))

    def test_answer_at_the_deadline_promises_nothing_about_reads(self) -> None:
        late = operation("replace", 1, index=20, returned_ns=SECOND)
        check_sessions(late, operation("select", 1_001, FIRST))

    def test_linearizable_read_older_than_a_default_read_of_another_connection(self) -> None:
        first = operation("select", 1, SECOND_TUPLE)
        with pytest.raises(InvariantViolation, match="R2"):
            check_sessions(first, operation("linearizable", 3, FIRST, session=2))


class TestAvailability:
    """A quorum of sound voters serves."""

    def driven(self) -> Driven:
        driven = Driven(3)
        driven.world.availability.start()
        return driven

    def test_sound_quorum_without_a_leader(self) -> None:
        driven = self.driven()
        for shell in driven.shells:
            assert shell.node is not None
            shell.node.replica.election.can_stand = lambda: False  # type: ignore[method-assign]  # a bug
        leader = driven.leader()
        assert leader.node is not None
        leader.node.replica.step_down("a test")
        with pytest.raises(InvariantViolation, match="E12: no leader"):
            driven.run(10_000)

    def test_process_that_has_ended_is_no_part_of_the_group(self) -> None:
        """An order to stop ends a process later; the period must end at that time."""
        driven = self.driven()
        driven.run(1_050)
        stopped = driven.followers()[0]
        stopped.stop_cleanly()
        last = driven.world.availability.periods[-1]
        assert stopped.name not in last.names
        assert last.begin_ns == driven.world.now_ns

    def test_needless_failover(self) -> None:
        driven = self.driven()
        driven.run(1_000)
        leader = driven.leader()
        assert leader.node is not None
        leader.node.replica.step_down("a test")
        with pytest.raises(InvariantViolation, match="E4: needless failover"):
            driven.run(1_000)

    def test_member_that_stood_in_the_same_election_returns_later(self) -> None:
        """Its term is older than the confirmation of the PROMOTE of the leader that it replaces."""
        driven = self.driven()
        driven.run(1_000)
        late, other = driven.followers()
        driven.cut_off(late)
        node_of(late).replica.adopt_term(4, vote=late.uuid)
        driven.world.availability.on_term(late, 4)
        driven.world.command(other, "nominate", term=1)
        assert driven.run(1_000, lambda: node_of(other).context.is_leading)
        driven.run(2_000)
        driven.world.network.heal()
        driven.world.availability.observe()
        driven.run(600)
        leader = node_of(driven.leader())
        assert leader.context.term > 4
        assert driven.world.availability.needless == 0
        driven.run(1_000)
        leader.replica.step_down("a test")
        with pytest.raises(InvariantViolation, match="E4: needless failover"):
            driven.run(1_000)

    @pytest.mark.parametrize("is_cut_off", [True, False])
    def test_candidate_of_an_earlier_period_returns(self, is_cut_off: bool) -> None:
        """It stood when a quorum heard no leader, and was cut off since then."""
        driven = self.driven()
        driven.run(1_000)
        late, _ = driven.followers()
        availability = driven.world.availability
        driven.cut_off(late)
        if is_cut_off:
            node_of(late).replica.adopt_term(4, vote=late.uuid)
            availability.on_term(late, 4)
        driven.run(200)
        availability.disturb()  # another fault ends the period
        driven.run(2_000)
        if not is_cut_off:
            node_of(late).replica.adopt_term(4, vote=late.uuid)
            availability.on_term(late, 4)
        driven.world.network.heal()
        if is_cut_off:
            driven.run(1_000)
            assert availability.needless == 0
            assert driven.world.counters["failovers by candidates that were cut off"] == 1
        else:
            with pytest.raises(InvariantViolation, match="E4: needless failover"):
                driven.run(1_000)

    def test_paused_leader_is_replaced_without_a_needless_failover(self) -> None:
        driven = self.driven()
        driven.run(1_000)
        driven.leader().pause()
        driven.world.availability.observe()
        driven.run(5_000)
        assert driven.world.availability.needless == 0

    def refused(self, at_ms: int) -> ClientOperation:
        return operation("replace", at_ms, outcome="refused", code=int(ErrorCode.READONLY))

    def test_refusal_of_a_sound_quorum(self) -> None:
        driven = self.driven()
        driven.run(3_000)
        now_ms = driven.world.now_ns // 1_000_000
        with pytest.raises(InvariantViolation, match="E12"):
            driven.world.availability.check([self.refused(now_ms - 500)], is_queue_judged=True)

    def test_refusal_during_a_partition_is_not_judged(self) -> None:
        driven = self.driven()
        driven.run(3_000)
        for shell in driven.shells:
            driven.cut_off(shell)
        driven.world.availability.observe()
        driven.run(1_000)
        now_ms = driven.world.now_ns // 1_000_000
        driven.world.availability.check([self.refused(now_ms - 500)], is_queue_judged=True)


class TestRefusals:
    """The state of a member justifies its refusals."""

    @pytest.mark.parametrize(
        ("code", "reason", "rule"),
        [
            (ErrorCode.SYNC_QUEUE_FULL, "the queue is full", "T11"),
            (ErrorCode.READONLY, "the leader is read-only", "E1"),
            (ErrorCode.DISK_FULL, "the disk is nearly full", "D5"),
            (ErrorCode.LOADING, "the member is loading", "T7"),
            (ErrorCode.NOT_LEADER, "a switchover is in progress", "T10"),
            (ErrorCode.NOT_LEADER, "a rollback is in progress", "T10"),
            (ErrorCode.NOT_LEADER, "the PROMOTE is not confirmed yet", "T10"),
            (ErrorCode.UNKNOWN_REPLICA, "the member was removed", "M5"),
        ],
    )
    def test_refusal_of_an_idle_leader(self, code: int, reason: str, rule: str) -> None:
        driven = Driven(3)
        leader = driven.leader()
        with pytest.raises(InvariantViolation, match=rule):
            refusals.check(driven.world, leader, int(code), reason, leader.uuid)

    def test_begin_is_refused_only_where_clients_begin_twice(self) -> None:
        """Another client's open transaction does not justify it."""
        driven = Driven(3)
        leader = driven.leader()
        assert driven.ask(leader, BEGIN, stream=1).code == 0
        code, reason = int(ErrorCode.ACTIVE_TRANSACTION), "there is an active transaction"
        with pytest.raises(InvariantViolation, match="T6"):
            refusals.check(driven.world, leader, code, reason, leader.uuid)
        driven.world.begins_twice = True
        refusals.check(driven.world, leader, code, reason, leader.uuid)

    def test_follower_that_knows_its_leader(self) -> None:
        driven = Driven(3)
        follower = driven.followers()[0]
        reason = "the request was not logged: the member knows no leader; retry"
        with pytest.raises(InvariantViolation, match="T10"):
            refusals.check(driven.world, follower, int(ErrorCode.NOT_LEADER), reason, follower.uuid)


class TestWatch:
    """Elections, terms and switchovers follow their rules at each step."""

    def test_prevote_of_a_member_that_hears_its_leader(self) -> None:
        driven = Driven(3)
        follower, other = driven.followers()
        assert follower.node is not None
        follower.node.replica.election.heard_at_ns -= 1_000_000
        with pytest.raises(InvariantViolation, match="E3"):
            driven.world.watch.on_send(
                follower, other.uuid, VoteReply(9, True, True, 1, 1, 1, 0, False)
            )

    def test_prevote_of_a_leader(self) -> None:
        driven = Driven(3)
        leader, other = driven.leader(), driven.followers()[0]
        with pytest.raises(InvariantViolation, match="E3"):
            driven.world.watch.on_send(
                leader, other.uuid, VoteReply(9, True, True, 1, 1, 1, 0, False)
            )

    @pytest.mark.parametrize(
        ("message", "is_allowed"),
        [
            (VoteRequest(7, 1, 1, True, False, 1), False),
            (VoteReply(7, True, True, 1, 1, 1, 0, False), False),
            (VoteReply(7, False, True, 1, 1, 1, 0, False), True),
            (VoteRequest(7, 1, 1, False, False, 1), True),
            (VoteRequest(6, 1, 1, False, False, 1), False),
        ],
    )
    def test_term_rises_by_a_message_that_is_no_prevote(
        self, message: VoteRequest | VoteReply, is_allowed: bool
    ) -> None:
        driven = Driven(3)
        follower = driven.followers()[0]
        node = follower.node
        assert node is not None
        node.context.ballot = node.context.ballot.in_term(7)
        follower.inputs_now = [fx.Received(1, message)]
        if is_allowed:
            driven.world.watch.on_step(follower, node)
            return
        with pytest.raises(InvariantViolation, match="E3"):
            driven.world.watch.on_step(follower, node)

    def test_write_during_a_switchover(self) -> None:
        driven = Driven(3)
        leader = driven.leader()
        assert leader.node is not None
        term = leader.node.replica.leader
        assert term is not None
        term.transfer.switchover = LeadershipTransfer("", 1 << 62)
        driven.run(100)
        term.can_append = lambda: True  # type: ignore[method-assign]  # a bug
        with pytest.raises(InvariantViolation, match="E9"):
            driven.send(leader, REPLACE, put(1, "value"))

    def test_switchover_without_an_end(self) -> None:
        driven = Driven(3)
        leader = driven.leader()
        assert leader.node is not None
        term = leader.node.replica.leader
        assert term is not None
        term.transfer.switchover = LeadershipTransfer("", 1 << 62)
        driven.run(6_000)
        with pytest.raises(InvariantViolation, match="E9"):
            driven.run(2_000)


class TestLinearizableReads:
    """A linearizable read names an index that is not before an answered one."""

    @pytest.mark.parametrize("kind", ["linearizable", "linearizable scan"])
    def test_smaller_index_than_an_answer_before(self, kind: str) -> None:
        checker = Checker(Driven(3).world)
        read = operation(kind, 1, index=10, floor_index=20, ceiling_index=20)
        with pytest.raises(InvariantViolation, match="R2"):
            checker._check(read)


class TestRollbacks:
    """A write that was rolled back is not in the order, unless an earlier attempt may be."""

    @pytest.mark.parametrize(
        ("first", "key", "called_ms"),
        [("rolled back", [1], 1), ("unknown", None, 1), ("unknown", [2], 1), ("unknown", [1], 9)],
    )
    def test_row_without_an_earlier_unknown_attempt(
        self, first: str, key: object, called_ms: int
    ) -> None:
        world = Driven(3).world
        last = operation("keyed", 5, outcome="rolled back", idempotency=[1])
        other = operation("keyed", called_ms, outcome=first, idempotency=key)
        world.history = [other, last]
        checker = Checker(world)
        checker.index_of[last.value] = [7]
        with pytest.raises(InvariantViolation, match="T6"):
            checker._check(last)

    def test_row_of_an_earlier_unknown_attempt(self) -> None:
        world = Driven(3).world
        first = operation("keyed", 1, outcome="unknown", idempotency=[1])
        last = operation("keyed", 5, outcome="rolled back", idempotency=[1])
        world.history = [first, last]
        checker = Checker(world)
        checker.index_of[last.value] = [7]
        checker._check(last)
        assert world.counters["earlier attempts executed after a rollback"] == 1


class TestResources:
    """Buffers are bounded, and empty at the end."""

    def test_request_that_is_kept_after_its_answer(self) -> None:
        driven = Driven(3)
        leader = driven.leader()
        assert leader.node is not None
        resources.check_end(leader, leader.node)
        leader.node.linearizable_reads.applying.append((1, None))  # type: ignore[arg-type]  # only counted
        with pytest.raises(InvariantViolation, match="T11"):
            resources.check_end(leader, leader.node)

    def test_queue_longer_than_its_limit(self) -> None:
        driven = Driven(3, limbo_entries_max=2)
        leader = driven.leader()
        assert leader.node is not None
        driven.cut_off(leader)
        for key in range(3):
            driven.send(leader, REPLACE, put(key, "value"))
            driven.run(5)
        resources.check_step(leader, leader.node, driven.world.ledger)
        entries = leader.node.context.limbo.entries
        entries.extend([next(one for one in entries if one.kind is EntryKind.USER)] * 4)
        with pytest.raises(InvariantViolation, match="T11"):
            resources.check_step(leader, leader.node, driven.world.ledger)


def removed_at(shell: Shell, uuid: str) -> None:
    shell.removed_before = frozenset({uuid})


class TestAuthority:
    """Removed instances count nowhere, and voters agree about majorities."""

    def test_vote_for_a_removed_instance(self) -> None:
        driven = Driven(3)
        follower = driven.followers()[0]
        removed_at(follower, "removed")
        with pytest.raises(InvariantViolation, match="P1"):
            driven.world.onlooker.on_send(
                follower, "removed", VoteReply(9, True, True, 1, 1, 1, 0, False)
            )

    def test_ack_to_a_removed_instance(self) -> None:
        driven = Driven(3)
        follower = driven.followers()[0]
        removed_at(follower, "removed")
        with pytest.raises(InvariantViolation, match="P1"):
            driven.world.onlooker.on_send(follower, "removed", Ack(1, 1, 1, 1, 0, 0))

    def test_member_that_counts_by_a_removed_voter(self) -> None:
        driven = Driven(3)
        follower, other = driven.followers()
        assert follower.node is not None
        removed_at(follower, other.uuid)
        with pytest.raises(InvariantViolation, match="M5"):
            driven.world.authority.on_step(follower, follower.node, [], 0)

    def test_fence_that_a_restart_loses(self) -> None:
        driven = Driven(3)
        follower = driven.followers()[0]
        driven.world.command(follower, "fence")
        driven.run(100)
        follower.stop(power_loss=False)
        follower.start()
        follower.ballot_on_disk = b""
        with pytest.raises(InvariantViolation, match="E10"):
            driven.world.authority.on_started(follower)

    def test_two_members_that_could_win_by_disjoint_majorities(self) -> None:
        driven = Driven(3)
        leader = driven.leader()
        follower = driven.followers()[0]
        assert leader.node is not None
        assert follower.node is not None
        alone = ClusterMember(1, follower.uuid, follower.name, "voter", True, 1)
        follower.node.context.limbo.configuration = Configuration((alone,))
        with pytest.raises(InvariantViolation, match="M2"):
            driven.world.onlooker.on_step(follower, follower.node)


def test_overlapping_faults_of_the_network_end() -> None:
    driven = Driven(3)
    for _ in range(3):
        faults.slow_network(driven.world)
        driven.run(1)
    driven.run(2_500)
    assert driven.world.network.latency_ns == LATENCY_NS


def test_lost_packet_delays_its_connection_after_the_loss() -> None:
    driven = Driven(3)
    driven.run(1_000)
    network = driven.world.network

    def is_late() -> bool:
        return network.latest_arrival_ns() > driven.world.now_ns + LATE_NS

    assert not is_late()
    network.loss = 0.9
    driven.run(100)
    network.loss = 0.0
    assert is_late()
    driven.run(600_000)
    assert not is_late()
