"""`qsync credentials`: the application's user, its password, and where to connect."""

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import credentials as local_credentials
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_cli.where import Where, aimed
from qsync_operator.resources import labels, secrets


@aimed
def credentials(where: Where, output: OutputOption = None) -> None:
    """Print user, password and addresses for the application."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node does not return passwords: use "
            "--local or --cluster"
        )
    if where.local is not None:
        local_credentials.credentials(where.local, output)
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
        addresses = str(found.get("addresses", ""))
        return {**found, "port": int(str(found["port"])), "addresses": addresses.split(",")}

    shown = kubernetes_session.converse(where, read)
    if output in (Output.json, Output.yaml):
        print_document(shown, output)
        return
    for key, value in shown.items():
        say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
