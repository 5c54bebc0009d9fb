"""The check of registers and offsets finds answers and bytes that no order of appends explains."""

from collections import Counter

import pytest

from qsync_broker.requests import Appended
from qsync_broker.resolver import NO_BROKER, Resolution
from qsync_broker.status import Status
from qsync_node.format.journals import NO_ROUTE
from qsync_sim.journals.register_model import (
    EVENTS,
    ConditionalAppend,
    Registers,
    check_history,
    labels_of,
)
from qsync_sim.journals.schedule import JournalSchedule

FIRST, SECOND = {"lock": frozenset({"1"})}, {"lock": frozenset({"2"})}
NAME = "orders/eu"
FIRST_END = 5  # of "(Q1:)"


def answer(
    begin: int = 0,
    end: int = 0,
    registers: Registers | None = None,
    status: Status = Status.OK,
    head: int | None = None,
) -> Appended:
    resolution = Resolution(status, None, NO_ROUTE, NO_BROKER, 0)
    return Appended(resolution, begin, end, b"", labels_of(registers or {}), head=head)


def mismatch(registers: Registers, head: int) -> Appended:
    return answer(0, 0, registers, Status.REGISTER_MISMATCH, head)


def wrong_offset(registers: Registers, head: int) -> Appended:
    return answer(0, 0, registers, Status.WRONG_APPEND_OFFSET, head)


def claim(result: Appended | None) -> ConditionalAppend:
    """Return the first append, which sets the lock."""
    return ConditionalAppend(1, NAME, union=FIRST, result=result)


def check(data: bytes, *appends: ConditionalAppend) -> None:
    answered = {one.number: NAME for one in appends if one.result is not None}
    check_history({NAME: data}, appends, answered)


def test_appends_that_follow_each_other_pass() -> None:
    check(
        b"(Q1:)<other>(Q2:==)",
        claim(answer(0, 5, FIRST)),
        ConditionalAppend(
            2, NAME, {"lock": "1"}, union=SECOND, size=2, result=answer(12, 19, SECOND)
        ),
        ConditionalAppend(3, NAME, {"lock": "1"}, result=mismatch(SECOND, 19)),
        ConditionalAppend(4, NAME, offset=5, result=wrong_offset(SECOND, 19)),
        ConditionalAppend(5, NAME, offset=19, size=-1, result=answer(19, 19, SECOND)),
    )


def test_append_without_an_answer_may_be_visible_or_not() -> None:
    check(b"(Q1:)", claim(None), ConditionalAppend(2, NAME, {"lock": "1"}))


@pytest.mark.parametrize(
    ("data", "second", "problem"),
    [
        (b"(Q1:)(Q2:)", ConditionalAppend(2, NAME, {"lock": "2"}), "which refuse"),
        (b"(Q1:)(Q2:)", ConditionalAppend(2, NAME, offset=4), "has at 5"),
        (b"(Q1:)(Q2:)", ConditionalAppend(2, NAME, breaks=True), "broke off"),
        (b"(Q1:)(Q2:)", ConditionalAppend(2, NAME, result=mismatch(FIRST, 5)), "refused append"),
        (b"(Q1:)(Q1:)", ConditionalAppend(2, NAME), "is in"),
        (b"(Q1:)(Q2:=", ConditionalAppend(2, NAME, size=1), "a part"),
        (b"(Q1:)(Q2:)", ConditionalAppend(2, NAME, size=1), "other bytes"),
        (b"(Q1:)", ConditionalAppend(2, NAME, {"lock": "2"}, result=mismatch(SECOND, 5)), "not"),
        (b"(Q1:)", ConditionalAppend(2, NAME, {"lock": "1"}, result=mismatch(FIRST, 5)), "accept"),
        (b"(Q1:)", ConditionalAppend(2, NAME, {"a": ""}, result=mismatch({}, 3)), "in an append"),
        (b"(Q1:)", ConditionalAppend(2, NAME, offset=5, result=wrong_offset(FIRST, 5)), "offset"),
        (b"(Q1:)", ConditionalAppend(2, NAME, size=-1, result=answer(5, 5)), "not {}"),
        (
            b"(Q1:)",
            ConditionalAppend(2, NAME, {"lock": "2"}, size=-1, result=answer(5, 5, FIRST)),
            "which refuse",
        ),
        (b"(Q1:)....", ConditionalAppend(2, NAME, result=answer(5, 9, FIRST)), "has lost"),
        (
            b"(Q1:)(Q2:)",
            ConditionalAppend(2, NAME, union=SECOND, result=answer(5, 10, FIRST)),
            "has registers",
        ),
        (
            b"(Q1:)",
            ConditionalAppend(2, NAME, {"a": ""}, least={NAME: 5}, result=mismatch({}, 0)),
            "after the head",
        ),
    ],
)
def test_wrong_answer_is_found(data: bytes, second: ConditionalAppend, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(data, claim(answer(0, FIRST_END, FIRST)), second)


def test_append_in_two_journals_is_found() -> None:
    with pytest.raises(AssertionError, match="append 1 is in"):
        check_history({NAME: b"(Q1:)", "orders/eu#7": b"(Q1:)"}, [claim(None)], {})


def test_subtraction_removes_a_register_with_exactly_its_values() -> None:
    one = ConditionalAppend(1, NAME, subtract={"lock": frozenset({"1"})})
    assert one.change(FIRST) == {}
    assert one.change({"lock": frozenset({"1", "2"})}) == {"lock": frozenset({"1", "2"})}


def test_schedules_contain_each_event() -> None:
    counts = Counter[str]()
    for seed in (6, 25):
        counts += JournalSchedule(seed).run()
    assert not [event for event in EVENTS if not counts[event]]
