"""`qsync local credentials`: the local counterpart of the Secret `<name>-app`."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_local.ports import HOST
from qsync_operator.api.ports import TLS_PARAMETER

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles

UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        help="User of the manifest. The default is the user of the application.",
        metavar="NAME",
        show_default=False,
    ),
]


def credentials(name: NameArgument, user: UserOption = None, output: OutputOption = None) -> None:
    """Print user, password and addresses for the application."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    username, password = login_of(store, user)
    cluster = clusters.observe(store)
    members = [m for m in cluster.status.members if not m.address.endswith(":0")]
    if not members:
        raise Failure(FailureReason.NOT_READY, f"{name} has no members yet: retry when it is Ready")
    first = next((m for m in members if m.role == "leader"), members[0])
    host, _, port = first.address.rpartition(":")
    shown = {
        "username": username,
        "password": password,
        "host": host,
        "port": int(port),
        "uri": f"tarantool://{username}:{quote(password, safe='')}@{first.address}",
        "addresses": [member.address for member in members],
    }
    if store.has_tls and cluster.spec.tls.clients != "Off":
        ports = {one: record.tls for one, record in store.load_state().members.items()}
        authority = store.certificates / "ca.crt"
        shown["tlsPort"] = ports[first.name]
        if cluster.spec.tls.clients == "Require":
            login = f"{username}:{quote(password, safe='')}"
            shown["uri"] = f"tarantool://{login}@{HOST}:{ports[first.name]}?{TLS_PARAMETER}"
        shown["tlsAddresses"] = [f"{HOST}:{ports[member.name]}" for member in members]
        shown["caFile"] = str(authority)
        if output in (Output.json, Output.yaml):
            shown["ca.crt"] = authority.read_text()
    show(shown, output)


def login_of(store: "ClusterFiles", user: str | None) -> tuple[str, str]:
    """Return a user of a cluster and its password.

    Args:
        store: the files of the cluster.
        user: the name; None for the user of the application.

    Raises:
        Failure: the manifest has no such user.
    """
    secrets = clusters.secrets_of(store)
    name = user if user is not None else secrets.username
    declared = clusters.facts_of(store).password_secrets
    if name in declared:
        found = store.load_manifest_secrets().get(declared[name], {}).get("password")
        if found is None:
            text = f"Secret {declared[name]} of user {name} is missing: apply the manifest again"
            raise Failure(FailureReason.NOT_FOUND, text)
        return name, found
    if name != secrets.username:
        known = ", ".join(dict.fromkeys((secrets.username, *declared)))
        text = f"user {name} not found: the manifest of {store.name} has {known}"
        raise Failure(FailureReason.NOT_FOUND, text)
    return name, secrets.password


def show(shown: dict[str, object], output: Output | None) -> None:
    """Print credentials as a document, or one in each line."""
    if output in (Output.json, Output.yaml):
        print_document(shown, output)
        return
    for key, value in shown.items():
        say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
