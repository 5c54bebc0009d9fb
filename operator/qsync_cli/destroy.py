"""`qsync destroy`: a cluster is removed, and its data is kept or deleted."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.consent import require_consent
from qsync_cli.kubernetes import orders
from qsync_cli.local.delete import TimeoutOption, destroy_local
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed

if TYPE_CHECKING:
    from qsync_cli.options import Output

DeleteDataOption = Annotated[
    bool,
    typer.Option("--delete-data", help="Delete the data, also if storage.retention is Retain."),
]
KeepDataOption = Annotated[
    bool, typer.Option("--keep-data", help="Keep the data, also if storage.retention is Delete.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without a question, in a script.")]


@aimed
def destroy(
    where: Where,
    delete_data: DeleteDataOption = False,
    keep_data: KeepDataOption = False,
    yes: YesOption = False,
    timeout: TimeoutOption = 60.0,
    output: OutputOption = None,
) -> None:
    """Remove a cluster. Its data is kept or deleted, as `storage.retention` demands.

    The command lists the data that it deletes, and asks at a terminal. The archive is kept.
    """
    if where.address is not None:
        raise typer.BadParameter("--address cannot be used here: specify CLUSTER")
    if where.local is not None:
        destroy_local(
            where.local,
            deletes_data=delete_data,
            keeps_data=keep_data,
            is_given=yes,
            timeout=timeout,
            output=output,
        )
        return
    if delete_data or keep_data:
        local = ", ".join(store.name for store in clusters.all_stores()) or "none"
        raise typer.BadParameter(
            "--delete-data and --keep-data are for local clusters only (on this machine: "
            f"{local}). On Kubernetes, omit them and set spec.storage.retention first"
        )
    _destroy_on_kubernetes(where, yes, timeout, output)


def _destroy_on_kubernetes(
    where: Where, is_given: bool, timeout_s: float, output: "Output | None"
) -> None:
    found: dict[str, Any] = orders.find(where)
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    retention = (found["spec"].get("storage") or {}).get("retention", "Retain")
    is_kept = retention != "Delete"
    text = f"{namespace}/{name}: its pods and Services are deleted."
    if is_kept:
        text += " storage.retention is Retain, so its volumes and Secrets are kept."
    else:
        text += " storage.retention is Delete, so its volumes and Secrets are deleted with it."
    require_consent(name, text, f"Delete {name}?", "add --yes to delete it", is_given=is_given)
    orders.delete(where, timeout_s)
    text = f'qsynccluster.qsync.dev "{name}" deleted' + (", data retained" if is_kept else "")
    done(text, output, cluster=name, isDeleted=True, isDataRetained=is_kept)
