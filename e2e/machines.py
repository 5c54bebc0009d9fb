"""The machines of a kind cluster, which are containers: faults that no API offers.

Everything here asks docker. If the machines of a cluster are not containers of the local docker,
`machines()` is empty, and scenarios that need them are skipped (docs/testing-kubernetes.md).
"""

import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Iterator

from e2e.kube import Namespace, run

TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


@functools.cache
def machines() -> list[str]:
    """Return the names of the machines that docker knows, the control plane first."""
    found = json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]
    names = [item["metadata"]["name"] for item in found]
    try:
        known = run("docker", "ps", "-a", "--format", "{{.Names}}").split()
    except (RuntimeError, FileNotFoundError):
        return []
    return [name for name in names if name in known]


@functools.cache
def control_plane() -> str:
    label = "node-role.kubernetes.io/control-plane"
    return run("kubectl", "get", "nodes", "-l", label, "-o", "name").split()[0].split("/")[1]


def on(machine: str, script: str) -> str:
    return run("docker", "exec", machine, "sh", "-c", script)


def machine_of(namespace: str, pod: str) -> str:
    found = run("kubectl", "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
    return found.strip()


def _container_of(namespace: str, pod: str) -> str:
    """Return the container of the member in a pod of a cluster, and the first one of other pods."""
    found = json.loads(run("kubectl", "-n", namespace, "get", "pod", pod, "-o", "json"))
    containers = {one["name"]: one for one in found["status"]["containerStatuses"]}
    chosen = containers.get("node") or next(iter(containers.values()))
    return str(chosen["containerID"]).partition("://")[2]


class MachineProcess:
    """The first process of a container of a pod, looked up while the API server answers."""

    def __init__(self, namespace: str, pod: str) -> None:
        self.machine = machine_of(namespace, pod)
        self._pid_file = f"{TASKS}/{_container_of(namespace, pod)}/init.pid"

    def signal(self, name: str) -> float:
        """Send the signal and return the wall-clock time in seconds."""
        at_s = time.time()
        on(self.machine, f"kill -{name} $(cat {self._pid_file})")
        return at_s


def api_server() -> MachineProcess:
    return MachineProcess("kube-system", f"kube-apiserver-{control_plane()}")


@contextlib.contextmanager
def paused(machine: str) -> Iterator[None]:
    """Pause a machine: no process runs, and no connection is closed."""
    run("docker", "pause", machine)
    try:
        yield
    finally:
        run("docker", "unpause", machine)


@contextlib.contextmanager
def frozen(process: MachineProcess) -> Iterator[None]:
    """Stop a process while its connections remain open."""
    process.signal("STOP")
    try:
        yield
    finally:
        process.signal("CONT")


@contextlib.contextmanager
def cut_off(namespace: str, pod: str) -> Iterator[None]:
    """Drop all packets from and to a pod without an error."""
    machine = machine_of(namespace, pod)
    path = "jsonpath={.status.podIP}"
    ip = run("kubectl", "-n", namespace, "get", "pod", pod, "-o", path).strip()
    rules = [f"FORWARD -s {ip} -j DROP", f"FORWARD -d {ip} -j DROP"]
    for rule in rules:
        on(machine, f"iptables -I {rule}")
    try:
        yield
    finally:
        for rule in rules:
            on(machine, f"iptables -D {rule}")


class SmallDisk:
    """The volume of one member, moved to a disk of a few megabytes, while its pod is away."""

    def __init__(self, namespace: Namespace, pod: str) -> None:
        self.machine = machine_of(namespace.name, pod)
        claim = namespace.get("pvc", f"data-{pod}")["spec"]["volumeName"]
        volume = json.loads(run("kubectl", "get", "pv", claim, "-o", "json"))["spec"]
        source = volume.get("hostPath") or volume.get("local")
        self.path = str(source["path"])

    def mount(self, megabytes: int) -> None:
        """The content moves along; the process must be stopped meanwhile and killed after it: what
        it would write to the old place would be gone."""
        small = "/mnt/qsync-small"
        on(
            self.machine,
            f"set -e; mkdir -p {small}; mount -t tmpfs -o size={megabytes}m tmpfs {small};"
            f" cp -a {self.path}/. {small}/; chmod --reference={self.path} {small};"
            f" mount --bind {small} {self.path}",
        )

    def fill(self) -> None:
        on(self.machine, f"dd if=/dev/zero of={self.path}/filler bs=64k 2>/dev/null || true")

    def empty(self) -> None:
        on(self.machine, f"rm -f {self.path}/filler")

    def unmount(self) -> None:
        """Move the written data back to the volume, and remove everything else."""
        on(
            self.machine,
            f"umount -l {self.path}; find {self.path} -mindepth 1 -delete;"
            f" cp -a /mnt/qsync-small/. {self.path}/; umount -l /mnt/qsync-small",
        )


def whether(ask: str) -> bool:
    """Return whether a docker or kubectl command succeeds."""
    try:
        run(*ask.split())
    except (RuntimeError, subprocess.TimeoutExpired, FileNotFoundError):
        return False
    return True
