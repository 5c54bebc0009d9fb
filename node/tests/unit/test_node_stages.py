"""States of a request (K1, T6)."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.transactions.calls import Call
from qsync_node.transactions.stages import ENDS, TRANSITIONS, RequestStage, stage_after_answer

REPLACE, BEGIN = 3, 14


def call_in(*stages: RequestStage, kind: int = REPLACE, stream: int = 0) -> Call:
    call = Call(fx.Request(1, 1, kind, b"", stream, "guest", None), 0)
    for stage in stages:
        call.become(stage)
    return call


def test_every_state_can_be_reached_and_only_answers_end_a_request() -> None:
    reached = {stage for stages in TRANSITIONS.values() for stage in stages}
    assert reached == set(RequestStage) - {RequestStage.RECEIVED}
    assert {
        RequestStage.SUCCEEDED,
        RequestStage.REFUSED,
        RequestStage.ROLLED_BACK,
        RequestStage.UNKNOWN,
        RequestStage.EXPIRED,
        RequestStage.RETURNED,
    } == ENDS


@pytest.mark.parametrize("code", [ErrorCode.TIMEOUT, ErrorCode.NOT_LEADER, ErrorCode.TUPLE_FOUND])
def test_logged_request_is_never_reported_as_refused(code: ErrorCode) -> None:
    call = call_in(RequestStage.QUEUED, RequestStage.LOGGED)
    with pytest.raises(AssertionError, match="K1"):
        call.become(stage_after_answer(int(code)))
    call.become(RequestStage.QUEUED)  # the batch did not reach the log
    call.become(stage_after_answer(int(code)))


def test_request_is_answered_once() -> None:
    call = call_in(RequestStage.QUEUED, RequestStage.EXECUTED, RequestStage.SUCCEEDED)
    assert call.is_done
    for stage in RequestStage:
        with pytest.raises(AssertionError, match="K1"):
            call.become(stage)


@pytest.mark.parametrize(
    ("code", "stage"),
    [
        (0, RequestStage.SUCCEEDED),
        (ErrorCode.SYNC_QUORUM_TIMEOUT, RequestStage.ROLLED_BACK),
        (ErrorCode.SYNC_ROLLBACK, RequestStage.ROLLED_BACK),
        (ErrorCode.OUTCOME_UNKNOWN, RequestStage.UNKNOWN),
        (ErrorCode.TIMEOUT, RequestStage.REFUSED),
    ],
)
def test_answer_decides_the_last_state(code: int, stage: RequestStage) -> None:
    assert stage_after_answer(int(code)) is stage


def test_only_requests_that_a_leader_may_log_can_have_an_unknown_outcome() -> None:
    assert call_in(RequestStage.QUEUED, RequestStage.FORWARDED).may_be_logged
    assert not call_in(
        RequestStage.QUEUED, RequestStage.FORWARDED, kind=BEGIN, stream=1
    ).may_be_logged
    assert not call_in(RequestStage.QUEUED, RequestStage.EXECUTED).may_be_logged
    assert call_in(RequestStage.QUEUED, RequestStage.LOGGED).may_be_logged
