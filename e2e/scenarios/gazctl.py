"""An unmodified gazctl in a pod: each of its commands for journals, and a broker that is killed."""

import base64
import json
import subprocess
from typing import Any

from e2e.journals.peers import PeerError, build
from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.scenarios.journals import KILL, POD, start_pod
from e2e.timeouts import COMMAND_S, CONVERGE_S, FAILOVER_S

PROGRAM = "/ledger/gazctl"
BROKERS = f"http://{CLUSTER}-journals:8080"
COPY_S = 120.0
SPECS = """
name: examples/
replication: 3
fragment: {length: 65536, compression_codec: SNAPPY, refresh_interval: 1m}
children:
  - name: examples/one
  - name: examples/two
"""
CONTENT = b"".join(b"line %d\n" % number for number in range(20_000))


class PodGazctl:
    """gazctl in the pod."""

    def __init__(self, scene: Scene) -> None:
        """Copy the program into the pod.

        Raises:
            Wrong: it cannot be built.
        """
        self._scene = scene
        try:
            program = build() / "gazctl"
        except PeerError as error:
            raise Wrong(str(error)) from None
        self.shell(f"cat > {PROGRAM} && chmod 700 {PROGRAM}", program.read_bytes(), COPY_S)

    def shell(self, script: str, given: bytes = b"", timeout_s: float = COMMAND_S) -> bytes:
        """Run a script in the pod, and return its output.

        Raises:
            Wrong: it failed.
        """
        command = ["kubectl", "-n", self._scene.name, "exec", "-i", POD, "--", "sh", "-c", script]
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise Wrong(f"{script}: {(done.stdout + done.stderr).decode()[-1000:]}")
        return done.stdout

    def do(self, arguments: str, given: bytes = b"") -> bytes:
        """Run `gazctl journals`, which must succeed, and return its output.

        Raises:
            Wrong: it failed.
        """
        name, _, rest = arguments.partition(" ")
        command = f"HOME=/ledger TMPDIR=/ledger {PROGRAM} journals {name}"
        return self.shell(f"BROKER_ADDRESS={BROKERS} {command} {rest} --log.level=info 2>&1", given)

    def read(self, journal: str) -> bytes:
        """Return the content of a journal."""
        command = f"{PROGRAM} journals read -l name={journal} 2>/dev/null"
        return self.shell(f"HOME=/ledger BROKER_ADDRESS={BROKERS} {command}")

    def listed(self) -> dict[str, Any]:
        """Return the listed journals by name."""
        document = json.loads(self.do("list -o json").splitlines()[0])
        return {one["spec"]["name"]: one for one in document["journals"]}

    def is_done(self, arguments: str, given: bytes = b"") -> bool:
        """Run `gazctl journals`, and return whether it succeeded."""
        try:
            self.do(arguments, given)
        except Wrong:
            return False
        return True

    def is_appended(self, content: bytes) -> bool:
        """Return whether an append to the first journal succeeds."""
        return self.is_done("append -l name=examples/one", content)


def _primary(one: dict[str, Any]) -> str:
    route = one["route"]
    return str(route["members"][route["primary"]]["suffix"])


@scenario(not_local="pods")
def journals_gazctl(scene: Scene) -> str:
    """Runs each command of gazctl in a pod, and kills the broker of a primary in between."""
    scene.start(journals={"enabled": True})
    start_pod(scene, "sleep 3600")
    gazctl = PodGazctl(scene)
    specs = base64.b64encode(SPECS.encode()).decode()
    gazctl.shell(f"echo {specs} | base64 -d > /ledger/specs.yaml")
    scene.wait("brokers", lambda: gazctl.is_done("list"), CONVERGE_S)
    gazctl.do("apply --specs /ledger/specs.yaml")
    if sorted(gazctl.listed()) != ["examples/one", "examples/two"]:
        raise Wrong(f"list shows {sorted(gazctl.listed())}")
    scene.wait("an append", lambda: gazctl.is_appended(b"first\n"), CONVERGE_S)
    gazctl.do("append -l name=examples/one", CONTENT)
    gazctl.do("append -l name=examples/two --framing=lines", CONTENT)
    _is(gazctl.read("examples/one"), b"first\n" + CONTENT, "the first journal")
    _is(gazctl.read("examples/two"), CONTENT, "the second journal")
    gazctl.shell(
        f"EDITOR='sed -i s/65536/32768/' HOME=/ledger TMPDIR=/ledger BROKER_ADDRESS={BROKERS}"
        f" {PROGRAM} journals edit -l name=examples/two"
    )
    length = gazctl.listed()["examples/two"]["spec"]["fragment"]["length"]
    _is(length, "32768", "the edited length")
    if b"SNAPPY" not in gazctl.do("fragments -l name=examples/one"):
        raise Wrong("the fragments have no codec")
    killed = _primary(gazctl.listed()["examples/one"])
    scene.kubectl("exec", killed, "-c", "broker", "--", "python", "-c", KILL)
    scene.wait("an append after the kill", lambda: gazctl.is_appended(b"after\n"), FAILOVER_S)
    found = gazctl.read("examples/one")
    if not (found.startswith(b"first\n" + CONTENT) and found.endswith(b"after\n")):
        raise Wrong("acknowledged bytes are missing after the kill")
    again = "reset-head -l name=examples/one"
    scene.wait("reset-head", lambda: gazctl.is_done(again), FAILOVER_S)
    gazctl.do("prune -l name=examples/one --dry-run")
    gazctl.do("suspend -l name=examples/one --force")
    level = gazctl.listed()["examples/one"]["spec"]["suspend"]["level"]
    _is(level, "PARTIAL", "the level of suspension")
    scene.wait("an append that resumes", lambda: gazctl.is_appended(b"resumed\n"), CONVERGE_S)
    if not gazctl.read("examples/one").startswith(found):
        raise Wrong("acknowledged bytes are missing after the suspension")
    return "apply, list, append, read, edit, fragments, reset-head, prune and suspend work"


def _is(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Wrong(f"{what}: {str(found)[:200]} instead of {str(wanted)[:200]}")
