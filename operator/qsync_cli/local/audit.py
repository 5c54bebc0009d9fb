"""`qsync local audit`: audits the archive of a cluster with all cores of this machine."""

import asyncio
import json
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.local.jobs import run_job
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import counted, print_document, print_table, say, warn
from qsync_local import ports
from qsync_operator.members import links as members_links

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Path or URL of the outcomes that clients recorded: JSON Lines or Parquet.",
        metavar="FILE",
    ),
]
AppendsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--appends",
        help="Path or URL of a ledger of appends to journals. May be repeated.",
        metavar="FILE",
        show_default=False,
    ),
]
LAG_ALLOWED_S = 30.0
STATEMENT_WIDTH = 54
"""Columns of a terminal of 80 that remain for the statement of a proof."""


class EngineChoice(StrEnum):
    """Values of `--engine`."""

    auto = "auto"
    process = "process"
    spark = "spark"


EngineOption = Annotated[
    EngineChoice,
    typer.Option(
        "--engine",
        help="Where the audit runs: auto takes one process without Java for a small archive.",
    ),
]
_ENGINES = {"process": "in one process", "spark": "with Spark"}


def audit(
    name: NameArgument,
    ledger: LedgerOption = None,
    appends: AppendsOption = None,
    output: OutputOption = None,
    engine: EngineOption = EngineChoice.auto,
) -> None:
    """Audit the archive and the journals for lost writes. Exit code 1 unless the audit passes."""
    store = clusters.open_store(name)
    cluster = clusters.load_cluster(store)
    if cluster.spec.archive is None:
        raise Failure(
            FailureReason.INVALID,
            f"cannot audit {name}: it has no archive; set spec.archive.url, or apply with "
            "--archive file:///FOLDER",
        )
    for option, places in (("--ledger", [ledger] if ledger else []), ("--appends", appends or [])):
        for place in places:
            if "://" not in place and not Path(place).exists():
                text = f"ledger {place} not found: correct {option}"
                raise Failure(FailureReason.NOT_FOUND, text)
    if appends and (cluster.spec.journals is None or not cluster.spec.journals.enabled):
        text = f"{name} has no journals: leave out --appends"
        raise Failure(FailureReason.INVALID, text)
    unarchived = _unarchived(store)
    started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = store.directory / "audits" / started
    words = ["--ledger", ledger] if ledger is not None else []
    words += [word for place in appends or () for word in ("--appends", place)]
    words += ["--engine", engine.value, "--unarchived", unarchived]
    found = _run(cluster.spec.archive.url, name, words, folder, output)
    found["report"] = str(folder / "report.html")
    if output in (Output.json, Output.yaml):
        print_document(found, output)
    else:
        _show(found)
    if found["verdict"] != "Passed":
        raise typer.Exit(1)


class ArchivingOutcome(NamedTuple):
    """The outcome of a request to archive all confirmed rows.

    Attributes:
        warnings: failures of members.
        unarchived: why confirmed rows may be missing in the archive, so that an audit of it cannot
            pass; "" if a majority of the voters archived them, or the cluster is stopped.
    """

    warnings: list[str]
    unarchived: str = ""


def _unarchived(store: "ClusterFiles") -> str:
    """Make all members archive their rows, and return why some may be missing, or ""."""
    archived = archive_now(store)
    if not archived.unarchived:
        for text in archived.warnings:
            warn(text)
    return archived.unarchived


def archive_now(store: "ClusterFiles") -> ArchivingOutcome:
    """Make all running members archive their confirmed rows."""
    state = store.load_state()
    members = state.members
    voters = [member for member, record in members.items() if record.kind == "voter"]
    spec = clusters.load_cluster(store).spec
    url = spec.archive.url if spec.archive is not None else "URL"
    gone = [member for member in voters if not any(store.data_directory(member).glob("*.snap"))]
    if state.is_formed and voters and len(gone) == len(voters):
        return ArchivingOutcome(
            [],
            f"the data of {', '.join(gone)} is gone; restore the directories, or create a new "
            f"cluster with `qsync restore NEW --archive {url}`",
        )
    if spec.hibernate and not any(one.pid for one in members.values()):
        return ArchivingOutcome(
            [f"{store.name} is stopped, so the audit ends before rows that are not archived yet"]
        )
    secret, certificates = clusters.secrets_of(store).cluster, clusters.certificates_of(store)

    async def ask_all() -> dict[str, str]:
        links = members_links.NodeLinks(secret, certificates.context)

        async def ask(port: int) -> str:
            try:
                await links.post(f"{ports.HOST}:{port}", "/archive", {})
            except members_links.LinkError as error:
                return str(error)
            return ""

        try:
            asked = {
                member: ask(record.admin)
                for member, record in members.items()
                if record.kind != "anonymous"
            }
            errors = await asyncio.gather(*asked.values())
            return dict(zip(asked, errors, strict=True))
        finally:
            await links.close()

    failed = {member: error for member, error in asyncio.run(ask_all()).items() if error}
    if not failed:
        return ArchivingOutcome([])
    reasons = "; ".join(dict.fromkeys(failed.values()))
    text = f"the audit ends before rows that {', '.join(failed)} did not archive: {reasons}"
    if len([member for member in voters if member not in failed]) * 2 > len(voters):
        return ArchivingOutcome([text])
    unarchived = (
        f"fewer than a majority of the voters archived their rows ({reasons}); start the members "
        f"(`qsync status {store.name}` names their problems), then audit again"
    )
    return ArchivingOutcome([text], unarchived)


def _run(
    url: str, name: str, words: list[str], folder: Path, output: Output | None
) -> dict[str, Any]:
    """Run the job in a separate process. Return its JSON result."""
    words = [
        "--archive", url, "--cluster", name, "--report", str(folder), "--master", "local[*]",
        "--lag-allowed", str(LAG_ALLOWED_S), *words,
    ]  # fmt: skip
    said = folder / "audit.json"
    is_quiet = output in (Output.json, Output.yaml)
    starts = "reading the archive"
    run_job("auditing", "qsync_spark.audit", words, is_quiet, said.exists, folder, starts)
    found: dict[str, Any] = json.loads(said.read_text())
    return found


def _wrapped(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the lines of a statement, and whether each is the first one."""
    return ((n == 0, line) for n, line in enumerate(textwrap.wrap(text, STATEMENT_WIDTH)))


def _show(found: dict[str, Any]) -> None:
    counts = found["counts"]
    say(
        f"{found['cluster']}: {found['verdict']} · {counted(counts['memberRows'])} of"
        f" {counted(counts['members'], 'member')} up to index {found['auditedIndex']} ·"
        f" {found['seconds']:.1f} s {_ENGINES[found['engine']]}"
    )
    rows = [
        [n, one["verdict"], line] if is_first else ["", "", line]
        for n, one in found["proofs"].items()
        for is_first, line in _wrapped(one["proof"])
    ]
    print_table(["PROOF", "VERDICT", "STATEMENT"], rows)
    if found["violations"]:
        say(f"violations: {found['violationCount']}")
        for one in found["violations"]:
            say(f"  {one['message']} ({one['file'] or 'all members'} at {one['offset']})")
    for one in found["incomplete"]:
        where = f" ({one['file']} at {one['offset']})" if one["file"] else ""
        say(f"  unknown: {one['message']}{where}")
    for note in found["notes"]:
        say(f"  {note}")
    say(f"report: {found['report']}")
