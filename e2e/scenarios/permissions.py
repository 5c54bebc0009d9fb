"""Permissions of the operator and its pods: exactly those that they use."""

import json

from e2e.audit import granted_rights, used_rights
from e2e.kube import SYSTEM, Namespace, run
from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.timeouts import CONVERGE_S, READY_S, ROLL_S
from qsync_testing.paths import ROOT

ACCOUNT = f"system:serviceaccount:{SYSTEM}:qsync-operator"
MONITORING = ("podmonitors", "prometheusrules")
ONE_NAMESPACE = "qsync-narrow"


def _can(account: str, verb: str, what: str, namespace: str) -> bool:
    asked = ("auth", "can-i", verb, what, "-n", namespace, "--as", account)
    try:
        return run("kubectl", *asked).strip() == "yes"
    except RuntimeError:
        return False


@scenario(quick=True, not_local="objects")
def secrets_elsewhere(scene: Scene) -> str:
    """A chart for one namespace reads no Secrets elsewhere, and the pods of members read none."""
    other = Namespace(ONE_NAMESPACE, CLUSTER)
    narrow = "qsync-narrow-operator"
    try:
        rendered = run(
            "helm", "template", narrow, str(ROOT / "charts" / "qsync-operator"), "--namespace",
            SYSTEM, "--set", f"watchNamespaces={{{scene.name}}}", "--set", "crds.install=false",
            "--show-only", "templates/rbac.yaml",
        )  # fmt: skip
        other.create()
        run("kubectl", "apply", "-f", "-", stdin=rendered)
        account = f"system:serviceaccount:{SYSTEM}:{narrow}"
        assert _can(account, "get", "secrets", scene.name)
        for namespace in (other.name, SYSTEM, "kube-system"):
            assert not _can(account, "get", "secrets", namespace), namespace
        run("kubectl", "delete", "-f", "-", stdin=rendered)
    finally:
        other.delete()
    scene.start()
    member = f"system:serviceaccount:{scene.name}:{CLUSTER}"
    for verb, what in (("get", "secrets"), ("list", "pods"), ("get", "qsyncclusters.qsync.dev")):
        assert not _can(member, verb, what, scene.name), f"a member may {verb} {what}"
    token = "ls /var/run/secrets/kubernetes.io 2>/dev/null || true"
    assert not scene.kubectl("exec", "orders-0", "--", "sh", "-c", token).strip()
    return (
        "an operator of one namespace reads Secrets only there; members have no permission "
        "and no token"
    )


@scenario(not_local="objects")
def monitoring(scene: Scene) -> str:
    """Objects for the Prometheus operator follow `monitoring` and its definitions."""
    names = [f"{plural}.monitoring.coreos.com" for plural in MONITORING]
    there = [name for name in names if run("kubectl", "get", "crd", name, "--ignore-not-found")]
    if there:
        raise Wrong(f"{there} already exist, but this scenario creates its own")
    run("kubectl", "apply", "-f", "-", stdin=json.dumps(_definitions()))
    try:
        for name in names:
            run("kubectl", "wait", f"crd/{name}", "--for=condition=Established")
        asked = {"podMonitor": True, "prometheusRule": True}
        scene.start(monitoring=asked)
        scene.wait("both", lambda: _names(scene) == ["PodMonitor", "PrometheusRule"], CONVERGE_S)
        rules = scene.get("prometheusrules", CLUSTER)["spec"]["groups"][0]["rules"]
        scene.patch(monitoring={"podMonitor": False, "prometheusRule": False})
        scene.wait("neither", lambda: not _names(scene), CONVERGE_S)
    finally:
        run("kubectl", "delete", "crd", *names, timeout_s=READY_S)
    return f"a PodMonitor and {len(rules)} alert rules were created and deleted"


def _names(scene: Scene) -> list[str]:
    found = scene.kubectl("get", ",".join(MONITORING), "-o", "json")
    return sorted(item["kind"] for item in json.loads(found)["items"])


def _definitions() -> dict[str, object]:
    kinds = zip(MONITORING, ("PodMonitor", "PrometheusRule"), strict=True)
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.monitoring.coreos.com"},
                "spec": {
                    "group": "monitoring.coreos.com",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                    "scope": "Namespaced",
                    "versions": [
                        {
                            "name": "v1",
                            "served": True,
                            "storage": True,
                            "schema": {"openAPIV3Schema": schema},
                        }
                    ],
                },
            }
            for plural, kind in kinds
        ],
    }


def _optional(scene: Scene) -> list[str]:
    found = json.loads(scene.kubectl("get", "networkpolicies,pdb", "-o", "json"))["items"]
    return [item["kind"] for item in found]


@scenario(needs=("audit log", "all before"), not_local="objects")
def rights(scene: Scene) -> str:
    """In the audit log of the whole run no request is refused and no permission is unused."""
    scene.start()
    # No other scenario makes the operator delete objects that are no longer specified.
    scene.patch(networkPolicy={"enabled": False}, replicas=2)
    scene.wait("two pods", lambda: len(scene.pods()) == 2, ROLL_S)
    scene.wait("no policy, no budget", lambda: not _optional(scene), CONVERGE_S)
    used, refused = used_rights(ACCOUNT)
    granted = granted_rights(ACCOUNT)
    wrong = [f"was refused: {right}" for right in sorted(refused)]
    wrong += [f"used without permission: {right}" for right in sorted(used - granted)]
    wrong += [f"never used: {right}" for right in sorted(granted - used)]
    if wrong:
        raise Wrong("; ".join(wrong))
    return f"{len(granted)} permissions granted, the same {len(used)} used, none refused"
