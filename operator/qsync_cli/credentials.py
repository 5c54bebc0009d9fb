"""`qsync credentials`: the application's user, its password, and where to connect."""

from typing import TYPE_CHECKING

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import credentials as local_credentials
from qsync_cli.local.credentials import UserOption
from qsync_cli.options import OutputOption
from qsync_cli.where import Where, aimed
from qsync_operator.resources import labels, secrets

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession
    from qsync_operator.resources.labels import KubernetesObject


@aimed
def credentials(where: Where, user: UserOption = None, output: OutputOption = None) -> None:
    """Print user, password and addresses for the application."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node does not return passwords: use "
            "--local or --cluster"
        )
    if where.local is not None:
        local_credentials.credentials(where.local, user, output)
        return

    async def read(session: kubernetes_session.KubernetesSession) -> dict[str, object]:
        cluster = kubernetes_session.choose(
            await session.clusters(), where, session.namespace, None
        )
        name = labels.app_secret_name(str(cluster["metadata"]["name"]))
        secret = await session.api.get("Secret", session.namespace, name)
        if secret is None:
            raise Failure(
                FailureReason.NOT_READY,
                f"Secret {name} not found: the operator has not created it yet; retry "
                "when the cluster is Ready",
            )
        found: dict[str, object] = dict(secrets.decoded(secret))
        if user is not None and user != found["username"]:
            found.update(await _of_user(session, cluster, user, found))
        addresses = str(found.get("addresses", ""))
        return {**found, "port": int(str(found["port"])), "addresses": addresses.split(",")}

    local_credentials.show(kubernetes_session.converse(where, read), output)


async def _of_user(
    session: "KubernetesSession",
    cluster: "KubernetesObject",
    user: str,
    found: dict[str, object],
) -> dict[str, object]:
    """Return the fields that differ from those of the application's user.

    Raises:
        Failure: the manifest has no such user, or its Secret has no password.
    """
    users = {str(one["name"]): one for one in cluster["spec"].get("users") or ()}
    if user not in users:
        known = ", ".join((str(found["username"]), *users))
        text = f"user {user} not found: the cluster has {known}"
        raise Failure(FailureReason.NOT_FOUND, text)
    name = str(users[user]["passwordSecret"])
    secret = await session.api.get("Secret", session.namespace, name)
    password = secrets.text_of(secret, "password")
    if password is None:
        text = f"Secret {name} of user {user} has no key `password`: create it"
        raise Failure(FailureReason.NOT_FOUND, text)
    place = str(found["uri"]).rpartition("@")[2]
    return {"username": user, "password": password, "uri": f"{user}:{password}@{place}"}
