"""Print the status of clusters: once, or again and again, and with an exit code."""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import rich.text
import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output
from qsync_cli.output import console, plain_table, print_document, rich_table, say
from qsync_operator.views import statusview
from qsync_operator.views.statusview import View

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show every change until interrupted.")
]
CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Exit with 0 if the cluster is healthy, 4 if it changes, 5 if it is degraded, 6 if no "
        "member accepts writes.",
    ),
]
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR = "\x1b[2J"
NO_CLUSTERS = "no clusters; run `qsync apply -f FILE` to create one"


def show(
    observe: Callable[[], list[View]],
    output: Output | None,
    *,
    is_list: bool = False,
    is_watching: bool = False,
    is_checking: bool = False,
    interval_s: float = 0.5,
) -> None:
    """Print the status of clusters.

    Args:
        look: returns the clusters as they are now.
        output: the format, None for a table.
        is_list: whether a document is a list, also for one cluster.
        is_watching: whether to continue until interrupted.
        is_checking: whether to exit with the worst `Health`.
        interval_s: seconds between two observations.

    Raises:
        Exit: `is_checking`, and a cluster is not healthy.
        Failure: `is_checking`, and there is no cluster.
        BadParameter: both `is_watching` and `is_checking`.
    """
    if is_watching and is_checking:
        raise typer.BadParameter("--check exits after one observation: omit --watch")
    if is_watching:
        _watch(observe, output, is_list, interval_s)
        return
    views = observe()
    if is_checking and not views:
        raise Failure(
            FailureReason.NOT_FOUND,
            "there is no cluster to check: name one, or run `qsync apply -f FILE`",
        )
    print_views(views, output, is_list=is_list)
    worst = max((view.health for view in views), default=statusview.ClusterHealth.HEALTHY)
    if is_checking and worst:
        raise typer.Exit(int(worst))


def print_views(views: list[View], output: Output | None, *, is_list: bool = False) -> None:
    """Print each cluster as a table, or all as one document."""
    if output in (Output.json, Output.yaml):
        print_document(_document(views, is_list), output)
    elif sys.stdout.isatty():
        sys.stdout.write(_styled(views, output is Output.wide))
    else:
        say(text_of(views, output is Output.wide))


def text_of(views: list[View], is_wide: bool) -> str:
    """Return clusters as plain text, one after the other."""
    blocks = []
    for view in views:
        lines = list(view.lines)
        if view.rows:
            lines.append(plain_table(*statusview.table(view.rows, is_wide), statusview.GAP))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or NO_CLUSTERS


def _document(views: list[View], is_list: bool) -> Any:
    items = [view.document for view in views]
    return {"apiVersion": "v1", "kind": "List", "items": items} if is_list else items[0]


def _styled(views: list[View], is_wide: bool) -> str:
    """Return the clusters as they appear on a terminal: with colours, and no cell shortened."""
    wide = console(1000)
    with wide.capture() as captured:
        for position, view in enumerate(views):
            if position:
                wide.print()
            for line in view.lines:
                wide.print(line, markup=False, soft_wrap=True)
            if view.rows:
                wide.print(rich_table(*statusview.table(view.rows, is_wide), statusview.GAP))
        if not views:
            wide.print(NO_CLUSTERS)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


# --- watching -------------------------------------------------------------------------------------


def _watch(
    observe: Callable[[], list[View]], output: Output | None, is_list: bool, interval_s: float
) -> None:
    """Print each change: JSON lines, YAML documents, or a table, redrawn in place on a terminal."""
    is_drawing = sys.stdout.isatty() and output not in (Output.json, Output.yaml)
    shown = ""
    try:
        if is_drawing:
            sys.stdout.write(CLEAR)
        while True:
            views = observe()
            if is_drawing:
                text = _styled(views, output is Output.wide)
                sys.stdout.write(frame(text, datetime.now(), *shutil.get_terminal_size()))
            else:
                shown = _print_change(views, output, is_list, shown)
            sys.stdout.flush()
            time.sleep(interval_s)
    except KeyboardInterrupt:
        if is_drawing:
            say()


def frame(text: str, now: datetime, columns: int, rows: int) -> str:
    """Return the bytes that draw a text over the previous one, under a line with the time.

    Lines that do not fit on the screen are omitted: it would scroll, and not be drawn in place.
    """
    lines = [f"{now:%H:%M:%S} · Ctrl-C ends"]
    free = rows - 2  # for that line, and for the cursor after the last one
    for line in text.splitlines():
        free -= max(math.ceil(rich.text.Text.from_ansi(line).cell_len / columns), 1)
        if free < 0:
            break
        lines.append(line)
    return HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in lines) + CLEAR_BELOW


def _print_change(views: list[View], output: Output | None, is_list: bool, shown: str) -> str:
    if output is Output.json:
        text = json.dumps(_document(views, is_list), ensure_ascii=False)
    else:
        text = text_of(views, output is Output.wide)
    if text == shown:
        return shown
    if output is Output.yaml:
        say("---")
        print_document(_document(views, is_list), output)
    else:
        say(text if output is Output.json or not shown else f"\n{text}")
    return text
