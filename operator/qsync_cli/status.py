"""`qsync status`: a cluster, or one node."""

import typer

from qsync_cli import statuses, targets
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.local import status as local_status
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, print_table
from qsync_cli.statuses import CheckOption, WatchOption
from qsync_cli.where import Where, aimed

WATCH_S = 2.0
"""Seconds between two observations on Kubernetes: each runs a command in every pod."""


@aimed
def status(
    where: Where,
    output: OutputOption = None,
    watch: WatchOption = False,
    check: CheckOption = False,
) -> None:
    """Show the members of a cluster and its problems, or the status of one node."""
    if where.local is not None:
        local_status.status(where.local, output, watch, check)
    elif where.address is not None:
        if watch or check:
            raise typer.BadParameter("--watch and --check are for clusters: omit --address")
        _show_node(where, output)
    else:
        statuses.show(
            lambda: kubernetes_status.views(where), output,
            is_watching=watch, is_checking=check, interval_s=WATCH_S,
        )  # fmt: skip


def _show_node(where: Where, output: Output | None) -> None:
    target = targets.resolve(where)
    said = targets.ask(target, lambda links: links.status(target.address_of("")))
    if output in (Output.json, Output.yaml):
        print_document(said, output)
        return
    shown = ("name", "role", "address", "term", "confirmed_index", "leader_name", "ro_reason")
    print_table([f.upper().replace("_", " ") for f in shown], [[str(said[f]) for f in shown]])
