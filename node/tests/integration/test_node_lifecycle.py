"""Members that join, hand over, and are killed, and their files, with real processes."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.format.cat import cat_file, to_json
from qsync_testing.processes import (
    NodeProcess,
    ProcessCluster,
    wait_until,
)
from qsync_testing.raw import Raw
from qsync_testing.server_cluster import SPACE, all_follow, cluster_with_space


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_with_space(tmp_path_factory.mktemp("lifecycle")) as running:
        yield running


def test_an_anonymous_replica_reads_along_and_is_then_registered(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    reader = NodeProcess(tmp_path, "reader", role="anonymous")
    reader.start({**cluster.peers, "reader": reader.address})
    try:
        wait_until("the reader follows", lambda: _has_all(cluster, reader))
        assert reader.status()["role"] == "anonymous"
        assert all(m["name"] != "reader" for m in cluster.leader().status()["members"])
        reader.post("/verb/configure", {"role": "async"})
        wait_until("the reader is registered", lambda: reader.status()["role"] == "async")
        wait_until("the reader follows", lambda: _has_all(cluster, reader))
        with pytest.raises(OSError):
            reader.post("/verb/configure", {"role": "anonymous"})
        uuid = reader.status()["uuid"]
    finally:
        reader.kill()
    cluster.leader().post("/verb/unregister", {"uuid": uuid})
    assert all(m["name"] != "reader" for m in cluster.leader().status()["members"])


def _has_all(cluster: ProcessCluster, node: NodeProcess) -> bool:
    return bool(
        node.status()["confirmed_index"] >= cluster.leader().status()["confirmed_index"] > 0
    )


def test_sigterm_hands_leadership_over_first(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    term = leader.status()["term"]
    assert leader.stop() == 0
    new = cluster.leader()
    assert new.status()["term"] == term + 1
    log = (leader.folder / f"{leader.name}.log").read_text()
    assert '"event": "handover", "result": "done"' in log
    leader.start(cluster.peers)
    wait_until("all members to follow", lambda: all_follow(cluster))


def test_an_old_leader_reports_how_many_rows_it_truncated(cluster: ProcessCluster) -> None:
    """Only the old leader's disk had the rows; the operator reports their number (`cut_rows`)."""
    old = cluster.leader()
    others = [node for node in cluster.nodes if node is not old]
    before = old.status()["last_index"]
    raw = Raw(old.address)
    raw.log_in()
    for node in others:
        node.kill()
    raw.send_bodies(
        [(3, msgpack.packb({Key.SPACE_ID: SPACE, Key.TUPLE: [9000 + n]}), 0) for n in range(5)]
    )
    wait_until("five rows on one disk", lambda: old.status()["durable_index"] >= before + 5)
    old.kill()
    for node in others:
        node.start(cluster.peers)
    wait_until("another leader", lambda: any(node.status()["is_writable"] for node in others))
    old.start(cluster.peers)
    wait_until("all members to follow", lambda: all_follow(cluster))
    assert old.status()["cut_rows"] >= 5
    assert all(node.status()["cut_rows"] == 0 for node in others)
    metrics = f"http://127.0.0.1:{old.admin_port}/metrics"
    with urllib.request.urlopen(metrics, timeout=5) as answer:
        assert f"qsync_cut_rows_total {old.status()['cut_rows']}.0" in answer.read().decode()


def test_tarantoolctl_reads_every_file_as_we_do(cluster: ProcessCluster) -> None:
    files = sorted(cluster.nodes[0].folder.glob("n*/*.xlog"))
    files += sorted(cluster.nodes[0].folder.glob("n*/rollback/*.xlog"))
    assert len(files) >= 3
    for file in files:
        theirs = _tarantoolctl_cat(file)
        ours = [json.loads(to_json(record)) for record in _records(file)]
        assert ours == theirs, file


def _records(file: Path) -> list[Any]:
    return [item for item in cat_file(file.read_bytes()) if isinstance(item, dict)]


def _tarantoolctl_cat(file: Path) -> list[Any]:
    done = subprocess.run(
        ["tarantoolctl", "cat", str(file), "--show-system", "--format=json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
