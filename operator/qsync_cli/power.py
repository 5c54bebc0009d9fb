"""`qsync start` and `stop`: a cluster hibernates, with all its data, and resumes."""

from typing import TYPE_CHECKING

import typer

from qsync_cli import clusters, waiting
from qsync_cli.kubernetes import orders
from qsync_cli.options import NoWaitOption, OutputOption, TimeoutOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed

if TYPE_CHECKING:
    from qsync_cli.options import Output


@aimed
def start(
    where: Where,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Start a cluster that was stopped, and wait until it is Ready."""
    hibernate(where, False, None if no_wait else timeout, output)


@aimed
def stop(
    where: Where,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Stop all members of a cluster, and keep everything else: `spec.hibernate`."""
    hibernate(where, True, None if no_wait else timeout, output)


def hibernate(
    where: Where, is_stopped: bool, timeout_s: float | None, output: "Output | None"
) -> None:
    """Stop or start a cluster, and wait `timeout_s` seconds for it unless that is None."""
    if where.address is not None:
        raise typer.BadParameter("--address cannot be used here: specify CLUSTER")
    if where.local is not None:
        name = where.local
        _hibernate_local(name, is_stopped, timeout_s, output)
    else:
        name = orders.change(where, {"spec": {"hibernate": is_stopped}})
        if timeout_s is not None:
            orders.wait_ready(where, timeout_s)
    text = (
        f"{name} is stopped; `qsync start {name}` starts it" if is_stopped else f"{name} is started"
    )
    done(text, output, cluster=name, hibernate=is_stopped)


def _hibernate_local(
    name: str, is_stopped: bool, timeout_s: float | None, output: "Output | None"
) -> None:
    store = clusters.open_store(name)
    with store.editing():
        cluster = clusters.load_cluster(store)
        if cluster.spec.hibernate != is_stopped:
            cluster.spec.hibernate = is_stopped
            cluster.metadata.generation += 1
            store.save_cluster(cluster)
    clusters.ensure_supervisor(store)
    if timeout_s is not None:
        waiting.wait_ready(store, timeout_s, output is not None)
