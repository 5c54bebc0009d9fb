"""`qsync local events`: the local counterpart of Kubernetes Events."""

from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table


def events(name: NameArgument, output: OutputOption = None) -> None:
    """Print the events of the supervisor, oldest first."""
    from qsync_cli.clusters import ensure_supervisor, open_store

    store = open_store(name)
    ensure_supervisor(store)
    found = store.load_events()
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    fields = ("time", "type", "reason", "object", "message")
    print_table([f.upper() for f in fields], [[event[f] for f in fields] for event in found])
