"""The commands of docs/quickstart.md work as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qsync_node.adminport import AdminPort
from qsync_testing.operator.local_clusters import Home
from qsync_testing.pages import scripts_of
from qsync_testing.paths import ROOT
from qsync_testing.ports import free_port
from qsync_testing.processes import wait_until

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
README = (ROOT / "README.md").read_text()
READER = re.compile(r"```yaml\n(directory: .*?)```", re.DOTALL)
STATUS = re.compile(r"^    orders: Ready .*?\n\n", re.DOTALL | re.MULTILINE)


def shapes_of(text: str) -> list[str]:
    """Return the lines of a text without the widths of columns, and with N for each number."""
    return [re.sub(r"\d+", "N", " ".join(line.split())) for line in text.splitlines()]


@pytest.mark.timeout(240)
def test_the_quickstart_works_as_printed(home: Home) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "QSYNC_HOME": str(home.directory), "PATH": path}
    printed = []
    for script in scripts_of(PAGE):
        done = subprocess.run(
            script,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr, home.logs())
        printed.append(done.stdout)
    everything = "\n".join(printed)
    assert "alice" in everything
    assert "~ spec.replicas: 3 -> 5" in everything
    assert "last failover: orders-" in everything
    assert "orders-1 leads in term" in everything
    (status,) = STATUS.findall(README)
    assert set(shapes_of(status.strip())) <= set(shapes_of(everything))
    assert home.all_pids() == []


def test_upgrade_of_a_local_cluster_as_printed_keeps_its_rows(home: Home) -> None:
    home.do("apply", "-f", ROOT / "docs" / "examples" / "three-nodes.yaml")
    home.do("put", "orders", "orders", '[1, "ada", 2.5]')
    before = home.supervisor_pids()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "QSYNC_HOME": str(home.directory), "PATH": path}
    for script in scripts_of((ROOT / "docs" / "upgrades.md").read_text()):
        done = subprocess.run(
            script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (script, done.stderr)
    assert "ada" in home.do("get", "orders", "orders", "1")
    assert home.supervisor_pids() != before


def test_reader_starts_with_the_values_that_the_page_names(home: Home, tmp_path: Path) -> None:
    home.do("apply", "-f", ROOT / "docs" / "examples" / "three-nodes.yaml")
    status = home.status("orders")["status"]
    secrets = json.loads((home.directory / "orders" / "secrets.json").read_text())
    (printed,) = READER.findall(PAGE)
    admin = f"127.0.0.1:{free_port()}"
    settings = {
        **yaml.safe_load(printed),
        "directory": str(tmp_path / "reader"),
        "listen": f"127.0.0.1:{free_port()}",
        "admin_listen": admin,
        "peers": {member["name"]: member["address"] for member in status["members"]},
        "replicaset_uuid": status["replicasetUUID"],
        "secret": secrets["cluster"],
    }
    path = tmp_path / "reader.yaml"
    path.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "qsync_node", "--config", str(path)]
    reader = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:

        def follows() -> bool:
            found = json.loads(AdminPort(admin).get("/status", 5)[1])
            return str(found["applier"]) == "following"

        wait_until("the reader follows", follows)
    finally:
        reader.kill()
        reader.wait()
