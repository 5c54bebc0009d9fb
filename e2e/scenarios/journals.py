"""Journals: appends continue while brokers are killed, pods restart and the cluster is scaled."""

import contextlib
import json
from typing import Any

from e2e.clients import HERE, writer_pod
from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.scenarios.documentation import PAGES, as_printed, as_somebody_there
from e2e.timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S, WRITER_S

JOURNAL, RESOURCE = "orders/eu", "orders-eu"
URL = f"http://{CLUSTER}-journals:8080/{JOURNAL}"
LEDGER = "/ledger/appends"
POD = "writer"
OTHERS = 6  # journals that are declared only, so that every broker has some
KILL = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit() and b"qsync_broker\\0" in (folder / "cmdline").read_bytes():
        os.kill(int(folder.name), signal.SIGKILL)
"""


def _declare(scene: Scene, name: str, journal: str) -> None:
    document = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncJournal",
        "metadata": {"name": name},
        "spec": {"cluster": scene.cluster, "journal": journal, "replication": 2},
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _holders(scene: Scene) -> set[str]:
    """Return the brokers that have journals, according to all statuses."""
    found = json.loads(scene.kubectl("get", "qsyncjournals", "-o", "json"))["items"]
    return {broker for one in found for broker in (one.get("status") or {}).get("brokers", [])}


def _status(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = scene.get("qsyncjournal", RESOURCE).get("status") or {}
    return found


def _is_well(scene: Scene) -> bool:
    """Return whether the conditions are those of a journal in good order."""
    found = {one["type"]: one["status"] for one in _status(scene).get("conditions", [])}
    return found == {
        "Consistent": "True",
        "Writable": "True",
        "StoreHealthy": "True",
        "HeadKnown": "True",
        "Suspended": "False",
    }


def _exec(scene: Scene, *command: str) -> str:
    return scene.kubectl("exec", POD, "--", *command)


def start_pod(scene: Scene, command: str) -> None:
    """Run a shell command in a pod with the image of the nodes and the script of the appends."""
    script = (HERE / "pods" / "appender.py").read_text()
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POD},
        "data": {"appender.py": script},
    }
    pod = json.loads(writer_pod(scene, ""))
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", command]
    for document in (config, pod):
        scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    scene.kubectl(
        "wait",
        "--for=condition=Ready",
        f"pod/{POD}",
        f"--timeout={READY_S:.0f}s",
        timeout_s=READY_S + 10,
    )


def _start_appending(scene: Scene) -> None:
    start_pod(scene, f"python /script/appender.py append {URL} {LEDGER}; sleep 3600")
    scene.wait("appends", lambda: _appends(scene) > 10, READY_S)


def _appends(scene: Scene) -> int:
    with contextlib.suppress(RuntimeError):
        return int(_exec(scene, "sh", "-c", f"cat {LEDGER} | wc -l"))
    return 0


def _continues(scene: Scene) -> None:
    """Wait until further lines are acknowledged."""
    before = _appends(scene)
    scene.wait("appends after the fault", lambda: _appends(scene) > before + 5, FAILOVER_S)


def _restart_all(scene: Scene) -> None:
    """Restart all pods, one at a time."""
    before = set(scene.pods().values())
    scene.kubectl("annotate", "qc", scene.cluster, "qsync.dev/restartedAt=now")

    def is_done() -> bool:
        return not before & set(scene.pods().values()) and scene.is_ready(3)

    scene.wait("new pods", is_done, ROLL_S)


def _nothing_is_lost(scene: Scene) -> dict[str, Any]:
    _exec(scene, "touch", f"{LEDGER}.stop")
    has_ended = f"ls {LEDGER}.ended 2>/dev/null || true"
    scene.wait("the last append", lambda: bool(_exec(scene, "sh", "-c", has_ended)), WRITER_S)
    said = _exec(scene, "python", "/script/appender.py", "check", URL, LEDGER)
    found: dict[str, Any] = json.loads(said)
    if found["wrong"] or found["torn"]:
        raise Wrong(f"acknowledged lines are missing or torn: {said}")
    return found


def _begin(scene: Scene) -> None:
    """Start a cluster with journals, and append to one of them."""
    scene.start(journals={"enabled": True})
    _declare(scene, RESOURCE, JOURNAL)
    for number in range(OTHERS):
        _declare(scene, f"other-{number}", f"other/{number}")
    scene.wait("a journal in good order", lambda: _is_well(scene), CONVERGE_S)
    _start_appending(scene)


def _sentence(found: dict[str, Any]) -> str:
    return (
        f"{found['acknowledged']} acknowledged lines are at their offsets,"
        f" {found['retries']} attempts were repeated, the longest pause was {found['pause_s']} s"
    )


@scenario(quick=True, not_local="pods")
def journals(scene: Scene) -> str:
    """Appends continue while a broker is killed, and while voters come and go."""
    _begin(scene)
    killed = str(_status(scene)["primary"])
    scene.kubectl("exec", killed, "-c", "broker", "--", "python", "-c", KILL)
    _continues(scene)
    scene.wait("the journal after the kill", lambda: _is_well(scene), CONVERGE_S)
    scene.scale(4)
    scene.wait("four members", lambda: scene.is_ready(4), ROLL_S)
    added = f"{scene.cluster}-3"
    scene.wait("journals of the new broker", lambda: added in _holders(scene), CONVERGE_S)
    scene.scale(3)
    scene.wait("three members", lambda: scene.is_ready(3) and len(scene.processes()) == 3, ROLL_S)
    _continues(scene)
    if not scene.events("DrainBroker"):
        raise Wrong("the removed broker had no order to hand its journals over")
    scene.wait("the journal after scaling", lambda: _is_well(scene), CONVERGE_S)
    scene.wait("journals without the old broker", lambda: added not in _holders(scene), CONVERGE_S)
    scene.kubectl("delete", "qsyncjournal", RESOURCE)
    return _sentence(_nothing_is_lost(scene))


@scenario(not_local="pods")
def journals_rollout(scene: Scene) -> str:
    """Appends continue while all pods restart, one at a time, and while one is deleted."""
    _begin(scene)
    _restart_all(scene)
    _continues(scene)
    scene.wait("the journal after the restarts", lambda: _is_well(scene), CONVERGE_S)
    scene.renew(str(_status(scene)["primary"]))
    _continues(scene)
    scene.wait("the journal after the deletion", lambda: _is_well(scene), CONVERGE_S)
    return _sentence(_nothing_is_lost(scene))


@scenario(not_local="pages")
def journals_page(scene: Scene) -> str:
    """Runs the commands for Kubernetes of docs/journals.md as printed."""
    page = (PAGES / "journals.md").read_text().partition("## On Kubernetes")[2]
    script = page.partition("```sh\n")[2].partition("```")[0]
    with as_somebody_there(scene) as environment:
        as_printed(f"trap 'kill $(jobs -p)' EXIT\n{script}", environment)
    scene.cluster = "events"
    scene.wait(
        "the head in the status",
        lambda: _status(scene).get("writeHead") == len("one\ntwo\n"),
        CONVERGE_S,
    )
    return f"{len(script.splitlines())} commands have the documented effect"
