"""Completion of names in the shell, from the files of local clusters."""

import typer

from qsync_cli import clusters


def local_clusters(incomplete: str) -> list[str]:
    """Return the names of local clusters that begin so."""
    return [store.name for store in clusters.all_stores() if store.name.startswith(incomplete)]


def local_names(incomplete: str) -> list[str]:
    """Return the names of local clusters, and of their members, that begin so."""
    stores = clusters.all_stores()
    names = [name for store in stores for name in (store.name, *store.load_state().members)]
    return [name for name in names if name.startswith(incomplete)]


def local_members(context: typer.Context, incomplete: str) -> list[str]:
    """Return the members that begin so, of the cluster on the command line or of all clusters."""
    given = {context.params.get(one) for one in ("cluster_name", "name", "local")}
    stores = clusters.all_stores()
    named = [store for store in stores if store.name in given]
    names = (name for store in named or stores for name in store.load_state().members)
    return [name for name in names if name.startswith(incomplete)]
