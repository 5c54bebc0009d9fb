"""A member whose files were deleted while it runs acknowledges nothing and ends (D4)."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.storage.errors import DiskError
from qsync_node.storage.scheduler import CheckFiles, LogLane
from qsync_testing.disks import batch, storage_in
from qsync_testing.processes import NodeProcess, running_cluster, wait_until
from qsync_testing.raw import Raw

SPACE = 512


def data_of(node: NodeProcess) -> Path:
    return node.folder / node.name


def has_ended(node: NodeProcess) -> bool:
    assert node.process is not None
    return node.process.poll() == 1


def log_of(node: NodeProcess) -> str:
    return (node.folder / f"{node.name}.log").read_text()


def write(raw: Raw, number: int) -> int:
    return raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [number, "x"]})[0]


def test_flush_of_a_deleted_file_fails(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    storage.write([batch(1)])
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DiskError, match="was deleted"):
        storage.write([batch(2)])
    assert storage.failed


@pytest.mark.parametrize("name", ["ballot", "00000000000000000000.xlog", ""])
def test_check_reports_a_missing_file(tmp_path: Path, name: str) -> None:
    storage = storage_in(tmp_path)
    storage.write([batch(1)])
    storage.check_files()
    gone = tmp_path / "data" / name
    os.rename(gone, tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="is gone"):
        storage.check_files()


def test_checks_do_not_accumulate_while_the_disk_hangs(tmp_path: Path) -> None:
    lane, storage = LogLane(), storage_in(tmp_path)
    lane.check_files()
    lane.check_files()
    task = lane.next_task()
    lane.check_files()
    assert task == CheckFiles()
    assert not lane.has_task
    lane.on_result(task, lane.perform(storage, task))
    lane.check_files()
    assert lane.has_task


def test_member_without_files_ends_and_the_others_continue(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        raw = Raw(cluster.leader().address)
        raw.log_in()
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "kv", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
        ):
            assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        follower = next(node for node in cluster.nodes if node is not cluster.leader())
        shutil.rmtree(data_of(follower))
        wait_until("the member to end", lambda: has_ended(follower))
        assert "were deleted while the node was running" in log_of(follower)
        assert not data_of(follower).exists()
        assert write(raw, 1) == 0


def test_no_write_is_acknowledged_once_all_files_are_gone(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        leader = cluster.leader()
        raw = Raw(leader.address)
        raw.log_in()
        for path in data_of(leader).glob("*.xlog"):
            path.unlink()
        row = [SPACE, 1, "kv", "memtx", 0, {"is_sync": True}, []]
        request = {Key.SPACE_ID: SystemSpace.SPACE, Key.TUPLE: row}
        with contextlib.suppress(EOFError, OSError):  # the member may end before it answers
            assert raw.ask(Type.INSERT, request)[0] != 0
        wait_until("the member to end", lambda: has_ended(leader))
        assert "qsync-node: " in log_of(leader)
