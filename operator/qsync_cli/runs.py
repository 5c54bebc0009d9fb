"""`qsync audit` and `compact`: a job of a local cluster, or one on Kubernetes with its progress."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.local import audit as local_audit
from qsync_cli.local import compact as local_compact
from qsync_cli.local.audit import EngineChoice, EngineOption, LedgerOption
from qsync_cli.local.compact import DeleteOption, HistoryOption, SignatureOption
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, progress, say, step_of
from qsync_cli.where import Where, aimed

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import Document, KubernetesSession

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Report the changes without making them.")
]
MergeFragmentsOption = Annotated[
    bool, typer.Option("--merge-fragments", help="Also merge small fragments of journals.")
]
AppendsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--appends",
        help="Ledger of appends to journals: a URL, or a path for a local cluster. Repeatable.",
        metavar="URL",
        show_default=False,
    ),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return without waiting.")]
LOCAL, KUBERNETES = "for a local cluster", "on Kubernetes"
POLL_S = 1.0
ENDED = ("Succeeded", "Failed", "Cancelled")


@aimed
def audit(
    where: Where, ledger: LedgerOption = None, appends: AppendsOption = None,
    engine: EngineOption = EngineChoice.auto, no_wait: NoWaitOption = False,
    output: OutputOption = None,
) -> None:  # fmt: skip
    """Audit the archive and the journals for lost writes. Exit code 1 unless the audit passes."""
    _refuse_address(where)
    if where.local is not None:
        _refuse_on(LOCAL, {"--no-wait": no_wait})
        local_audit.audit(where.local, ledger, appends, output, engine)
        return
    is_chosen = engine is not EngineChoice.auto
    _refuse_on(KUBERNETES, {"--ledger": ledger is not None, "--engine": is_chosen})
    for place in appends or ():
        if "://" not in place:
            raise typer.BadParameter(
                f"--appends {place} is no URL: upload the ledger to a store that the pods can"
                " read, such as s3://bucket/orders/audits/appends.jsonl"
            )
    spec = {"appendLedgers": appends} if appends else {}
    found = _run(where, "QsyncAudit", spec, no_wait, output)
    if not no_wait and found["status"].get("verdict") != "Passed":
        raise typer.Exit(1)


@aimed
def compact(  # as many as there are options
    where: Where,
    history: HistoryOption = False,
    delete_older_than: DeleteOption = None,
    to_signature: SignatureOption = None,
    merge_fragments: MergeFragmentsOption = False,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    output: OutputOption = None,
) -> None:
    """Fold the confirmed rows of the archive into a verified snapshot and Parquet tables.

    On Kubernetes, `spec.archive.retention` determines the data that is deleted.
    """
    _refuse_address(where)
    if where.local is not None:
        _refuse_on(LOCAL, {"--no-wait": no_wait})
        local_compact.compact(
            where.local, history, delete_older_than, to_signature, merge_fragments, dry_run, output
        )
        return
    _refuse_on(KUBERNETES, {
        "--history": history, "--delete-older-than": delete_older_than is not None,
        "--to-signature": to_signature is not None,
    })  # fmt: skip
    spec = {"dryRun": dry_run, "mergeFragments": merge_fragments}
    found = _run(where, "QsyncCompaction", spec, no_wait, output)
    if no_wait:
        return
    status = found["status"]
    if status.get("phase") != "Succeeded" or (status.get("counts") or {}).get("fragmentProblems"):
        raise typer.Exit(1)


def _refuse_on(platform: str, given: dict[str, bool]) -> None:
    """Refuse the options that a platform does not have. Raises BadParameter."""
    for option, is_given in given.items():
        if is_given:
            raise typer.BadParameter(f"{option} is not supported {platform}: omit it")


def _refuse_address(where: Where) -> None:
    if where.address is not None:
        raise typer.BadParameter(
            "--address cannot be used here, because the job reads the archive: use --cluster NAME"
        )


def _run(
    where: Where, kind: str, spec: dict[str, Any], no_wait: bool, output: Output | None
) -> "Document":
    async def order(session: "KubernetesSession") -> "Document":
        cluster = kubernetes_session.choose(
            await session.clusters(), where, session.namespace, None
        )
        run = await session.api.create(_document(cluster, kind, spec))
        if no_wait:
            return run
        with progress(f"{kind} {run['metadata']['name']}", 1.0, output is not None) as advance:
            return await _follow(session, run, advance)

    run = kubernetes_session.converse(where, order)
    if output in (Output.json, Output.yaml):
        print_document(run, output)
    else:
        for line in lines(run):
            say(line)
    return run


def _document(cluster: "Document", kind: str, spec: dict[str, Any]) -> "Document":
    metadata = cluster["metadata"]
    what = kind.removeprefix("Qsync").lower()
    return {
        "apiVersion": cluster["apiVersion"],
        "kind": kind,
        "metadata": {
            "generateName": f"{metadata['name']}-{what}-",
            "namespace": metadata["namespace"],
        },
        "spec": {"cluster": metadata["name"], **spec},
    }


async def _follow(
    session: "KubernetesSession", run: "Document", advance: Callable[..., None]
) -> "Document":
    """Wait for the end of a job.

    Raises:
        Failure: the job was deleted.
    """
    kind, name = str(run["kind"]), str(run["metadata"]["name"])
    while True:
        found = await session.api.get(kind, session.namespace, name)
        if found is None:
            raise Failure(
                FailureReason.NOT_FOUND, f"{name} was deleted before it finished: create it again"
            )
        status = found.get("status") or {}
        if status.get("phase") in ENDED:
            return found
        if status.get("stepsTotal"):
            words = ("stepsDone", "stepsTotal", "rowsDone", "rowsTotal")
            numbers = (int(status.get(word, 0)) for word in words)
            advance(*step_of(str(status.get("step", "")), *numbers))
        await asyncio.sleep(POLL_S)  # between two polls: each asks the API server


def lines(run: "Document") -> list[str]:
    """Return the result of a job as text."""
    name, status = run["metadata"]["name"], run.get("status") or {}
    if status.get("phase") not in ENDED:
        return [
            (f"{name} was created; `kubectl get {run['kind'].lower()} {name}` shows its progress")
        ]
    took_s = int(status.get("durationMilliseconds", 0)) / 1000
    found = [
        f"{name}: {status.get('verdict') or status['phase']} · {status.get('message', '')}"
        f" · {took_s:.0f} s"
    ]
    if proofs := status.get("proofs"):
        found.append("proofs: " + ", ".join(f"{one['number']} {one['verdict']}" for one in proofs))
    found += [
        f"  {one['message']} ({one.get('location') or 'all members'})"
        for one in status.get("violations") or []
    ]
    if status.get("report"):
        found.append(f"report: {status['report']}")
    return found
