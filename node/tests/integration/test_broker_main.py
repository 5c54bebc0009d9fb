"""`python -m qsync_broker`: failures at the start are one sentence and an exit code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qsync_testing.ports import free_ports


def run(folder: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    """Run a broker whose start fails."""
    http, peer = free_ports(2)
    (folder / "secret").write_text("secret\n")
    settings = {
        "name": "broker-a",
        "data_dir": str(folder / "data"),
        "listen": f"127.0.0.1:{http}",
        "peer_listen": f"127.0.0.1:{peer}",
        "endpoint": f"http://127.0.0.1:{http}",
        "peer_address": f"127.0.0.1:{peer}",
        "node": "127.0.0.1:1",
        "user": "admin",
        "password_file": str(folder / "secret"),
        "secret_file": str(folder / "secret"),
        **changes,
    }
    (folder / "broker.yaml").write_text(json.dumps(settings))
    return subprocess.run(
        [sys.executable, "-m", "qsync_broker", str(folder / "broker.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "x"}, "broker.yaml: name: String should have at least 4 characters"),
        ({"lease_ms": 1}, "broker.yaml: lease_ms: Input should be greater than or equal to 200"),
    ],
)
def test_invalid_configuration_exits_with_2(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    done = run(tmp_path, **changes)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_unusable_directory_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, data_dir=str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert "broker broker-a cannot run: " in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_keys_exit_with_1(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("not Base64!")
    done = run(tmp_path, auth_keys_file=str(tmp_path / "keys"))
    assert done.returncode == 1
    assert "broker broker-a cannot run: a key is no Base64" in done.stderr


def test_file_without_keys_exits_with_1(tmp_path: Path) -> None:
    """A broker with a file for keys is never open to everyone."""
    (tmp_path / "keys").write_text(" \n")
    done = run(tmp_path, auth_keys_file=str(tmp_path / "keys"))
    assert done.returncode == 1
    assert f"{tmp_path}/keys has no key" in done.stderr


def test_used_address_exits_with_1(tmp_path: Path) -> None:
    done = run(tmp_path, peer_listen="192.0.2.1:1")
    assert done.returncode == 1
    assert "broker broker-a cannot run: " in done.stderr
    assert "Traceback" not in done.stderr


def test_damaged_log_exits_with_1(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "commits-0000000000000001").write_bytes(b"no log" * 100)
    done = run(tmp_path)
    assert done.returncode == 1
    assert "commits-0000000000000001" in done.stderr
    assert "Traceback" not in done.stderr
