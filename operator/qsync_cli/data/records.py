"""Rows that were read from a file."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from qsync_cli.data.fields import FieldError


class Read(NamedTuple):
    """One row of a file, or the reason why it is invalid.

    Attributes:
        line: number of its last line, or of the row in Parquet, from 1.
        row: the row, or None.
        error: the reason, or None.
    """

    line: int
    row: list[Any] | None
    error: FieldError | None = None


RecordReader = Iterator[Read]
OnDone = Callable[[float], None]
"""Receives the fraction of the file that was read."""
