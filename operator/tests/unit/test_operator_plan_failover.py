"""The plan without a leader: the nominated member, the delay, and the reported cost."""

from dataclasses import replace

from qsync_operator.api.reasons import FailoverReason
from qsync_operator.plan.actions import Nominate
from qsync_operator.plan.failover import after_nomination, track_leader
from qsync_operator.plan.observed import Memory, Observed
from qsync_operator.plan.planner import plan
from qsync_testing.operator.plan_worlds import cluster_of, decide, formed


def test_the_longest_log_that_answers_is_nominated_in_the_greatest_term_seen() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].is_running = False
    world.leader, world.term = "", 7
    world.incarnations["c-2"].index = 11
    assert decide(world) == (Nominate("c-2", 7),)
    world.incarnations["c-1"].index = 11
    assert decide(world) == (Nominate("c-1", 7),)


def test_voters_are_those_of_the_log_with_the_latest_term() -> None:
    """A longer log of an earlier term may have diverged and lists voters that do not count."""
    world = formed(cluster_of(3), leader="")
    world.incarnations["c-0"].is_running = False
    observed = world.observe()
    first, second, third = observed.members
    assert second.status is not None
    assert third.status is not None
    second = replace(second, status=replace(second.status, last_term=2))
    alone = tuple(one for one in third.status.registered if one.name == "c-2")
    third = replace(third, status=replace(third.status, last_index=99, registered=alone))
    seen = replace(observed, members=(first, second, third))
    assert plan(world.cluster, seen, world.now_ns, 0).actions == (Nominate("c-1", 1),)


def test_only_members_that_take_orders_are_nominated() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].is_running, world.leader = False, ""
    world.incarnations["c-1"].takes_orders = False
    assert decide(world) == (Nominate("c-2", 1),)
    # With a longer log, c-1 would win against any nominated member, so the voters decide.
    world.incarnations["c-1"].index = 11
    assert decide(world) == ()


def test_one_nomination_in_an_election_timeout_and_then_another_member() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].is_running = False
    world.leader = ""
    nomination = Nominate("c-1", 1)
    assert decide(world) == (nomination,)
    world.memory = after_nomination(world.memory, nomination, world.now_ns)
    world.now_ns += 900_000_000
    assert decide(world) == ()
    world.now_ns += 200_000_000
    assert decide(world) == (Nominate("c-2", 1),)


def test_all_members_are_nominated_again_after_each_had_its_turn() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].is_running = False
    world.leader = ""
    for nomination in (Nominate("c-1", 1), Nominate("c-2", 1)):
        world.memory = after_nomination(world.memory, nomination, world.now_ns)
    world.now_ns += 1_100_000_000
    assert decide(world) == (Nominate("c-1", 1),)


def test_without_a_majority_no_member_is_nominated_and_status_reports_it() -> None:
    world = formed(cluster_of(3), leader="")
    world.incarnations["c-0"].is_running = world.incarnations["c-1"].is_running = False
    planned = plan(world.cluster, world.observe(), 0, 0)
    assert planned.actions == ()
    assert planned.status.phase == "Unavailable"
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert "1 of 3 voters answer and 2 are needed" in ready.message


def test_fenced_voters_are_named_as_the_cause_if_no_member_can_lead() -> None:
    world = formed(cluster_of(3), leader="")
    for incarnation in world.incarnations.values():
        incarnation.is_fenced = True
    ready = plan(world.cluster, world.observe(), 0, 0).status.condition("Ready")
    assert ready is not None
    assert ready.message == "no member can lead: c-0, c-1, c-2 fenced; unfence one"


def test_a_failover_is_measured_from_the_end_of_the_process() -> None:
    world = formed(cluster_of(3))
    world.step()
    world.incarnations["c-0"].is_dead, world.incarnations["c-0"].is_running = True, False
    world.leader = ""
    for _ in range(3):
        world.step()
    failover = world.status.last_failover
    assert failover is not None
    assert (failover.from_, failover.to, failover.reason) == ("c-0", "c-1", "ProcessEnded")
    assert failover.unavailable_milliseconds == 100


def test_end_of_an_earlier_process_is_not_the_loss_of_its_successor() -> None:
    world = formed(cluster_of(3))
    leader, *others = world.observe().members
    leader = replace(leader, ended_at_ns=3)
    seen = Observed((leader, *others), world.record, memory=Memory("c-0", 1, seen_at_ns=5))
    silent = replace(seen, members=(replace(leader, status=None), *others))
    lost = track_leader(silent, 9, 0.0)
    assert (lost.reason, lost.lost_at_ns) == ("Unreachable", 9)


def test_failover_between_two_observations_began_with_the_end_of_the_process() -> None:
    world = formed(cluster_of(3))
    world.leader, world.term = "c-1", 2
    old, *others = world.observe().members
    seen = Observed(
        (replace(old, ended_at_ns=7_000_000), *others),
        world.record,
        memory=Memory("c-0", 1, seen_at_ns=5_000_000),
    )
    failover = track_leader(seen, 9_000_000, 0.0).last_failover
    assert failover is not None
    assert (failover.reason, failover.unavailable_milliseconds) == ("ProcessEnded", 2)


def test_end_of_a_process_after_it_stepped_down_does_not_shorten_the_failover() -> None:
    world = formed(cluster_of(3))
    world.leader, world.term = "c-1", 2
    old, *others = world.observe().members
    stepped_down = FailoverReason.STEPPED_DOWN
    memory = Memory("c-0", 1, seen_at_ns=1_000_000, lost_at_ns=2_000_000, reason=stepped_down)
    seen = Observed((replace(old, ended_at_ns=7_000_000), *others), world.record, memory=memory)
    failover = track_leader(seen, 9_000_000, 0.0).last_failover
    assert failover is not None
    assert (failover.reason, failover.unavailable_milliseconds) == ("SteppedDown", 7)


def test_a_failover_reports_the_rows_that_the_old_leader_truncated() -> None:
    """Rows that its process truncated earlier belong to another failover."""

    def rolled_back() -> int:
        failover = world.status.last_failover
        assert failover is not None
        return failover.rolled_back_rows

    world = formed(cluster_of(3))
    world.incarnations["c-0"].cut_rows = 7
    world.step()
    world.leader, world.term = "c-1", 2
    world.step()
    assert rolled_back() == 0
    world.incarnations["c-0"].cut_rows = 9
    world.step()
    assert rolled_back() == 2
    # In the next failover the process ends, and its next process counts from zero.
    world.incarnations["c-1"].cut_rows = 5
    world.step()
    world.incarnations["c-1"].is_running, world.leader = False, ""
    world.step()
    world.incarnations["c-1"].is_running, world.incarnations["c-1"].cut_rows = True, 0
    for _ in range(3):
        world.step()
    assert rolled_back() == 0
    world.incarnations["c-1"].cut_rows = 4
    world.step()
    assert rolled_back() == 4


def test_rows_that_a_new_process_of_the_old_leader_truncated_are_counted_from_zero() -> None:
    world = formed(cluster_of(3))
    world.incarnations["c-0"].cut_rows = 7
    world.step()
    world.leader, world.term = "c-1", 2
    world.step()
    world.incarnations["c-0"].cut_rows = 3  # of its next process
    world.step()
    failover = world.status.last_failover
    assert failover is not None
    assert (failover.reason, failover.rolled_back_rows) == ("Switchover", 3)


def test_a_failover_delay_is_waited_for() -> None:
    cluster = cluster_of(3)
    cluster.spec.failover.delay = "10s"
    world = formed(cluster)
    world.leader = ""
    world.memory = replace(world.memory, lost_at_ns=world.now_ns)
    assert decide(world) == ()
    world.now_ns += 10 * 10**9
    assert decide(world) == (Nominate("c-0", 1),)


def test_a_leader_that_is_silent_and_alive_is_left_to_the_voters() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    world.memory = replace(world.memory, reason=FailoverReason.UNREACHABLE, lost_at_ns=world.now_ns)
    world.now_ns += 2 * 10**9 - 1  # one nanosecond before twice the election timeout
    assert decide(world) == ()
    world.now_ns += 1
    assert decide(world) == (Nominate("c-0", 1),)
    observed = world.observe()
    status = observed.members[1].status
    assert status is not None
    hearing = replace(observed.members[1], status=replace(status, hears_leader=True))
    observed = replace(observed, members=(*observed.members[:1], hearing, *observed.members[2:]))
    planned = plan(world.cluster, observed, world.now_ns, 0)
    assert planned.actions == ()
    ready = planned.status.condition("Ready")
    assert ready is not None
    assert ready.message == "c-0 does not answer the operator, but voters receive its heartbeats"


def test_whom_a_leader_handed_over_to_has_its_turn() -> None:
    world = formed(cluster_of(3))
    world.leader = ""
    world.memory = replace(
        world.memory, reason=FailoverReason.STEPPED_DOWN, lost_at_ns=world.now_ns
    )
    assert decide(world) == ()
    world.now_ns += 10**9
    assert decide(world) == (Nominate("c-0", 1),)


def test_leaving_member_is_nominated_if_no_other_one_can_lead() -> None:
    world = formed(cluster_of(3), leader="")
    world.incarnations["c-0"].leaving = 3
    for name in ("c-1", "c-2"):
        world.incarnations[name].is_fenced = True
    assert decide(world) == (Nominate("c-0", 1),)


def test_nomination_is_in_the_greatest_term_of_any_member() -> None:
    world = formed(cluster_of(3, async_replicas=1), leader="")
    observed = world.observe()
    members = tuple(
        replace(one, status=replace(one.status, term=7))
        if one.kind == "async" and one.status is not None
        else one
        for one in observed.members
    )
    planned = plan(world.cluster, replace(observed, members=members), world.now_ns, 0)
    assert planned.actions == (Nominate("c-0", 7),)


def test_new_leader_ends_the_memory_of_nominations() -> None:
    world = formed(cluster_of(3), leader="")
    world.step()
    assert world.memory.nominations
    world.leader, world.term = "c-1", 2
    world.step()
    assert (world.memory.leader, world.memory.nominations) == ("c-1", ())
