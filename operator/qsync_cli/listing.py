"""`qsync list`: the clusters of this machine, and of the namespace on Kubernetes."""

from typing import TYPE_CHECKING, Any

from qsync_cli import clusters
from qsync_cli.failure import Failure
from qsync_cli.kubernetes import names, orders
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, print_table, say, warn
from qsync_cli.where import ContextOption, NamespaceOption, Where

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles

TITLES = ("NAME", "PLACE", "STATUS", "VOTERS", "LEADER")


def list_clusters(
    namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = None
) -> None:
    """List clusters: those of this machine, and those on Kubernetes if it is configured."""
    where = Where(namespace=namespace, context=context)
    found = [] if where.is_kubernetes_chosen else list(map(_local, clusters.all_stores()))
    if where.is_kubernetes_chosen or names.has_kubeconfig():
        try:
            found += list(map(_remote, orders.every(where)))
        except Failure as failure:
            if not found:
                raise
            warn(f"clusters on Kubernetes are missing: {failure}")
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    if not found:
        say("no clusters; run `qsync apply -f FILE` to create one")
        return
    print_table(list(TITLES), [[str(one[title.lower()]) for title in TITLES] for one in found])


def _local(store: "ClusterFiles") -> dict[str, Any]:
    """Return the line of a local cluster, without a start of its supervisor."""
    return _line(store.name, "local", clusters.view_of(store).document)


def _remote(document: dict[str, Any]) -> dict[str, Any]:
    metadata = document["metadata"]
    return _line(metadata["name"], f"namespace {metadata['namespace']}", document)


def _line(name: str, place: str, document: dict[str, Any]) -> dict[str, Any]:
    status = document.get("status") or {}
    voters = (document.get("spec") or {}).get("replicas", 3)
    return {
        "name": name,
        "place": place,
        "status": status.get("phase") or "Unknown",
        "voters": f"{status.get('readyReplicas', 0)}/{voters}",
        "leader": status.get("leader") or "-",
    }
