"""`qsync local events`: the local counterpart of Kubernetes Events."""

from qsync_cli import clusters
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table


def events(name: NameArgument, output: OutputOption = None) -> None:
    """Print the events of the supervisor, oldest first."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    found = store.load_events()
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    fields = ("time", "type", "reason", "object", "message")
    print_table([f.upper() for f in fields], [[event[f] for f in fields] for event in found])
