"""`qsync credentials`: the application's user, its password, and where to connect."""

import typer

from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_cli.where import Where, aimed


@aimed
def credentials(where: Where, output: OutputOption = None) -> None:
    """Print the Secret NAME-app."""
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because a node does not return passwords: use "
            "--local or --cluster"
        )
    if where.local is not None:
        from qsync_cli.local.credentials import credentials as local

        local(where.local, output)
        return
    from qsync_cli.failure import Failure, FailureReason
    from qsync_cli.kubernetes.session import Session, choose, converse
    from qsync_operator.resources.labels import app_secret_name
    from qsync_operator.resources.secrets import decoded

    async def read(session: Session) -> dict[str, object]:
        cluster = choose(await session.clusters(), where, session.namespace, None)
        name = app_secret_name(str(cluster["metadata"]["name"]))
        secret = await session.api.get("Secret", session.namespace, name)
        if secret is None:
            raise Failure(
                FailureReason.NOT_READY,
                f"Secret {name} not found: the operator has not created it yet; retry "
                "when the cluster is Ready",
            )
        found: dict[str, object] = dict(decoded(secret))
        addresses = str(found.get("addresses", ""))
        return {**found, "port": int(str(found["port"])), "addresses": addresses.split(",")}

    shown = converse(where, read)
    if output in (Output.json, Output.yaml):
        print_document(shown, output)
        return
    for key, value in shown.items():
        say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
