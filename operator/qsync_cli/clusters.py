"""Local clusters as commands see them: find, look at, and keep a supervisor alive."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from qsync_cli.failure import Failure, FailureReason
from qsync_local import certificates, observing, processes, views
from qsync_local.store import ClusterFiles, Secrets, home
from qsync_operator.api.patterns import NAME_PATTERN
from qsync_operator.views import statusview

if TYPE_CHECKING:
    from qsync_local.certificates import MemberCertificates
    from qsync_local.store import ManifestFacts
    from qsync_operator.api.cluster import QsyncCluster

SUPERVISOR_START_S = 15.0
_HARMLESS = frozenset({"VotersFenced", "DiskLow", "ArchiveFailing"})
"""Reasons of Degraded that no change of the manifest waits for."""


def store_of(name: str) -> ClusterFiles:
    """Return the files of a cluster, which may not exist yet."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise Failure(
            FailureReason.INVALID,
            f"invalid cluster name {name!r}: use lower case letters, digits and dashes",
        )
    return ClusterFiles(home() / name)


def open_store(name: str) -> ClusterFiles:
    store = store_of(name)
    if not store.exists():
        raise absence_of(store)
    return store


def absence_of(store: ClusterFiles) -> Failure:
    """Return the failure of a command for a cluster that does not exist."""
    if (store.directory / "state.json").exists():
        text = (
            f"cluster {store.name} is deleted and its data is retained: apply its manifest, or run "
            f"`qsync destroy {store.name} --delete-data`"
        )
    else:
        names = ", ".join(other.name for other in all_stores())
        text = f"cluster {store.name} not found in {home()}: it has {names or 'no clusters'}"
    return Failure(FailureReason.NOT_FOUND, text)


def all_stores() -> list[ClusterFiles]:
    directory = home()
    if not directory.exists():
        return []
    if not directory.is_dir():
        text = f"{directory} is not a directory: set QSYNC_HOME to another path"
        raise Failure(FailureReason.INVALID, text)
    stores = [ClusterFiles(path) for path in sorted(directory.iterdir()) if path.is_dir()]
    return [store for store in stores if store.exists()]


def is_known(name: str) -> bool:
    """Return whether a local cluster exists, or was deleted and its data is kept."""
    store = store_of(name)
    return store.exists() or (store.directory / "state.json").exists()


def owner_of(member: str) -> ClusterFiles | None:
    """Return the local cluster with a member of this name, or None."""
    return next((one for one in all_stores() if member in one.load_state().members), None)


def secrets_of(store: ClusterFiles) -> Secrets:
    secrets = store.load_secrets()
    if secrets is None:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"{store.directory}/secrets.json is missing: apply the manifest of {store.name} again",
        )
    return secrets


def certificates_of(store: ClusterFiles) -> "MemberCertificates":
    """Return the certificates of a cluster, whose `context` is that of connections to members."""
    return certificates.MemberCertificates(store)


def load_cluster(store: ClusterFiles) -> "QsyncCluster":
    cluster = store.load_cluster()
    if cluster is None:
        raise _deletion_of(store)
    return cluster


def facts_of(store: ClusterFiles) -> "ManifestFacts":
    """Return the part of the manifest that verbs on rows need."""
    facts = store.load_facts()
    if facts is None:
        raise _deletion_of(store)
    return facts


def _deletion_of(store: ClusterFiles) -> Failure:
    return Failure(FailureReason.NOT_FOUND, f"cluster {store.name} was deleted")


def ensure_supervisor(store: ClusterFiles) -> bool:
    """Start a supervisor in the background unless one runs. Return whether it was started."""
    if store.is_supervised():
        return False
    command = [sys.executable, "-m", "qsync_local", str(store.directory)]
    child = processes.start(command, store.supervisor_log)
    deadline_s = time.monotonic() + SUPERVISOR_START_S
    while time.monotonic() < deadline_s:
        if store.is_supervised() or not store.exists():
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(0.03)
            if code:
                raise Failure(
                    FailureReason.FAILED,
                    f"the supervisor of {store.name} failed with exit code {code}: read "
                    f"{store.supervisor_log}",
                )
    raise Failure(
        FailureReason.TIMED_OUT,
        f"the supervisor of {store.name} did not start in time: read {store.supervisor_log}",
    )


def observe(store: ClusterFiles) -> "QsyncCluster":
    """Return the current cluster: live answers of its nodes, and the supervisor's findings."""
    import asyncio  # noqa: PLC0415  # heavy, and not needed if a supervisor answers

    cluster = load_cluster(store)
    cluster.status = asyncio.run(observing.observe(store, secrets_of(store), cluster))
    return cluster


def view_of(store: ClusterFiles) -> statusview.View:
    """Return the current view of a cluster, from its supervisor if that answers."""
    return views.served_view(store) or statusview.view_of(observe(store))


def is_settled(cluster: "QsyncCluster") -> bool:
    status = cluster.status
    if cluster.spec.hibernate:
        is_down = all(member.role == "down" for member in status.members)
        return status.phase == "Hibernated" and is_down
    degraded = status.condition("Degraded")
    is_harmless = degraded is not None and degraded.reason in _HARMLESS
    return (
        status.observed_generation == cluster.metadata.generation
        and (status.phase == "Ready" or (status.phase == "Degraded" and is_harmless))
        and status.is_true("Ready")
    )


def node_log(store: ClusterFiles, member: str) -> Path:
    return store.node_directory(member) / "node.log"
