"""`qsync local status`: members, roles, term, lag, problems, last failover."""

from typing import Annotated

import typer

from qsync_cli import clusters as cli_clusters
from qsync_cli import statuses
from qsync_cli.options import Output, OutputOption
from qsync_cli.statuses import CheckOption, WatchOption
from qsync_operator.views import statusview

NameArgument = Annotated[
    str | None, typer.Argument(help="Cluster. The default is all clusters.", metavar="NAME")
]


def status(
    name: NameArgument = None,
    output: OutputOption = None,
    watch: WatchOption = False,
    check: CheckOption = False,
) -> None:
    """Show local clusters: leader, followers with their lag, problems, last failover."""
    stores = [cli_clusters.open_store(name)] if name is not None else cli_clusters.all_stores()
    for store in stores:
        cli_clusters.ensure_supervisor(store)
    show(name, output, is_watching=watch, is_checking=check)


def show(
    name: str | None, output: Output | None, *, is_watching: bool = False, is_checking: bool = False
) -> None:
    statuses.show(
        lambda: observe(name),
        output,
        is_list=name is None,
        is_watching=is_watching,
        is_checking=is_checking,
    )


def observe(name: str | None) -> list[statusview.View]:
    """Return a cluster, or all of them, as they are now."""
    stores = [cli_clusters.open_store(name)] if name is not None else cli_clusters.all_stores()
    return [cli_clusters.view_of(store) for store in stores]
