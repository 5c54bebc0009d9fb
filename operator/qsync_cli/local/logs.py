"""`qsync local logs`: what members wrote, as `kubectl logs` shows it."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument

MemberArgument = Annotated[
    str | None,
    typer.Argument(help="Member, or `supervisor`. The default is all members.", metavar="MEMBER"),
]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Continue until interrupted.")]
FOLLOW_S = 0.2


def logs(name: NameArgument, member: MemberArgument = None, follow: FollowOption = False) -> None:
    """Print the log of a member, or of all members with their names."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    members = list(store.load_state().members)
    if member == "supervisor":
        chosen = {"": store.supervisor_log}
    elif member is not None:
        if member not in members:
            raise Failure(
                FailureReason.NOT_FOUND,
                f"member {member} not found: {name} has {', '.join(members)}",
            )
        chosen = {"": clusters.node_log(store, member)}
    else:
        chosen = {f"{one}: ": clusters.node_log(store, one) for one in members}
    try:
        _print(chosen, follow)
    except KeyboardInterrupt:
        return


def _print(paths: dict[str, Path], follow: bool) -> None:
    offsets = dict.fromkeys(paths, 0)
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
            sys.stdout.write(prefix + line.decode(errors="replace"))
    return offset
