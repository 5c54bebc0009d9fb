"""`qsync local journals`: the journals of a local cluster, as its brokers report them."""

import http.client
import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import NameArgument, Output, OutputOption

if TYPE_CHECKING:
    from qsync_operator.models.cluster import QsyncCluster
    from qsync_operator.platform.store import Store

TIMEOUT_S = 2.0
POLL_S = 0.1


def journals(name: NameArgument, output: OutputOption = None) -> None:
    """List the journals of a cluster: brokers, write head, and whether they are consistent."""
    from qsync_cli.clusters import open_store
    from qsync_cli.output import print_document, print_table

    found = _described(open_store(name))
    if not found:
        raise Failure(
            FailureReason.NOT_READY,
            f"no broker of {name} answers: set spec.journals.enabled, or read its brokers' logs",
        )
    if output in (Output.json, Output.yaml):
        print_document(_merged(found), output)
        return
    rows = [
        [
            journal["name"],
            journal["primary"] or "-",
            ",".join(journal["brokers"]) or "-",
            str(journal["write_head"]),
            "yes" if journal["is_consistent"] else "no",
        ]
        for journal in _merged(found)
    ]
    print_table(["JOURNAL", "PRIMARY", "BROKERS", "HEAD", "CONSISTENT"], rows)


def wait_journals(store: "Store", cluster: "QsyncCluster", timeout_s: float) -> None:
    """Wait until all brokers serve, and all declared journals accept appends.

    Raises:
        Failure: they do not in time.
    """
    assert cluster.spec.journals is not None
    if not cluster.spec.journals.enabled:
        return
    declared = {journal.spec.journal for journal in store.load_journals()}
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = _described(store)
        missing = declared - {
            journal["name"]
            for broker in found
            for journal in broker["journals"]
            if journal["is_ready"] and len(journal["brokers"]) == journal["replication"]
        }
        if len(found) == cluster.spec.replicas and not missing:
            return
        if time.monotonic() > deadline_s:
            what = f"journal {min(missing)}" if missing else "a broker"
            raise Failure(
                FailureReason.TIMED_OUT,
                f"{what} of {cluster.name} is not ready after {timeout_s:g} s: check `qsync local"
                f" journals {cluster.name}` and `qsync local events {cluster.name}`",
            )
        time.sleep(POLL_S)


def _described(store: "Store") -> list[dict[str, Any]]:
    """Return the answers of all brokers that answer."""
    from qsync_cli.brokers import local_access

    found = []
    for access in local_access(store):
        request = urllib.request.Request(f"{access.url}/debug/journals", headers=access.headers())
        try:
            context = access.context()
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
                found.append(json.loads(answer.read()))
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return found


def _merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each journal once, as of the latest revision, with its greatest write head."""
    heads: dict[str, int] = {}
    for broker in found:
        for journal in broker["journals"]:
            head = journal["write_head"] or 0
            heads[journal["name"]] = max(head, heads.get(journal["name"], 0))
    latest = max(found, key=lambda broker: int(broker["revision"]))
    return [{**journal, "write_head": heads[journal["name"]]} for journal in latest["journals"]]
