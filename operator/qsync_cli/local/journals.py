"""`qsync local journals`: the journals of a local cluster, as its brokers report them."""

import json
import time
from typing import TYPE_CHECKING, Any

from qsync_cli import brokers, clusters
from qsync_cli import waiting as cli_waiting
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption
from qsync_cli.output import print_document, print_table
from qsync_operator.plan import journalstatus

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles, Declaration
    from qsync_operator.api.cluster import QsyncCluster
    from qsync_operator.api.journals import QsyncJournal
    from qsync_operator.plan.journalstatus import JournalReport, Sight

POLL_S = 0.1


def journals(name: NameArgument, output: OutputOption = None) -> None:
    """List the journals of a cluster: brokers, write head, and state.

    The state is Writable, or the gravest problem; `-o wide` explains it.
    """
    store = clusters.open_store(name)
    found = _described(store)
    if not found:
        brokers.answering_broker(store)  # which fails with the cause, unless one answers now
        found = _described(store)
    shown = [
        _shown(sight, *journalstatus.first_problem(sight))
        for _, sight in sorted(journalstatus.sights(_reports(found)).items())
    ]
    if output in (Output.json, Output.yaml):
        print_document(shown, output)
        return
    header = ["JOURNAL", "PRIMARY", "BROKERS", "HEAD", "STATE"]
    rows = [
        [
            one["name"],
            one["primary"] or "-",
            ",".join(one["brokers"]) or "-",
            "-" if one["write_head"] is None else str(one["write_head"]),
            one["state"],
        ]
        for one in shown
    ]
    if output is Output.wide:
        header.append("MESSAGE")
        rows = [[*row, one["message"] or "-"] for row, one in zip(rows, shown, strict=True)]
    print_table(header, rows)


def _shown(sight: "Sight", state: str, message: str) -> dict[str, Any]:
    """Return the report of a journal's primary, or the route alone if the primary is silent."""
    report = sight.primary or sight.route
    return {**report.model_dump(), "state": str(state), "message": message}


def wait_journals(
    store: "ClusterFiles", cluster: "QsyncCluster", applied: "list[QsyncJournal]", timeout_s: float
) -> "list[Declaration]":
    """Wait until all brokers serve, and the applied journals accept appends.

    Args:
        store: files of the cluster.
        cluster: the manifest.
        applied: the journals that were applied.
        timeout_s: time to wait in seconds.

    Returns:
        What became of the applied journals.

    Raises:
        Failure: they do not in time, or cannot.
    """
    assert cluster.spec.journals is not None
    if not cluster.spec.journals.enabled:
        return []

    names = {journal.name for journal in applied}
    begun_s = time.monotonic()
    while True:
        declared = [one for one in store.load_journals() if one.journal.name in names]
        _check_refusals(declared)
        waiting = _unfinished(cluster, declared, _described(store))
        if not waiting:
            return declared
        waited_s = time.monotonic() - begun_s
        cluster.status = store.load_status()
        cli_waiting.refuse_hopeless(cluster, waited_s)
        if waited_s > timeout_s:
            raise Failure(
                FailureReason.TIMED_OUT,
                f"{waiting} of {cluster.name} is not ready after {timeout_s:g} s: check `qsync"
                f" local journals {cluster.name} -o wide` and `qsync local events {cluster.name}`",
            )
        time.sleep(POLL_S)


def _unfinished(
    cluster: "QsyncCluster", declared: "list[Declaration]", found: dict[str, Any]
) -> str:
    """Return the first broker or journal that is not ready, or ""."""
    if len(found) < cluster.spec.replicas:
        return "a broker"
    seen = journalstatus.sights(_reports(found))
    for one in declared:
        name = one.journal.spec.journal
        sight = seen.get(name)
        if one.is_pending or sight is None or not _accepts_appends(sight):
            return f"journal {name}"
    return ""


def _accepts_appends(sight: "Sight") -> bool:
    route, primary = sight
    if route.suspend_level:
        return True  # the next append resumes it
    return (
        primary is not None and primary.is_ready and len(route.brokers) >= route.replication
    ) or route.is_read_only


def _check_refusals(declared: "list[Declaration]") -> None:
    for one in declared:
        if one.refusal:
            text = f"QsyncJournal {one.journal.name} is refused: {one.refusal}"
            raise Failure(FailureReason.REFUSED, text)


def _described(store: "ClusterFiles") -> dict[str, Any]:
    """Return the descriptions of all brokers that answer, by broker."""
    found = {}
    for access in brokers.local_access(store):
        try:
            found[access.name] = json.loads(access.get("/debug/journals"))
        except (OSError, ValueError):
            continue
    return found


def _reports(found: dict[str, Any]) -> "dict[str, tuple[int, list[JournalReport]]]":
    return {
        broker: (
            int(described["revision"]),
            [journalstatus.JournalReport.model_validate(one) for one in described["journals"]],
        )
        for broker, described in found.items()
    }
