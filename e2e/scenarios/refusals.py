"""Refusals of invalid manifests by a real API server, each with its message."""

import json
from pathlib import Path
from typing import Any

from e2e.kube import Namespace
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import COMMAND_S
from qsync_testing.paths import ROOT

ARCHIVE = {"url": "s3://bucket/orders"}
PRIMARY = {"name": "primary", "parts": [{"field": 1, "type": "string"}]}
FORMAT = [{"name": "id", "type": "string"}, {"name": "name", "type": "string"}]
BY_MISSPELT = {"name": "by_name", "parts": [{"field": "nmae"}]}
BY_NAME = {"name": "by_name", "unique": False, "parts": [{"field": "name"}, {"field": 1}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replicas": 5, "replication": {"quorum": 2}}, "is below a majority of the replicas"),
    ({"replicas": 3, "replication": {"quorum": 4}}, "it can never be reached"),
    ({"replication": {"quorum": "most"}}, "a formula such as N/2+1"),
    ({"replicas": 20, "asyncReplicas": 20}, "at most 31 members can be registered"),
    ({"replicas": 0}, "should be greater than or equal to 1"),
    ({"failover": {"delay": "5x"}}, "write a duration with its unit"),
    ({"storage": {"size": "10Q"}}, "write a quantity such as 10Gi"),
    ({"archive": ARCHIVE, "audit": {"schedule": "15 * * *"}}, "write a schedule of five fields"),
    ({"archive": ARCHIVE, "audit": {"schedule": "x * * * *"}}, "write a schedule of five fields"),
    ({"audit": {"schedule": "15 * * * *"}}, "set archive.url too"),
    ({"auth": {"username": "admin"}}, "is reserved"),
    ({"ports": {"iproto": 3301, "admin": 3301}}, "must be different ports"),
    ({"spaces": [{"name": "_mine", "indexes": [PRIMARY]}]}, "such spaces belong to the database"),
    ({"spaces": [{"name": "s", "indexes": [{**PRIMARY, "unique": False}]}]}, "must be unique"),
    (
        {"archive": ARCHIVE, "audit": {"schedule": "@daily", "timeZone": "Europe/Berln"}},
        "write the name of a time zone",
    ),
    ({"image": ""}, "write an image such as"),
    ({"tls": {"secretName": "Not A Name"}}, "write the name of a Secret"),
    ({"storage": {"storageClass": "Fast!"}}, "write the name of a StorageClass"),
    (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        "resources.requests exceed resources.limits",
    ),
    ({"spaces": [{"name": "s", "indexes": [PRIMARY]}] * 2}, "Duplicate value"),
    (
        {"spaces": [{"name": "s", "format": FORMAT, "indexes": [PRIMARY, BY_MISSPELT]}]},
        "s.by_name: nmae; correct the name, or declare the field",
    ),
    ({"spaces": [{"name": "s", "indexes": [BY_MISSPELT]}]}, "s.by_name: nmae"),
    ({"journals": {"authKeysFile": "/keys"}}, "journals.authKeysFile is not supported"),
    ({"journals": {}, "tls": {"clients": "Require"}}, "set journals.tls as well"),
    ({"journals": {"port": 8081}}, "must differ from the ports of members"),
    ({"journals": {"port": 8082}}, "must differ from the ports of members"),
    ({"journals": {}, "ports": {"tls": 8082}}, "must differ from the ports of members"),
    ({"replicaz": 3}, 'unknown field "spec.replicaz"'),
]
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"storage": {"size": "1Gi"}}, "storage.size cannot shrink"),
    ({"storage": {"storageClass": "another"}}, "storage.storageClass cannot change"),
    ({"auth": {"username": "another"}}, "auth.username cannot change"),
    ({"ports": {"iproto": 4000}}, "ports cannot change"),
]
TAKEN: list[dict[str, Any]] = [
    {},
    {"replicas": 4},
    {"spaces": [{"name": "s", "format": FORMAT, "indexes": [PRIMARY, BY_NAME]}]},
    {"replicas": 5, "replication": {"quorum": 5}},
    {"replication": {"quorum": "N/2 + 1", "synchroTimeout": "1m30s"}},
    {"archive": ARCHIVE, "audit": {"schedule": "*/15 0-6 * jan-mar MON"}},
    {"archive": ARCHIVE, "audit": {"schedule": "@daily", "timeZone": "Europe/Berlin"}},
    {"journals": {"tls": True}, "tls": {"clients": "Require"}},
    {"journals": {"port": 3303, "resources": {"limits": {"memory": "1Gi"}}}},
    {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 1, "memory": "1Gi"}}},
]


def document(spec: dict[str, Any], name: str = "refused") -> str:
    kind = {"apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster"}
    return json.dumps({**kind, "metadata": {"name": name}, "spec": spec})


def refusal_of(namespace: Namespace, spec: dict[str, Any], name: str = "refused") -> str:
    """Return the refusal of the API server, or "" if it accepts the manifest."""
    try:
        namespace.kubectl(
            "apply", "--dry-run=server", "-f", "-", stdin=document(spec, name), timeout_s=COMMAND_S
        )
    except RuntimeError as error:
        return str(error)
    return ""


def wrong(namespace: Namespace) -> list[str]:
    """Return a sentence about each unexpected answer."""
    found = []
    for spec, sentence in REFUSED:
        said = refusal_of(namespace, spec)
        if sentence not in said:
            found.append(f"{spec}: expected {sentence!r}, received {said!r}")
    found += [f"{spec}: {said}" for spec in TAKEN if (said := refusal_of(namespace, spec))]
    said = refusal_of(namespace, {}, "a" * 41)
    if "at most 40 lower-case letters" not in said:
        found.append(f"name of 41 letters: {said!r}")
    said = refusal_of(namespace, {}, "orders-async")
    if "metadata.name cannot end with" not in said:
        found.append(f"name of another cluster's objects: {said!r}")
    for manifest in sorted((ROOT / "docs" / "examples").rglob("*.yaml")):
        found += wrong_example(namespace, manifest)
    return found + wrong_changes(namespace)


def wrong_example(namespace: Namespace, manifest: Path) -> list[str]:
    """Return the wrong answer to an example: each is accepted."""
    try:
        namespace.kubectl("apply", "--dry-run=server", "-f", str(manifest))
    except RuntimeError as error:
        return [f"{manifest.name}: {error}"]
    return []


def wrong_changes(namespace: Namespace) -> list[str]:
    """Return wrong answers to changes of an existing object, without an acting operator."""
    namespace.kubectl("apply", "-f", "-", stdin=document({}, "existing"))
    found = []
    try:
        for change, sentence in CHANGES:
            said = ""
            try:
                patch = json.dumps({"spec": change})
                namespace.kubectl(
                    "patch", "qsynccluster", "existing", "--type=merge", "--dry-run=server",
                    "-p", patch,
                )  # fmt: skip
            except RuntimeError as error:
                said = str(error)
            if sentence not in said:
                found.append(f"change {change}: expected {sentence!r}, received {said!r}")
    finally:
        namespace.kubectl("delete", "qsynccluster", "existing")
    return found


@scenario(quick=True, modest=True, not_local="words")
def refusals(scene: Scene) -> str:
    """The definitions refuse each invalid manifest with its message, and accept valid ones."""
    found = wrong(scene)
    if found:
        raise Wrong("; ".join(found))
    return (
        f"{len(REFUSED) + len(CHANGES) + 1} manifests and changes were refused with their messages"
    )
