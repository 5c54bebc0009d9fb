"""The registers of a journal as its documentation defines them, and a check of all appends.

The model has its own rules for checks, unions and subtractions: a defect of `qsync_broker.labels`
must not be in both.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qsync_broker.labels import LabelSelector, LabelSet, Wanted
from qsync_broker.requests import Append, Appended, Suspend
from qsync_broker.status import Status

Registers = dict[str, frozenset[str]]
"""The values of each register."""
TEXT = re.compile(rb"\(Q([0-9]+):=*\)")
EVENT = "conditional: "
EVENTS = tuple(
    EVENT + name
    for name in (
        "acknowledged",
        "another offset",
        "deletion",
        "refused",
        "unanswered",
        "without bytes",
    )
)
"""What happens in each larger number of schedules."""
REFUSALS = (Status.REGISTER_MISMATCH, Status.WRONG_APPEND_OFFSET)


@dataclass(eq=False)
class ConditionalAppend:
    """An append with wishes about registers or its offset, and its answer.

    Attributes:
        number: its number, which its bytes contain.
        journal: name of the journal.
        include: registers that the check wants, with a value or "" for any.
        exclude: registers that the check refuses, with a value or "" for any.
        union: registers to set.
        subtract: registers to remove if they have exactly these values.
        offset: offset at which it must begin, 0 for any.
        size: number of its bytes beside the number; -1 for an append without bytes.
        breaks: whether its client breaks off.
        suspend: its effect on a suspension.
        least: ends of the appends that were acknowledged before it began, by journal and id.
        result: the answer; None if there is none.
    """

    number: int
    journal: str
    include: dict[str, str] = field(default_factory=dict)
    exclude: dict[str, str] = field(default_factory=dict)
    union: Registers = field(default_factory=dict)
    subtract: Registers = field(default_factory=dict)
    offset: int = 0
    size: int = 0
    breaks: bool = False
    suspend: Suspend = Suspend.RESUME
    least: Mapping[str, int] = field(default_factory=dict)
    result: Appended | None = None

    @property
    def data(self) -> bytes:
        """Return the bytes to append."""
        return b"" if self.size < 0 else b"(Q%d:%s)" % (self.number, b"=" * self.size)

    @property
    def request(self) -> Append:
        """Return the request."""
        check = None
        if self.include or self.exclude:
            check = LabelSelector(
                tuple(Wanted(*pair) for pair in self.include.items()),
                tuple(Wanted(*pair) for pair in self.exclude.items()),
            )
        union, subtract = labels_of(self.union), labels_of(self.subtract)
        return Append(
            self.journal, self.offset, check, union or None, subtract or None, self.suspend
        )

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the append is known to be committed."""
        result = self.result
        return result is not None and not result.error and result.resolution.status is Status.OK

    @property
    def is_refused(self) -> bool:
        """Return whether the append is known not to be committed."""
        result = self.result
        return result is not None and result.resolution.status is not Status.OK

    def passes(self, registers: Registers) -> bool:
        """Return whether the check accepts registers; none at all pass each check."""
        if not registers:
            return True
        return all(has(registers, pair) for pair in self.include.items()) and not any(
            has(registers, pair) for pair in self.exclude.items()
        )

    def change(self, registers: Registers) -> Registers:
        """Return the registers after the append."""
        kept = {
            name: values for name, values in registers.items() if self.subtract.get(name) != values
        }
        return {**kept, **self.union}


def has(registers: Registers, pair: tuple[str, str]) -> bool:
    """Return whether a register has a value, or any value for ""."""
    name, value = pair
    return value in registers[name] or not value if name in registers else False


def labels_of(registers: Registers) -> LabelSet:
    """Return registers as requests have them."""
    return LabelSet.of((name, one) for name, values in registers.items() for one in values)


def registers_of(labels: LabelSet | None) -> Registers:
    """Return the registers of an answer."""
    found: dict[str, set[str]] = {}
    for name, value in labels or ():
        found.setdefault(name, set()).add(value)
    return {name: frozenset(values) for name, values in found.items()}


class RegisterHistory:
    """The visible bytes of one journal, and the registers at each of its offsets.

    Attributes:
        name: name of the journal, with its id if it was deleted.
        end: offset up to which all visible bytes are known.
        numbers: the appends that the bytes contain, in their order.
        begins: their offsets.
        unanswered: how many of them have no answer, or an error.
    """

    def __init__(self, name: str, data: bytes, appends: Mapping[int, ConditionalAppend]) -> None:
        """Replay the appends that are visible.

        Args:
            name: name of the journal.
            data: its bytes, from the first one on.
            appends: all appends by their numbers.

        Raises:
            AssertionError: an append is visible that was refused, or must have been.
        """
        self.name = name
        self.end = len(data)
        self.numbers: list[int] = []
        self.begins: list[int] = []
        self.unanswered = 0
        self._ends: list[int] = []
        self._after: list[Registers] = []
        registers: Registers = {}
        for found in TEXT.finditer(data):
            one = appends[int(found[1])]
            assert found[0] == one.data, f"{name} has other bytes of append {one.number}"
            assert not one.is_refused, f"{name} contains a refused append: {one}"
            assert not one.breaks, f"{name} contains an append of a client that broke off: {one}"
            assert one.passes(registers), f"{name} had {registers}, which refuse {one}"
            assert one.offset in (0, found.start()), f"{name} has at {found.start()}: {one}"
            registers = one.change(registers)
            self.unanswered += one.result is None or bool(one.result.error)
            self.numbers.append(one.number)
            self.begins.append(found.start())
            self._ends.append(found.end())
            self._after.append(registers)
        parts = data.count(b"(Q") - len(self.numbers)
        assert not parts, f"{name} contains a part of an append"

    def at(self, offset: int) -> Registers:
        """Return the registers at an offset.

        Raises:
            AssertionError: no append ends there.
        """
        registers: Registers = {}
        for begin, end, after in zip(self.begins, self._ends, self._after, strict=True):
            if end > offset:
                assert begin >= offset, f"{self.name} has a head at {offset}, in an append"
                break
            registers = after
        return registers

    def check(self, one: ConditionalAppend) -> str:
        """Check the answer to an append, and return the name of the check, "" for none.

        Raises:
            AssertionError: the bytes do not justify the answer.
        """
        result = one.result
        assert result is not None
        least = one.least.get(self.name, 0)
        if one.is_acknowledged:
            if result.end > self.end:
                return ""
            assert result.begin >= least, f"{self.name} lost {least - result.begin} bytes: {one}"
            assert one.offset in (0, result.begin), f"{self.name} has another offset for {one}"
            self._check_place(one, result)
            before = self.at(result.begin)
            assert one.passes(before), f"{self.name} had {before}, which refuse {one}"
            found, wanted = registers_of(result.registers), self.at(result.end)
            assert found == wanted, f"{self.name} has registers {wanted}, not {found}: {one}"
            return "without bytes" if one.size < 0 else "acknowledged"
        status, head = result.resolution.status, result.head
        if status not in REFUSALS or head is None or head > self.end:
            assert status not in REFUSALS or head is not None, f"no write head: {one}"
            return ""
        assert head >= least, f"{self.name} ended at {least}, after the head {head}: {one}"
        before = self.at(head)
        if status is Status.WRONG_APPEND_OFFSET:
            assert one.offset not in (0, head), f"{self.name} had the offset of {one}"
            return "another offset"
        found = registers_of(result.registers)
        assert found == before, f"{self.name} had registers {before} at {head}, not {found}: {one}"
        assert not one.passes(before), f"{self.name} had {before}, which accept {one}"
        return "refused"

    def _check_place(self, one: ConditionalAppend, result: Appended) -> None:
        if one.size < 0:
            is_plain = not one.union and not one.subtract and result.begin == result.end
            assert is_plain, f"an append without bytes has changed registers: {one}"
            return
        places = dict(zip(self.numbers, self.begins, strict=True))
        assert places.get(one.number) == result.begin, f"{self.name} has lost {one}"


def check_history(
    contents: Mapping[str, bytes],
    appends: Iterable[ConditionalAppend],
    names: Mapping[int, str],
) -> Counter[str]:
    """Check all answers against the visible bytes, and return the number of checks of each kind.

    Args:
        contents: the visible bytes of each journal; deleted ones have names with their ids.
        appends: all appends.
        names: for the number of each answered append, the journal that answered it.

    Raises:
        AssertionError: an answer is wrong, or an append is visible twice.
    """
    by_number = {one.number: one for one in appends}
    histories = {name: RegisterHistory(name, data, by_number) for name, data in contents.items()}
    places: dict[int, str] = {}
    for name, history in histories.items():
        for number in history.numbers:
            assert number not in places, f"append {number} is in {name} and {places[number]}"
            places[number] = name
    counts = Counter({EVENT + "unanswered": sum(one.unanswered for one in histories.values())})
    for number, name in names.items():
        history = histories.get(name) or RegisterHistory(name, b"", by_number)
        checked = history.check(by_number[number])
        if checked:
            counts[EVENT + checked] += 1
    return counts
