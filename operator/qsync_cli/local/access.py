"""Secrets and TLS of a manifest, as an apply stores them for the supervisor."""

from typing import TYPE_CHECKING

from qsync_cli.failure import Failure, FailureReason
from qsync_local import processes

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles
    from qsync_operator.api.cluster import QsyncCluster
    from qsync_operator.api.manifest import ClusterManifest


def secrets_of(store: "ClusterFiles", manifest: "ClusterManifest") -> dict[str, dict[str, str]]:
    """Return the Secrets of users and of TLS: those of the file, or else the stored ones.

    Raises:
        Failure: a Secret is in neither, or has no password.
    """
    spec, stored = manifest.cluster.spec, store.load_manifest_secrets()
    named = {user.password_secret: f"users[{user.name}].passwordSecret" for user in spec.users}
    if spec.tls.secret_name is not None:
        named[spec.tls.secret_name] = "tls.secretName"
    found = {}
    for name, field in named.items():
        values = manifest.secrets.get(name, stored.get(name))
        if values is None:
            raise Failure(
                FailureReason.NOT_FOUND,
                f"Secret {name} of spec.{field} not found: add it to the same file",
            )
        found[name] = values
    for user in spec.users:
        if not found[user.password_secret].get("password"):
            raise Failure(
                FailureReason.INVALID,
                f"Secret {user.password_secret} of user {user.name} has no key `password`: add it",
            )
    return found


def wants_tls(cluster: "QsyncCluster") -> bool:
    """Return whether the manifest has `tls`, without which local members use plain connections."""
    return "tls" in cluster.spec.model_fields_set


def refusal_of_tls(store: "ClusterFiles", existing: "QsyncCluster", wanted: "QsyncCluster") -> str:
    """Return why TLS cannot begin or end now, or "".

    Members with TLS and members without it do not understand each other, so none may run.
    """
    if wants_tls(wanted) == store.has_tls or _is_stopped(store, existing):
        return ""
    verb = "added to" if wants_tls(wanted) else "removed from"
    return (
        f"spec.tls cannot be {verb} a running cluster, because its members would not understand "
        f"each other; run `qsync stop {store.name}`, and apply the manifest again"
    )


def _is_stopped(store: "ClusterFiles", existing: "QsyncCluster") -> bool:
    if not existing.spec.hibernate:
        return False
    members = store.load_state().members.values()
    return not any(one.started and processes.start_time(one.pid) == one.started for one in members)
