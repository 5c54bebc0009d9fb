"""`qsync restore`: a new local cluster from a point of an archive."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.local import apply
from qsync_cli.options import NameArgument, NoWaitOption, OutputOption, TimeoutOption
from qsync_local import restoration
from qsync_operator.api import cluster as api_cluster
from qsync_operator.api import manifest

FromOption = Annotated[
    str, typer.Option("--archive", help="Archive to restore. It is only read.", metavar="URL")
]
TimeOption = Annotated[
    str | None,
    typer.Option("--to-time", help="Last moment to include, such as 2026-01-31T12:00:00Z."),
]
SignatureOption = Annotated[
    int | None, typer.Option("--to-signature", help="Last log index to include.", min=0)
]
NewArchiveOption = Annotated[
    str | None,
    typer.Option("--new-archive", help="Archive of the new cluster.", metavar="URL"),
]
MemberOption = Annotated[
    str | None,
    typer.Option("--member", help="Use the copies of this member without comparison."),
]
JournalStoreOption = Annotated[
    str | None,
    typer.Option(
        "--journal-store",
        help="Store of the new cluster, to which fragments of journals are copied.",
        metavar="URL",
    ),
]
ReplicasOption = Annotated[int, typer.Option("--replicas", help="Number of voters.", min=1, max=31)]
_OPTIONS = {
    "bootstrap.fromArchive.url": "--archive",
    "bootstrap.fromArchive.toTime": "--to-time",
    "bootstrap.fromArchive.toSignature": "--to-signature",
    "bootstrap.fromArchive.member": "--member",
    "bootstrap.fromArchive.journalStore": "--journal-store",
    "archive.url": "--new-archive",
}
"""Options by the field of the manifest that they set."""
ManifestOption = Annotated[
    Path | None,
    typer.Option("-f", "--file", help="Manifest with the other fields.", metavar="FILE"),
]


def restore(  # noqa: PLR0913, PLR0917  # as many as there are options
    name: NameArgument,
    archive: FromOption,
    to_time: TimeOption = None,
    to_signature: SignatureOption = None,
    member: MemberOption = None,
    new_archive: NewArchiveOption = None,
    journal_store: JournalStoreOption = None,
    replicas: ReplicasOption = 3,
    file: ManifestOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    output: OutputOption = None,
) -> None:
    """Create a local cluster from an archive: its end, or its state at a time or an index.

    Users keep their passwords, except `admin` and the application's (`qsync local credentials`).
    Sequences, idempotency keys and indexes continue. Members belong to the new cluster. The copies
    of each row are compared: most of them decide, and without a majority the restore is refused.
    """
    if to_time is not None and to_signature is not None:
        raise typer.BadParameter(
            "--to-time and --to-signature exclude each other: specify only one"
        )
    if clusters.store_of(name).exists():
        raise Failure(
            FailureReason.ALREADY_EXISTS,
            f"cluster {name} already exists: restore under another name",
        )
    if clusters.is_known(name):
        raise Failure(
            FailureReason.ALREADY_EXISTS,
            f"the data of a deleted cluster {name} is retained: restore under another name, or "
            f"delete that data with `qsync destroy {name} --delete-data`",
        )
    begin: dict[str, Any] = {
        "url": archive,
        "toTime": None if to_time is None else _moment(to_time),
        "toSignature": to_signature,
        "member": member,
        "journalStore": journal_store and f"{journal_store.rstrip('/')}/",
    }
    try:
        given = manifest.load_manifest(file) if file is not None else None
        spec: dict[str, Any] = {"replicas": replicas}
        if given is not None:
            spec = given.cluster.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        spec["bootstrap"] = {"fromArchive": {k: v for k, v in begin.items() if v is not None}}
        if new_archive is not None:
            spec["archive"] = {**(spec.get("archive") or {}), "url": new_archive}
        document = {
            "apiVersion": api_cluster.API_VERSION,
            "kind": "QsyncCluster",
            "metadata": {"name": name},
            "spec": spec,
        }  # fmt: skip
        cluster = manifest.parse_cluster(document, "restore")
    except manifest.ClusterManifestError as error:
        raise Failure(FailureReason.INVALID, _with_options(str(error))) from error
    apply.bring_up(
        manifest.ClusterManifest(cluster, given.secrets if given else {}), no_wait, timeout, output
    )
    _print_notes(name, clusters.store_of(name).directory)


def _print_notes(name: str, directory: Path) -> None:
    """Print the comparison to standard error, because standard output may be a document."""
    file = directory / restoration.RESTORED_NAME
    for note in json.loads(file.read_text())["notes"] if file.exists() else ():
        sys.stderr.write(f"{name}: {note}\n")


def _with_options(text: str) -> str:
    """Return the text of a mistake with options in place of the fields that they set."""
    for field, option in _OPTIONS.items():
        for end in " :":
            text = text.replace(f"spec.{field}{end}", f"{option}{end}")
    return text


def _moment(text: str) -> str:
    """Convert seconds since 1970 to the time format of manifests. Return other text unchanged."""
    try:
        return datetime.fromtimestamp(float(text), UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return text
