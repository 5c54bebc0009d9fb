"""A campaign of faults against brokers in pods, under a load whose every request has a record.

The load and the checker are those of `make chaos-journals`; they run in a pod. The faults are those
that only a cluster of machines has, and kills at random moments:

fault             what happens
---------------   --------------------------------------------------------------------------
kill_primary      the broker process that is the primary of a journal is killed
kill_peer         another broker process of the journal is killed
kill_all          all broker processes are killed at once
pause_primary     a primary stops for longer than its lease: another one exists then
hiccup_primary    a primary stops for less than its lease
cut_off_primary   packets from and to the pod of a primary are dropped for longer than its lease
cut_off_store     packets from and to the object store are dropped
kill_leader       the process that leads the cluster is killed
renew_primary     the pod of a primary is replaced
"""

import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e import archive_server
from e2e.clients import HERE, writer_pod
from e2e.machines import cut_off
from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.timeouts import CONVERGE_S, READY_S, WRITER_S
from qsync_broker.config import ServerConfig
from qsync_testing.paths import ROOT

LEDGER = "/ledger/load"
LOAD = "qsync_testing.brokers.load"
HELPERS = ROOT / "node" / "qsync_testing" / "brokers"
POD = "writer"
SEED = 1
ROUNDS = 3
"""Number of times that each fault happens."""
LEASE_S = ServerConfig.model_fields["lease_ms"].default / 1000
BROKERS = [f"http://{CLUSTER}-{number}.{CLUSTER}:8080" for number in range(3)]
FRAGMENT = 1 << 16
"""Length of a fragment in bytes: fragments are completed and persisted all the time."""
SIGNAL = """
import contextlib, os, pathlib, signal, sys
for folder in pathlib.Path("/proc").iterdir():
    with contextlib.suppress(OSError):
        command = (folder / "cmdline").read_bytes().split(b"\\0")
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            if sys.argv[1].encode() in command:
                os.kill(int(folder.name), signal.Signals["SIG" + sys.argv[2]])
"""
JOURNALS = {
    "three/kept": ("three-kept", 3, False),
    "two/kept": ("two-kept", 2, False),
    "three/stored": ("three-stored", 3, True),
    "two/stored": ("two-stored", 2, True),
}
"""Journals: the name of the resource, the replication, and whether there is a store."""


class PodCampaign:
    """Faults, one after the other, and the progress of the load."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rng = random.Random(SEED)
        self.slowest: dict[str, float] = {}
        self.faults: dict[str, Callable[[], object]] = {
            "kill_primary": lambda: self._signal(self._primary(), "KILL"),
            "kill_peer": lambda: self._signal(self._peer(), "KILL"),
            "kill_all": self._kill_all,
            "pause_primary": lambda: self._pause(1.5 * LEASE_S),
            "hiccup_primary": lambda: self._pause(0.4 * LEASE_S),
            "cut_off_primary": lambda: self._cut_off(self._primary()),
            "cut_off_store": lambda: self._cut_off("s3"),
            "kill_leader": lambda: scene.kill(scene.current_leader()),
            "renew_primary": lambda: scene.renew(self._primary()),
        }

    def run(self) -> None:
        """Inject all faults in random order, and wait after each until all journals advance."""
        names = list(self.faults) * ROUNDS
        self._rng.shuffle(names)
        for name in names:
            began_s = time.monotonic()
            self.faults[name]()
            self._advances(name)
            took_s = time.monotonic() - began_s
            self.slowest[name] = max(took_s, self.slowest.get(name, 0.0))

    def _advances(self, after: str) -> None:
        before = self.counts()

        def do_all() -> bool:
            now = self.counts()
            return all(now.get(name, 0) > before.get(name, 0) + 2 for name in JOURNALS)

        self._scene.wait(f"appends to all journals after {after}", do_all, CONVERGE_S)

    def counts(self) -> dict[str, int]:
        """Return the acknowledged appends by journal."""
        with contextlib.suppress(RuntimeError):
            found: dict[str, int] = json.loads(self.ask("counts", LEDGER))
            return found
        return {}

    def ask(self, *arguments: str) -> str:
        """Run the checker in the pod of the load."""
        return self._scene.kubectl("exec", POD, "--", "python", "/script/journal_check.py",
                                   *arguments)  # fmt: skip

    # --- faults -------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """Return the status of a random journal that has a primary."""

        def known() -> list[dict[str, Any]]:
            found = json.loads(self._scene.kubectl("get", "qsyncjournals", "-o", "json"))["items"]
            return [one["status"] for one in found if (one.get("status") or {}).get("primary")]

        self._scene.wait("a journal with a primary", lambda: bool(known()), CONVERGE_S)
        return self._rng.choice(known())

    def _primary(self) -> str:
        return str(self._state()["primary"])

    def _peer(self) -> str:
        state = self._state()
        others = [name for name in state.get("brokers", []) if name != state["primary"]]
        return str(self._rng.choice(others or [state["primary"]]))

    def _signal(self, pod: str, number: str) -> None:
        """Send a signal to the broker of a pod."""
        self._scene.kubectl(
            "exec", pod, "-c", "broker", "--", "python", "-c", SIGNAL, "qsync_broker", number
        )

    def _kill_all(self) -> None:
        for number in range(3):
            self._signal(f"{CLUSTER}-{number}", "KILL")

    def _pause(self, seconds: float) -> None:
        pod = self._primary()
        self._signal(pod, "STOP")
        try:
            time.sleep(seconds)  # the span that the fault is about
        finally:
            self._signal(pod, "CONT")

    def _cut_off(self, pod: str) -> None:
        with cut_off(self._scene.name, pod):
            time.sleep(1.5 * LEASE_S)  # as above


def _declare(scene: Scene) -> None:
    for journal, (name, replication, is_stored) in JOURNALS.items():
        fragment: dict[str, Any] = {"length": FRAGMENT}
        if is_stored:
            fragment |= {"stores": [f"s3://{archive_server.BUCKET}/journals/"]}
        spec = {"cluster": scene.cluster, "journal": journal, "replication": replication,
                "fragment": fragment}  # fmt: skip
        document = {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncJournal",
            "metadata": {"name": name},
            "spec": spec,
        }
        scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _start_load(scene: Scene) -> None:
    """Start the load in a pod, with the checker beside it."""
    scripts = {
        "journal_check.py": HERE / "pods" / "journal_check.py",
        "qsync_testing/brokers/load.py": HELPERS / "load.py",
        "qsync_testing/brokers/checker.py": HELPERS / "checker.py",
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POD},
        "data": {Path(place).name: path.read_text() for place, path in scripts.items()},
    }
    pod = json.loads(writer_pod(scene, ""))
    command = (
        f"cd /script; python -m {LOAD} --brokers {','.join(BROKERS)}"
        f" --journals {','.join(JOURNALS)} --ledger {LEDGER} --writers 4 --seed {SEED};"
        f" echo $? > {LEDGER}.ended; sleep 3600"
    )
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", command]
    items = [{"key": Path(place).name, "path": place} for place in scripts]
    pod["spec"]["volumes"][0]["configMap"]["items"] = items
    for document in (config, pod):
        scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _stop_load(scene: Scene) -> None:
    scene.kubectl("exec", POD, "--", "python", "-c", SIGNAL, LOAD, "TERM")

    def code() -> str:
        ended = f"cat {LEDGER}.ended 2>/dev/null || true"
        return scene.kubectl("exec", POD, "--", "sh", "-c", ended).strip()

    scene.wait("the end of the load", lambda: bool(code()), WRITER_S)
    if code() != "0":
        raise Wrong(f"the load ended with {code()}: {scene.kubectl('logs', POD)[-1000:]}")


@scenario(needs=("machines",), not_local="machines")
def journal_faults(scene: Scene) -> str:
    """Brokers are killed, paused and cut off from each other, the cluster and the store."""
    archive_server.build_server()
    archive = archive_server.start(scene)
    scene.start(journals={"enabled": True}, archive=archive)
    _declare(scene)
    _start_load(scene)
    campaign = PodCampaign(scene)

    def has_begun() -> bool:
        return all(campaign.counts().get(name, 0) > 2 for name in JOURNALS)

    scene.wait("appends to all journals", has_begun, READY_S)
    campaign.run()
    _stop_load(scene)
    found = json.loads(campaign.ask("check", LEDGER, ",".join(BROKERS), ",".join(JOURNALS)))
    if found["violations"]:
        raise Wrong(f"{len(found['violations'])} violations: {found['violations'][:5]}")
    slowest = max(campaign.slowest, key=lambda name: campaign.slowest[name])
    return (
        f"{len(campaign.faults) * ROUNDS} faults, {found['acknowledged']:,} acknowledged appends"
        f" and {found['reads']:,} reads without a violation; {slowest} was the slowest fault: all"
        f" journals advanced {campaign.slowest[slowest]:.0f} s after it began"
    )
