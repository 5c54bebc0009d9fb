"""The check of pipelined transactions finds writes that take effect alone, or in part."""

from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_sim.clients import COMMIT
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads.order import ConfirmedOrder
from qsync_sim.workloads.pipelines import PipelinedPart, PipelinedTransaction
from qsync_sim.world import World

CONFLICT, UNKNOWN = int(ErrorCode.TRANSACTION_CONFLICT), int(ErrorCode.OUTCOME_UNKNOWN)
REFUSED, TIMEOUT = int(ErrorCode.NOT_LEADER), int(ErrorCode.TIMEOUT)


def check(
    codes: list[int], places: list[int | None], *, begin_ns: int = 9_000_000, last: int = 0
) -> None:
    """Check a transaction of two writes.

    Args:
        codes: of the answers to BEGIN, to both writes and to COMMIT; the writes arrived at 5 ms.
        places: indexes of both writes in the order.
        begin_ns: when BEGIN was answered.
        last: the index that COMMIT reports.
    """
    one = PipelinedTransaction(World(1), Random(1), 512, 7)
    part = PipelinedPart(1, ["first", "second"], COMMIT)
    one.tags, one.parts, one.is_retried = part.tags, [part], False
    one.arrived_ns = dict.fromkeys(range(1, 5), 5_000_000)
    for number, code in enumerate(codes, 1):
        one.answers[number] = fx.Answer(7, number, code, "", [], last, None)
        one.answered_ns[number] = begin_ns if number == 1 else 20_000_000
    found = {tag: [at] for tag, at in zip(one.tags, places, strict=True) if at is not None}
    one.check(cast(ConfirmedOrder, SimpleNamespace(places=found)))


@pytest.mark.parametrize(
    ("codes", "places", "last"),
    [
        ([0, 0, 0, 0], [8, 9], 9),
        ([0, 0, 0, UNKNOWN], [8, 9], 0),
        ([0, 0, 0, UNKNOWN], [None, None], 0),
        ([0, 0, CONFLICT, CONFLICT], [None, None], 0),
        ([0, TIMEOUT, 0, 0], [8, 9], 9),
        ([REFUSED, CONFLICT, CONFLICT, CONFLICT], [None, None], 0),
        ([UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN], [8, 9], 0),
    ],
)
def test_whole_transaction_passes(codes: list[int], places: list[int | None], last: int) -> None:
    check(codes, places, last=last)


@pytest.mark.parametrize(
    ("codes", "places", "last", "rule"),
    [
        ([0, 0, 0, 0], [8, None], 8, "T6: only a part"),
        ([0, 0, 0, UNKNOWN], [None, 9], 0, "T6: only a part"),
        ([0, 0, CONFLICT, UNKNOWN], [8, 9], 0, "T6: only a part"),
        ([0, 0, 0, 0], [8, 9], 12, "T6: committed at 12"),
        ([0, 0, 0, 0], [7, 9], 9, "T6: committed at 9"),
        ([0, 0, 0, CONFLICT], [8, 9], 0, "T6: COMMIT failed"),
        ([REFUSED, 0, 0, 0], [8, 9], 9, "T10: writes took effect alone"),
        ([UNKNOWN, 0, 0, 0], [7, 9], 0, "T6: writes took effect alone"),
        ([UNKNOWN, 0, 0, 0], [8, None], 0, "T6: writes took effect alone"),
        ([0, 0, 3, 0], [8, 9], 9, "T6: no rule allows the error 3"),
    ],
)
def test_transaction_that_takes_effect_in_part_is_found(
    codes: list[int], places: list[int | None], last: int, rule: str
) -> None:
    with pytest.raises(InvariantViolation, match=rule):
        check(codes, places, last=last)


def test_writes_that_arrive_after_the_refusal_may_take_effect_alone() -> None:
    check([REFUSED, 0, 0, 0], [3, 9], begin_ns=5_300_000)
