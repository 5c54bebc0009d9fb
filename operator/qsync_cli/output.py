"""What commands print: tables for people, documents for tools.

On a terminal tables have colours; in a pipe they are plain text in aligned columns, which `awk`
and people's eyes both read.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import rich.console
import rich.progress
import rich.table
import rich.text
import yaml

from qsync_cli.options import Output

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

OutputRow = list[str]
GAP = 3
"""Spaces between the columns of a table."""
_LAST_SPACES = re.compile(r" +(?=(\x1b\[[0-9;]*m)*$)")
"""Spaces at the end of a line, also before the codes that end its colour."""
_COLOURS = {
    "Ready": "green",
    "Degraded": "red",
    "Unavailable": "red",
    "leader": "bold green",
    "follower": "green",
    "async": "cyan",
    "anonymous": "cyan",
    "joining": "yellow",
    "down": "bold red",
    "Warning": "yellow",
}


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def done(text: str, chosen: Output | None, **facts: object) -> None:
    """Print the result of a verb: a message for people, facts for programs."""
    if chosen in (Output.json, Output.yaml):
        print_document({"message": text, **facts}, chosen)
    else:
        say(text)


def counted(number: int, noun: str = "row") -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def warn(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


def console(width: int | None = None) -> "Console":
    """Return the console of tables. NO_COLOR demands text without any escape sequence."""
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return rich.console.Console(highlight=False, color_system=system, width=width)


@contextmanager
def progress(what: str, total: float, is_quiet: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if it is a terminal.

    The yielded function takes the fraction done and, optionally, a description.
    """
    if is_quiet or not sys.stderr.isatty():
        yield lambda done, said="": None
        return

    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    stderr = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, said="": bar.update(
            task, completed=done, description=f"{what}: {said}" if said else what
        )


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show a counter of rows on standard error if it is a terminal; the total is not known."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    columns = (
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}"),
        rich.progress.TimeElapsedColumn(),
    )
    stderr = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda rows: bar.update(task, description=f"{what}: {rows:,} rows")


def step_of(step: str, done: int, total: int, rows: int, rows_total: int) -> tuple[float, str]:
    """Return the progress of a job with several steps, from 0 to 1, and as text."""
    if not rows_total:
        return done / total, step
    return (done + rows / rows_total) / total, f"{step}, {rows:,} of {rows_total:,} rows"


def print_document(document: object, output: Output) -> None:
    if output is Output.json:
        say(json.dumps(document, indent=2, ensure_ascii=False))
        return

    sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def print_table(titles: OutputRow, rows: list[OutputRow], gap: int = GAP) -> None:
    """Print a table; on a narrow terminal its lines wrap, and no cell is shortened."""
    if not sys.stdout.isatty():
        say(plain_table(titles, rows, gap))
        return
    wide = console(sum(_widths(titles, rows)) + gap * len(titles))
    with wide.capture() as captured:
        wide.print(rich_table(titles, rows, gap))
    # Without the spaces after short cells of the last column: they wrap, too.
    lines = (_LAST_SPACES.sub("", line) for line in captured.get().splitlines())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _widths(titles: OutputRow, rows: list[OutputRow]) -> list[int]:
    return [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]


def printable(text: str) -> str:
    """Return text with its control characters escaped: a name must not reach the terminal raw."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def shortened(text: str, width: int) -> str:
    """Return printable text of at most `width` characters, with "..." in place of the rest."""
    text = printable(text[: width + 1])
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _safe(rows: list[OutputRow]) -> list[OutputRow]:
    return [list(map(printable, row)) for row in rows]


def plain_table(titles: OutputRow, rows: list[OutputRow], gap: int = GAP) -> str:
    titles, *rows = _safe([titles, *rows])
    widths = _widths(titles, rows)
    lines = (
        (" " * gap)
        .join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in (titles, *rows)
    )
    return "\n".join(lines)


def rich_table(titles: OutputRow, rows: list[OutputRow], gap: int = GAP) -> "RenderableType":
    titles, *rows = _safe([titles, *rows])
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*(rich.text.Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return table
