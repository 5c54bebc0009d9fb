"""Builders: golden manifests, and rules that hold for every specification.

Set `QSYNC_WRITE_GOLDEN=1` to rewrite the golden files.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_agent.start import PodError, node_document
from qsync_node.server.config import NodeConfig, parse_duration_ns
from qsync_operator.api.base import duration_ns
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.manifest import load_manifest
from qsync_operator.resources.certificates import certificate_names
from qsync_operator.resources.config import member_settings
from qsync_operator.resources.labels import INPUTS_ANNOTATION
from qsync_operator.resources.nodeconfig import node_settings
from qsync_operator.resources.objects import build_objects
from qsync_operator.resources.overlay import overlay
from qsync_operator.resources.pods import build_pod_template, restart_inputs
from qsync_operator.resources.secrets import build_identity, decoded
from qsync_operator.resources.state import ClusterState
from qsync_operator.settings import Site
from qsync_testing.operator.desired import IMAGE, UUID, built, cluster_of, one, state_of
from qsync_testing.paths import EXAMPLES

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("example", ["three-nodes", "async-and-readers"])
def test_objects_of_an_example(example: str) -> None:
    given = load_manifest(EXAMPLES / f"{example}.yaml").cluster.model_dump(by_alias=True)
    given["metadata"] |= {"namespace": "ns", "uid": "cluster-uid"}
    cluster = QsyncCluster.model_validate(given)
    objects = [build_identity(cluster, state_of(cluster)), *built(cluster)]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=100)
    path = GOLDEN / f"{example}.yaml"
    if os.environ.get("QSYNC_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_everything_belongs_to_the_cluster_but_what_kept_volumes_need() -> None:
    for retention, unowned in (("Retain", {"orders-identity", "orders-app"}), ("Delete", set())):
        cluster = cluster_of(storage={"retention": retention})
        objects = [build_identity(cluster, state_of(cluster)), *built(cluster)]
        found = {o["metadata"]["name"] for o in objects if "ownerReferences" not in o["metadata"]}
        assert found == unowned
        sets = one(objects, "StatefulSet", "orders")["spec"]
        assert sets["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": retention,
            "whenScaled": retention,
        }


def test_pods_pass_pod_security_restricted() -> None:
    pod = build_pod_template(cluster_of(), "voter", IMAGE)["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(("replicas", "spare"), [(1, None), (2, None), (3, 1), (4, 1), (5, 2)])
def test_a_drain_may_take_what_the_quorum_can_spare(replicas: int, spare: int | None) -> None:
    budgets = [
        o for o in built(cluster_of(replicas=replicas)) if o["kind"] == "PodDisruptionBudget"
    ]
    assert [b["spec"]["maxUnavailable"] for b in budgets] == ([] if spare is None else [spare])


def test_drain_leaves_the_configured_quorum() -> None:
    objects = built(cluster_of(replicas=5, replication={"quorum": 4}))
    assert one(objects, "PodDisruptionBudget", "orders")["spec"]["maxUnavailable"] == 1
    kinds = {o["kind"] for o in built(cluster_of(replicas=3, replication={"quorum": 3}))}
    assert "PodDisruptionBudget" not in kinds


def test_set_has_a_pod_for_the_highest_ordinal_although_a_lower_one_is_missing() -> None:
    """Kubernetes stops the highest ordinals, and may then delete their volumes."""
    cluster = cluster_of(replicas=3)
    state = state_of(cluster).without_member("orders-1")
    objects = build_objects(cluster, state, "p", IMAGE, {})
    assert one(objects, "StatefulSet", "orders")["spec"]["replicas"] == 3


def test_only_what_needs_a_restart_marks_the_pod() -> None:
    plain = restart_inputs(cluster_of(), IMAGE)
    assert restart_inputs(cluster_of(replicas=5), IMAGE) == plain
    assert restart_inputs(cluster_of(replication={"synchroTimeout": "9s"}), IMAGE) == plain
    assert restart_inputs(cluster_of(replication={"walMode": "write"}), IMAGE) != plain
    assert restart_inputs(cluster_of(), "another:1") != plain
    assert restart_inputs(cluster_of(resources={"limits": {"memory": "1Gi"}}), IMAGE) != plain
    template = build_pod_template(cluster_of(), "voter", IMAGE)
    assert template["metadata"]["annotations"] == {INPUTS_ANNOTATION: plain}


def test_a_pod_template_is_laid_over_by_name() -> None:
    given = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {"name": "node", "env": [{"name": "TZ", "value": "UTC"}]},
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    template = build_pod_template(cluster_of(podTemplate=given), "voter", IMAGE)
    node, sidecar = template["spec"]["containers"]
    assert [variable["name"] for variable in node["env"]] == ["POD_NAME", "TZ"]
    assert (node["image"], sidecar["name"]) == (IMAGE, "sidecar")
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["qsync.dev/cluster"] == "orders"
    assert overlay([1, 2], [3]) == [3]


def test_volumes_keep_the_size_that_a_statefulset_has() -> None:
    objects = built(cluster_of(storage={"size": "20Gi"}), orders="10Gi")
    claim = one(objects, "StatefulSet", "orders")["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_a_state_survives_its_secret() -> None:
    cluster = cluster_of(replicas=3, asyncReplicas=1)
    state = state_of(cluster).founded_by("orders-0", "some-uuid").formed()
    state = state.with_instance("orders-1", "uuid-1").without_member("orders-2")
    found = ClusterState.from_strings(decoded(build_identity(cluster, state)))
    assert found == state


def test_a_removed_name_starts_in_a_new_directory() -> None:
    state = state_of(cluster_of(replicas=3))
    state = state.without_member("orders-2").with_member("orders-2", "voter")
    assert state.members["orders-2"].incarnation == 1
    state = state.without_member("orders-2")
    assert (
        replace(state, members={}).with_member("orders-2", "voter").members["orders-2"].incarnation
        == 2
    )


# --- in the pod -----------------------------------------------------------------------------------


def mounted(cluster: QsyncCluster) -> tuple[dict[str, Any], dict[str, Any]]:
    data = one(built(cluster), "ConfigMap", "orders-config")["data"]
    return yaml.safe_load(data["settings.yaml"]), json.loads(data["members.json"])


def test_the_node_takes_the_file_that_its_pod_makes() -> None:
    cluster = cluster_of(replicas=3, asyncReplicas=1, replication={"quorum": 3})
    settings, members = mounted(cluster)
    identity = {"replicasetUUID": UUID, "secret": "cluster-secret"}
    document = node_document(settings, members, identity, "orders-async-0", Path("/v"))
    config = NodeConfig.model_validate(document)
    assert (config.role, config.quorum, config.name) == ("async", 3, "orders-async-0")
    assert str(config.directory) == "/v/data-0"
    assert config.listen == "0.0.0.0:3301"
    assert config.advertise == "orders-async-0.orders.ns.svc:3301"
    assert config.peers["orders-1"] == "orders-1.orders:3302"


@pytest.mark.parametrize(("clients", "is_required"), [("Require", True), ("Accept", False)])
def test_members_refuse_clients_without_tls_where_the_manifest_requires_it(
    clients: str, is_required: bool
) -> None:
    settings, members = mounted(cluster_of(tls={"clients": clients}))
    identity = {"replicasetUUID": UUID, "secret": "cluster-secret"}
    document = node_document(settings, members, identity, "orders-0", Path("/v"))
    assert document["tls"]["is_required"] is is_required


def test_registered_reader_starts_as_an_asynchronous_member() -> None:
    cluster = cluster_of(readReplicas=1)
    state = state_of(cluster).with_instance("orders-reader-0", "uuid", "async")
    objects = build_objects(cluster, state, "p", IMAGE, {})
    members = json.loads(one(objects, "ConfigMap", "orders-config")["data"]["members.json"])
    assert members["orders-reader-0"]["role"] == "async"
    assert members["orders-0"]["role"] == "voter"


def test_registered_members_archive_and_readers_do_not() -> None:
    archive = {"url": "s3://bucket/orders", "interval": "5s", "credentialsSecret": "archive"}
    cluster = cluster_of(replicas=3, readReplicas=1, archive=archive)
    settings, members = mounted(cluster)
    identity = {"replicasetUUID": UUID, "secret": "cluster-secret"}
    found = {
        name: NodeConfig.model_validate(
            node_document(settings, members, identity, name, Path("/v"))
        ).archive
        for name in ("orders-0", "orders-reader-0")
    }
    assert found["orders-reader-0"] is None
    voter = found["orders-0"]
    assert voter is not None
    assert (voter.url, voter.interval) == ("s3://bucket/orders", 5_000_000_000)
    pod = one(built(cluster), "StatefulSet", "orders")["spec"]["template"]["spec"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "archive"}}]


def test_a_pod_that_cannot_start_reports_the_cause() -> None:
    settings, members = mounted(cluster_of())
    with pytest.raises(PodError, match="orders-7 is not among the members"):
        node_document(settings, members, {}, "orders-7", Path("/v"))
    with pytest.raises(PodError, match="lacks replicasetUUID"):
        node_document(settings, members, {}, "orders-0", Path("/v"))


# --- network and monitoring -----------------------------------------------------------------------


def test_orders_come_from_members_and_the_operator_only() -> None:
    policy = one(built(cluster_of()), "NetworkPolicy", "orders")["spec"]
    clients, orders = policy["ingress"]
    assert [p["port"] for p in clients["ports"]] == [3301, 3302]
    assert [p["port"] for p in orders["ports"]] == [8081, 3302]
    unencrypted = one(built(cluster_of(tls={"clients": "Off"})), "NetworkPolicy", "orders")
    assert [p["port"] for p in unencrypted["spec"]["ingress"][0]["ports"]] == [3301]
    names = [p["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for p in orders["from"]]
    assert names == ["qsync", "qsync-operator"]
    watched = one(built(cluster_of(monitoring={"podMonitor": True})), "NetworkPolicy", "orders")
    assert len(watched["spec"]["ingress"][1]["from"]) == 3
    off = built(cluster_of(networkPolicy={"enabled": False}))
    assert not [o for o in off if o["kind"] == "NetworkPolicy"]


def test_operator_is_trusted_in_its_own_namespace_only() -> None:
    cluster = cluster_of(monitoring={"podMonitor": True})
    site = Site("qsync-system", prometheus_namespace="monitoring")
    objects = build_objects(cluster, state_of(cluster), "p", IMAGE, {}, site=site)
    trusted = one(objects, "NetworkPolicy", "orders")["spec"]["ingress"][1]["from"]
    spaces = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in trusted
        if "namespaceSelector" in peer
    ]
    assert spaces == ["qsync-system", "monitoring"]


def test_web_page_is_trusted_only_where_it_is_installed() -> None:
    cluster = cluster_of()
    site = Site("qsync-system", has_web_page=True)
    objects = build_objects(cluster, state_of(cluster), "p", IMAGE, {}, site=site)
    trusted = one(objects, "NetworkPolicy", "orders")["spec"]["ingress"][1]["from"]
    assert trusted[2]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "qsync-operator", "app.kubernetes.io/component": "web",
    }  # fmt: skip
    assert trusted[2]["namespaceSelector"] == trusted[1]["namespaceSelector"]
    usual = one(built(cluster_of()), "NetworkPolicy", "orders")["spec"]["ingress"][1]["from"]
    assert len(usual) == 2


def test_start_has_no_deadline_that_would_begin_a_restore_again() -> None:
    template = one(built(cluster_of()), "StatefulSet", "orders")["spec"]["template"]
    probe = template["spec"]["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] > 10 * 365 * 86400


def test_no_member_of_a_cluster_without_a_quorum_is_evicted() -> None:
    budget = one(built(cluster_of()), "PodDisruptionBudget", "orders")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_monitoring_is_made_when_it_is_asked_for_and_its_kinds_exist() -> None:
    cluster = cluster_of(monitoring={"podMonitor": True, "prometheusRule": True})
    state = state_of(cluster)
    for existing in ((), ("PodMonitor",), ("PodMonitor", "PrometheusRule")):
        objects = build_objects(cluster, state, "p", IMAGE, {}, existing)
        found = [o["kind"] for o in objects if o["apiVersion"].startswith("monitoring")]
        assert found == list(existing)
    both = ("PodMonitor", "PrometheusRule")
    assert [
        o for o in build_objects(cluster_of(), state, "p", IMAGE, {}, both) if o["kind"] in both
    ] == []


def test_writes_find_a_voter_without_an_operator() -> None:
    objects = built(cluster_of(readReplicas=1))
    selectors = {
        name: one(objects, "Service", f"orders-{name}")["spec"]["selector"]
        for name in ("leader", "primary", "replicas")
    }
    voters = one(objects, "StatefulSet", "orders")["spec"]["template"]["metadata"]["labels"]
    readers = one(objects, "StatefulSet", "orders-reader")["spec"]["template"]["metadata"]["labels"]
    assert selectors["leader"].items() <= voters.items()
    assert not selectors["leader"].items() <= readers.items()
    assert selectors["primary"]["qsync.dev/role"] == "leader"
    assert selectors["replicas"]["qsync.dev/role"] == "replica"


@pytest.mark.parametrize(("asked", "is_on"), [(None, False), (False, False), (True, True)])
def test_guest_is_off_unless_the_manifest_asks_for_it(asked: bool | None, is_on: bool) -> None:
    cluster = cluster_of(guest=asked)
    settings = member_settings(cluster, "voter")
    # Nodes of earlier images refuse a configuration file with an unknown setting.
    assert ("guest" in settings) == is_on
    members = {"c-0": {"role": "voter", "advertise": "a:1", "address": "a:2"}}
    identity = {"replicasetUUID": "u", "secret": "s"}
    document = node_document(settings, members, identity, "c-0", Path("/volume"))
    assert document["guest"] is is_on
    # The default changes no restart inputs, so an upgrade of the operator restarts no pod.
    is_restart = restart_inputs(cluster, IMAGE) != restart_inputs(cluster_of(), IMAGE)
    assert is_restart is is_on


EARLIER_SETTINGS = {
    "listen", "admin_listen", "role", "quorum", "election_mode", "wal_mode", "unconfirmed",
    "heartbeat", "election_timeout", "synchro_timeout", "archive", "tls",
    "tls.cert", "tls.key", "tls.ca", "tls.listen", "tls.is_required",
    "archive.url", "archive.interval",
}  # fmt: skip
"""Settings that nodes of commit b371f5583 know.

These nodes exit with an error if their configuration file has any other setting.
"""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_settings_hold_nothing_that_nodes_of_earlier_images_refuse(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] != "QsyncCluster":
            continue
        settings = member_settings(QsyncCluster.model_validate(document), "voter")
        nested = {
            f"{key}.{name}"
            for key, value in settings.items()
            if isinstance(value, dict)
            for name in value
        }
        assert {*settings, *nested} <= EARLIER_SETTINGS


def test_a_local_cluster_keeps_the_nodes_own_guest() -> None:
    assert "guest" not in node_settings(cluster_of().spec, "voter", "127.0.0.1", 1, 2)
    assert node_settings(cluster_of(guest=False).spec, "voter", "h", 1, 2)["guest"] is False


@pytest.mark.parametrize(
    ("tls", "place"),
    [
        ({}, ":3301"),
        ({"clients": "Require"}, ":3302?transport=ssl"),
    ],
)
def test_uri_of_the_application_has_tls_where_clients_require_it(
    tls: dict[str, Any], place: str
) -> None:
    cluster = cluster_of(tls=tls)
    objects = build_objects(cluster, state_of(cluster), "p", IMAGE, {}, [])
    found = decoded(one(objects, "Secret", "orders-app"))
    assert found["uri"].startswith("app:p@orders-leader.")
    assert found["uri"].endswith(place)


@pytest.mark.parametrize("text", ["1.5ms", "17m", "1h", "1234567ms", "1d", "27h46m40.25s"])
def test_node_reads_each_duration_exactly(text: str) -> None:
    archive, replication = {"url": "s3://a/b", "interval": text}, {"synchroTimeout": text}
    cluster = cluster_of(archive=archive, replication=replication)
    settings = member_settings(cluster, "voter")
    found = (settings["archive"]["interval"], settings["synchro_timeout"])
    assert [parse_duration_ns(one) for one in found] == [duration_ns(text)] * 2


def test_metrics_are_read_over_tls() -> None:
    cluster = cluster_of(monitoring={"podMonitor": True})
    objects = build_objects(cluster, state_of(cluster), "p", IMAGE, {}, ["PodMonitor"])
    (endpoint,) = one(objects, "PodMonitor", "orders")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "orders-tls", "key": "ca.crt"}
    assert endpoint["tlsConfig"]["serverName"] in certificate_names(cluster)
    # Pods of earlier images have this label; its value `http` becomes the scheme.
    (relabelling,) = endpoint["relabelings"]
    assert relabelling["sourceLabels"] == ["__meta_kubernetes_pod_label_qsync_dev_admin_scheme"]
    assert re.fullmatch(relabelling["regex"], "http")
    assert not re.fullmatch(relabelling["regex"], "")
    assert relabelling["targetLabel"] == "__scheme__"
