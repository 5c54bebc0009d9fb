"""`qsync rollbacks`: unconfirmed rows that members truncated from their logs."""

import asyncio
from typing import TYPE_CHECKING, Any

import typer

from qsync_agent import rollbacks as agent_rollbacks
from qsync_cli import cat, clusters
from qsync_cli.failure import Failure, FailureReason, failure_of
from qsync_cli.kubernetes import session
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_cli.where import Where, aimed_at_members
from qsync_operator.members import links as members_links

if TYPE_CHECKING:
    from qsync_operator.kubernetes.podlinks import PodLinks


@aimed_at_members
def rollbacks(where: Where, member: str | None = None, output: OutputOption = None) -> None:
    """Print the rows that members truncated from their logs after a failover."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because the files are read from the data "
            "directory: use --local or --cluster"
        )
    found = _of_processes(where.local, member) if where.local else _of_pods(where, member)
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    count = 0
    for name, files in found.items():
        for file in files:
            say(f"{name} {file['file']}" + (f" (damaged: {file['damage']})" * bool(file["damage"])))
            for row in file["rows"]:
                count += 1
                say(_line(row))
    say(f"{count} rows were truncated" if count else "no rows were truncated")


def _line(row: dict[str, Any]) -> str:
    return cat.shown_as_text(row)


def _of_processes(cluster: str, member: str | None) -> dict[str, Any]:
    store = clusters.open_store(cluster)
    names = list(store.load_state().members)
    if member is not None and member not in names:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"member {member} not found: the cluster has {', '.join(names)}",
        )
    chosen = [member] if member is not None else names
    return {name: agent_rollbacks.rollback_rows(store.data_directory(name)) for name in chosen}


def _of_pods(where: Where, member: str | None) -> dict[str, Any]:
    names, open_links = session.pod_target(where, member)
    if member is not None and member not in names:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"member {member} not found: the cluster has {', '.join(names)}",
        )

    async def read(links: "PodLinks") -> dict[str, Any]:
        try:
            chosen = [member] if member is not None else names
            return {name: await links.rollbacks(name) for name in chosen}
        finally:
            await links.close()

    try:
        return asyncio.run(read(open_links()))
    except members_links.LinkError as error:
        raise failure_of(error) from error
