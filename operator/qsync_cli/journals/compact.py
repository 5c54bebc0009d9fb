"""`qsync journals compact`: merges small persisted fragments, with all cores of this machine."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_broker import labels
from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    DryRunOption,
    SelectorOption,
    TokenOption,
    ask_broker,
)
from qsync_cli.journals.listing import document_of
from qsync_cli.local import jobs
from qsync_cli.options import LocalOption, Output, OutputOption
from qsync_cli.output import done, warn
from qsync_operator.api import base

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient


def compact(
    selector: SelectorOption = "",
    grace: Annotated[
        str,
        typer.Option("--grace", help="Age of a merged fragment before sources are deleted."),
    ] = "24h",
    dry_run: DryRunOption = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Merge small persisted fragments into ones of about `fragment.length`.

    The stores are accessed from this machine. Sources of a merged fragment are deleted by the first
    command that runs after the grace period. Exit code 1 if a fragment is damaged.
    """
    _check_grace(grace)

    async def ask(client: "JournalClient") -> list[dict[str, Any]]:
        return [document_of(one) for one in await client.journals(labels.parse_selector(selector))]

    documents = ask_broker(broker, local, token, ca, ask)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "journals.json").write_text(json.dumps(documents))
        result = folder / "result.json"
        words = [
            "--journals", str(folder / "journals.json"), "--grace", grace, "--master", "local[*]",
            "--result", str(result), *(["--dry-run"] if dry_run else []),
        ]  # fmt: skip
        is_quiet = output in (Output.json, Output.yaml)
        module = "qsync_spark.journals.compaction"
        logs = clusters.open_store(local).directory / "compactions" if local is not None else None
        jobs.run_job("compacting", module, words, is_quiet, result.exists, logs)
        found: dict[str, Any] = json.loads(result.read_text())
    for text in found["problems"]:
        warn(text)
    verb = "would be merged" if dry_run else "merged"
    done(fragments_sentence(found, verb), output, **found)
    if found["problems"]:
        raise Failure(FailureReason.FAILED, "some fragments are left as they are: run an audit")


def _check_grace(text: str) -> None:
    """Refuse a duration that the job does not accept."""
    try:
        base.duration_ns(text)
    except ValueError:
        cause = f"invalid --grace {text!r}: use a duration such as 24h, or 0s for none"
        raise Failure(FailureReason.INVALID, cause) from None


def fragments_sentence(found: dict[str, Any], verb: str) -> str:
    """Return the result of a job that merges fragments, of which `verb` is the outcome."""
    return (
        f"{found['merged']} fragments {verb} into {found['written']}; {found['removed']} deleted,"
        f" {found['waiting']} wait for the grace period"
    )
