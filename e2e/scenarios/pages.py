"""The web page of the operator's chart, through `kubectl port-forward` as in docs/kubernetes.md."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from e2e.kube import SYSTEM, run
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import CHART_S, CONVERGE_S
from qsync_testing.paths import ROOT

JOURNAL = "orders/eu"
DEPLOYMENT = "deployment/qsync-operator-web"


def _set_page(value: str) -> None:
    run(
        "helm", "upgrade", "qsync-operator", str(ROOT / "charts" / "qsync-operator"), "-n", SYSTEM,
        "--reuse-values", "--set", f"web.enabled={value}", "--wait", "--timeout", f"{CHART_S:g}s",
        timeout_s=CHART_S + 30,
    )  # fmt: skip


@contextlib.contextmanager
def _forwarded() -> Iterator[str]:
    """Yield the address of the page while its port is forwarded."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["kubectl", "port-forward", "-n", SYSTEM, DEPLOYMENT, f"{port}:8083"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as one:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            one.kill()


def _get(url: str, **query: str) -> dict[str, Any]:
    """Return an answer of the page, or {} while it gives none."""
    try:
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def _create(scene: Scene, kind: str, name: str, **spec: object) -> None:
    document = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"cluster": scene.cluster, **spec},
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _journal(page: str, key: str) -> dict[str, Any]:
    found = _get(f"{page}/api/journals", cluster=key, part=JOURNAL)
    return next(iter(found.get("journals", [])), {})


@scenario(quick=True, not_local="objects")
def web_page(scene: Scene) -> str:
    """The chart's web page shows members, events, audits, brokers and journals of a cluster."""
    begun_s = time.monotonic()
    scene.start(journals={"enabled": True})
    _create(scene, "QsyncJournal", "orders-eu", journal=JOURNAL, replication=2)
    _create(scene, "QsyncAudit", "without-archive")
    key = f"{scene.name}/{scene.cluster}"
    _set_page("true")
    try:
        with _forwarded() as page:
            scene.wait("the page", lambda: bool(_get(f"{page}/api/clusters")), CONVERGE_S)
            keys = [one["key"] for one in _get(f"{page}/api/clusters")["clusters"]]
            if key not in keys:
                raise Wrong(f"{key} is not in the list of clusters: {keys}")
            scene.wait(
                "the failed audit",
                lambda: bool(_get(f"{page}/api/cluster", cluster=key).get("audits")),
                CONVERGE_S,
            )
            found = _get(f"{page}/api/cluster", cluster=key)
            scene.wait(
                "a writable journal",
                lambda: _journal(page, key).get("state") == "Writable",
                CONVERGE_S,
            )
            brokers = _get(f"{page}/api/journals", cluster=key)["brokers"]
    finally:
        _set_page("false")
    members = {one["name"]: one["answers"] for one in found["members"]}
    if members != dict.fromkeys(scene.pods(), True) or found["phase"] != "Ready":
        raise Wrong(f"the page shows {found['phase']} and the members {members}")
    if not found["events"]:
        raise Wrong("the page shows no events")
    states = {one["name"]: one["state"] for one in brokers}
    if states != dict.fromkeys(scene.pods(), "ready"):
        raise Wrong(f"the page shows the brokers {states}")
    audits = ", ".join(one["name"] for one in found["audits"])
    return (
        f"the page shows {len(members)} members, {len(found['events'])} events, the audit"
        f" {audits}, {len(brokers)} brokers and a writable journal, after"
        f" {time.monotonic() - begun_s:.0f} s"
    )
