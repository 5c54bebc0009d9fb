"""`qsync status`: a cluster, or one node."""

from dataclasses import replace
from typing import Annotated

import pydantic
import typer

from qsync_cli import targets
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.local import status as local_status
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import cluster_lines, print_document, print_table, say
from qsync_cli.where import Where, aimed
from qsync_operator.api import cluster as api_cluster

ClusterArgument = Annotated[
    str | None, typer.Argument(help="QsyncCluster on Kubernetes.", metavar="[NAME]")
]


@aimed
def status(where: Where, name: ClusterArgument = None, output: OutputOption = None) -> None:
    """Show the members of a cluster, or the status of one node."""
    if where.local is not None:
        local_status.status(where.local, output)
    elif where.address is not None:
        _show_node(where, output)
    else:
        _show_cluster(where, name, output)


def _show_node(where: Where, output: Output | None) -> None:
    target = targets.resolve(where)
    said = targets.ask(target, lambda links: links.status(target.address_of("")))
    if output in (Output.json, Output.yaml):
        print_document(said, output)
        return
    shown = ("name", "role", "address", "term", "confirmed_index", "leader_name", "ro_reason")
    print_table([f.upper().replace("_", " ") for f in shown], [[str(said[f]) for f in shown]])


def _show_cluster(where: Where, name: str | None, output: Output | None) -> None:
    if name is not None:
        where = replace(where, cluster=name)
    seen = kubernetes_session.converse(
        where, lambda session: kubernetes_status.look(session, where)
    )
    document = seen.document
    if output in (Output.json, Output.yaml):
        document["metadata"].pop("managedFields", None)
        print_document(document, output)
        return
    try:
        cluster = api_cluster.QsyncCluster.model_validate(document)
    except pydantic.ValidationError:
        # The operator reports the invalid specification. The status can be shown.
        cluster = api_cluster.QsyncCluster.model_validate({**document, "spec": {}})
    for line in [*cluster_lines(cluster), *kubernetes_status.lines(cluster, seen)]:
        say(line)
    print_table(*kubernetes_status.table(cluster, seen, output is Output.wide))
