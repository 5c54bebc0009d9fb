"""`qsync diff`: the changes that an apply would make."""

from typing import TYPE_CHECKING, Any

from qsync_cli import changes
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import orders
from qsync_cli.local import apply as local_apply
from qsync_cli.local.apply import ArchiveOption, FileOption
from qsync_cli.options import Output, OutputOption
from qsync_cli.where import ContextOption, NamespaceOption, Where
from qsync_operator.api import manifest as api_manifest

if TYPE_CHECKING:
    from pathlib import Path


def diff(
    file: FileOption,
    archive: ArchiveOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    output: OutputOption = None,
) -> None:
    """Show what `qsync apply` would change, and change nothing."""
    where = Where(namespace=namespace, context=context)
    if where.is_kubernetes_chosen:
        show_on_kubernetes(where, file, output)
    else:
        local_apply.show_changes(local_apply.manifest_of(file, archive), output)


def show_on_kubernetes(where: Where, file: "Path", output: Output | None) -> None:
    """Print the differences from a cluster on Kubernetes."""
    for document in documents_of(file):
        if document["kind"] != "QsyncCluster":
            continue
        name = str(document["metadata"]["name"])
        found = orders.existing(where, name)
        wanted = _spec_of(document)
        if found is None:
            changes.print_changes(name, None, wanted, output)
        else:
            # A patch leaves fields that the manifest omits, as `kubectl apply` without an owner.
            changes.print_changes(name, _spec_of(found), _spec_of(_merged(found, document)), output)


def documents_of(file: "Path") -> list[dict[str, Any]]:
    """Return the documents of a file for Kubernetes, which the models have accepted.

    Raises:
        Failure: the file cannot be read, or has mistakes.
    """
    try:
        return api_manifest.checked_documents(file)
    except api_manifest.ClusterManifestError as error:
        raise Failure(FailureReason.INVALID, str(error)) from error


def _merged(found: object, change: object) -> Any:
    """Return a document after a merge patch."""
    if not isinstance(found, dict) or not isinstance(change, dict):
        return change
    kept = {key: value for key, value in found.items() if key not in change}
    given = {key: _merged(found.get(key), value) for key, value in change.items()}
    return {**kept, **{key: value for key, value in given.items() if value is not None}}


def _spec_of(document: dict[str, Any]) -> dict[str, Any]:
    whole = {key: document[key] for key in ("apiVersion", "kind", "metadata")}
    spec: dict[str, Any] = api_manifest.parse_cluster(
        {**whole, "spec": document.get("spec") or {}}
    ).document()["spec"]
    return spec
