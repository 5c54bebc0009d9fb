"""`qsync audits` and `report`: the verdicts of audits, and the report of one."""

from typing import TYPE_CHECKING, Any

import typer

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as sessions
from qsync_cli.local import audits as local_audits
from qsync_cli.local.audits import AuditOption
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import done, print_document, print_table, say
from qsync_cli.where import Where, aimed

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession


@aimed
def audits(where: Where, output: OutputOption = None) -> None:
    """List audits with their verdicts, oldest first."""
    _refuse_address(where)
    if where.local is not None:
        local_audits.audits(where.local, output)
        return
    found = _finished(where)
    if output in (Output.json, Output.yaml):
        print_document(found, output)
    elif not found:
        say("there is no audit yet: run `qsync audit`")
    else:
        print_table(["AUDIT", "PHASE", "VERDICT", "FINISHED"], [_row(one) for one in found])


@aimed
def report(where: Where, audit: AuditOption = None, output: OutputOption = None) -> None:
    """Print the location of the report of an audit."""
    _refuse_address(where)
    if where.local is not None:
        local_audits.report(where.local, audit, output)
        return
    found = [
        one
        for one in _finished(where)
        if audit in (None, one["metadata"]["name"]) and one.get("status", {}).get("report")
    ]
    if not found:
        name = f"audit {audit}" if audit is not None else "an audit with a report"
        raise Failure(FailureReason.NOT_FOUND, f"{name} not found: `qsync audits` lists all audits")
    newest, location = found[-1]["metadata"]["name"], found[-1]["status"]["report"]
    done(str(location), output, audit=newest, report=location)


def _finished(where: Where) -> list[dict[str, Any]]:
    """Return the QsyncAudits of a cluster, oldest first."""

    async def read(session: "KubernetesSession") -> list[dict[str, Any]]:
        cluster = sessions.choose(await session.clusters(), where, session.namespace, None)
        name = cluster["metadata"]["name"]
        found = await session.api.find("QsyncAudit", session.namespace)
        return [one for one in found if one["spec"].get("cluster") == name]

    found = sessions.converse(where, read)
    return sorted(found, key=lambda one: str(one["metadata"].get("creationTimestamp")))


def _row(audit: dict[str, Any]) -> list[str]:
    status = audit.get("status") or {}
    shown = (status.get(key) or "-" for key in ("phase", "verdict", "finishedAt"))
    return [str(audit["metadata"]["name"]), *map(str, shown)]


def _refuse_address(where: Where) -> None:
    if where.address is not None:
        raise typer.BadParameter("--address cannot be used here: specify CLUSTER")
