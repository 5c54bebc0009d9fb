"""`qsync local logs`: what members wrote, as `kubectl logs` shows it."""

import sys
import time
from pathlib import Path
from typing import Annotated

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
        _print({"" if member else f"{one}: ": path for one, path in chosen.items()}, follow, tail)
    except KeyboardInterrupt:
        return


def last_lines(path: Path, count: int | None) -> list[str]:
    """Return the last whole lines of a file, all of them without a count."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return lines if count is None else lines[len(lines) - min(count, len(lines)) :]


def _print(paths: dict[str, Path], follow: bool, tail: int | None) -> None:
    offsets = dict.fromkeys(paths, 0)
    if tail is not None:
        for prefix, path in paths.items():
            for line in last_lines(path, tail):
                sys.stdout.write(f"{prefix}{loglines.shown(line)}\n")
            offsets[prefix] = path.stat().st_size if path.exists() else 0
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
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            text = line.decode(errors="replace").removesuffix("\n")
            sys.stdout.write(f"{prefix}{loglines.shown(text)}\n")
    return offset
