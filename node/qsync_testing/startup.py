"""The start of a node that is expected to fail."""

import json
import subprocess
import sys
from pathlib import Path

from qsync_testing.ports import free_port
from qsync_testing.processes import REPLICASET, SECRET


def run_node(folder: Path, **changes: object) -> "subprocess.CompletedProcess[str]":
    config = {
        "directory": str(folder / "data"),
        "name": "n0",
        "listen": f"127.0.0.1:{free_port()}",
        "admin_listen": f"127.0.0.1:{free_port()}",
        "replicaset_uuid": REPLICASET,
        "secret": SECRET,
        **changes,
    }
    path = folder / "node.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "qsync_node", "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def sentence(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    return lines[0]
