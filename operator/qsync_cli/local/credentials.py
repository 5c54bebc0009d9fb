"""`qsync local credentials`: the local counterpart of the Secret `<name>-app`."""

from urllib.parse import quote

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, say


def credentials(name: NameArgument, output: OutputOption = None) -> None:
    """Print user, password and addresses for the application."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    secrets, cluster = clusters.secrets_of(store), clusters.look(store)
    members = [m for m in cluster.status.members if not m.address.endswith(":0")]
    if not members:
        raise Failure(FailureReason.NOT_READY, f"{name} has no members yet: retry when it is Ready")
    first = next((m for m in members if m.role == "leader"), members[0])
    host, _, port = first.address.rpartition(":")
    shown = {
        "username": secrets.username,
        "password": secrets.password,
        "host": host,
        "port": int(port),
        "uri": f"tarantool://{secrets.username}:{quote(secrets.password, safe='')}@{first.address}",
        "addresses": [member.address for member in members],
    }
    if output in (Output.json, Output.yaml):
        print_document(shown, output)
        return
    for key, value in shown.items():
        say(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
