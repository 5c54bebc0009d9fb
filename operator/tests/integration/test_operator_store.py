"""Files, ports and processes of the local platform."""

import asyncio
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
import yaml

from qsync_local import processes
from qsync_local.ports import choose_port, is_free
from qsync_local.store import ClusterFiles, MemberRecord, Secrets, SupervisorState, home
from qsync_local.supervision import last_words
from qsync_node.server.config import NodeConfig
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.api.status import ClusterStatus, Condition
from qsync_operator.resources.nodeconfig import drift_of, live_changes, node_settings, render_config

REPLICASET = "0d4e6c2a-9d1f-4d0c-8a57-3f1f6a6f5a10"


@pytest.fixture
def store(tmp_path: Path) -> ClusterFiles:
    return ClusterFiles(tmp_path / "orders")


def cluster() -> QsyncCluster:
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders", "labels": {"a": "b"}, "resourceVersion": "7"},
        }
    )


def test_everything_that_is_stored_is_found_again(store: ClusterFiles) -> None:
    assert store.load_cluster() is None
    assert store.load_secrets() is None
    assert store.load_state() == SupervisorState()
    record = MemberRecord(
        "voter", 1, 2, uuid="uuid", pid=3, started="4", applied={"quorum": "majority"}
    )
    state = SupervisorState("rs", "orders-0", "uuid", True, {"orders-0": record})
    status = ClusterStatus(phase="Ready", conditions=[Condition(type="Ready", status="True")])
    secrets = Secrets("s", "app", "p")
    store.save_cluster(cluster())
    store.save_state(state)
    store.save_status(status)
    store.save_secrets(secrets)
    again = ClusterFiles(store.directory)
    assert again.load_state() == state
    assert again.load_status() == status
    assert again.load_secrets() == secrets
    found = again.load_cluster()
    assert found is not None
    assert found.document() == cluster().document()


def test_files_are_for_their_owner_only(store: ClusterFiles) -> None:
    store.save_secrets(Secrets("s", "app", "p"))
    assert (store.directory / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert store.directory.stat().st_mode & 0o777 == 0o700


def test_nothing_half_written_is_left_and_read(store: ClusterFiles) -> None:
    for number in range(5):
        store.save_state(SupervisorState(replicaset_uuid=str(number)))
    assert [path.name for path in store.directory.iterdir()] == ["state.json"]
    assert store.load_state().replicaset_uuid == "4"


def test_a_torn_event_is_not_an_event(store: ClusterFiles) -> None:
    store.directory.mkdir()
    store.add_event("One", "orders", "first")
    with (store.directory / "events.jsonl").open("a") as file:
        file.write('{"time": "2026')
    assert [event["reason"] for event in store.load_events()] == ["One"]


def test_commands_that_look_at_the_same_time_see_no_supervisor(store: ClusterFiles) -> None:
    store.directory.mkdir()
    (store.directory / "supervisor.lock").touch()
    with (store.directory / "supervisor.lock").open("r+") as other:
        seen = fcntl.flock

        def look(file: IO[str], operation: int) -> None:
            """Hold the lock of another command that looks."""
            seen(other, operation)
            seen(file, operation)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "flock", look)
            assert not store.is_supervised()


def _hold(directory: str, ready: str) -> None:
    lock = ClusterFiles(Path(directory)).try_lock("supervisor.lock")
    assert lock is not None
    Path(ready).touch()
    time.sleep(60)


def test_the_lock_is_one_process_and_ends_with_it(store: ClusterFiles, tmp_path: Path) -> None:
    assert not store.is_supervised()
    assert not store.directory.exists(), "asking leaves no trace"
    ready = tmp_path / "ready"
    context = multiprocessing.get_context("spawn")
    holder = context.Process(target=_hold, args=(str(store.directory), str(ready)))
    holder.start()
    while not ready.exists():
        time.sleep(0.01)
    assert store.is_supervised()
    assert store.try_lock("supervisor.lock") is None
    holder.kill()
    holder.join()
    assert not store.is_supervised()


def test_a_removed_disk_is_kept_or_deleted(store: ClusterFiles) -> None:
    for member in ("orders-1", "orders-2"):
        store.data_directory(member).mkdir(parents=True)
        (store.data_directory(member) / "file").touch()
    store.retire("orders-1", is_kept=True)
    store.retire("orders-2", is_kept=False)
    store.retire("orders-3", is_kept=True)
    assert list((store.directory / "nodes").iterdir()) == []
    (kept,) = (store.directory / "retired").iterdir()
    assert (kept / "data" / "file").exists()


def test_forgetting_keeps_data_only_on_request(store: ClusterFiles) -> None:
    store.save_cluster(cluster())
    store.save_state(SupervisorState("rs"))
    store.forget(keeps_data=True)
    assert not store.exists()
    assert store.load_state().replicaset_uuid == "rs"
    store.forget(keeps_data=False)
    assert not store.directory.exists()


def test_interrupted_deletion_can_continue(
    store: ClusterFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save_cluster(cluster())
    store.save_secrets(Secrets("s", "app", "p"))
    store.add_event("One", "orders", "first")
    lock = store.try_lock("supervisor.lock")
    for name in ("nodes", "brokers", "audits"):
        (store.directory / name / "orders-0").mkdir(parents=True)
        (store.directory / name / "orders-0" / "file").touch()
    unlink = os.unlink

    def unlink_and_look(path: str | Path, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        has_data = any((store.directory / name).exists() for name in ("nodes", "brokers", "audits"))
        if has_data:
            assert store.exists(), "a command would not continue the deletion"
        if store.exists():
            assert store.load_secrets() is not None, "no supervisor could continue"
            assert store.is_supervised(), "a command would start a second supervisor"

    monkeypatch.setattr(os, "unlink", unlink_and_look)
    store.forget(keeps_data=False)
    assert not store.directory.exists()
    assert lock is not None


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QSYNC_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    monkeypatch.delenv("QSYNC_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home() == tmp_path / "qsync"


# --- ports and configuration --------------------------------------------------------------------


def test_a_port_in_use_is_not_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)
    assert choose_port(set()) != choose_port(range(20000, 26000))


def test_a_node_takes_the_file_that_is_written_for_it(tmp_path: Path) -> None:
    spec = ClusterSpec.model_validate({"replication": {"synchroTimeout": "1m30s", "quorum": 2}})
    text = render_config(
        node_settings(spec, "voter", "127.0.0.1", 1, 2), "orders-0", tmp_path, REPLICASET,
        "secretsecret", {"orders-1": "127.0.0.1:3"},
    )  # fmt: skip
    settings = NodeConfig.model_validate(yaml.safe_load(text)).settings()
    assert settings.synchro_timeout_ns == 90 * 10**9
    assert settings.election_timeout_ns == 10**9
    assert settings.heartbeat_ns == 10**8
    assert settings.quorum == 2
    assert settings.role == "voter"


def test_drift_knows_what_can_change_without_a_restart() -> None:
    def of(**replication: object) -> dict[str, object]:
        spec = ClusterSpec.model_validate({"replication": replication})
        return node_settings(spec, "voter", "127.0.0.1", 1, 2)

    assert drift_of(of(), of()) == "none"
    assert drift_of(of(), of(synchroTimeout="7s")) == "live"
    assert drift_of(of(), of(synchroTimeout="7s", walMode="write")) == "restart"
    assert live_changes(of(), of(synchroTimeout="7s", quorum=3)) == {
        "synchro_timeout_ns": 7 * 10**9,
        "quorum": 3,
    }


# --- processes ----------------------------------------------------------------------------------


def _sleeper(tmp_path: Path) -> subprocess.Popen[bytes]:
    script = "import time; time.sleep(60)"
    return processes.start([sys.executable, "-c", script], tmp_path / "log")


def test_a_process_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    child = _sleeper(tmp_path)
    started = processes.start_time(child.pid)
    assert started
    assert os.getsid(child.pid) == child.pid, "it outlives its terminal"
    processes.send(child.pid, started + "0", signal.SIGKILL)
    assert child.poll() is None, "another process of that pid is left alone"
    processes.send(child.pid, started, signal.SIGKILL)
    child.wait()
    assert processes.start_time(child.pid) == ""
    assert processes.start_time(0) == ""


def test_a_zombie_does_not_live(tmp_path: Path) -> None:
    child = _sleeper(tmp_path)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child.pid) == ""
    child.wait()


def test_the_end_of_a_process_is_noticed(tmp_path: Path) -> None:
    async def watch() -> None:
        child = _sleeper(tmp_path)
        ended = asyncio.Event()
        assert processes.watch_end(child.pid, ended.set)
        child.kill()
        await asyncio.wait_for(ended.wait(), 30)
        child.wait()

    asyncio.run(watch())


def test_a_process_that_does_not_listen_is_ended(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\n"
    log = tmp_path / "log"
    child = processes.start([sys.executable, "-c", script + "time.sleep(60)"], log)
    while not log.read_bytes():
        time.sleep(0.01)
    asyncio.run(processes.stop(child.pid, processes.start_time(child.pid), 0.05))
    assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("log", "reported"),
    [
        ('{"event": "started"}\nqsync-node: the port is taken\n', "qsync-node: the port is taken"),
        ('{"event": "stopping", "reason": "the disk is full"}\n', "the disk is full"),
        ('the port is taken\n{"event": "started"}\n', "the port is taken"),
        ('{"event": "promote_confirmed", "term": 2}\n', "it reported no cause"),
        ("", "it reported no cause"),
        ("[1]", "[1]"),
    ],
)
def test_why_a_node_ended_is_a_sentence(log: str, reported: str) -> None:
    assert last_words(log) == reported
