"""`qsync local status`: members, roles, term, lag, last failover."""

from typing import Annotated

import typer

from qsync_cli import output as printing
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
    from qsync_cli.clusters import all_stores, ensure_supervisor, open_store

    stores = [open_store(name)] if name is not None else all_stores()
    for store in stores:
        ensure_supervisor(store)
    if not stores and output is None:
        printing.say("no clusters; run `qsync local apply -f FILE` to create one")
        return
    if watch:
        _watch(name, output)
        return
    _show(name, output)


def _show(name: str | None, output: Output | None) -> None:
    from qsync_cli.clusters import all_stores, look, open_store
    from qsync_cli.waiting import print_cluster

    if name is not None:
        print_cluster(look(open_store(name)), output)
        return
    clusters = [look(store) for store in all_stores()]
    if output in (Output.json, Output.yaml):
        items = [cluster.document() for cluster in clusters]
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        printing.print_document(document, output)
        return
    for position, cluster in enumerate(clusters):
        if position:
            printing.say()
        print_cluster(cluster, output)


def _watch(name: str | None, output: Output | None) -> None:
    import sys
    import time

    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")
            _show(name, output)
            sys.stdout.flush()
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return
