"""`qsync local audits` and `report`: what audits found, and the page of one of them."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import done, print_document, print_table, say

if TYPE_CHECKING:
    from pathlib import Path

    from qsync_local.store import ClusterFiles

AuditArgument = Annotated[
    str | None,
    typer.Argument(help="Name of the audit. The default is the newest.", metavar="AUDIT"),
]
AuditOption = Annotated[
    str | None,
    typer.Option(
        "--audit", help="Name of the audit. The default is the newest.", metavar="AUDIT",
        show_default=False,
    ),
]  # fmt: skip


def _finished(store: "ClusterFiles") -> "list[tuple[Path, dict[str, Any]]]":
    """Return the folders of audits with a complete report, oldest first."""
    paths = sorted((store.directory / "audits").glob("*/audit.json"))
    found = [(path.parent, _read(path)) for path in paths]
    return [(folder, said) for folder, said in found if said is not None]


def _read(path: "Path") -> dict[str, Any] | None:
    """Return a result; None if a full disk or a power failure damaged it, or it was deleted."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def audits(name: NameArgument, output: OutputOption = None) -> None:
    """List audits with their verdicts, oldest first."""
    found = _finished(clusters.open_store(name))
    if output in (Output.json, Output.yaml):
        print_document([{"name": folder.name, **said} for folder, said in found], output)
        return
    if not found:
        say(f"{name} has no audit yet: run `qsync audit {name}`")
        return
    rows = [
        [
            folder.name,
            said["verdict"],
            str(said["auditedIndex"]),
            str(said["violationCount"]),
            f"{said['seconds']:.1f} s",
        ]
        for folder, said in found
    ]
    print_table(["AUDIT", "VERDICT", "INDEX", "VIOLATIONS", "TOOK"], rows)


def report(name: NameArgument, audit: AuditArgument = None, output: OutputOption = None) -> None:
    """Print the location of the report of an audit."""
    found = {folder.name: folder for folder, _ in _finished(clusters.open_store(name))}
    if not found:
        raise Failure(FailureReason.NOT_FOUND, f"{name} has no audit yet: run `qsync audit {name}`")
    chosen = audit or max(found)
    if chosen not in found:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"audit {chosen} of {name} not found: `qsync audits {name}` lists all audits",
        )
    location = str(found[chosen] / "report.html")
    done(location, output, audit=chosen, report=location)
