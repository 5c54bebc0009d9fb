"""Ledgers of appends: a client's own record, against which an audit proves the fragments.

A ledger is JSON Lines. An acknowledged append is

    {"journal": "orders/eu", "begin": 0, "end": 4, "sha1": "...", "time": 1769860800.0}

and one whose outcome is unknown, because the connection broke, is

    {"journal": "orders/eu", "outcome": "unknown", "size": 4, "sha1": "...", "time": 1769860800.0}

Lines are on disk before the client learns the outcome. A process that is killed can leave an
incomplete last line, about which no client was informed: the next record replaces it.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from qsync_node.errors import QsyncError

_SHA1 = re.compile(r"[0-9a-f]{40}")
_OFFSET_MAX = (1 << 63) - 1
_TAIL = 64 << 10


class AppendLedgerError(QsyncError):
    """The ledger cannot be written; the text states the cause."""


class LedgerAppend(NamedTuple):
    """An append of a ledger.

    Attributes:
        journal: name of the journal.
        begin: offset of its first byte, -1 for an unknown outcome.
        end: offset after its last byte; for an unknown outcome, `begin` and the size.
        sum: SHA-1 of its bytes.
        time: Unix time in seconds at which the client learned the outcome.
    """

    journal: str
    begin: int
    end: int
    sum: bytes
    time: float = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether the append was acknowledged."""
        return self.begin >= 0


def unknown_append(journal: str, size: int, checksum: bytes) -> LedgerAppend:
    """Return an append whose outcome is unknown."""
    return LedgerAppend(journal, -1, size - 1, checksum, time.time())


class AppendLedger:
    """A ledger that is being written. Several processes can share one."""

    def __init__(self, path: Path) -> None:
        """Open a ledger, or create it.

        Raises:
            AppendLedgerError: the file cannot be opened.
        """
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise AppendLedgerError(
                f"ledger {path} cannot be opened: {error.strerror or error}; use another file"
            ) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def record(self, appends: Iterable[LedgerAppend]) -> None:
        """Write lines durably. Appends without content are left out.

        Raises:
            AppendLedgerError: the lines are not on disk.
        """
        data = b"".join(_line_of(one) for one in appends if one.end > one.begin)
        if not data:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                _remove_incomplete_line(self._file)
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fdatasync(self._file)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise AppendLedgerError(
                f"ledger {self._path} cannot be written: {error.strerror or error}; the journal"
                " may have an append that the ledger does not have"
            ) from None


def _line_of(append: LedgerAppend) -> bytes:
    fields: dict[str, Any] = {"journal": append.journal}
    if append.is_known:
        fields |= {"begin": append.begin, "end": append.end}
    else:
        fields |= {"outcome": "unknown", "size": append.end - append.begin}
    fields |= {"sha1": append.sum.hex(), "time": round(append.time, 3)}
    return json.dumps(fields).encode() + b"\n"


def _remove_incomplete_line(file: int) -> None:
    """Truncate a last line without its end."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - _TAIL)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)


def append_of_line(line: bytes) -> LedgerAppend:
    """Return the append of a line of a ledger.

    Raises:
        ValueError: the line is invalid; the text states the cause.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not valid JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("is no object")
    return append_of_fields(fields)


def append_of_fields(fields: dict[str, Any]) -> LedgerAppend:
    """Return the append of a line's fields.

    Raises:
        ValueError: the fields are invalid; the text states the cause.
    """
    journal, checksum, moment = fields.get("journal"), fields.get("sha1"), fields.get("time", 0)
    if not isinstance(journal, str) or not journal:
        raise ValueError("has no journal")
    if not isinstance(checksum, str) or _SHA1.fullmatch(checksum) is None:
        raise ValueError("has no sha1 of 40 hexadecimal digits")
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not 0 <= moment < 1e12:
        raise ValueError(f"has the invalid time {moment!r}")
    outcome = fields.get("outcome", "committed")
    if outcome not in ("committed", "unknown"):
        raise ValueError(f"has the invalid outcome {outcome!r}")
    is_known = outcome == "committed"
    begin: Any = fields.get("begin") if is_known else 0
    end: Any = fields.get("end" if is_known else "size")
    if not _is_offset(begin) or not _is_offset(end) or begin >= end:
        raise ValueError("has no valid begin and end" if is_known else "has no valid size")
    shift = 0 if is_known else 1
    return LedgerAppend(journal, begin - shift, end - shift, bytes.fromhex(checksum), float(moment))


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= _OFFSET_MAX
