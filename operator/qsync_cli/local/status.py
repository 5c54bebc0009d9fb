"""`qsync local status`: members, roles, term, lag, last failover."""

import sys
import time
from typing import Annotated

import typer

from qsync_cli import clusters as cli_clusters
from qsync_cli import output as printing
from qsync_cli import waiting
from qsync_cli.options import Output, OutputOption

NameArgument = Annotated[
    str | None, typer.Argument(help="Cluster. The default is all clusters.", metavar="NAME")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Continue until interrupted.")]
WATCH_S = 0.5


def status(
    name: NameArgument = None, output: OutputOption = None, watch: WatchOption = False
) -> None:
    """Show local clusters: leader, followers with their lag, last failover."""
    stores = [cli_clusters.open_store(name)] if name is not None else cli_clusters.all_stores()
    for store in stores:
        cli_clusters.ensure_supervisor(store)
    if not stores and output is None:
        printing.say("no clusters; run `qsync local apply -f FILE` to create one")
        return
    if watch:
        _watch(name, output)
        return
    _show(name, output)


def _show(name: str | None, output: Output | None) -> None:
    if name is not None:
        waiting.print_cluster(cli_clusters.look(cli_clusters.open_store(name)), output)
        return
    clusters = [cli_clusters.look(store) for store in cli_clusters.all_stores()]
    if output in (Output.json, Output.yaml):
        items = [cluster.document() for cluster in clusters]
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        printing.print_document(document, output)
        return
    for position, cluster in enumerate(clusters):
        if position:
            printing.say()
        waiting.print_cluster(cluster, output)


def _watch(name: str | None, output: Output | None) -> None:
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            _show(name, output)
            sys.stdout.flush()
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return
