"""Ledgers of writes: the outcomes that a client recorded, a JSON object in each line (pure).

`qsync verify` compares a ledger with the rows of each member, and `qsync audit --ledger` with the
log. docs/chaos.md describes the fields.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

COMMITTED, ROLLED_BACK, REFUSED, UNKNOWN = "committed", "rolled back", "refused", "unknown"
NOT_SENT = "not sent"
OUTCOMES = (COMMITTED, ROLLED_BACK, REFUSED, UNKNOWN, NOT_SENT)
DELETE, UPDATE = "delete", "update"
OPERATIONS = ("insert", "replace", "put", "upsert", UPDATE, DELETE)
LINE_BYTES_MAX = 8 << 20
"""Size of a line: the JSON of the largest tuple, with room for escapes."""
_EXACT_MAX, _SPACE_MAX = 1 << 64, 1 << 32
_SHOWN_CHARACTERS = 40
_DIGITS = re.compile("[0-9]{1,20}")


class LedgerLineError(ValueError):
    """A line of a ledger is invalid.

    Args:
        number: number of the line, from 1.
        problem: the verb, the cause and the remedy, after "line NUMBER".
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.problem = problem


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """One line of a ledger.

    Attributes:
        space: name or id of the space, None for that of the whole ledger.
        key: the parts of the primary key.
        outcome: one of `OUTCOMES`.
        op: one of `OPERATIONS`, "" if the line has none.
        row: the whole row, if the line has it.
        value: the second field of the row, if the line has it.
        started_s: Unix time at which the request was sent, None without a time.
        ended_s: Unix time at which its outcome was known, None without a time.
        cluster: name of the cluster, "" if the line has none.
    """

    space: int | str | None
    key: list[Any]
    outcome: str
    op: str = ""
    row: list[Any] | None = None
    value: Any = None
    started_s: float | None = None
    ended_s: float | None = None
    cluster: str = ""


def lines_of(file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line.

    An incomplete last line, of a killed writer, is left out. A complete object without a newline
    after it is a line: its write was acknowledged.

    Raises:
        LedgerLineError: a complete line is not a JSON object, or is too long.
        OSError: the file cannot be read.
    """
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise LedgerLineError(number, too_long())
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            if not line.endswith(b"\n"):
                return
            fields = None
        if not isinstance(fields, dict):
            raise LedgerLineError(number, "is not a JSON object: correct it")
        yield number, fields


def too_long() -> str:
    """Return the problem of a line that is longer than `LINE_BYTES_MAX`."""
    return f"is longer than {LINE_BYTES_MAX >> 20} MiB: write one JSON object in each line"


def write_of(fields: Mapping[str, Any], number: int) -> LedgerWrite:
    """Return the write of a line.

    Args:
        fields: the object of the line.
        number: number of the line, from 1.

    Raises:
        LedgerLineError: a field is missing or invalid.
    """
    outcome, op = fields.get("outcome"), fields.get("op")
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise LedgerLineError(
            number, f"has the outcome {_shown(outcome)}: use one of {', '.join(OUTCOMES)}"
        )
    if op is not None and (not isinstance(op, str) or op not in OPERATIONS):
        raise LedgerLineError(
            number,
            f"has the op {_shown(op)}: use one of {', '.join(OPERATIONS)}, or omit `op` if the "
            "write inserts or replaces a row",
        )
    row = fields.get("row")
    if row is not None and not isinstance(row, list):
        raise LedgerLineError(number, "has a row that is not an array: correct `row`")
    started_s = _time_of(fields, "started", number)
    ended_s = _time_of(fields, "ended", number)
    return LedgerWrite(
        _space_of(fields, number), _key_of(fields, number), outcome, op or "", row,
        fields.get("value"), started_s, started_s if ended_s is None else ended_s,
        str(fields.get("cluster", "")),
    )  # fmt: skip


def _key_of(fields: Mapping[str, Any], number: int) -> list[Any]:
    key = fields.get("id", fields.get("key"))
    if key is None:
        raise LedgerLineError(number, "has no key: add `id` or `key`")
    if "id" in fields and fields.get("key", key) != key:
        raise LedgerLineError(number, "has different values of `id` and `key`: omit one of them")
    return [normal_part(one) for one in (key if isinstance(key, list) else [key])]


def normal_part(value: object) -> object:
    """Return the part of a key in one form for equal numbers: 7 and 7.0 are the same key."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_MAX:
        return int(value)
    return value


def _space_of(fields: Mapping[str, Any], number: int) -> int | str | None:
    space = fields.get("space")
    if isinstance(space, str):
        if not _DIGITS.fullmatch(space):
            return space
        space = int(space)
    if space is None or (type(space) is int and 0 <= space < _SPACE_MAX):
        return space
    raise LedgerLineError(number, f"has the space {_shown(space)}: use a name or an id in `space`")


def _time_of(fields: Mapping[str, Any], name: str, number: int) -> float | None:
    if name not in fields:
        return None
    try:
        time_s = math.nan if fields[name] is None else float(fields[name])
    except (TypeError, ValueError, OverflowError):
        time_s = math.nan
    if not math.isfinite(time_s):
        shown = _shown(fields[name])
        raise LedgerLineError(
            number, f"has the invalid time {shown}: use seconds since 1970 in `{name}`"
        )
    return time_s


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
