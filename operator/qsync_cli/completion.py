"""Completion of names in the shell: local clusters first, then those on Kubernetes."""

from collections.abc import Callable

import typer

from qsync_cli import clusters
from qsync_cli.kubernetes import names


def local_clusters(incomplete: str) -> list[str]:
    """Return the names of local clusters that begin so."""
    return [store.name for store in clusters.all_stores() if store.name.startswith(incomplete)]


def cluster_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of clusters that begin so, local or on Kubernetes."""
    return [*local_clusters(incomplete), *_on_kubernetes(names.clusters, context, incomplete)]


def any_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of clusters, and of their members, that begin so."""
    stores = clusters.all_stores()
    found = [name for store in stores for name in (store.name, *store.load_state().members)]
    local = [name for name in found if name.startswith(incomplete)]
    remote = [
        *_on_kubernetes(names.clusters, context, incomplete),
        *_on_kubernetes(names.members, context, incomplete),
    ]
    return [*local, *(name for name in remote if name not in local)]


def member_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the members that begin so, of the cluster on the command line or of all clusters."""
    given = {context.params.get(one) for one in ("cluster_name", "name", "local")} - {None}
    stores = clusters.all_stores()
    named = [store for store in stores if store.name in given]
    found = [name for store in named or stores for name in store.load_state().members]
    if not named:
        cluster = next(map(str, given), None)

        def of_cluster(namespace: str | None, place: str | None) -> list[str]:
            return names.members(namespace, place, cluster)

        if cluster is not None:
            found = []
        found += _on_kubernetes(of_cluster, context, incomplete)
    return [name for name in found if name.startswith(incomplete)]


def _on_kubernetes(
    read: Callable[[str | None, str | None], list[str]], context: typer.Context, incomplete: str
) -> list[str]:
    if not names.has_kubeconfig():
        return []
    found = read(context.params.get("namespace"), context.params.get("context"))
    return [name for name in found if name.startswith(incomplete)]
