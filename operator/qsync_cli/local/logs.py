"""`qsync local logs`: what members wrote, as `kubectl logs` shows it."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from qsync_cli import clusters, loglines
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document

MemberArgument = Annotated[
    str | None,
    typer.Argument(help="Member, or `supervisor`. The default is all members.", metavar="MEMBER"),
]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Continue until interrupted.")]
FOLLOW_S = 0.2
BLOCK = 1 << 16


TailOption = Annotated[
    int | None,
    typer.Option("--tail", help="Number of lines of each member.", min=0, show_default=False),
]


def logs(
    name: NameArgument,
    member: MemberArgument = None,
    follow: FollowOption = False,
    tail: TailOption = None,
    output: OutputOption = None,
) -> None:
    """Print the log of a member, or of all members with their names."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    members = list(store.load_state().members)
    if member == "supervisor":
        chosen = {"supervisor": store.supervisor_log}
    elif member is not None:
        if member not in members:
            raise Failure(
                FailureReason.NOT_FOUND,
                f"member {member} not found: {name} has {', '.join(members)}",
            )
        chosen = {member: clusters.node_log(store, member)}
    else:
        chosen = {one: clusters.node_log(store, one) for one in members}
    if output in (Output.json, Output.yaml):
        if follow:
            raise typer.BadParameter("--follow prints lines: omit -o")
        lines = {one: last_lines(path, tail) for one, path in chosen.items()}
        print_document(lines, output)
        return
    try:
        print_lines(
            {"" if member else f"{one}: ": path for one, path in chosen.items()}, follow, tail
        )
    except KeyboardInterrupt:
        return


def last_lines(path: Path, count: int | None) -> list[str]:
    """Return the last whole lines of a file, all of them without a count."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(_start_of(file, count))
        return [_text(line) for line in file if line.endswith(b"\n")]


def _start_of(file: BinaryIO, count: int | None) -> int:
    """Return where the last `count` whole lines begin; read no more than these from the end."""
    if count is None:
        return 0
    end, found = file.seek(0, os.SEEK_END), -1  # the end of a line before is where one begins
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        block = file.read(end - start)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == count:
                return start + at + 1
        end = start
    return 0


def _text(line: bytes) -> str:
    return line.decode(errors="replace").removesuffix("\n")


def print_lines(paths: dict[str, Path], follow: bool, tail: int | None) -> None:
    """Print lines of logs.

    Args:
        paths: the logs, by the prefix of their lines.
        follow: whether to continue until interrupted.
        tail: number of lines of each log to begin with, None for all.
    """
    offsets = dict.fromkeys(paths, 0)
    for prefix, path in paths.items():
        if path.exists():
            with path.open("rb") as file:
                offsets[prefix] = _start_of(file, tail)
    while True:
        for prefix, path in paths.items():
            offsets[prefix] = _print_from(path, prefix, offsets[prefix])
        sys.stdout.flush()
        if not follow:
            return
        time.sleep(FOLLOW_S)


def _print_from(path: Path, prefix: str, offset: int) -> int:
    """Print whole lines from an offset. Return the offset after them."""
    if not path.exists():
        return 0  # a member of this name that is created later begins a new log
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < offset:
            offset = 0
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            sys.stdout.write(f"{prefix}{loglines.shown(_text(line))}\n")
    return offset
