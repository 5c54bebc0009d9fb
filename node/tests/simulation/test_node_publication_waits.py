"""Calls that wait for publications: answers, deadlines and bounds (T11)."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import PUBLISHER_SPACE
from qsync_node.transactions import procedures
from qsync_node.transactions.procedures import PUBLICATION_WAITS_MAX, WAITS_PER_STEP, Wait
from qsync_sim.clients import build_body
from qsync_sim.shell import Shell
from qsync_testing.publications import CALL, ID, JOURNAL, call, publish, publishing_cluster, values
from qsync_testing.worlds import DELETE, Driven, node_of


@pytest.fixture
def driven() -> Driven:
    return publishing_cluster()


def state(driven: Driven, *arguments: object, shell: Shell | None = None) -> Any:
    body = call("qsync.publication", *arguments)
    return values(driven.ask(shell or driven.leader(), CALL, body))[0]


def test_publication_reports_state_and_offsets(driven: Driven) -> None:
    leader = driven.leader()
    assert state(driven, JOURNAL, 1) == {"state": "unknown"}
    driven.ask(leader, CALL, publish(b"abc"))
    assert state(driven, JOURNAL, 1) == {"state": "pending"}
    driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, 1, [[1, 10, 13]]))
    assert state(driven, JOURNAL, 1) == {"state": "published", "begin": 10, "end": 13}
    for _ in range(2):
        driven.ask(leader, CALL, publish(b"x"))
    driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, 3, []))
    assert state(driven, JOURNAL, 3) == {"state": "published"}


def test_member_that_repairs_its_state_reports_no_publication(driven: Driven) -> None:
    """Its state may lack a publication, or have one that was rolled back (T7)."""
    follower = driven.followers()[0]
    node = node_of(follower)
    node.replica.repair.open(node.context.limbo.confirmed_index)
    answer = driven.ask(follower, CALL, call("qsync.publication", JOURNAL, 1))
    assert answer.code == ErrorCode.LOADING


def test_call_waits_at_a_follower_until_the_publication_is_appended(driven: Driven) -> None:
    leader, follower = driven.leader(), driven.followers()[0]
    sync = driven.send(follower, CALL, call("qsync.publication", JOURNAL, 1, 60))
    driven.ask(leader, CALL, publish(b"abc"))
    driven.run(500)
    assert sync not in driven.answers
    driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, 1, [[1, 0, 3]]))
    driven.run(500)
    assert values(driven.answers[sync]) == [{"state": "published", "begin": 0, "end": 3}]


def test_wait_ends_with_the_state_at_its_deadline(driven: Driven) -> None:
    driven.ask(driven.leader(), CALL, publish(b"abc"))
    assert state(driven, JOURNAL, 1, 0.5) == {"state": "pending"}


def test_wait_survives_that_the_administrator_drops_an_index(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, CALL, publish(b"abc"))
    sync = driven.send(leader, CALL, call("qsync.publication", JOURNAL, 1, 1))
    dropped = driven.ask(
        leader, DELETE, build_body(SystemSpace.INDEX, index=0, key=[PUBLISHER_SPACE, 0])
    )
    assert dropped.code == 0, dropped.reason
    driven.run(1500)
    assert values(driven.answers[sync]) == [{"state": "unknown"}]
    assert driven.leader() is leader


@pytest.mark.parametrize(
    "arguments", [(), (JOURNAL,), (JOURNAL, "1"), (JOURNAL, True), (1, 1), (JOURNAL, 1, "x")]
)
def test_invalid_arguments_of_publication_are_refused(driven: Driven, arguments: Any) -> None:
    answer = driven.ask(driven.leader(), CALL, call("qsync.publication", *arguments))
    assert answer.code == ErrorCode.ILLEGAL_PARAMS


# --- failover -------------------------------------------------------------------------------------


def test_waits_for_publications_end_with_their_session(driven: Driven) -> None:
    """Clients that have left keep no place that another one needs."""
    leader = driven.leader()
    driven.ask(leader, CALL, publish(b"abc"))
    body = call("qsync.publication", JOURNAL, 1, 1e6)
    waits = [
        fx.Request(400, driven.next_sync(), CALL, body, 0, "admin", None)
        for _ in range(PUBLICATION_WAITS_MAX)
    ]
    leader.step(waits)
    driven.run(1)
    refused = driven.ask(leader, CALL, call("qsync.publication", JOURNAL, 1, 1), session=401)
    assert refused.code == ErrorCode.TOO_MANY
    leader.step([fx.SessionClosed(400)])
    answer = driven.ask(leader, CALL, call("qsync.publication", JOURNAL, 1, 1), session=401)
    assert answer.code == 0, answer.reason


def test_waits_that_ended_leave_their_places(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procedures, "PUBLICATION_WAITS_MAX", 1)
    driven.ask(driven.leader(), CALL, publish(b"abc"))
    for _ in range(3):
        assert state(driven, JOURNAL, 1, 0.1) == {"state": "pending"}


def test_a_step_examines_a_part_of_the_calls_that_wait(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, CALL, publish(b"abc"))
    waited = [
        (driven.send(leader, CALL, call("qsync.publication", JOURNAL, 1, seconds)), seconds)
        for seconds in (1e6, 1)
        for _ in range(PUBLICATION_WAITS_MAX // 2)
    ]
    examiner = node_of(leader).procedures
    waits = list(examiner.waits)
    examined: list[Wait] = []
    for wait in waits:
        wait.is_done = partial(_examine, examined, wait)
    examiner.tick()
    assert len(examined) == WAITS_PER_STEP
    driven.run(3_000)
    assert set(examined) == set(waits), "each one has its turn"
    ended = [sync for sync, seconds in waited if seconds == 1]
    assert sorted(sync for sync, _ in waited if sync in driven.answers) == ended


def test_a_call_does_not_examine_those_that_wait_already(driven: Driven) -> None:
    """A thousand calls of one connection may arrive in a step."""
    follower, body = driven.followers()[0], call("box.ctl.wait_rw", 1)
    status, calls = node_of(follower).status, 10 * WAITS_PER_STEP
    context = node_of(follower).context
    context.settings = replace(context.settings, work_per_step=10**7)  # for all calls at once
    reason, examined = status.read_only_reason, list[str]()

    def count() -> str:
        examined.append(reason())
        return examined[-1]

    status.read_only_reason = count  # type: ignore[method-assign]  # counts and answers
    syncs = [driven.next_sync() for _ in range(calls)]
    follower.step([fx.Request(100, sync, CALL, body, 0, "admin", None) for sync in syncs])
    assert len(examined) == calls + WAITS_PER_STEP
    driven.run(2_500)
    assert {driven.answers[sync].code for sync in syncs} == {ErrorCode.TIMEOUT}


@pytest.mark.parametrize("timeout", [0, -1, 1e-12])
def test_wait_without_a_timeout_ends_in_the_same_step(driven: Driven, timeout: float) -> None:
    """Tarantool answers it at once, too."""
    for shell, code in ((driven.leader(), 0), (driven.followers()[0], ErrorCode.TIMEOUT)):
        sync = driven.send(shell, CALL, call("box.ctl.wait_rw", timeout))
        assert driven.answers[sync].code == code


def _examine(examined: list[Wait], wait: Wait) -> bool:
    examined.append(wait)
    return False


def test_forwarded_calls_that_wait_end_with_their_link(driven: Driven) -> None:
    """Members forward no call that logs nothing, but a leader relies on no member's restraint."""
    leader, member = driven.leader(), driven.followers()[0]
    driven.ask(leader, CALL, publish(b"abc"))
    node = node_of(leader)
    link = node.context.link_to(member.uuid)
    assert link is not None
    body = call("qsync.publication", JOURNAL, 1, 1e6)
    waiting = msg.Forward(1, "admin", CALL, body, 400, 0, None, node.context.term)
    leader.step([fx.Received(link.number, waiting)])
    driven.run(20)
    assert len(node.procedures.waits) == 1
    member.stop(power_loss=False)
    driven.run(100)
    assert not node.procedures.waits
