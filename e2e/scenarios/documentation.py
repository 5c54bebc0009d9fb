"""The commands of the pages on Kubernetes, as they are printed, the charts and plain manifests."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e import archive_server
from e2e.kube import IMAGES, SYSTEM, run
from e2e.machines import MachineProcess
from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.timeouts import CHART_S, CONVERGE_S, IMAGE_BUILD_S, LATE_S, READY_S, ROLL_S
from qsync_cli.replace import SELECTED_NODE
from qsync_testing.paths import ROOT

PAGES = ROOT / "docs"
INSTALLING = ("docker build", "kind load", "helm install")
"""Commands that the runner has run already, or that would install a second operator."""
REFUSED = "replication.quorum is below a majority"


def commands(page: str) -> list[str]:
    """Return the commands of a page in their order, each with all of its lines."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", (PAGES / page).read_text(), re.DOTALL):
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                continue  # output
            command = line.removeprefix("$ ")
            while _is_open(command):
                command += "\n" + next(lines)
            found.append(command)
    return found


def _is_open(command: str) -> bool:
    """Return whether a quotation of the command continues in the next line."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


@contextlib.contextmanager
def as_somebody_there(scene: Scene) -> Iterator[dict[str, str]]:
    """Return an environment whose kubectl uses the scenario's namespace."""
    path = scene.folder / "kubeconfig"
    path.write_text(run("kubectl", "config", "view", "--raw", "--minify"))
    path.chmod(0o600)
    place = ["kubectl", "--kubeconfig", str(path), "config", "set-context", "--current"]
    run(*place, "--namespace", scene.name)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, "KUBECONFIG": str(path), "PATH": programs}


def as_printed(command: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["/bin/bash", "-e", "-o", "pipefail", "-c", command], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=IMAGE_BUILD_S, check=False,
    )  # fmt: skip
    is_as_printed = done.returncode == 0
    if '"quorum":1' in command:  # the page shows how it is refused
        is_as_printed = done.returncode != 0 and REFUSED in done.stderr
    if not is_as_printed:
        raise Wrong(f"$ {command}: {done.stdout}{done.stderr}")


@scenario(not_local="pages")
def documentation(scene: Scene) -> str:
    """Runs every command of docs/kubernetes.md as printed, except the installation."""
    ran = []
    # The bucket of the page, and its Secret.
    archive_server.build()
    archive_server.start(scene)
    with as_somebody_there(scene) as environment:
        for command in commands("kubernetes.md"):
            if command.startswith(INSTALLING):
                continue
            as_printed(command, environment)
            ran.append(command)
            if command.startswith("kubectl delete pod"):
                scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
            if "--replicas=3" in command:
                scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    scene.kubectl("delete", "secret", archive_server.SECRET)
    left = json.loads(scene.kubectl("get", "qc,pvc,secrets", "-o", "json"))["items"]
    # Kubernetes deletes owned objects a little later.
    kept = [i["metadata"]["name"] for i in left if not i["metadata"].get("ownerReferences")]
    assert not kept, f"the commands of the page that delete everything left {kept}"
    return f"{len(ran)} commands have the documented effect"


@scenario(modest=True, needs=("machines",), not_local="pages")
def operations(scene: Scene) -> str:
    """Runs every command of docs/operations.md as printed, in the state that it requires."""
    scene.start(storage={})
    before: dict[str, Callable[[Scene], None]] = {
        "force-confirm": _lose_a_majority, "replace": _lose_a_machine,
    }  # fmt: skip
    after: dict[str, Callable[[Scene], None]] = {
        "fenced=": _end_fences, '"hibernate":true': _wake, "20Gi": _put_size_back,
    }  # fmt: skip
    ran = commands("operations.md")
    with as_somebody_there(scene) as environment:
        for command in ran:
            for word in before.keys() & set(command.split()):
                before[word](scene)
            as_printed(command, environment)
            for word, put_right in after.items():
                if word in command:
                    put_right(scene)
            is_quiet = "fence" in command or "pause" in command or "delete" in command
            if not is_quiet:
                time.sleep(LATE_S)  # the operator sees the change
                scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    return f"{len(ran)} commands have the documented effect"


def _lose_a_machine(scene: Scene) -> None:
    """Make orders-1 silent, and bind its claim to a machine that Kubernetes does not know."""
    scene.lead("orders-0")
    scene.kubectl("annotate", "--overwrite", "pvc", "data-orders-1", f"{SELECTED_NODE}=gone")
    MachineProcess(scene.name, "orders-1").signal("STOP")
    scene.wait("silence", scene.has_reason("Degraded", "MemberDown"), CONVERGE_S)


def _lose_a_majority(scene: Scene) -> None:
    scene.lead("orders-0")
    others = ("orders-1", "orders-2")
    scene.kubectl("delete", "pvc", *(f"data-{name}" for name in others), "--wait=false")
    scene.kubectl("delete", "pods", *others, "--grace-period=0", "--force")
    scene.wait(
        "the sentence", lambda: "are new" in scene.condition("Ready")["message"], ROLL_S
    )  # fmt: skip


def _end_fences(scene: Scene) -> None:
    scene.wait("a free leader", lambda: scene.leader() == "orders-1", CONVERGE_S)
    scene.kubectl("annotate", "qc", CLUSTER, "qsync.dev/fenced-")
    scene.qsync("unfence", "orders-0")
    scene.wait("no fence", lambda: not scene.status().get("warnings"), CONVERGE_S)


def _wake(scene: Scene) -> None:
    scene.wait("sleep", lambda: scene.status()["phase"] == "Hibernated", ROLL_S)
    scene.patch(hibernate=False)


def _put_size_back(scene: Scene) -> None:
    scene.wait("a refusal", scene.has_reason("Degraded", "StorageRefused"), CONVERGE_S)
    scene.patch(storage={"size": None})


@scenario(modest=True, not_local="objects")
def cluster_chart(scene: Scene) -> str:
    """The chart of clusters is installed, tested with `helm test`, upgraded and uninstalled."""
    chart = str(ROOT / "charts" / "qsync-cluster")
    place = ("--namespace", scene.name)
    test = ("--set", f"testImage={IMAGES['node']}")
    run("helm", "install", CLUSTER, chart, *place, *test, "--set", "spec.storage.size=64Mi")
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    said = run("helm", "test", CLUSTER, *place, "--logs", timeout_s=CHART_S)
    assert said.count("may see") == 4, f"the Service and three members: {said}"
    required = ("--reuse-values", "--set", "spec.tls.clients=Require")
    before = scene.pods()
    run("helm", "upgrade", CLUSTER, chart, *place, *required)
    scene.wait("new pods", lambda: not set(scene.pods().values()) & set(before.values()), ROLL_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    run("helm", "test", CLUSTER, *place, timeout_s=CHART_S)
    run("helm", "uninstall", CLUSTER, *place)
    # The output of a test stays readable, so its pod stays, too.
    scene.kubectl("delete", "pod", f"{CLUSTER}-test")
    scene.wait("no pods", lambda: not scene.pods(), READY_S)
    return "`helm test` logged in at the Service and three members, before and after `Require`"


@scenario(quick=True, not_local="objects")
def plain_manifests(scene: Scene) -> str:
    """The API server accepts deploy/operator.yaml without Helm."""
    # Conflicts are forced in the dry run only, because a chart owns the installed objects.
    taken = run(
        "kubectl", "apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f",
        str(ROOT / "deploy" / "operator.yaml"),
    )  # fmt: skip
    assert f"namespace/{SYSTEM}" in taken
    assert scene.name not in taken
    return f"the API server accepts all {len(taken.splitlines())} objects"
