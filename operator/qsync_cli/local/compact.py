"""`qsync local compact`: folds the archive of a cluster into one state and tables."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.compact import fragments_sentence
from qsync_cli.local.audit import LAG_ALLOWED_S, archive_now
from qsync_cli.local.jobs import run_job
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table, say, warn
from qsync_operator.api import base

HistoryOption = Annotated[
    bool, typer.Option("--history", help="Also write tables of all versions.")
]
DeleteOption = Annotated[
    str | None,
    typer.Option(
        "--delete-older-than", metavar="DURATION",
        help="Delete folded data older than this, such as 30d. The default is archive.retention.",
    ),
]  # fmt: skip
SignatureOption = Annotated[
    int | None, typer.Option("--to-signature", help="Last log index to fold.", min=0)
]
MergeFragmentsOption = Annotated[
    bool, typer.Option("--merge-fragments", help="Also merge small fragments of journals.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Report the changes without making them.")
]


def compact(  # as many as there are options
    name: NameArgument,
    history: HistoryOption = False,
    delete_older_than: DeleteOption = None,
    to_signature: SignatureOption = None,
    merge_fragments: MergeFragmentsOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = None,
) -> None:
    """Fold the confirmed rows of the archive into a verified snapshot and Parquet tables."""
    store = clusters.open_store(name)
    archive = clusters.load_cluster(store).spec.archive
    if archive is None:
        raise Failure(
            FailureReason.INVALID,
            f"cannot compact {name}: it has no archive; set spec.archive.url, or apply "
            "with --archive file:///FOLDER",
        )
    age = delete_older_than or archive.retention
    try:
        base.duration_ns(age or "0s")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for text in archive_now(store).warnings:
        warn(text)
    folder = store.directory / "compactions"
    result = folder / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}.json"
    words = [
        "--archive", archive.url, "--cluster", name, "--master", "local[*]", "--result",
        str(result), "--lag-allowed", str(LAG_ALLOWED_S),
    ]  # fmt: skip
    words += ["--history"] if history else []
    words += ["--merge-fragments"] if merge_fragments else []
    words += ["--dry-run"] if dry_run else []
    words += ["--delete-older-than", age] if age else []
    words += ["--to-signature", str(to_signature)] if to_signature is not None else []
    is_quiet = output in (Output.json, Output.yaml)
    run_job("compacting", "qsync_spark.compaction", words, is_quiet, result.exists, folder)
    found: dict[str, Any] = json.loads(result.read_text())
    if output in (Output.json, Output.yaml):
        print_document(found, output)
    else:
        _show(found)
    if found["fragments"] and found["fragments"]["problems"]:
        raise Failure(FailureReason.FAILED, "some fragments are left as they are: run an audit")


def _show(found: dict[str, Any]) -> None:
    if found["is_dry_run"]:
        say(
            f"{found['cluster']}: would fold {found['bytes_before']} bytes up to index"
            f" {found['index']}, merge {found['merged_files']} files and delete"
            f" {found['deleted_files']}"
        )
        _show_fragments(found["fragments"], "would be merged")
        return
    if found["name"]:
        say(
            f"{found['cluster']}: compacted up to index {found['index']}, {found['verdict']} ·"
            f" {found['bytes_before']} bytes of log and snapshots folded into"
            f" {found['bytes_after']} · {found['seconds']:.1f} s"
        )
        rows = [[str(t["space"]), t["name"], str(t["rows"]), t["folder"]] for t in found["tables"]]
        print_table(["SPACE", "NAME", "ROWS", "FOLDER"], rows)
        say(f"snapshot: {found['snapshot']}")
    for note in found["notes"]:
        say(f"  {note}")
    say(f"merged {found['merged_files']} files, deleted {found['deleted_files']}")
    _show_fragments(found["fragments"], "merged")


def _show_fragments(fragments: dict[str, Any] | None, verb: str) -> None:
    if fragments is None:
        return
    for text in fragments["problems"]:
        warn(text)
    say(fragments_sentence(fragments, verb))
