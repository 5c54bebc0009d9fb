"""Installs the driver of a connector, and runs it against a cluster whose leader is killed."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from e2e.connectors.matrix import Connector
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import Key, Type
from qsync_testing.processes import PASSWORD, USER, ProcessCluster, running_cluster
from qsync_testing.raw import Raw

DRIVERS: Final = Path(__file__).parent / "drivers"
BUILDS: Final = Path(__file__).parents[2] / "artifacts/connectors"
BUILD_S, RUN_S = 900, 150
READY: Final = "failover: ready"
_LINE: Final = re.compile(r"([a-z ]+): (ok|failed: .*)")
SPACE: Final = 512
SCHEMA: Final = (
    (SystemSpace.SPACE, [SPACE, 1, "kv", "memtx", 0, {}, [
        {"name": "id", "type": "unsigned"},
        {"name": "name", "type": "string"},
        {"name": "value", "type": "any", "is_nullable": True},
    ]]),
    (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
    (SystemSpace.INDEX, [SPACE, 1, "name", "tree", {"unique": False}, [[1, "string"]]]),
)  # fmt: skip


class InstallError(Exception):
    """A connector cannot be installed."""


def install(connector: Connector) -> Path:
    """Build the driver of a connector in a folder of its own, and return the folder.

    Raises:
        InstallError: A command failed, or is not installed.
    """
    source = DRIVERS / connector.folder
    if not connector.builds:
        return source
    folder = BUILDS / re.sub(r"[^a-z0-9.]+", "-", connector.name.lower())
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for command in connector.builds:
        try:
            run = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(f"{connector.name} cannot be installed: {error}") from error
        if run.returncode:
            last = (run.stdout + run.stderr).strip()[-600:]
            raise InstallError(f"{connector.name} cannot be installed: {' '.join(command)}: {last}")
    return folder


def run_driver(connector: Connector, folder: Path, data: Path) -> dict[str, str]:
    """Run a driver against a new cluster, and kill the leader when it asks for that.

    Args:
        connector: The connector.
        folder: The folder of its driver.
        data: An empty folder for the members.

    Returns:
        The result of each check that the driver reported.
    """
    with running_cluster(data, 3) as cluster:
        leader = cluster.leader()
        raw = Raw(leader.address)
        raw.log_in()
        for space, row in SCHEMA:
            code, answer = raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})
            assert code == 0, answer
        followers = [one for one in cluster.addresses if one != leader.address]
        command = [sys.executable if one == "python" else one for one in connector.run]
        environment = {
            **os.environ,
            "CONNECTOR_ADDRESSES": ",".join([leader.address, *followers]),
            "CONNECTOR_USER": USER,
            "CONNECTOR_PASSWORD": PASSWORD,
        }
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        timer = threading.Timer(RUN_S, process.kill)
        timer.start()
        try:
            return _follow(process, cluster)
        finally:
            timer.cancel()
            process.kill()
            process.wait()


def _follow(process: subprocess.Popen[str], cluster: ProcessCluster) -> dict[str, str]:
    results = {}
    other = []
    assert process.stdout is not None
    for line in process.stdout:
        text = line.strip()
        match = _LINE.fullmatch(text)
        if text == READY:
            cluster.leader().kill()
        elif match:
            results[match[1]] = match[2]
        else:
            other.append(text)
    if other and (process.wait() or len(results) == 0):
        results.setdefault("failover", f"failed: the driver printed {' | '.join(other)[-600:]}")
    return results
