"""`qsync local` with real processes: user commands, and failures of members and supervisors."""

import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import tarantool
import yaml

from qsync_cli import waiting
from qsync_cli.failure import Failure, FailureReason
from qsync_local.store import ClusterFiles
from qsync_operator.api.manifest import parse_manifest
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES
from qsync_testing.ports import free_port

pytestmark = pytest.mark.timeout(240)
THREE = EXAMPLES / "three-nodes.yaml"


@pytest.fixture
def orders(home: Home) -> Home:
    """Return a home in which docs/examples/three-nodes.yaml is Ready."""
    home.do("local", "apply", "-f", THREE)
    return home


@pytest.mark.parametrize(
    "example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: str(path.stem)
)
def test_every_example_becomes_ready_and_is_deleted_without_a_trace(
    home: Home, example: Path, tmp_path: Path
) -> None:
    # Other tests use the stated ports at the same time.
    text = re.sub(r"port: 80\d0", f"port: {free_port(3)}", example.read_text())
    documents = list(yaml.safe_load_all(text))
    cluster = next(document for document in documents if document["kind"] == "QsyncCluster")
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    (tmp_path / example.name).write_text(text)
    home.do("local", "apply", "-f", tmp_path / example.name)
    shown = home.status(name)
    roles = [member["role"] for member in shown["status"]["members"]]
    assert sorted(roles) == sorted(
        ["leader"]
        + ["follower"] * (spec["replicas"] - 1)
        + ["async"] * spec.get("asyncReplicas", 0)
        + ["anonymous"] * spec.get("readReplicas", 0)
    )
    assert shown["status"]["phase"] == "Ready"
    connection = home.connect(name)
    for space in spec.get("spaces", []):
        assert connection.schema.get_space(space["name"]).name == space["name"]
    connection.close()
    assert "deleted" in home.do("local", "delete", name, "--yes")
    assert not (home.directory / name).exists()
    assert home.all_pids() == []


def test_a_second_apply_changes_nothing(orders: Home) -> None:
    before = orders.members("orders")
    events = orders.events("orders")
    again = orders.do("local", "apply", "-f", THREE)
    assert "qsynccluster.qsync.dev/orders unchanged" in again
    assert orders.status("orders")["metadata"]["generation"] == 1
    after = orders.members("orders")
    assert {n: m["pid"] for n, m in after.items()} == {n: m["pid"] for n, m in before.items()}
    assert orders.events("orders") == events


def test_the_printed_object_has_what_tools_rely_on(orders: Home) -> None:
    shown = orders.status("orders")
    assert (shown["apiVersion"], shown["kind"]) == ("qsync.dev/v1alpha1", "QsyncCluster")
    status = shown["status"]
    assert status["leader"] in ("orders-0", "orders-1", "orders-2")
    assert status["term"] >= 1
    assert status["quorum"] == 2
    assert status["confirmedSignature"] >= 1
    for member in status["members"]:
        assert member["role"] in ("leader", "follower")
        assert member["replicaId"] in (1, 2, 3)
        assert len(member["uuid"]) == 36
        assert member["lastTerm"] >= 1
        assert member["lag"] >= 0
        assert Path(member["directory"]).is_dir()
        assert Path(f"/proc/{member['pid']}").is_dir()
        assert member["address"] != member["adminAddress"]
    text = orders.do("local", "status", "orders")
    assert text.splitlines()[1].split() == [
        "MEMBER", "ROLE", "READY", "TERM", "CONFIRMED", "LAG", "FENCED", "LOCATION",
    ]  # fmt: skip


def test_secrets_are_for_their_owner_only(orders: Home) -> None:
    directory = orders.directory / "orders"
    for path in (directory / "secrets.json", *directory.glob("nodes/*/node.yaml")):
        assert path.stat().st_mode & 0o077 == 0, path
    shown = orders.status("orders")
    secrets = json.loads((directory / "secrets.json").read_text())
    assert secrets["cluster"] not in json.dumps(shown)
    assert secrets["password"] not in json.dumps(shown)


class LocalWriter(threading.Thread):
    """Thread that inserts numbers through one member and records the acknowledged ones."""

    def __init__(self, connection: tarantool.Connection) -> None:
        super().__init__()
        self.connection = connection
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            try:
                self.connection.insert("orders", (number, "a name", 1.5))
            except tarantool.Error as error:
                self.refused.append(str(error))
                time.sleep(0.05)
            else:
                self.acknowledged.append(number)

    def finish(self) -> list[int]:
        self.stopping.set()
        self.join()
        self.connection.close()
        return self.acknowledged


def rows(home: Home, member: str) -> set[int]:
    connection = home.connect("orders", member)
    found = {row[0] for row in connection.select("orders")}
    connection.close()
    return found


def test_scale_out_and_in_under_load_loses_nothing(orders: Home) -> None:
    leader = orders.leader("orders")["name"]
    writer = LocalWriter(orders.connect("orders", leader))
    writer.start()
    orders.do("local", "scale", "orders", "--replicas", "5")
    assert len(orders.members("orders")) == 5
    assert orders.status("orders")["status"]["quorum"] == 3
    orders.do("local", "scale", "orders", "--replicas", "3")
    acknowledged = writer.finish()
    assert sorted(orders.members("orders")) == ["orders-0", "orders-1", "orders-2"]
    assert orders.status("orders")["status"]["quorum"] == 2
    assert acknowledged
    assert rows(orders, leader) >= set(acknowledged)
    assert len(orders.node_pids("orders")) == 3
    retired = sorted(p.name[:8] for p in (orders.directory / "orders" / "retired").iterdir())
    assert retired == ["orders-3", "orders-4"]


def test_a_killed_leader_is_succeeded_and_comes_back(orders: Home) -> None:
    connection = orders.connect("orders", "orders-1")
    connection.insert("orders", (1, "before", None))
    old = orders.leader("orders")
    os.kill(old["pid"], signal.SIGKILL)
    status = orders.until(
        "orders",
        lambda s: s.get("lastFailover", {}).get("from") == old["name"] and s["phase"] == "Ready",
    )
    failover = status["lastFailover"]
    assert failover["reason"] == "ProcessEnded"
    assert failover["to"] != old["name"]
    assert failover["unavailableMilliseconds"] > 0
    back = orders.members("orders")[old["name"]]
    assert back["role"] == "follower"
    assert back["pid"] != old["pid"]
    assert back["uuid"] == old["uuid"]
    connection.insert("orders", (2, "after", None))
    connection.close()
    assert "Failover" in orders.events("orders")
    orders.do("local", "status", "orders")
    assert rows(orders, status["leader"]) == {1, 2}


def test_a_leader_that_hangs_is_succeeded_and_follows_when_it_wakes(orders: Home) -> None:
    old = orders.leader("orders")
    os.kill(old["pid"], signal.SIGSTOP)
    try:
        status = orders.until("orders", lambda s: s.get("leader", "") not in ("", old["name"]))
        assert status["term"] > old["term"]
        assert orders.members("orders")[old["name"]]["role"] == "down"
    finally:
        os.kill(old["pid"], signal.SIGCONT)
    orders.until("orders", lambda s: s["phase"] == "Ready" and len(s["members"]) == 3)
    back = orders.members("orders")[old["name"]]
    assert (back["role"], back["pid"]) == ("follower", old["pid"])


def test_a_supervisor_that_always_ends_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClusterFiles(tmp_path / "orders")
    store.directory.mkdir()
    store.supervisor_log.write_text("Traceback\nAttributeError: a defect\n")
    cluster = parse_manifest(THREE.read_text()).cluster
    monkeypatch.setattr(waiting, "observe", lambda _: cluster)
    monkeypatch.setattr(waiting, "ensure_supervisor", lambda _: True)
    with pytest.raises(Failure, match="ended 6 times: AttributeError: a defect; read") as raised:
        waiting.wait_ready(store, 60, is_quiet=True)
    assert raised.value.reason is FailureReason.FAILED


def test_a_killed_supervisor_loses_nothing(orders: Home) -> None:
    before = orders.members("orders")
    orders.kill_supervisors()
    assert orders.members("orders").keys() == before.keys()
    assert len(orders.supervisor_pids()) == 1
    after = orders.members("orders")
    assert {n: m["pid"] for n, m in after.items()} == {n: m["pid"] for n, m in before.items()}
    orders.kill_supervisors()
    os.kill(before["orders-2"]["pid"], signal.SIGKILL)
    orders.until(
        "orders",
        lambda s: (
            s["phase"] == "Ready"
            and all(m.get("pid") != before["orders-2"]["pid"] for m in s["members"])
        ),
    )


def test_deleted_with_its_data_kept_the_same_cluster_comes_back(orders: Home) -> None:
    connection = orders.connect("orders")
    connection.insert("orders", (7, "kept", None))
    connection.close()
    uuids = {name: member["uuid"] for name, member in orders.members("orders").items()}
    said = orders.refuse("local", "delete", "orders")
    assert "orders: all its processes stop. storage.retention is Retain" in said
    assert "`qsync destroy orders --delete-data --yes` to delete both (Refused)" in said
    refused = orders.run("destroy", "orders", "--delete-data")
    assert refused.returncode == 1
    assert "orders: its rows, and the bytes of its journals, are lost with it" in refused.stderr
    assert re.search(r"nodes/orders-2: [\d.]+ kB\n", refused.stderr)
    assert refused.stderr.endswith("or --keep-data to stop it only (Refused)\n")
    assert len(orders.node_pids("orders")) == 3
    removed = json.loads(orders.do("destroy", "orders", "--yes", "-o", "json"))
    assert (removed["isDeleted"], removed["isDataRetained"]) == (True, True)
    assert orders.all_pids() == []
    assert "(NotFound)" in orders.refuse("local", "status", "orders")
    orders.do("local", "apply", "-f", THREE)
    members = orders.members("orders")
    assert {name: member["uuid"] for name, member in members.items()} == uuids
    assert rows(orders, orders.leader("orders")["name"]) == {7}
    orders.do("destroy", "orders", "--yes")
    assert "retained data" in orders.do("destroy", "orders", "--delete-data", "--yes")
    assert not (orders.directory / "orders").exists()


def test_data_is_deleted_if_the_manifest_demands_it(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "one.yaml"
    text = (EXAMPLES / "one-node.yaml").read_text()
    document = yaml.safe_load(text)
    document["spec"]["storage"] = {"retention": "Delete"}
    manifest.write_text(yaml.safe_dump(document))
    name = document["metadata"]["name"]
    home.do("apply", "-f", manifest)
    assert home.run("destroy", name).returncode == 1
    assert "data retained" not in home.do("destroy", name, "--yes")
    assert not (home.directory / name).exists()


def test_a_lost_disk_becomes_a_new_instance(orders: Home) -> None:
    members = orders.members("orders")
    victim = next(m for m in members.values() if m["role"] == "follower")
    shutil.rmtree(victim["directory"])
    os.kill(victim["pid"], signal.SIGKILL)
    orders.until(
        "orders",
        lambda s: (
            s["phase"] == "Ready"
            and all(m["uuid"] not in ("", victim["uuid"]) for m in s["members"])
        ),
    )
    assert "Unregister" in orders.events("orders")
    assert Path(victim["directory"]).is_dir()


def test_deleted_data_is_noticed_without_a_write_or_a_restart(orders: Home) -> None:
    """One member is created again; if all are gone, no member pretends to serve."""
    members = orders.members("orders")
    victim = next(m for m in members.values() if m["role"] == "follower")
    shutil.rmtree(victim["directory"])
    orders.until(
        "orders",
        lambda s: (
            s["phase"] == "Ready"
            and all(m["uuid"] not in ("", victim["uuid"]) for m in s["members"])
        ),
    )
    for member in members.values():
        shutil.rmtree(member["directory"])
    status = orders.until(
        "orders", lambda s: all(member["role"] == "down" for member in s["members"])
    )
    assert status["phase"] == "Unavailable"
    done = orders.run("local", "status", "orders", "--check")
    assert done.returncode == 6
    assert "all data of the cluster is lost" in done.stdout


def test_verbs_move_leadership(orders: Home) -> None:
    leader = orders.leader("orders")["name"]
    target = next(name for name in sorted(orders.members("orders")) if name != leader)
    assert f"{target} leads in term" in orders.do("promote", target, "--local", "orders")
    assert orders.leader("orders")["name"] == target
    orders.do("switchover", "--local", "orders")
    orders.until("orders", lambda s: s.get("leader", target) != target)
    orders.do("fence", target, "--local", "orders")
    orders.do("unfence", target, "--local", "orders")
    orders.do("snapshot", "--local", "orders")
    address = orders.members("orders")[target]["adminAddress"]
    secret = json.loads((orders.directory / "orders" / "secrets.json").read_text())["cluster"]
    assert "the cluster's secret" in orders.refuse("snapshot", "--address", address)
    orders.do("snapshot", "--address", address, "--secret", secret)
    assert target in orders.do("status", "--address", address)
    snapshots = list((orders.directory / "orders").glob("nodes/*/data/*.snap"))
    assert len(snapshots) >= 3
    assert '"INSERT"' in orders.do("cat", snapshots[0], "-o", "json")
    assert target in orders.do("local", "logs", "orders", target)


def test_a_reader_reads_along_and_is_registered_later(home: Home) -> None:
    home.do("local", "apply", "-f", EXAMPLES / "async-and-readers.yaml")
    reader = "catalogue-reader-0"
    connection = home.connect("catalogue")
    connection.insert("products", ("a", 1))
    home.until("catalogue", lambda s: all(m["lag"] == 0 for m in s["members"]))
    seen = home.connect("catalogue", reader)
    assert [list(row) for row in seen.select("products")] == [["a", 1]]
    seen.close()
    assert f"{reader} is registered with id" in home.do("register", reader, "--local", "catalogue")
    assert "(Refused)" in home.refuse("register", reader, "--local", "catalogue")
    before = home.members("catalogue")[reader]
    assert before["role"] == "async"
    home.until("catalogue", lambda s: home.state("catalogue")["members"][reader]["role"] != "")
    os.kill(before["pid"], signal.SIGKILL)
    home.until(
        "catalogue",
        lambda s: any(
            m["name"] == reader and m["role"] == "async" and m["pid"] != before["pid"]
            for m in s["members"]
        ),
    )
    connection.insert("products", ("b", 2))
    connection.close()
    home.do("local", "scale", "catalogue", "--read-replicas", "0")
    assert reader not in home.members("catalogue")
    assert "Unregister" in home.events("catalogue")


def test_changes_of_the_manifest_reach_running_members(orders: Home, tmp_path: Path) -> None:
    manifest = yaml.safe_load(THREE.read_text())
    changed = tmp_path / "changed.yaml"
    before = {name: m["pid"] for name, m in orders.members("orders").items()}
    manifest["spec"]["replication"] = {"synchroTimeout": "3s"}
    changed.write_text(yaml.safe_dump(manifest))
    assert "configured" in orders.do("local", "apply", "-f", changed)
    assert {name: m["pid"] for name, m in orders.members("orders").items()} == before
    manifest["spec"]["replication"]["walMode"] = "write"
    changed.write_text(yaml.safe_dump(manifest))
    orders.do("local", "apply", "-f", changed)
    after = {name: m["pid"] for name, m in orders.members("orders").items()}
    assert not set(after.values()) & set(before.values())
    reasons = orders.events("orders")
    assert reasons.count("Restart") == 3
    assert reasons.count("Configure") == 3


def test_named_ports_are_used_and_one_in_use_is_reported(home: Home, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        manifest = tmp_path / "ports.yaml"
        manifest.write_text(
            "apiVersion: qsync.dev/v1alpha1\nkind: QsyncCluster\nmetadata: {name: one}\n"
            f"spec: {{replicas: 1, ports: {{iproto: {port}}}}}\n"
        )
        said = home.refuse("local", "apply", "-f", manifest, "--timeout", "60")
        assert f"one cannot become Ready: one-0 cannot listen: port {port} is in use" in said
    home.do("local", "apply", "-f", manifest)
    assert home.members("one")["one-0"]["address"] == f"127.0.0.1:{port}"


def test_a_refused_change_leaves_the_cluster_as_it_is(orders: Home, tmp_path: Path) -> None:
    manifest = yaml.safe_load(THREE.read_text())
    manifest["spec"]["replication"] = {"quorum": 9}
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(manifest))
    assert "can never be reached" in orders.refuse("local", "apply", "-f", bad)
    assert "it must be at most 31" in orders.refuse("local", "scale", "orders", "--replicas", "40")
    manifest["spec"] = {"auth": {"username": "other"}}
    bad.write_text(yaml.safe_dump(manifest))
    assert "auth.username cannot change" in orders.refuse("local", "apply", "-f", bad)
    assert orders.status("orders")["metadata"]["generation"] == 1


def test_two_homes_never_touch(orders: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    assert "no clusters" in other.do("local", "status")
    assert "(NotFound)" in other.refuse("local", "delete", "orders")
    assert orders.status("orders")["status"]["phase"] == "Ready"
