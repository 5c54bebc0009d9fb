"""`qsync scale`: more or fewer members of a cluster, local or on Kubernetes."""

from typing import Any

import typer

from qsync_cli import statuses
from qsync_cli.kubernetes import orders
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.local import scale as local_scale
from qsync_cli.local.scale import AsyncOption, ReadOption, ReplicasOption
from qsync_cli.options import NoWaitOption, Output, OutputOption, TimeoutOption
from qsync_cli.output import say
from qsync_cli.where import Where, aimed


@aimed
def scale(
    where: Where,
    replicas: ReplicasOption = None,
    async_replicas: AsyncOption = None,
    read_replicas: ReadOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Change the number of members, one at a time and never below a quorum."""
    if where.address is not None:
        raise typer.BadParameter("--address cannot be used here: specify CLUSTER")
    if where.local is not None:
        local_scale.scale(
            where.local, replicas, async_replicas, read_replicas, no_wait, timeout, output
        )
        return
    given = {"replicas": replicas, "asyncReplicas": async_replicas, "readReplicas": read_replicas}
    spec: dict[str, Any] = {key: count for key, count in given.items() if count is not None}
    if not spec:
        raise typer.BadParameter("specify --replicas, --async-replicas or --read-replicas")
    name = orders.change(where, {"spec": spec})
    if not no_wait:
        orders.wait_ready(where, timeout)
    if output in (Output.json, Output.yaml):
        statuses.print_views(kubernetes_status.views(where), output)
    else:
        say(f"qsynccluster.qsync.dev/{name} scaled")
