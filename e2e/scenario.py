"""A scenario: a function with its own cluster, and its measurements.

It is registered by `@scenario(...)`, run by `e2e/kubernetes_run.py`, and gets a `Scene`: a fresh
namespace with Pod Security `restricted`. With `load`, three members and a writer run before it
begins, and every acknowledged write is read back from every member after it has ended.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.clients import ROUTES, PodWriter, check
from e2e.kube import Namespace, run
from e2e.machines import MachineProcess, control_plane, machines
from e2e.operators import set_operators
from e2e.timeouts import CONVERGE_S, FAILOVER_S, READY_S

CLUSTER = "orders"
QSYNC = str(Path(sys.executable).parent / "kubectl-qsync")
SPACE = {
    "name": "orders",
    "isSync": True,
    "format": [
        {"name": "id", "type": "unsigned"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "number", "isNullable": True},
    ],
    "indexes": [{"name": "primary", "parts": [{"field": "id"}]}],
}


class Wrong(Exception):  # noqa: N818 - it is a finding, not a fault
    """A finding of a scenario."""


@dataclass
class Pauses:
    """A client's longest waits in milliseconds, and the answers that it received meanwhile."""

    by_route: dict[str, float]
    failed: int
    leaderless_ms: float = 0.0

    @property
    def longest_ms(self) -> float:
        return max(self.by_route.values())

    def __str__(self) -> str:
        said = ", ".join(f"{pause:.0f} ms by {name}" for name, pause in self.by_route.items())
        return f"{said}, {self.failed} failed requests"


@dataclass
class Scene(Namespace):
    """A namespace with its cluster and its writer."""

    name: str
    folder: Path
    is_local = False
    cluster: str = CLUSTER
    writer: PodWriter | None = None
    figures: dict[str, list[Pauses]] = field(default_factory=dict)

    # --- actions of a user ----------------------------------------------------------------------

    def apply(self, **spec: object) -> None:
        self.kubectl("apply", "-f", "-", stdin=self.manifest(**spec))

    def manifest(self, **spec: object) -> str:
        return json.dumps(
            {
                "apiVersion": "qsync.dev/v1alpha1",
                "kind": "QsyncCluster",
                "metadata": {"name": self.cluster},
                "spec": {"storage": {"size": "64Mi"}, **spec},
            }
        )

    def start(self, **spec: Any) -> float:
        self.apply(**spec)
        voters = int(spec.get("replicas", 3))
        others = int(spec.get("asyncReplicas", 0)) + int(spec.get("readReplicas", 0))
        return self.wait("all nodes", lambda: self.is_ready(voters, others), READY_S)

    def start_with_load(self, **spec: object) -> None:
        self.start(spaces=[SPACE], **spec)
        # Not on a machine that is going to fail, where machines can: the client is a witness.
        self.writer = PodWriter(self, self.folder, control_plane() if machines() else "")
        self.writer.start()

    def patch(self, **spec: object) -> None:
        self.kubectl("patch", "qc", self.cluster, "--type=merge", "-p", json.dumps({"spec": spec}))

    def scale(self, replicas: int) -> None:
        self.kubectl("scale", "qsynccluster", self.cluster, f"--replicas={replicas}")

    def kill(self, *members: str) -> float:
        """Kill the processes with SIGKILL and return the wall-clock time in seconds."""
        processes = [MachineProcess(self.name, member) for member in members]
        at_s = time.time()
        for process in processes:
            process.signal("KILL")
        return at_s

    def renew(self, member: str) -> None:
        """Replace a pod, because Kubernetes restarts its container with growing delays."""
        uid = self.pods()[member]
        self.kubectl("delete", "pod", member, "--wait=false")
        self.wait("a new pod", lambda: self.is_new_and_ready(member, uid), CONVERGE_S)

    @contextlib.contextmanager
    def without_operator(self) -> Iterator[None]:
        set_operators(0)
        try:
            yield
        finally:
            set_operators(1)

    def qsync(self, *arguments: str) -> str:
        return run(QSYNC, *arguments, "-n", self.name)

    def lead(self, member: str) -> None:
        """Switch over to the member unless it already leads."""
        try:
            self.qsync("switchover", member)
        except RuntimeError as error:
            if "already leads" not in str(error):
                raise
        self.wait(f"{member} leading", lambda: self.leader() == member, FAILOVER_S)

    # --- view of a user -------------------------------------------------------------------------

    def condition(self, kind: str) -> dict[str, str]:
        found: list[dict[str, str]] = self.status().get("conditions", [])
        nothing = {"status": "", "reason": "", "message": ""}
        return next((c for c in found if c["type"] == kind), nothing)

    def has_reason(self, kind: str, reason: str) -> Callable[[], bool]:
        return lambda: self.condition(kind)["reason"] == reason

    def leader(self) -> str:
        """Return the leader that the status names, or ""."""
        return str(self.status().get("leader", ""))

    def has_other_leader(self, former: str) -> bool:
        """Return whether the status names a leader other than `former`."""
        return self.leader() not in ("", former)

    def current_leader(self) -> str:
        """Return the leader; on a busy machine, wait until one is elected."""
        self.wait("a leader", lambda: bool(self.leader()), CONVERGE_S)
        return self.leader()

    def processes(self) -> dict[str, str]:
        """Return the pods of running members by name."""
        return self.pods()

    def pods(self) -> dict[str, str]:
        """Return the UIDs of the members' pods by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self._members()}

    def roles(self) -> dict[str, str]:
        """Return the role labels of the members' pods by name."""
        return {
            pod["metadata"]["name"]: pod["metadata"]["labels"].get("qsync.dev/role", "")
            for pod in self._members()
        }

    def _members(self) -> list[dict[str, Any]]:
        chosen = f"qsync.dev/cluster={self.cluster},qsync.dev/kind"
        said = self.kubectl("get", "pods", "-l", chosen, "-o", "json")
        found: list[dict[str, Any]] = json.loads(said)["items"]
        return found

    def claims(self) -> dict[str, str]:
        """Return the UIDs of the members' claims by name."""
        found = json.loads(self.kubectl("get", "pvc", "-o", "json"))["items"]
        return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in found}

    def leader_by_asking(self) -> str:
        """Return the leader as the members report it, without the operator's status."""
        for line in self.qsync("status").splitlines():
            cells = line.split()
            if len(cells) > 1 and cells[1] == "leader":
                return cells[0]
        return ""

    def events(self, reason: str) -> list[str]:
        found = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return [str(event["message"]) for event in found if event["reason"] == reason]

    # --- view of a client -----------------------------------------------------------------------

    def pauses(self, since: float, until: float | None = None) -> Pauses:
        """Return the pauses between acknowledgements since `since`, in wall-clock seconds."""
        assert self.writer is not None
        end = time.time() if until is None else until
        operations = [o for o in self.writer.ledger() if since <= o["ended"] <= end]
        found: dict[str, float] = {}
        for route, name in enumerate(ROUTES):
            acknowledged = sorted(
                o["ended"] for o in operations
                if o["member"] == route and o["outcome"] == "committed"
            )  # fmt: skip
            if len(acknowledged) < 2:
                raise Wrong(f"no write was acknowledged by {name} in {end - since:.0f} s")
            gaps = ((b - a) * 1000 for a, b in itertools.pairwise([*acknowledged, end]))
            found[name] = max(gaps)
        failed = sum(operation["outcome"] != "committed" for operation in operations)
        return Pauses(found, failed)

    def measure(self, what: str, since: float, at_most_ms: float) -> Pauses:
        """Keep the pauses for the distribution; raise Wrong for a wait ten times too long."""
        found = self.pauses(since)
        failover = self.status().get("lastFailover") or {}
        found.leaderless_ms = float(failover.get("unavailableMilliseconds", 0))
        self.figures.setdefault(what, []).append(found)
        if found.longest_ms > at_most_ms:
            raise Wrong(
                f"{what}: writes paused for {found}, longer than the limit of {at_most_ms:g} ms"
            )
        return found

    def nothing_is_lost(self) -> str:
        assert self.writer is not None
        self.writer.stop()
        return check(self, self.writer)


@dataclass(frozen=True)
class Scenario:
    """A scenario and the conditions under which it runs.

    `is_modest`: the scenario measures no outage and changes nothing outside its namespace, so
    another modest one may run at the same time. `needs` names properties that a cluster may lack:
    see `kubernetes_run.LACKS`. `not_local` is the reason why local processes lack them, a key of
    `kubernetes_run.NOT_LOCAL`, or "".
    """

    run: Callable[[Scene], str]
    is_quick: bool
    has_load: bool
    is_modest: bool
    needs: tuple[str, ...]
    not_local: str
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run.__name__


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *,
    quick: bool = False,
    load: bool = False,
    modest: bool = False,
    needs: tuple[str, ...] = (),
    not_local: str = "",
    **spec: object,
) -> Callable[[Callable[[Scene], str]], Callable[[Scene], str]]:
    """Register a scenario. A scenario with `load` begins with a cluster of `spec`."""

    def register(function: Callable[[Scene], str]) -> Callable[[Scene], str]:
        SCENARIOS[function.__name__] = Scenario(
            function, quick, load, modest, needs, not_local, spec
        )
        return function

    return register


def summary(pauses: list[Pauses]) -> str:
    """Return the median and the maximum for each route as a sentence."""
    said = []
    for route in pauses[0].by_route:
        found = [p.by_route[route] for p in pauses]
        median_ms = statistics.median(found)
        said.append(f"median {median_ms:.0f} ms, worst {max(found):.0f} ms by {route}")
    return f"{len(pauses)} rounds: {'; '.join(said)}"
