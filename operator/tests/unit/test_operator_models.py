"""Valid manifests are accepted, and invalid ones are refused in one sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qsync_operator.api.base import duration_ns, quantity
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.journals import QsyncJournal
from qsync_operator.api.manifest import ClusterManifestError, parse_manifest
from qsync_operator.api.patterns import FORMS
from qsync_operator.api.podsecurity import refuse_privileged
from qsync_operator.api.podtemplate import refuse_template
from qsync_operator.api.spec import ClusterSpec, spec_warnings, without_local_meaning
from qsync_testing.paths import EXAMPLES


def cluster(**spec: object) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders"},
            "spec": spec,
        }
    )


def space(**fields: object) -> dict[str, Any]:
    return {
        "name": "orders",
        "format": [{"name": "id", "type": "unsigned"}, {"name": "tags", "type": "array"}],
        "indexes": [{"name": "primary", "parts": [{"field": "id"}]}],
        **fields,
    }


REFUSED = [
    ({"replicaz": 3}, "spec.replicaz is not a known field: did you mean replicas?"),
    ({"read_replicas": 3}, "spec.read_replicas is not a known field: did you mean readReplicas?"),
    ({"replication": {"quorun": 2}}, "spec.replication.quorun is not a known field"),
    ({"replicas": 0}, "spec.replicas 0: it must be at least 1"),
    ({"replicas": "many"}, "spec.replicas 'many': write a whole number"),
    ({"replicas": 30, "asyncReplicas": 2}, "asyncReplicas is 32: at most 31"),
    ({"replicas": 5, "replication": {"quorum": 2}}, "quorum 2 is below a majority of 5 replicas"),
    ({"replicas": 3, "replication": {"quorum": 4}}, "quorum 4 can never be reached by 3 replicas"),
    ({"replication": {"quorum": "N/0"}}, "quorum formula 'N/0' divides by zero"),
    ({"replication": {"quorum": "import os"}}, "is invalid at position"),
    ({"replication": {"synchroTimeout": 5}}, "invalid duration 5: write it with its unit"),
    ({"replication": {"synchroTimeout": "soon"}}, "invalid duration 'soon'"),
    ({"replication": {"heartbeat": "900ms"}}, "must be at least twice the heartbeat"),
    ({"replication": {"electionMode": "maybe"}}, "electionMode 'maybe'"),
    ({"storage": {"size": "ten"}}, "spec.storage.size: invalid quantity 'ten'"),
    ({"audit": {"schedule": "15 * * * *"}}, "audit reads the archive: set archive.url too"),
    ({"audit": {"schedule": "hourly"}}, "has 1 fields"),
    ({"audit": {"schedule": "61 * * * *"}}, "'61' is not a minute between 0 and 59"),
    ({"audit": {"schedule": "* * * foo *"}}, "'foo' is not a month between 1 and 12"),
    ({"archive": {}}, "spec.archive.url is missing"),
    ({"archive": {"ulr": "x"}}, "spec.archive.ulr is not a known field: did you mean url?"),
    (
        {"audit": {"schedule": "@daily", "timeZone": "Europe/Berln"}},
        "spec.audit.timeZone: invalid time zone 'Europe/Berln'",
    ),
    ({"audit": {"schedule": "@daily", "timeZone": "Local"}}, "invalid time zone 'Local'"),
    ({"image": ""}, "spec.image: invalid value ''"),
    ({"image": "a b:1"}, "spec.image: invalid value 'a b:1'"),
    ({"tls": {"secretName": "Not A Name"}}, "spec.tls.secretName: invalid value 'Not A Name'"),
    ({"auth": {"passwordSecret": "-x"}}, "spec.auth.passwordSecret: invalid value '-x'"),
    ({"storage": {"storageClass": "Fast!"}}, "spec.storage.storageClass: invalid value 'Fast!'"),
    (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}},
        "requests.cpu 2 exceeds limits.cpu 1500m",
    ),
    (
        {"podTemplate": {"spec": {"tolerationz": []}}},
        "podTemplate.spec.tolerationz cannot be set: a pod has no such field",
    ),
    (
        {"podTemplate": {"spec": {"containers": [{"name": "x", "img": "y"}]}}},
        "podTemplate.spec.containers[x].img cannot be set",
    ),
    ({"spaces": [space(), space()]}, "space orders is declared twice"),
    ({"spaces": [space(indexes=[])]}, "spec.spaces[0].indexes: it must have at least 1 item"),
    ({"spaces": [space(name="_space")]}, "spec.spaces[0].name '_space'"),
    (
        {"spaces": [space(indexes=[{"name": "p", "parts": [{"field": "idd"}]}])]},
        "index p of space orders: field idd not found in the format",
    ),
    (
        {"spaces": [space(indexes=[{"name": "p", "parts": [{"field": "tags"}]}])]},
        "a field of type array cannot be part of a key",
    ),
    (
        {"spaces": [space(indexes=[{"name": "p", "unique": False, "parts": [{"field": "id"}]}])]},
        "it must be unique",
    ),
    (
        {"spaces": [space(indexes=[{"name": "p", "parts": [{"field": 7}]}])]},
        "field 7 is not in the format",
    ),
    ({"auth": {"username": "admin"}}, "admin is reserved"),
    (
        {"archive": {"url": "folder"}},
        "spec.archive.url 'folder': write a URL with its scheme, such as s3://bucket/orders",
    ),
    ({"users": [{"name": "1", "passwordSecret": "x"}]}, "use at most 63 letters, digits"),
    ({"guest": "maybe"}, "spec.guest 'maybe': write true or false"),
    ({"spaces": {"name": "orders"}}, "spec.spaces: write a list"),
    ({"replication": {"quorum": [1]}}, "spec.replication.quorum: write a whole number"),
]


@pytest.mark.parametrize(("spec", "sentence"), REFUSED)
def test_a_bad_spec_is_refused_with_a_sentence(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterManifestError) as refused:
        parse_manifest(cluster(**spec), "file.yaml")
    text = str(refused.value)
    assert text.startswith("file.yaml: ")
    assert sentence in text
    assert "\n" not in text
    assert "pydantic" not in text


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    text = cluster(replicas=0, archive={"ulr": "x"}, storage={"size": "ten"}, audit={})
    text = text.replace("orders", "Orders") + "---\nkind: Pod\n---\nkind: Secret\n"
    with pytest.raises(ClusterManifestError) as refused:
        parse_manifest(text, "file.yaml")
    first, *lines = str(refused.value).splitlines()
    assert first == "file.yaml has 7 mistakes:"
    assert [line.strip() for line in lines] == [
        "metadata.name 'Orders': use at most 40 lower-case letters, digits and hyphens, and begin"
        " with a letter",
        "spec.replicas 0: it must be at least 1",
        "spec.storage.size: invalid quantity 'ten': use a form such as 10Gi or 500m",
        "spec.archive.ulr is not a known field: did you mean url?",
        "spec.audit.schedule is missing",
        "kind 'Pod' is not supported: use QsyncCluster, QsyncJournal or Secret",
        "metadata.name of a Secret is missing",
    ]


def patterns_of(node: object) -> list[str]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    found = [one for child in children for one in patterns_of(child)]
    if isinstance(node, dict) and isinstance(node.get("pattern"), str):
        found.append(node["pattern"])
    return found


def test_every_pattern_of_a_manifest_has_a_sentence() -> None:
    schemas = [kind.model_json_schema(by_alias=True) for kind in (QsyncCluster, QsyncJournal)]
    patterns = set(patterns_of(schemas))
    assert len(patterns) >= 5
    assert patterns <= set(FORMS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "contains no QsyncCluster"),
        (cluster() + "---\n" + cluster(), "contains 2 QsyncClusters"),
        ("- 1", "it contains a list"),
        ("a: [", "is not valid YAML in line"),
        ("kind: Pod", "kind 'Pod' is not supported"),
        ("kind: QsyncAudit", "apply it with kubectl"),
        ("kind: QsyncCluster\napiVersion: v2", "apiVersion 'v2'"),
        (
            cluster().replace("orders", "My.Cluster"),
            "metadata.name 'My.Cluster': use at most 40 lower-case letters, digits and hyphens",
        ),
        (
            cluster(journals={}).replace("name: orders", "name: o"),
            "metadata.name must have at least 2 characters if journals are enabled",
        ),
        ("kind: Secret\nmetadata: {name: a}\ndata: {x: '%'}", "data.x of Secret a is not base64"),
        ("kind: Secret", "metadata.name of a Secret is missing"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ClusterManifestError, match=r"^the manifest") as refused:
        parse_manifest(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_read_without_a_warning(path: Path) -> None:
    manifest = parse_manifest(path.read_text(), path.name)
    assert not spec_warnings(manifest.cluster.spec)
    assert not without_local_meaning(manifest.cluster.spec)


def test_what_kubernetes_takes_is_taken() -> None:
    digest = "0123456789abcdef" * 4
    spec = {
        "image": f"registry.example.com:5000/a/qsync_node:0.1@sha256:{digest}",
        "storage": {"storageClass": ""},
        "tls": {"secretName": "a.b-c"},
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1000m", "memory": "1Gi"}},
        "archive": {"url": "s3://a/b"},
        "audit": {"schedule": "@daily", "timeZone": "America/Argentina/Buenos_Aires"},
    }
    assert parse_manifest(cluster(**spec)).cluster.spec.image == spec["image"]


_SHARED_PRIVILEGES: list[dict[str, Any]] = [
    {"runAsUser": 0},
    {"runAsNonRoot": False},
    {"runAsNonRoot": None},
    {"seccompProfile": {"type": "Unconfined"}},
    {"seccompProfile": None},
    {"appArmorProfile": {"type": "Unconfined"}},
    {"seLinuxOptions": {"type": "spc_t"}},
    {"seLinuxOptions": {"user": "system_u"}},
    {"windowsOptions": {"hostProcess": True}},
]
"""Security contexts that neither a pod nor a container may have."""
_OWN_PRIVILEGES: list[dict[str, Any]] = [
    {"procMount": "Unmasked"},
    {"allowPrivilegeEscalation": True},
    {"allowPrivilegeEscalation": None},
    {"capabilities": None},
    {"capabilities": {"drop": []}},
]
"""Security contexts that no container may have."""


@pytest.mark.parametrize(
    "spec",
    [
        {"hostPID": True},
        {"hostNetwork": True},
        {"serviceAccountName": "admin"},
        {"automountServiceAccountToken": True},
        {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
        {"containers": [{"name": "x", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "x", "securityContext": {"capabilities": {"add": ["ALL"]}}}]},
        {"initContainers": [{"name": "x", "securityContext": {"runAsUser": 0}}]},
        {"containers": [{"name": "x", "ports": [{"containerPort": 22, "hostPort": 22}]}]},
        {"containers": [{"name": "x", "livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}]},
        {"containers": [{"name": "node", "securityContext": None}]},
        {"securityContext": None},
        *({"securityContext": context} for context in _SHARED_PRIVILEGES),
        *({"containers": [{"name": "x", "securityContext": c}]} for c in _SHARED_PRIVILEGES),
        {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
        *({"containers": [{"name": "node", "securityContext": c}]} for c in _OWN_PRIVILEGES),
    ],
)
def test_restricted_template_gives_no_privilege(spec: dict[str, Any]) -> None:
    refuse_template({"spec": spec})
    with pytest.raises(ValueError, match="is not allowed here"):
        refuse_privileged({"spec": spec})


def test_restricted_template_takes_what_needs_no_privilege() -> None:
    context = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"},
        "seLinuxOptions": {"level": "s0:c1,c2"},
    }
    probe = {"httpGet": {"path": "/", "port": 80}}
    sidecar = {"name": "x", "securityContext": context, "livenessProbe": probe}
    sysctls = [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]
    security = {"fsGroup": 5, "sysctls": sysctls}
    given = {"containers": [sidecar], "volumes": volumes, "securityContext": security}
    refuse_privileged({"metadata": {"labels": {"a": "b"}}, "spec": given})


def test_restricted_template_loads_apparmor_profiles_only() -> None:
    name = "container.apparmor.security.beta.kubernetes.io/node"
    refuse_privileged({"metadata": {"annotations": {name: "runtime/default"}}})
    with pytest.raises(ValueError, match="is not allowed here"):
        refuse_privileged({"metadata": {"annotations": {name: "unconfined"}}})


def test_defaults_make_an_empty_spec_a_good_one() -> None:
    spec = ClusterSpec()
    assert (spec.replicas, spec.async_replicas, spec.read_replicas) == (3, 0, 0)
    assert spec.replication.quorum == "majority"
    assert spec.failover.unconfirmed == "adopt"
    assert spec.storage.retention == "Retain"


def test_a_printed_document_is_read_back_as_the_same() -> None:
    text = (EXAMPLES / "five-nodes.yaml").read_text()
    manifest = parse_manifest(text)
    document = manifest.cluster.document()
    assert document["spec"]["replication"]["synchroTimeout"] == "3s"
    again = parse_manifest(yaml.safe_dump(document)).cluster
    assert again.spec.model_dump() == manifest.cluster.spec.model_dump()
    assert again.document() == document


def test_secrets_come_from_data_and_from_string_data() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"a": "Zmlyc3Q="},
        "stringData": {"b": "second"},
    }
    manifest = parse_manifest(cluster() + "---\n" + yaml.safe_dump(secret))
    assert manifest.secrets == {"s": {"a": "first", "b": "second"}}


def test_valid_but_unusual_fields_cause_a_warning() -> None:
    spec = ClusterSpec.model_validate({"replicas": 4, "replication": {"walMode": "write"}})
    even, unsafe = spec_warnings(spec)
    assert even.startswith("4 voters")
    assert "power failure" in unsafe


def test_fields_without_local_meaning_are_named_only_when_given() -> None:
    given = ClusterSpec.model_validate({"image": "x", "storage": {"size": "1Gi"}})
    assert without_local_meaning(given) == ["image", "storage.size"]


def test_an_even_number_and_a_formula_are_legal() -> None:
    parse_manifest(cluster(replicas=4, replication={"quorum": "N/2+1"}))
    parse_manifest(cluster(replicas=31, replication={"quorum": 31}))


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h"]))
def test_durations_are_exact(number: int, unit: str) -> None:
    scale = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}[unit]
    assert duration_ns(f"{number}{unit}") == number * scale


def test_durations_and_quantities_compose() -> None:
    assert duration_ns("1m30s") == 90 * 10**9
    assert quantity("10Gi") == 10 * (1 << 30)
    assert quantity("500m") == 0.5


@given(st.text(alphabet="0123456789.msh", max_size=6))
def test_what_is_no_duration_is_refused_as_such(text: str) -> None:
    if re.fullmatch(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+", text):
        assert duration_ns(text) >= 0
    else:
        with pytest.raises(ValueError, match="invalid duration"):
            duration_ns(text)


def test_local_cluster_refuses_a_secret_with_keys() -> None:
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster", "metadata": {"name": "events"},
        "spec": {"journals": {"authKeysSecret": "tokens"}},
    }  # fmt: skip
    with pytest.raises(
        ClusterManifestError, match=r"name a file with the keys in spec\.journals\.auth"
    ):
        parse_manifest(json.dumps(document), "events.yaml")


# --- journals beside a cluster --------------------------------------------------------------------


def journal(name: str, wanted: str, **spec: object) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncJournal",
            "metadata": {"name": name},
            "spec": {"cluster": "orders", "journal": wanted, **spec},
        }
    )


def with_journals(*documents: str) -> str:
    return "---\n".join([cluster(journals={"enabled": True}), *documents])


@pytest.mark.parametrize(("one", "other"), [("orders/eu", "orders"), ("orders", "orders/eu/late")])
def test_journals_in_one_folder_are_refused(one: str, other: str) -> None:
    with pytest.raises(ClusterManifestError) as refused:
        parse_manifest(with_journals(journal("one", one), journal("other", other)))
    assert f"QsyncJournal other: {other!r} and {one!r} would share" in str(refused.value)


def test_journals_in_folders_of_their_own_are_accepted() -> None:
    names = ["orders/eu", "orders/eu-late", "orders/us", "order"]
    documents = [journal(f"j{number}", name) for number, name in enumerate(names)]
    assert len(parse_manifest(with_journals(*documents)).journals) == 4


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"journal": "bad name"}, "spec.journal: 'bad name' must consist of letters"),
        (
            {"fragment": {"stores": ["ftp://x/"]}},
            "spec.fragment.stores[0]: the scheme of 'ftp://x/' must be one of",
        ),
        (
            {"fragment": {"pathPostfixTemplate": "{{ .Foo }}"}},
            "spec.fragment.pathPostfixTemplate: ",
        ),
        ({"fragment": {"flushInterval": "5s"}}, "spec.fragment.flushInterval: must be 0 or"),
    ],
)
def test_specification_that_brokers_refuse_is_refused(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClusterManifestError) as refused:
        parse_manifest(with_journals(journal("one", **{"wanted": "orders/eu", **_wanted(spec)})))
    assert f"QsyncJournal one: {sentence}" in str(refused.value)


def _wanted(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `journal` for a specification that may name the journal."""
    return {"wanted" if key == "journal" else key: value for key, value in spec.items()}
