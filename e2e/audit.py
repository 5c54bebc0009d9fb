"""The API server's audit log: enables it in a kind cluster, and reads the requests of an account.

The policy and the log are on the control plane's machine; the static pod of the API server is
changed there, and the kubelet starts it again.
"""

import json
import time
from typing import NamedTuple

import yaml

from e2e.kube import run
from e2e.machines import control_plane, on, whether
from e2e.timeouts import API_SERVER_BACK_S

MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
POLICY_PATH, LOG_DIRECTORY = "/etc/kubernetes/pki/qsync-audit.yaml", "/var/log/kubernetes-audit"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts:qsync-system"],
        },
        {"level": "None"},
    ],
}


class Right(NamedTuple):
    """One verb on one kind of object, as a Role grants it."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def switch_on() -> None:
    machine = control_plane()
    document = yaml.safe_load(on(machine, f"cat {MANIFEST}"))
    container = document["spec"]["containers"][0]
    if any(flag.startswith("--audit-log-path") for flag in container["command"]):
        return
    container["command"] += [
        f"--audit-policy-file={POLICY_PATH}",
        f"--audit-log-path={LOG_DIRECTORY}/audit.log",
        "--audit-log-maxbackup=20",
        "--audit-log-maxsize=50",
    ]
    container["volumeMounts"].append({"name": "qsync-audit", "mountPath": LOG_DIRECTORY})
    document["spec"]["volumes"].append(
        {
            "name": "qsync-audit",
            "hostPath": {"path": LOG_DIRECTORY, "type": "DirectoryOrCreate"},
        }
    )
    _write(machine, POLICY_PATH, yaml.safe_dump(POLICY))
    _write(machine, MANIFEST, yaml.safe_dump(document))
    deadline_s = time.monotonic() + API_SERVER_BACK_S
    while time.monotonic() < deadline_s:
        if whether(f"docker exec {machine} test -s {LOG_DIRECTORY}/audit.log") or (
            whether(f"docker exec {machine} test -d {LOG_DIRECTORY}")
            and whether("kubectl get --raw /readyz")
            and _is_auditing()
        ):
            return
        time.sleep(1)  # between two polls: each asks the API server
    raise RuntimeError("the API server did not come back with its audit log")


def _is_auditing() -> bool:
    path = "jsonpath={.items[0].spec.containers[0].command}"
    chosen = ("get", "pods", "-n", "kube-system", "-l", "component=kube-apiserver", "-o", path)
    return "--audit-log-path" in run("kubectl", *chosen)


def _write(machine: str, path: str, text: str) -> None:
    # Written elsewhere and then moved: the kubelet reads every file of its directory.
    run("docker", "exec", "-i", machine, "sh", "-c", f"cat > /tmp/new && mv /tmp/new {path}",
        stdin=text)  # fmt: skip


def clear() -> None:
    on(control_plane(), f"rm -f {LOG_DIRECTORY}/audit-*.log; : > {LOG_DIRECTORY}/audit.log")


def used_rights(account: str) -> tuple[set[Right], set[Right]]:
    """Return the permissions that an account used, and those that it was refused."""
    used: set[Right] = set()
    refused: set[Right] = set()
    found = on(control_plane(), f"cat {LOG_DIRECTORY}/audit*.log | grep -F '{account}' || true")
    for line in found.splitlines():
        entry = json.loads(line)
        target = entry.get("objectRef")
        if entry["user"]["username"] != account or not target:
            continue
        resource = target["resource"]
        if target.get("subresource"):
            resource += f"/{target['subresource']}"
        right = Right(target.get("apiGroup", ""), resource, entry["verb"])
        code = entry.get("responseStatus", {}).get("code")
        # Code 403 has other reasons, too: a namespace that goes, a volume that cannot grow.
        said = entry.get("annotations", {}).get("authorization.k8s.io/decision")
        (refused if said == "forbid" else used).add(right)
        if right.verb == "patch" and code == 201:
            # Applying a missing object requires two permissions: patch and create.
            used.add(right._replace(verb="create"))
    return used, refused


def granted_rights(account: str) -> set[Right]:
    """Return the permissions in all roles that are bound to a service account `NAMESPACE:NAME`."""
    namespace, _, name = account.removeprefix("system:serviceaccount:").partition(":")
    found: set[Right] = set()
    for kind in ("clusterrolebindings", "rolebindings"):
        bindings = json.loads(run("kubectl", "get", kind, "-A", "-o", "json"))["items"]
        for binding in bindings:
            if {"kind": "ServiceAccount", "name": name, "namespace": namespace} not in (
                binding.get("subjects") or []
            ):
                continue
            role = binding["roleRef"]
            place = ["-n", binding["metadata"]["namespace"]] if role["kind"] == "Role" else []
            document = json.loads(
                run("kubectl", "get", role["kind"], role["name"], *place, "-o", "json")
            )
            for rule in document["rules"]:
                found |= {
                    Right(group, resource, verb)
                    for group in rule.get("apiGroups", [])
                    for resource in rule.get("resources", [])
                    for verb in rule["verbs"]
                    if verb != "bind"  # the API server asks for it when a binding is made
                }
    return found
