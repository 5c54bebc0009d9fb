"""Specifications: users, templates, refusals by the operator only, and unchanged manifests."""

import json
import subprocess
import time

from e2e.clients import credentials
from e2e.operators import set_operators
from e2e.scenario import Scene, scenario
from e2e.timeouts import CONVERGE_S, IDLE_S, NUMBERS_S, READY_S, ROLL_S, SETTLE_S


@scenario(modest=True, not_local="users")
def access(scene: Scene) -> str:
    """A declared user gets the declared grants, and a changed Secret changes the password."""

    def put_password(password: str, name: str = "alice") -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {"password": password},
        }
        scene.kubectl("apply", "-f", "-", stdin=json.dumps(secret))

    space = {"name": "stock", "indexes": [{"name": "p", "parts": [{"field": 1, "type": "string"}]}]}
    role = {"name": "reader", "grants": [{"space": "stock", "privileges": ["read"]}]}
    user = {"name": "alice", "passwordSecret": "alice", "roles": ["reader"]}
    put_password("application's first", "mine")
    scene.apply(spaces=[space], roles=[role], users=[user], auth={"passwordSecret": "mine"})
    scene.wait("the sentence", scene.has_reason("Degraded", "AccessRefused"), READY_S)
    assert "Secret alice of user alice has no key" in scene.condition("Degraded")["message"]
    put_password("first")
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)

    def tries(password: str, request: str, user: str = "alice") -> str:
        """Run a statement in a member's pod; return the user's refusal, or "" if it is allowed."""
        script = (
            "import sys; from qsync_operator.iproto import Connection, DatabaseError\n"
            "try:\n"
            f"    with Connection('127.0.0.1:3301', {user!r}, {password!r}, 5) as c: c.{request}\n"
            "except DatabaseError as error: print(error)\n"
        )
        return scene.kubectl("exec", "orders-0", "--", "python", "-c", script).strip()

    assert tries("first", "select(512)") == ""
    assert "Write access to space 'stock' is denied" in tries("first", "insert(512, ['a'])")
    put_password("second")
    took_s = scene.wait("the new password", lambda: not tries("second", "select(512)"), ROLL_S)
    assert tries("first", "select(512)")
    name, _ = credentials(scene, "orders")
    assert tries("application's first", "select(512)", name) == ""
    put_password("application's second", "mine")
    scene.wait("the application's", lambda: not tries("application's second", "select(512)", name),
               ROLL_S)  # fmt: skip
    scene.wait("what applications read",
               lambda: credentials(scene, "orders")[1] == "application's second",
               CONVERGE_S)  # fmt: skip
    assert scene.get("networkpolicy", "orders")["spec"]["policyTypes"] == ["Ingress"]
    return f"a reader can read and not write; a new password works after {took_s:.0f} s"


@scenario(not_local="objects")
def identity_deleted(scene: Scene) -> str:
    """The identity Secret is deleted: no member stops, status reports it, it is restored."""
    scene.start()
    processes, kept = scene.processes(), scene.get("secret", "orders-identity")
    with scene.without_operator():
        scene.kubectl("delete", "secret", "orders-identity")
    scene.wait("the sentence", scene.has_reason("Degraded", "Waiting"), CONVERGE_S)
    said = scene.condition("Degraded")["message"]
    time.sleep(SETTLE_S)  # time for a wrong action of the operator
    assert scene.processes() == processes
    metadata = {key: kept["metadata"][key] for key in ("name", "labels")}
    again = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": kept["data"]}
    scene.kubectl("create", "-f", "-", stdin=json.dumps(again))
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    assert scene.processes() == processes
    return said


@scenario(quick=True, not_local="objects")
def applied_again(scene: Scene) -> str:
    """The same manifest changes nothing. A managed field is restored, a foreign one stays."""
    scene.start()
    time.sleep(NUMBERS_S)  # the last writes of its founding, its numbers among them
    before = _versions(scene)
    scene.apply()
    time.sleep(SETTLE_S)  # time for a change by the operator
    assert _versions(scene) == before, "an unchanged manifest changes nothing"
    scene.kubectl("label", "service", "orders-leader", "team=a")
    change = json.dumps({"spec": {"selector": {"qsync.dev/kind": "other"}}})
    scene.kubectl("patch", "service", "orders-leader", "--type=merge", "-p", change)
    scene.wait(
        "the selector",
        lambda: (
            scene.get("service", "orders-leader")["spec"]["selector"]["qsync.dev/kind"] == "voter"
        ),
        CONVERGE_S,
    )
    assert scene.get("service", "orders-leader")["metadata"]["labels"]["team"] == "a"
    return "the same manifest changed nothing, the selector was restored, a foreign label stayed"


def _versions(scene: Scene) -> dict[str, str]:
    kinds = "qc,statefulsets,services,configmaps,secrets,pdb,networkpolicies,serviceaccounts,pvc"
    found = json.loads(scene.kubectl("get", kinds, "-o", "json"))["items"]
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for one in found
    }


@scenario(modest=True, not_local="pods")
def template(scene: Scene) -> str:
    """The operator refuses changes of its own fields and keeps the last good specification."""
    scene.start(podTemplate={"metadata": {"annotations": {"team": "a"}}})
    found = scene.get("pod", "orders-0")["metadata"]["annotations"]
    assert found["team"] == "a"
    bad = {"spec": {"containers": [{"name": "node", "command": ["sh"]}]}}
    scene.patch(podTemplate=bad, monitoring={"podMonitor": True})
    scene.wait("a refusal", scene.has_reason("Degraded", "InvalidSpec"), CONVERGE_S)
    said = scene.condition("Degraded")["message"]
    scene.apply(monitoring={"podMonitor": True})
    scene.wait("a warning", lambda: bool(scene.status().get("warnings")), CONVERGE_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    return f"{said}; {scene.status()['warnings'][0]}"


@scenario(quick=True, not_local="words")
def invalid(scene: Scene) -> str:
    """The operator refuses a specification, also after its restart."""
    scene.start()
    scene.patch(replication={"quorum": "N-2"})
    scene.wait("a refusal", scene.has_reason("Degraded", "InvalidSpec"), CONVERGE_S)
    set_operators(0)
    set_operators(1)
    old = scene.status()["leader"]
    uid = scene.pods()[old]
    scene.kubectl("delete", "pod", old)
    scene.wait("a failover", lambda: scene.roles().get(old) == "replica", CONVERGE_S)
    scene.wait("a new pod", lambda: scene.is_new_and_ready(old, uid), CONVERGE_S)
    scene.wait("labels", lambda: "leader" in scene.roles().values(), CONVERGE_S)
    assert scene.condition("Degraded")["reason"] == "InvalidSpec"
    scene.patch(replication={"quorum": "majority"})
    scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    return "failover continued with the last valid specification"


@scenario(not_local="objects")
def idle(scene: Scene) -> str:
    """The operator writes nothing while the cluster is idle."""
    scene.start(monitoring={"podMonitor": True})
    time.sleep(NUMBERS_S)  # the last writes of its founding, its numbers among them
    before = _versions(scene)
    time.sleep(IDLE_S)  # the minute that is promised
    assert before == _versions(scene), "an idle operator wrote objects"
    return f"{len(before)} objects were unchanged for a minute"


@scenario(load=True, not_local="objects")
def busy(scene: Scene) -> str:
    """Under load, only numbers change, and status is written at most every ten seconds."""
    watch = ["kubectl", "-n", scene.name, "get", "qc", scene.cluster, "--watch-only", "-o", "name"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(IDLE_S)  # the span that the rule is about
        process.terminate()
        assert process.stdout is not None
        written = len(process.stdout.read().splitlines())
    assert 0 < written <= IDLE_S / 10 + 1, (
        f"the operator wrote status {written} times in {IDLE_S:.0f} s"
    )
    return f"{written} writes of status in {IDLE_S:.0f} s"
