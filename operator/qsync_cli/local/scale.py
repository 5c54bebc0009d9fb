"""`qsync local scale`: more or fewer members, as `kubectl scale`."""

from typing import Annotated

import typer

from qsync_cli import clusters, statuses, waiting
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, NoWaitOption, Output, OutputOption, TimeoutOption
from qsync_cli.output import say
from qsync_operator.api import manifest
from qsync_operator.views import statusview

AsyncOption = Annotated[
    int | None,
    typer.Option("--async-replicas", min=0, help="Number of async members.", show_default=False),
]
ReadOption = Annotated[
    int | None,
    typer.Option("--read-replicas", min=0, help="Number of anonymous readers.", show_default=False),
]
ReplicasOption = Annotated[
    int | None, typer.Option("--replicas", help="Number of voters.", show_default=False)
]


def scale(
    name: NameArgument,
    replicas: ReplicasOption = None,
    async_replicas: AsyncOption = None,
    read_replicas: ReadOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Change the number of members, one at a time and never below a quorum."""
    wanted = {"replicas": replicas, "asyncReplicas": async_replicas, "readReplicas": read_replicas}
    if all(count is None for count in wanted.values()):
        raise typer.BadParameter("specify --replicas, --async-replicas or --read-replicas")
    store = clusters.open_store(name)
    with store.editing():
        document = clusters.load_cluster(store).document()
        before = dict(document["spec"])
        document["spec"].update({k: v for k, v in wanted.items() if v is not None})
        try:
            cluster = manifest.parse_cluster(document, name)
        except manifest.ClusterManifestError as error:
            raise Failure(FailureReason.INVALID, str(error)) from error
        if cluster.document()["spec"] != before:
            cluster.metadata.generation += 1
            store.save_cluster(cluster)
    clusters.ensure_supervisor(store)
    is_document = output in (Output.json, Output.yaml)
    if not is_document:
        say(f"qsynccluster.qsync.dev/{name} scaled")
    cluster = (
        clusters.observe(store) if no_wait else waiting.wait_ready(store, timeout, is_document)
    )
    if is_document or not no_wait:
        statuses.print_views([statusview.view_of(cluster)], output)
