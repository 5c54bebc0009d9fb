"""States of a request (K1, T6)."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.transactions.calls import Call
from qsync_node.transactions.stages import ENDS, TRANSITIONS, Stage, stage_after_answer

REPLACE, BEGIN = 3, 14


def call_in(*stages: Stage, kind: int = REPLACE, stream: int = 0) -> Call:
    call = Call(fx.Request(1, 1, kind, b"", stream, "guest", None), 0)
    for stage in stages:
        call.become(stage)
    return call


def test_every_state_can_be_reached_and_only_answers_end_a_request() -> None:
    reached = {stage for stages in TRANSITIONS.values() for stage in stages}
    assert reached == set(Stage) - {Stage.RECEIVED}
    assert {
        Stage.SUCCEEDED,
        Stage.REFUSED,
        Stage.ROLLED_BACK,
        Stage.UNKNOWN,
        Stage.EXPIRED,
        Stage.RETURNED,
    } == ENDS


@pytest.mark.parametrize("code", [ErrorCode.TIMEOUT, ErrorCode.NOT_LEADER, ErrorCode.TUPLE_FOUND])
def test_logged_request_is_never_reported_as_refused(code: ErrorCode) -> None:
    call = call_in(Stage.QUEUED, Stage.LOGGED)
    with pytest.raises(AssertionError, match="K1"):
        call.become(stage_after_answer(int(code)))
    call.become(Stage.QUEUED)  # the batch did not reach the log
    call.become(stage_after_answer(int(code)))


def test_request_is_answered_once() -> None:
    call = call_in(Stage.QUEUED, Stage.EXECUTED, Stage.SUCCEEDED)
    assert call.is_done
    for stage in Stage:
        with pytest.raises(AssertionError, match="K1"):
            call.become(stage)


@pytest.mark.parametrize(
    ("code", "stage"),
    [
        (0, Stage.SUCCEEDED),
        (ErrorCode.SYNC_QUORUM_TIMEOUT, Stage.ROLLED_BACK),
        (ErrorCode.SYNC_ROLLBACK, Stage.ROLLED_BACK),
        (ErrorCode.OUTCOME_UNKNOWN, Stage.UNKNOWN),
        (ErrorCode.TIMEOUT, Stage.REFUSED),
    ],
)
def test_answer_decides_the_last_state(code: int, stage: Stage) -> None:
    assert stage_after_answer(int(code)) is stage


def test_only_requests_that_a_leader_may_log_can_have_an_unknown_outcome() -> None:
    assert call_in(Stage.QUEUED, Stage.FORWARDED).may_be_logged
    assert not call_in(Stage.QUEUED, Stage.FORWARDED, kind=BEGIN, stream=1).may_be_logged
    assert not call_in(Stage.QUEUED, Stage.EXECUTED).may_be_logged
    assert call_in(Stage.QUEUED, Stage.LOGGED).may_be_logged
