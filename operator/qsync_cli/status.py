"""`qsync status`: a cluster, or one node."""

from typing import Annotated

import typer

from qsync_cli.options import Output, OutputOption
from qsync_cli.output import cluster_lines, print_document, print_table, say
from qsync_cli.where import Where, aimed

ClusterArgument = Annotated[
    str | None, typer.Argument(help="QsyncCluster on Kubernetes.", metavar="[NAME]")
]


@aimed
def status(where: Where, name: ClusterArgument = None, output: OutputOption = None) -> None:
    """Show the members of a cluster, or the status of one node."""
    if where.local is not None:
        from qsync_cli.local.status import status as local_status

        local_status(where.local, output)
    elif where.address is not None:
        _show_node(where, output)
    else:
        _show_cluster(where, name, output)


def _show_node(where: Where, output: Output | None) -> None:
    from qsync_cli.targets import ask, resolve

    target = resolve(where)
    said = ask(target, lambda links: links.status(target.address_of("")))
    if output in (Output.json, Output.yaml):
        print_document(said, output)
        return
    shown = ("name", "role", "address", "term", "confirmed_index", "leader_name", "ro_reason")
    print_table([f.upper().replace("_", " ") for f in shown], [[str(said[f]) for f in shown]])


def _show_cluster(where: Where, name: str | None, output: Output | None) -> None:
    from dataclasses import replace

    from pydantic import ValidationError

    from qsync_cli.kubernetes.session import converse
    from qsync_cli.kubernetes.status import lines, look, table
    from qsync_operator.api.cluster import QsyncCluster

    if name is not None:
        where = replace(where, cluster=name)
    seen = converse(where, lambda session: look(session, where))
    document = seen.document
    if output in (Output.json, Output.yaml):
        document["metadata"].pop("managedFields", None)
        print_document(document, output)
        return
    try:
        cluster = QsyncCluster.model_validate(document)
    except ValidationError:
        # The operator reports the invalid specification. The status can be shown.
        cluster = QsyncCluster.model_validate({**document, "spec": {}})
    for line in [*cluster_lines(cluster), *lines(cluster, seen)]:
        say(line)
    print_table(*table(cluster, seen, output is Output.wide))
