"""`qsync local events`: the local counterpart of Kubernetes Events."""

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from qsync_cli import clusters
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table, printable
from qsync_operator.views.times import local_time

FollowOption = Annotated[
    bool, typer.Option("-f", "--follow", help="Print further events until interrupted.")
]
FIELDS = ("time", "type", "reason", "object", "message")
FOLLOW_S = 1.0
"""Time between two reads of the events."""
GAP = 2


def events(name: NameArgument, follow: FollowOption = False, output: OutputOption = None) -> None:
    """Print the events of the supervisor, oldest first."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    show(store.load_events, follow, output)


def show(read: Callable[[], list[dict[str, str]]], follow: bool, output: Output | None) -> None:
    """Print events, and with `follow` also those that come, until interrupted.

    Args:
        read: returns all events, oldest first.
        follow: whether to wait for more.
        output: the form. A stream of documents has one in a line.
    """
    if follow and output is Output.yaml:
        raise typer.BadParameter("--follow prints lines: use -o json, or omit -o")
    found = read()
    try:
        if output in (Output.json, Output.yaml) and not follow:
            print_document(found, output)
        elif output is Output.json:
            _follow(read, [], json.dumps)
        else:
            print_events(found)
            if follow:
                rows = [_row(event) for event in found]
                widths = [
                    max(len(row[i]) for row in rows) if rows else 0 for i in range(len(FIELDS))
                ]
                _follow(read, found, lambda event: _line(event, widths))
    except KeyboardInterrupt:
        if output is None:
            sys.stdout.write("\n")  # the terminal has echoed ^C


def _follow(
    read: Callable[[], list[dict[str, str]]],
    shown: list[dict[str, str]],
    line: Callable[[dict[str, str]], str],
) -> None:
    known = {frozenset(event.items()) for event in shown}
    while True:
        found = [(frozenset(event.items()), event) for event in read()]
        for identity, event in found:
            if identity not in known:
                sys.stdout.write(f"{line(event)}\n")
        sys.stdout.flush()
        known = {identity for identity, _ in found}
        time.sleep(FOLLOW_S)  # neither the file nor the API announces events to a command


def _line(event: dict[str, str], widths: list[int]) -> str:
    """Return the line of an event, in the columns of the table above it."""
    cells = zip(map(printable, _row(event)), widths, strict=True)
    return (" " * GAP).join(cell.ljust(width) for cell, width in cells).rstrip()


def _row(event: dict[str, str]) -> list[str]:
    return [local_time(event["time"]), *(event[field] for field in FIELDS[1:])]


def print_events(events: list[dict[str, str]]) -> None:
    """Print events as a table, with local times."""
    print_table([field.upper() for field in FIELDS], [_row(event) for event in events], gap=GAP)
