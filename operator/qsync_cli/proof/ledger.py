"""Ledgers of writes: their files and lines, and the comparison with the rows of a member.

A ledger is a file of JSON lines. docs/chaos.md describes the fields of a line. An audit reads the
same file with `--ledger`.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

COMMITTED, ROLLED_BACK, REFUSED, UNKNOWN = "committed", "rolled back", "refused", "unknown"
NOT_SENT = "not sent"
OUTCOMES = (COMMITTED, ROLLED_BACK, REFUSED, UNKNOWN, NOT_SENT)
LOST, CHANGED, RESURRECTED, INVENTED = "lost", "changed", "resurrected", "invented"
PROBLEMS = {
    LOST: "acknowledged, and missing",
    CHANGED: "acknowledged, and other content",
    RESURRECTED: "refused or rolled back, and present",
    INVENTED: "present without a line of the ledger",
}
DELETE = "delete"
PrimaryKey = str
"""The parts of a primary key as a JSON array."""


class LedgerLineError(ValueError):
    """A line of a ledger is invalid; the text begins with its number."""


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """One line of a ledger.

    Attributes:
        space: name or id of the space, None for that of the whole ledger.
        key: the primary key.
        outcome: one of `OUTCOMES`.
        is_deletion: whether the write deleted the row.
        row: the whole row, if the line has it.
        value: the second field of the row, if the line has it.
        started_s: Unix time at which the request was sent; the line's number without a time.
        ended_s: Unix time at which its outcome was known; the line's number without a time.
        cluster: name of the cluster, "" if the line has none.
    """

    space: int | str | None
    key: PrimaryKey
    outcome: str
    is_deletion: bool = False
    row: list[Any] | None = None
    value: Any = None
    started_s: float = 0.0
    ended_s: float = 0.0
    cluster: str = ""

    def explains(self, found: list[Any] | None) -> bool:
        """Return whether the write leaves this row; None is a missing row."""
        if self.is_deletion or found is None:
            return self.is_deletion and found is None
        if self.row is not None:
            return self.row == found
        return self.value is None or (len(found) > 1 and found[1] == self.value)


def key_of(parts: Any) -> PrimaryKey:
    """Return a key by the value of one part, or the list of several."""
    return json.dumps([_part_of(one) for one in (parts if isinstance(parts, list) else [parts])])


def _part_of(value: object) -> object:
    """Return one form of equal numbers: 7 and 7.0 are the same key."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_operations(path: Path) -> list[dict[str, Any]]:
    """Return the objects of all lines. An incomplete last line, of a killed writer, is left out.

    A complete object without a newline after it is a line: its write was acknowledged.

    Raises:
        LedgerLineError: a complete line is not a JSON object.
        OSError: the file cannot be read.
    """
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                operation = json.loads(line)
            except (ValueError, RecursionError):
                operation = None
            if operation is None and not line.endswith("\n"):
                break
            if not isinstance(operation, dict):
                raise LedgerLineError(f"line {number} is not a JSON object")
            found.append(operation)
    return found


def open_to_append(path: Path) -> TextIO:
    """Open a ledger for more lines, or create it.

    Raises:
        LedgerLineError: its last line is incomplete, so the next one would become invalid.
        OSError: the file cannot be written.
    """
    file = path.open("a+", encoding="utf-8")
    try:
        file.seek(max(file.tell() - 1, 0))
        is_complete = file.read() in ("", "\n")
    except (OSError, ValueError):  # not a file with a position, or half of a character
        is_complete = not path.is_file()
    if not is_complete:
        file.close()
        raise LedgerLineError("the last line has no newline")
    return file


def write_of(operation: Mapping[str, Any], number: int = 1) -> LedgerWrite:
    """Return the write of a line.

    Raises:
        LedgerLineError: a field is missing or invalid.
    """
    key = operation.get("id", operation.get("key"))
    if key is None:
        raise LedgerLineError(f"line {number} has no key: add `id` or `key`")
    outcome = operation.get("outcome")
    if outcome not in OUTCOMES:
        raise LedgerLineError(
            f"line {number} has the outcome {outcome!r}: use one of {', '.join(OUTCOMES)}"
        )
    row = operation.get("row")
    if row is not None and not isinstance(row, list):
        raise LedgerLineError(f"line {number} has a row that is not an array: correct `row`")
    space = operation.get("space")
    if space is not None and (isinstance(space, bool) or not isinstance(space, int | str)):
        raise LedgerLineError(
            f"line {number} has the space {json.dumps(space)}: use a name or an id in `space`"
        )
    started_s = _time_of(operation.get("started", number), number)
    ended_s = _time_of(operation.get("ended", started_s), number)
    return LedgerWrite(
        space, key_of(key), outcome, operation.get("op") == DELETE, row,
        operation.get("value"), started_s, ended_s, str(operation.get("cluster", "")),
    )  # fmt: skip


def _time_of(value: float | str | None, number: int) -> float:
    try:
        time_s = math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        time_s = math.nan
    if not math.isfinite(time_s):
        raise LedgerLineError(
            f"line {number} has an invalid time: use seconds since 1970 in `started` and `ended`"
        )
    return time_s


def outcomes_of(operations: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of operations by outcome."""
    counts: dict[str, int] = {}
    for operation in operations:
        outcome = str(operation["outcome"])
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def outage_ms(operations: Iterable[Mapping[str, Any]], killed_at_s: float) -> float | None:
    """Return the time from a kill to the first acknowledgement of a write that began after it."""
    ends = [
        float(operation["ended"])
        for operation in operations
        if operation["outcome"] == COMMITTED and operation["started"] > killed_at_s
    ]
    return (min(ends) - killed_at_s) * 1000 if ends else None


def compare(
    writes: Iterable[LedgerWrite], found: Mapping[PrimaryKey, list[Any]], *, is_exclusive: bool
) -> dict[str, list[PrimaryKey]]:
    """Return the wrong keys of one member, by kind of problem.

    Args:
        writes: all writes of one space, in the order of the ledger.
        found: the rows of the member.
        is_exclusive: whether only this ledger's client writes the space. A row without a line is
            then a problem, too.
    """
    by_key: dict[PrimaryKey, list[LedgerWrite]] = {}
    for one in writes:
        by_key.setdefault(one.key, []).append(one)
    problems: dict[str, list[PrimaryKey]] = {kind: [] for kind in PROBLEMS}
    for key, of_key in by_key.items():
        problem = problem_of(of_key, found.get(key))
        if problem:
            problems[problem].append(key)
    if is_exclusive:
        problems[INVENTED] = [key for key in found if key not in by_key]
    return {kind: sorted(keys, key=_order) for kind, keys in problems.items() if keys}


def problem_of(writes: list[LedgerWrite], found: list[Any] | None) -> str:
    """Return the problem of a row whose key these writes have; "" if they explain it.

    A committed write explains the row unless another committed one began after it had ended. An
    unknown write may take effect at any time, so it may explain the row too.
    """
    committed = [one for one in writes if one.outcome == COMMITTED]
    unknown = [one for one in writes if one.outcome == UNKNOWN]
    last_s = max((one.started_s for one in committed), default=0.0)
    possible = [one for one in committed if one.ended_s >= last_s] + unknown
    if any(one.explains(found) for one in possible):
        return ""
    if found is None:
        return LOST if committed else ""
    return CHANGED if committed or unknown else RESURRECTED


def _order(key: PrimaryKey) -> tuple[int, str]:
    return len(key), key  # numbers in ascending order
