"""Orders, probes, metrics and information for administrators, at real processes."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_node import __version__
from qsync_node.format.proofs import sign_order
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    SECRET,
    NodeProcess,
    ProcessCluster,
    wait_until,
)
from qsync_testing.raw import Raw
from qsync_testing.server_cluster import SPACE, cluster_with_space


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_with_space(tmp_path_factory.mktemp("observability")) as running:
        yield running


def test_admin_verbs_need_the_secret(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    assert order(leader, "/verb/fence", "") == (401, "OrderUnsigned")
    # Versions before signed orders sent this header.
    assert order(leader, "/verb/fence", f"Bearer {SECRET}") == (401, "OrderUnsigned")
    status, text = leader.admin("another secret").post("/verb/fence", b"{}", 5)
    assert (status, json.loads(text)["reason"]) == (401, "OrderSignatureWrong")
    assert not leader.status()["is_fenced"]


def order(node: NodeProcess, path: str, authorization: str) -> tuple[int, str]:
    """Send an order as another client does; return the HTTP status and the reason of a refusal."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.admin_port}{path}", data=b"{}", method="POST",
        headers={"Authorization": authorization},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["reason"]


def test_an_order_is_obeyed_once_and_by_its_target_only(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    other = next(node for node in cluster.alive() if node is not leader)
    given = json.loads(leader.admin().get("/order-challenge", 5)[1])
    path = "/log-level"
    signed = sign_order(
        SECRET, given["challenge"], given["instance"], "POST", "/verb/snapshot", b"{}"
    )
    assert order(leader, path, signed) == (401, "OrderSignatureWrong")
    assert order(other, "/verb/snapshot", signed) == (401, "OrderExpired")
    assert order(leader, "/verb/snapshot", signed) == (200, "")
    assert order(leader, "/verb/snapshot", signed) == (401, "OrderReplayed")


def metrics_of(node: NodeProcess) -> dict[str, float]:
    """Return all samples of a member by name and labels."""
    url = f"http://127.0.0.1:{node.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_probes_and_metrics_are_open_and_say_what_is(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    base = f"http://127.0.0.1:{leader.admin_port}"
    for path in ("/live", "/ready"):
        with urllib.request.urlopen(base + path, timeout=5) as answer:
            assert answer.status == 200
    samples = metrics_of(leader)
    status = leader.status()
    assert float(samples["qsync_is_leader"]) == 1
    assert float(samples["qsync_term"]) == status["term"]
    assert float(samples["qsync_log_writes_total"]) > 0
    assert len([name for name in samples if name.startswith("qsync_follower_lag_rows{")]) == 3
    assert float(samples["qsync_disk_free_bytes"]) > 0
    assert float(samples["process_resident_memory_bytes"]) > 0
    assert f'qsync_build_info{{version="{__version__}"}}' in samples


def test_durations_and_errors_are_counted_by_type(cluster: ProcessCluster, raw: Raw) -> None:
    """Every write has one flush of its own, one wait for the quorum and one answer."""
    assert raw.log_in() == 0
    key = {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [1]}
    before = metrics_of(cluster.leader())
    for number in range(5):
        assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [number, "x"]})[0] == 0
    assert raw.ask(Type.SELECT, key)[0] == 0
    assert raw.ask(Type.SELECT, {**key, Key.SPACE_ID: 9999})[0] == 36

    def has_counted_its_flushes() -> bool:
        """Return whether the leader has flushed the last row, which the others may confirm."""
        name = "qsync_flush_seconds_count"
        return metrics_of(cluster.leader())[name] >= before.get(name, 0.0) + 5

    wait_until("the leader has counted its flushes", has_counted_its_flushes)
    after = metrics_of(cluster.leader())
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["qsync_write_seconds_count"] == 5
    assert grown['qsync_request_seconds_count{type="replace"}'] == 5
    assert grown['qsync_request_seconds_count{type="select"}'] == 2
    assert grown["qsync_quorum_wait_seconds_count"] >= 5
    assert grown["qsync_loop_delay_seconds_count"] >= 0
    assert grown['qsync_errors_total{code="36"}'] == 1
    figures = cluster.leader().status()["figures"]
    assert sum(figures["writes"]) == after["qsync_write_seconds_count"]
    assert figures["disk_free_bytes"] > 0
    assert 0 < grown["qsync_flush_seconds_sum"] < 60
    assert grown["qsync_write_seconds_sum"] < 60


def info_of(node: NodeProcess) -> dict[str, Any]:
    raw = Raw(node.address)
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    code, body = raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})
    assert code == 0
    found: dict[str, Any] = body[Key.DATA][0]
    return found


def test_box_info_has_the_streams_of_members_as_in_tarantool(cluster: ProcessCluster) -> None:
    leader = cluster.leader()

    def have_all() -> bool:
        info = info_of(leader)
        others = [one for one in info["replication"].values() if one["id"] != info["id"]]
        streams = [one["downstream"] for one in others]
        return all(one == {"status": "follow", "vclock": info["vclock"]} for one in streams)

    wait_until("all followers have all rows", have_all)
    info = info_of(leader)
    own = info["replication"][info["id"]]
    assert set(own) == {"id", "uuid", "name", "lsn"}
    assert own["lsn"] == info["lsn"] > 0
    follower = next(node for node in cluster.nodes if node is not leader)
    streams = info_of(follower)["replication"]
    assert streams[info["id"]]["upstream"] == {"status": "follow"}
    assert not any("downstream" in one for one in streams.values())


def test_administrators_call_what_tarantool_calls_so(cluster: ProcessCluster, raw: Raw) -> None:
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.snapshot", Key.TUPLE: []}) == (
        0,
        {Key.DATA: ["ok"]},
    )
    snapshots = list((cluster.leader().folder / cluster.leader().name).glob("*.snap"))
    assert len(snapshots) >= 1
    code, body = raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})
    assert code == 0
    assert body[Key.DATA][0]["ro"] is False
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.election.state", Key.TUPLE: []})[1][
        Key.DATA
    ] == ["leader"]
    assert (
        raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.stat", Key.TUPLE: []})[1][Key.DATA][0]["CALL"][
            "total"
        ]
        > 0
    )
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.nothing", Key.TUPLE: []})[0] == 33
