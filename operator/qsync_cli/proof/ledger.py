"""Ledgers of writes in a file, and the comparison of writes with the rows of a member.

`qsync_client.ledger` reads the lines. A ledger and a space may be larger than memory, so both are
rows of a temporary file (SQLite), which joins them by key. Memory holds one key at a time.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from qsync_cli.failure import Failure, FailureReason, cause_of
from qsync_client import ledger
from qsync_client.ledger import COMMITTED, DELETE, UNKNOWN, LedgerWrite

LOST, CHANGED, RESURRECTED, INVENTED = "lost", "changed", "resurrected", "invented"
PROBLEMS = {
    LOST: "acknowledged, and missing",
    CHANGED: "acknowledged, and other content",
    RESURRECTED: "refused or rolled back, and present",
    INVENTED: "present without a line of the ledger",
}
KEYS_SHOWN = 20
PrimaryKey = str
"""The parts of a primary key as a JSON array."""
_TABLES = """
create table writes (
    space, size integer, key text, line integer, outcome text, deletes integer, row text,
    value text, started real, ended real, cluster text, primary key (space, size, key, line)
) without rowid;
create table found (size integer, key text, row text, primary key (size, key)) without rowid;
"""
# Keys in ascending order of their length: numbers then are in ascending order too.
_JOINED = """
select w.size, w.key, w.line, w.outcome, w.deletes, w.row, w.value, w.started, w.ended, f.row
from writes w left join found f on f.size = w.size and f.key = w.key
where w.space in ({spaces}) order by w.size, w.key, w.line
"""
_UNEXPLAINED = """
from found f where not exists (
    select 1 from writes w where w.space in ({spaces}) and w.size = f.size and w.key = f.key
)
"""


@dataclass(slots=True)
class WrongKeys:
    """Keys with one problem: their number, and the first ones with a line of each (0: none)."""

    count: int = 0
    keys: list[PrimaryKey] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, key: PrimaryKey, line: int = 0) -> None:
        self.count += 1
        if len(self.keys) < KEYS_SHOWN:
            self.keys.append(key)
            self.lines.append(line)


def key_of(parts: list[Any]) -> PrimaryKey:
    """Return the key with these parts."""
    return json.dumps(parts)


class RowJudgement:
    """The judgement of one row by the writes of its key, which are added in any order.

    A committed write explains the row unless another committed one began after it had ended. An
    unknown write may take effect at any time, so it may explain the row too.
    """

    def __init__(self, found: list[Any] | None) -> None:
        self._found = found
        self._last_start_s = -math.inf  # of committed writes
        self._explained_s = -math.inf  # latest end of a committed write that explains the row
        self._is_explained = False  # by an unknown write
        self.has_committed = False
        self._has_unknown = False

    def add(self, outcome: str, explains: bool, started_s: float, ended_s: float) -> None:
        if outcome == COMMITTED:
            self.has_committed = True
            self._last_start_s = max(self._last_start_s, started_s)
            if explains:
                self._explained_s = max(self._explained_s, ended_s)
        elif outcome == UNKNOWN:
            self._has_unknown = True
            self._is_explained |= explains

    @property
    def problem(self) -> str:
        """Return the problem of the row, or ""."""
        is_by_committed = self.has_committed and self._explained_s >= self._last_start_s
        if is_by_committed or self._is_explained:
            return ""
        if self._found is None:
            return LOST if self.has_committed else ""
        return CHANGED if self.has_committed or self._has_unknown else RESURRECTED


def explains(is_deletion: bool, row: object, value: object, found: list[Any] | None) -> bool:
    """Return whether a write leaves this row; None is a missing row."""
    if is_deletion or found is None:
        return is_deletion and found is None
    if row is not None:
        return bool(row == found)
    return value is None or (len(found) > 1 and bool(found[1] == value))


class LedgerFile:
    """The writes of a ledger by space and key, in a temporary file that ends with this object.

    Attributes:
        outcomes: number of lines by outcome.
        clusters: names of clusters in the lines.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # "": a file without a name
        self._database.executescript(_TABLES)
        self.outcomes: dict[str, int] = {}
        self.clusters: set[str] = set()

    def __enter__(self) -> "LedgerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @classmethod
    def read(cls, path: Path) -> "LedgerFile":
        """Return the writes of a file.

        Raises:
            LedgerLineError: a line is invalid.
            OSError: the file cannot be read.
        """
        found = cls()
        with path.open("rb") as file:
            found.add(
                (number, ledger.write_of(fields, number))
                for number, fields in ledger.lines_of(file)
            )
        return found

    def add(self, writes: Iterable[tuple[int, LedgerWrite]]) -> None:
        """Add writes with the numbers of their lines."""
        self._database.execute("begin")
        self._database.executemany(
            "insert into writes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self._rows_of(writes)
        )
        self._database.execute("commit")

    def _rows_of(self, writes: Iterable[tuple[int, LedgerWrite]]) -> Iterator[tuple[Any, ...]]:
        for line, one in writes:
            self.outcomes[one.outcome] = self.outcomes.get(one.outcome, 0) + 1
            if one.cluster:
                self.clusters.add(one.cluster)
            key = key_of(one.key)
            started_s = float(line) if one.started_s is None else one.started_s
            yield (
                "" if one.space is None else one.space, len(key), key, line, one.outcome,
                one.op == DELETE, _text_of(one.row), _text_of(one.value), started_s,
                started_s if one.ended_s is None else one.ended_s, one.cluster,
            )  # fmt: skip

    def keep(self, cluster: str) -> None:
        """Keep the lines of a cluster and those that name none, if lines name others, too.

        Args:
            cluster: the cluster that is verified. If no line names it, all lines are kept: it may
                be a copy under another name.
        """
        if len(self.clusters) < 2 or cluster not in self.clusters:
            return
        self._database.execute("delete from writes where cluster not in ('', ?)", (cluster,))
        counts = self._database.execute("select outcome, count(*) from writes group by outcome")
        self.outcomes = dict(counts.fetchall())

    def spaces(self) -> list[int | str | None]:
        """Return the spaces that lines name, and None for lines without one."""
        rows = self._database.execute("select distinct space from writes order by space")
        return [None if space == "" else space for (space,) in rows]

    def line_without_space(self) -> int:
        """Return the number of the first line without a space, 0 if each has one."""
        sql = "select min(line) from writes where space = ''"
        return int(self._database.execute(sql).fetchone()[0] or 0)

    def compare(
        self,
        spaces: Iterable[int | str | None],
        rows: Iterable[tuple[PrimaryKey, list[Any]]],
        *,
        is_exclusive: bool,
    ) -> tuple[int, dict[str, WrongKeys]]:
        """Return the number of rows of one member, and its wrong keys by kind of problem.

        Args:
            spaces: names of one space in the lines; None for lines without one.
            rows: the rows of the member.
            is_exclusive: whether only this ledger's client writes the space. A row without a line
                is then a problem, too.
        """
        names = ["" if one is None else one for one in spaces]
        self._database.execute("begin")
        self._database.execute("delete from found")
        self._database.executemany(
            "insert or replace into found values (?, ?, ?)",
            ((len(key), key, json.dumps(row)) for key, row in rows),
        )
        self._database.execute("commit")
        problems = {kind: WrongKeys() for kind in PROBLEMS}
        for key, line, problem in self._judged(names):
            problems[problem].add(key, line)
        if is_exclusive:
            sql = f"select f.key {_UNEXPLAINED} order by f.size, f.key"
            for (key,) in self._database.execute(_with_names(sql, names), names):
                problems[INVENTED].add(key)
        (count,) = self._database.execute("select count(*) from found").fetchone()
        return count, {kind: keys for kind, keys in problems.items() if keys.count}

    def _judged(self, names: list[int | str]) -> Iterator[tuple[PrimaryKey, int, str]]:
        """Yield key, line and problem of each wrong row, in the order of their keys."""
        joined = self._database.execute(_with_names(_JOINED, names), names)
        for (_, key), lines in groupby(joined, lambda line: (line[0], line[1])):
            judgement: RowJudgement | None = None
            found: list[Any] | None = None
            first = 0
            for _, _, line, outcome, deletes, row, value, started_s, ended_s, text in lines:
                if judgement is None:
                    found = json.loads(text) if text is not None else None
                    judgement = RowJudgement(found)
                if outcome == COMMITTED:
                    first = first or line
                explained = explains(bool(deletes), _value_of(row), _value_of(value), found)
                judgement.add(outcome, explained, started_s, ended_s)
            if judgement is not None and judgement.problem:
                yield key, first, judgement.problem


def _with_names(sql: str, names: list[int | str]) -> str:
    return sql.format(spaces=", ".join("?" * len(names)))


def _text_of(value: object) -> str | None:
    return None if value is None else json.dumps(value)


def _value_of(text: str | None) -> object:
    value: object = None if text is None else json.loads(text)
    return value


def open_ledger(path: Path) -> TextIO:
    """Open the ledger of a command for more lines, or create it.

    Raises:
        Failure: it cannot be written, or its last line is incomplete.
    """
    try:
        return open_to_append(path)
    except IncompleteLedgerError as error:
        text = f"cannot append to the ledger {path}: {error}; use a new --ledger"
        raise Failure(FailureReason.INVALID, text) from error
    except OSError as error:
        text = f"cannot write the ledger {path}: {cause_of(error)}; correct --ledger"
        raise Failure(FailureReason.FAILED, text) from error


def open_to_append(path: Path) -> TextIO:
    """Open a ledger for more lines, or create it.

    Raises:
        ValueError: its last line is incomplete, so the next one would become invalid.
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
        raise IncompleteLedgerError("the last line has no newline")
    return file


class IncompleteLedgerError(ValueError):
    """The last line of a ledger has no newline."""


@dataclass(slots=True)
class WritePause:
    """The time that acknowledged writes paused after a fault.

    Attributes:
        began_s: Unix time of the fault.
        ended_s: Unix time of the first acknowledgement of a write that began after it.
    """

    began_s: float
    ended_s: float | None = None

    def add(self, outcome: str, started_s: float, ended_s: float) -> None:
        """Add a write."""
        if outcome == COMMITTED and started_s > self.began_s:
            self.ended_s = ended_s if self.ended_s is None else min(self.ended_s, ended_s)

    @property
    def milliseconds(self) -> float | None:
        """Return the length of the pause; None if no acknowledged write began after the fault."""
        return None if self.ended_s is None else (self.ended_s - self.began_s) * 1000
