"""A node that cannot start prints one sentence and sets an exit code, without a traceback."""

from pathlib import Path
from typing import Any

import pytest

from qsync_node.consensus.ballot import Ballot
from qsync_node.storage.files import OsFileSystem
from qsync_node.storage.storage import Storage
from qsync_testing.log_files import SMALL, UUID, batch
from qsync_testing.processes import REPLICASET, NodeProcess, wait_until
from qsync_testing.startup import run_node, sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heartbeat": "soon"}, "heartbeat"),
        ({"replicaset_uuid": "nonsense"}, "replicaset_uuid"),
        ({"role": "king"}, "role"),
        ({"secret": "short"}, "secret"),
        ({"listen": "nowhere"}, "host:port"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    done = run_node(tmp_path, **changes)
    assert done.returncode in (1, 2)
    assert words in sentence(done)


def test_a_busy_port_and_a_busy_directory_are_named(tmp_path: Path) -> None:
    first = NodeProcess(tmp_path / "first", "n0")
    first.start({})
    try:
        wait_until("the first node", lambda: bool(first.status()["uuid"]))
        done = run_node(tmp_path, listen=first.address)
        assert done.returncode == 1
        assert "free the port" in sentence(done)
        done = run_node(tmp_path, directory=str(tmp_path / "first" / "n0"))
        assert done.returncode == 1
        assert "another process" in sentence(done)
    finally:
        first.kill()


def test_only_the_named_instance_bootstraps(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "n0")
    node.start({})
    try:
        wait_until("the node", lambda: bool(node.status()["uuid"]))
        other = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c12"
        with pytest.raises(OSError, match=f"the order is for instance {other}"):
            node.post("/bootstrap", {"instance_uuid": other, "voters": 1})
        assert node.status()["ro_reason"]
    finally:
        node.kill()


def test_a_directory_of_another_replica_set_is_refused(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "n0")
    node.start({})
    wait_until("the node", lambda: bool(node.status()["uuid"]))
    assert node.stop() == 0
    other = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c12"
    done = run_node(tmp_path, directory=str(tmp_path / "n0"), replicaset_uuid=other)
    assert done.returncode == 1
    assert "belongs to replica set" in sentence(done)


def test_a_flipped_bit_and_a_lost_ballot_are_refused_with_their_place(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "n0")
    node.start({})
    wait_until("the node", lambda: bool(node.status()["uuid"]))
    node.post("/bootstrap", {"instance_uuid": node.status()["uuid"], "voters": 1, "users": {}})
    wait_until("a leader", lambda: bool(node.status()["is_writable"]))
    node.kill()
    ballot = tmp_path / "n0" / "ballot"
    kept = ballot.read_bytes()
    ballot.write_bytes(kept[:-1] + bytes((kept[-1] ^ 1,)))
    done = run_node(tmp_path, directory=str(tmp_path / "n0"))
    assert done.returncode == 1
    assert "ballot" in sentence(done)


def test_rows_without_a_snapshot_are_refused(tmp_path: Path) -> None:
    ballot = Ballot(replicaset_uuid=REPLICASET).encode()
    data = tmp_path / "data"
    data.mkdir()
    storage = Storage.create(OsFileSystem(), str(data), UUID, SMALL, ballot)
    storage.write([batch(1)])
    storage.close()
    done = run_node(tmp_path)
    assert done.returncode == 1
    assert "its log has rows, but their snapshot is missing" in sentence(done)
