"""`qsync logs`: what members wrote, each line with its member's name in front."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import loglines
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import logs as local_logs
from qsync_cli.local.logs import TailOption
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document
from qsync_cli.where import Where, aimed_at_members

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession

FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Continue until interrupted.")]


@aimed_at_members
def logs(
    where: Where,
    member: str | None = None,
    follow: FollowOption = False,
    tail: TailOption = None,
    output: OutputOption = None,
) -> None:
    """Print the log of a member, or of all members."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node does not serve its log: use "
            "--local or --cluster"
        )
    if where.local is not None:
        local_logs.logs(where.local, member, follow, tail, output)
        return

    is_document = output in (Output.json, Output.yaml)
    if is_document and follow:
        raise typer.BadParameter("--follow prints lines: omit -o")
    try:
        found = kubernetes_session.converse(
            where, lambda s: _read(s, where, member, follow, tail, is_document)
        )
    except KeyboardInterrupt:
        return
    if is_document and output is not None:
        print_document(found, output)


async def _read(
    session: "KubernetesSession",
    where: Where,
    member: str | None,
    follow: bool,
    tail: int | None,
    is_document: bool,
) -> dict[str, list[str]]:
    cluster = kubernetes_session.choose(await session.clusters(), where, session.namespace, member)
    pods = await session.pods(str(cluster["metadata"]["name"]))
    names = sorted(str(pod["metadata"]["name"]) for pod in pods)
    if member is not None:
        if member not in names:
            raise Failure(
                FailureReason.NOT_FOUND,
                f"member {member} not found: the cluster has {', '.join(names)}",
            )
        names = [member]
    found: dict[str, list[str]] = {name: [] for name in names}

    async def read(name: str) -> None:
        prefix = "" if member is not None else f"{name}: "
        rest = b""
        pieces: Any = session.api.log(session.namespace, name, follow and not is_document, tail)
        async for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                text = line.decode(errors="replace")
                if is_document:
                    found[name].append(text)
                else:
                    sys.stdout.write(f"{prefix}{loglines.shown(text)}\n")
            sys.stdout.flush()

    if follow:
        await asyncio.gather(*(read(name) for name in names))
    else:
        for name in names:
            await read(name)
    return found
