"""`qsync local events`: the local counterpart of Kubernetes Events."""

from qsync_cli import clusters
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table
from qsync_operator.views.times import local_time


def events(name: NameArgument, output: OutputOption = None) -> None:
    """Print the events of the supervisor, oldest first."""
    store = clusters.open_store(name)
    clusters.ensure_supervisor(store)
    found = store.load_events()
    if output in (Output.json, Output.yaml):
        print_document(found, output)
        return
    print_events(found)


def print_events(events: list[dict[str, str]]) -> None:
    """Print events as a table, with local times."""
    fields = ("time", "type", "reason", "object", "message")
    rows = [[local_time(event["time"]), *(event[f] for f in fields[1:])] for event in events]
    print_table([f.upper() for f in fields], rows, gap=2)
