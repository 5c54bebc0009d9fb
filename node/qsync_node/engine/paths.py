"""JSON paths into a tuple: `name`, `[1]`, `a.b[2]["c d"]`; array positions count from one.

Reading takes one pass over a path, however many steps it has.
"""

import re
import unicodedata
from itertools import compress, count
from typing import NamedTuple


class Malformed(NamedTuple):
    """A step that cannot be read, and the error's position, which counts from one."""

    position: int


class AnyItem(NamedTuple):
    """The step `[*]`, which only a multikey index could follow, and its position."""

    position: int


PathStep = str | int | Malformed | AnyItem


_POSITION = re.compile(r"\[([1-9][0-9]{0,8})\]")  # nearly all of them; `_read_number` reads others
_WORD = re.compile(r"\w*")
# Python counts these numerals (`²`, `①`) among alphanumeric symbols; Tarantool does not. There are
# none from U+20000 on.
_NUMERALS = frozenset(
    symbol
    for symbol in map(chr, range(0x20000))
    if symbol.isnumeric() and unicodedata.category(symbol) == "No"
)
_QUOTED = re.compile("[^\udc80-\udcff]*")
_DIGITS = re.compile("[0-9]*")
# 10 ** 32 is a multiple of 2 ** 32: digits before these change nothing in the 32 bits.
_DIGITS_KEPT = 32


class PathError(ValueError):
    """Text that is not a path."""


def parse_path(path: str) -> tuple[str | int, ...]:
    """Return the steps of a path, with positions from zero.

    Raises:
        PathError: the path is empty, malformed or has a `[*]`.
    """
    steps: list[str | int] = []
    for step in read_steps(path):
        if isinstance(step, Malformed | AnyItem):
            raise PathError(path)
        steps.append(step)
    if not steps:
        raise PathError(path)
    return tuple(steps)


def read_steps(path: str, steps_max: int | None = None) -> tuple[PathStep, ...]:
    """Return the steps up to the first malformed one, which then is the last.

    Steps after the first `steps_max` are not read.
    """
    steps: list[PathStep] = []
    at = 0
    while at < len(path) and len(steps) != steps_max:
        position = _POSITION.match(path, at)
        if position is not None:
            steps.append(int(position[1]) - 1)
            at = position.end()
            continue
        step, at = _read_step(path, at)
        steps.append(step)
        if isinstance(step, Malformed):
            break
    return tuple(steps)


def _read_step(path: str, at: int) -> tuple[PathStep, int]:
    """Return one step and the offset of the next one."""
    if path[at] == "[":
        return _read_brackets(path, at + 1)
    if path[at] == ".":
        return _read_name(path, at + 1)
    return (Malformed(at + 1), at) if at else _read_name(path, at)


def _read_name(path: str, start: int) -> tuple[PathStep, int]:
    if start == len(path) or not (path[start].isalpha() or path[start] == "_"):
        return Malformed(start + 1), start
    word = _WORD.match(path, start)
    assert word is not None
    name = word.group()
    if not name.isascii():
        strange = map(_NUMERALS.__contains__, name)
        name = name[: next(compress(count(), strange), len(name))]
    return name, start + len(name)


def _read_brackets(path: str, start: int) -> tuple[PathStep, int]:
    """Return the step after an opening bracket, which must be closed, and the next offset."""
    if start == len(path):
        return Malformed(start), start
    step: PathStep
    if path[start] in "\"'":
        step, end = _read_quoted(path, start + 1)
    elif path[start] == "*":
        step, end = AnyItem(start + 1), start + 1
    else:
        step, end = _read_number(path, start)
    if not isinstance(step, Malformed) and path[end : end + 1] != "]":
        step = Malformed(end + 1)
    return step, end + 1


def _read_quoted(path: str, start: int) -> tuple[PathStep, int]:
    quote = path.find(path[start - 1], start)
    end = quote if quote >= 0 else len(path)
    readable = _QUOTED.match(path, start, end)
    assert readable is not None
    if quote < 0 or readable.end() < end:
        return Malformed(readable.end() + 1), readable.end()
    # An empty name is refused at its end.
    return (path[start:end] if end > start else Malformed(end + 1)), end + 1


def _read_number(path: str, start: int) -> tuple[PathStep, int]:
    """Return a position, of which Tarantool reads 32 bits, and the next offset."""
    digits = _DIGITS.match(path, start)
    assert digits is not None
    end = digits.end()
    number = int(digits.group()[-_DIGITS_KEPT:] or "0") & 0xFFFFFFFF
    is_position = 0 < number < 1 << 31
    return (number - 1 if is_position else Malformed(start + 1)), end
