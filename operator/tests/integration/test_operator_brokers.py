"""Brokers in the pods of voters: their container, their secrets, and how they start and stop."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_agent import broker as pod_broker
from qsync_agent import leave as pod_leave
from qsync_agent.broker import BrokerRunner, settled_zone
from qsync_broker.config import load_config
from qsync_node.format.proofs import broker_password, broker_secret
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.resources.certificates import certificate_names
from qsync_operator.resources.monitoring import build_monitoring
from qsync_operator.resources.network import build_network_policy
from qsync_operator.resources.pods import build_pod_template, restart_inputs
from qsync_operator.resources.secrets import decoded
from qsync_testing.operator.desired import IMAGE, built, cluster_of, one, state_of


def template_of(kind: Any = "voter", **journals: Any) -> dict[str, Any]:
    spec: dict[str, Any] = build_pod_template(cluster_of(journals=journals), kind, IMAGE)["spec"]
    return spec


def settings_of(cluster: QsyncCluster, zone: str = "") -> dict[str, Any]:
    """Return the configuration of orders-1, as Kubernetes passes it to the container."""
    pod = build_pod_template(cluster, "voter", IMAGE)["spec"]
    (given,) = [v for v in pod["containers"][1]["env"] if v["name"] == "BROKER_SETTINGS"]
    text = given["value"].replace("$(POD_NAME)", "orders-1").replace("$(POD_ZONE)", zone)
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


def test_only_voters_have_a_broker_and_only_if_journals_are_enabled() -> None:
    found = {
        kind: [container["name"] for container in template_of(kind)["containers"]]
        for kind in ("voter", "async", "anonymous")
    }
    assert found == {"voter": ["node", "broker"], "async": ["node"], "anonymous": ["node"]}
    assert len(template_of(enabled=False)["containers"]) == 1


def test_pods_without_brokers_are_those_of_former_versions() -> None:
    plain = cluster_of()
    for same in (cluster_of(journals={"enabled": False}), plain):
        assert restart_inputs(same, IMAGE) == restart_inputs(plain, IMAGE)
        assert build_pod_template(same, "voter", IMAGE) == build_pod_template(plain, "voter", IMAGE)
    for changed in ({}, {"tls": True}, {"port": 9000}, {"resources": {"limits": {"cpu": "1"}}}):
        assert restart_inputs(cluster_of(journals=changed), IMAGE) != restart_inputs(plain, IMAGE)


def test_keys_of_tokens_are_mounted_from_a_secret() -> None:
    pod = template_of(authKeysSecret="tokens")
    (volume,) = (one for one in pod["volumes"] if one["name"] == "journals-keys")
    assert volume["secret"]["secretName"] == "tokens"
    assert volume["secret"]["optional"], "a member serves without the Secret of the brokers"
    node, broker = pod["containers"]
    (mount,) = (one for one in broker["volumeMounts"] if one["name"] == "journals-keys")
    assert not [one for one in node["volumeMounts"] if one["name"] == "journals-keys"]
    settings = settings_of(cluster_of(journals={"authKeysSecret": "tokens"}))
    assert settings["auth_keys_file"] == f"{mount['mountPath']}/keys"
    assert "auth_keys_file" not in settings_of(cluster_of(journals={}))
    without, given = (
        restart_inputs(cluster_of(journals={"authKeysSecret": name}), IMAGE)
        for name in (None, "tokens")
    )
    assert restart_inputs(cluster_of(journals={}), IMAGE) == without != given


def test_a_broker_is_restricted_and_sees_no_file_of_its_member() -> None:
    pod = template_of()
    node, broker = pod["containers"]
    assert broker["securityContext"] == node["securityContext"]
    assert not broker.keys() & {"readinessProbe", "livenessProbe", "startupProbe"}
    mounts = {mount["name"]: mount.get("subPath", "") for mount in broker["volumeMounts"]}
    assert mounts == {"data": "journals", "journals-secret": "", "journals-tmp": ""}
    assert {mount["name"] for mount in broker["volumeMounts"]} <= {
        "data",
        *(volume["name"] for volume in pod["volumes"]),
    }


def test_the_secret_of_brokers_contains_only_what_is_derived_for_them() -> None:
    cluster = cluster_of(journals={})
    secret = decoded(one(built(cluster), "Secret", "orders-journals"))
    given = state_of(cluster).secret
    assert secret == {"password": broker_password(given), "secret": broker_secret(given)}


def test_a_broker_accepts_the_configuration_that_its_pod_writes(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(yaml.safe_dump(settings_of(cluster_of(journals={"port": 9000}), "zone-a")))
    config = load_config(file)
    assert (config.name, config.zone, config.user) == ("orders-1", "zone-a", "qsync_broker")
    assert config.endpoint == "http://orders-1.orders.ns.svc:9000"
    assert (config.peer_address, config.node) == ("orders-1.orders:8082", "127.0.0.1:3301")
    assert (config.listen, config.tls) == ("0.0.0.0:9000", None)


def test_brokers_with_tls_have_the_certificate_of_the_members(tmp_path: Path) -> None:
    cluster = cluster_of(journals={"tls": True})
    file = tmp_path / "broker.yaml"
    file.write_text(yaml.safe_dump({**settings_of(cluster), "zone": "zone-a"}))
    config = load_config(file)
    assert config.tls is not None
    assert str(config.tls.cert) == "/etc/qsync/tls/tls.crt"
    assert (config.node, config.is_node_tls) == ("127.0.0.1:3302", True)
    assert config.endpoint == "https://orders-1.orders.ns.svc:8080"
    (broker,) = [
        c
        for c in build_pod_template(cluster, "voter", IMAGE)["spec"]["containers"]
        if c["name"] == "broker"
    ]
    assert "tls" in {mount["name"] for mount in broker["volumeMounts"]}
    assert "orders-journals.ns.svc" in certificate_names(cluster)
    # A change of the names would renew the certificates of all existing clusters.
    assert certificate_names(cluster_of(journals={})) == certificate_names(cluster_of())


def test_clients_reach_all_brokers_and_only_members_reach_their_peers_port() -> None:
    cluster = cluster_of(journals={"port": 9000})
    service = one(built(cluster), "Service", "orders-journals")["spec"]
    assert service["selector"]["qsync.dev/kind"] == "voter"
    assert [port["port"] for port in service["ports"]] == [9000]
    policy = build_network_policy(cluster)
    assert policy is not None
    open_ports, _, peers = policy["spec"]["ingress"]
    assert {port["port"] for port in open_ports["ports"]} == {3301, 3302, 9000}
    assert [port["port"] for port in peers["ports"]] == [8082]
    assert [list(peer) for peer in peers["from"]] == [["podSelector"]]


def test_metrics_are_read_as_the_brokers_serve_them() -> None:
    found = {
        tls: build_monitoring(
            cluster_of(journals={"tls": tls}, monitoring={"podMonitor": True}), ["PodMonitor"]
        )[0]["spec"]["podMetricsEndpoints"]
        for tls in (False, True)
    }
    assert (found[False][1]["scheme"], found[True][1]["scheme"]) == ("http", "https")
    assert found[True][1]["tlsConfig"] == found[True][0]["tlsConfig"]


@pytest.mark.parametrize(
    "container", [{"readinessProbe": {}}, {"image": "x"}, {"env": [{"name": "POD_ZONE"}]}]
)
def test_the_pod_template_cannot_replace_the_broker(container: dict[str, Any]) -> None:
    template = {"spec": {"containers": [{"name": "broker", **container}]}}
    with pytest.raises(ValueError, match=r"containers\[broker\]"):
        cluster_of(journals={}, podTemplate=template)
    cluster_of(podTemplate=template)  # a container of the user's has this name


# --- in the pod -----------------------------------------------------------------------------------


def test_a_zone_never_changes_and_is_the_name_where_none_is_known(tmp_path: Path) -> None:
    assert settled_zone(tmp_path, "orders-1", "") == "orders-1"
    assert settled_zone(tmp_path, "orders-1", "zone-a") == "orders-1"
    (tmp_path / "zone").unlink()
    assert settled_zone(tmp_path, "orders-1", "zone-a") == "zone-a"
    (tmp_path / "zone").unlink()
    assert settled_zone(tmp_path, f"{'x' * 40}-12", "").endswith("x-12")


def test_a_zone_that_a_power_failure_emptied_is_settled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zone").touch()
    assert settled_zone(tmp_path, "orders-1", "zone-a") == "zone-a"
    (tmp_path / "zone").unlink()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    settled_zone(tmp_path, "orders-1", "zone-a")
    assert synced == [(tmp_path / "zone").stat().st_ino, tmp_path.stat().st_ino]


def test_a_broker_that_ends_starts_again_and_one_that_is_stopped_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_broker, "PAUSE_FIRST_S", 0.05)
    starts = tmp_path / "starts"
    # The first process ends with 1. The second one ends with 7 on a stop signal.
    program = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
starts = pathlib.Path({str(starts)!r})
count = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (count + 1))
if not count:
    sys.exit(1)
time.sleep(60)
"""
    keeper = BrokerRunner([sys.executable, "-c", program])
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(keeper.run()))
    thread.start()
    deadline_s = time.monotonic() + 30
    while not (starts.exists() and starts.read_text() == "xx"):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    keeper.stop(signal.SIGTERM, None)
    thread.join(30)
    assert codes == [7]
    assert starts.read_text() == "xx"


def test_a_member_stops_after_its_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        assert not pod_leave.await_end_of(port, patience_s=0.3)
    assert pod_leave.await_end_of(port, patience_s=30)
    hook = template_of(port=9000)["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[-2:] == ["--after", "9000"]
    assert template_of()["terminationGracePeriodSeconds"] > pod_leave.BROKER_S
