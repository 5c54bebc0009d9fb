"""`qsync apply`: a manifest becomes a cluster, local or on Kubernetes, or changes one."""

from qsync_cli import diff, statuses
from qsync_cli.kubernetes import orders
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.local import apply as local_apply
from qsync_cli.local.apply import ArchiveOption, DryRunOption, FileOption
from qsync_cli.options import NoWaitOption, Output, OutputOption, TimeoutOption
from qsync_cli.output import print_document, say
from qsync_cli.where import ContextOption, NamespaceOption, Where


def apply(
    file: FileOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    archive: ArchiveOption = None,
    dry_run: DryRunOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    output: OutputOption = None,
) -> None:
    """Create or update a cluster from a manifest, and wait until it is Ready.

    The cluster is local, unless --namespace, --context or the name of the program, `kubectl qsync`,
    selects Kubernetes.
    """
    where = Where(namespace=namespace, context=context)
    if not where.is_kubernetes_chosen:
        local_apply.apply(file, no_wait, timeout, archive, dry_run, output)
        return
    if archive is not None:
        raise local_apply.ARCHIVE_ON_KUBERNETES
    if dry_run:
        diff.show_on_kubernetes(where, file, output)
        return
    documents = diff.documents_of(file)
    lines = orders.apply(where, documents)
    is_document = output in (Output.json, Output.yaml)
    if not is_document:
        for line in lines:
            say(line)
    names = [str(d["metadata"]["name"]) for d in documents if d["kind"] == "QsyncCluster"]
    places = [Where(cluster=name, namespace=namespace, context=context) for name in names]
    for place in places:
        if not no_wait:
            orders.wait_ready(place, timeout)
    if not is_document or output is None:
        return
    if places:  # the document of one cluster, as for a local one
        views = [view for place in places for view in kubernetes_status.views(place)]
        statuses.print_views(views, output, is_list=len(views) > 1)
    else:
        print_document({"results": lines}, output)
