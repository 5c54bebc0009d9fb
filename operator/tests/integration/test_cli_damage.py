"""Commands for a local cluster whose files a full disk or a power failure has damaged."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qsync_local.store import ClusterFiles, DamagedFileError
from qsync_testing.operator.local_clusters import Home

CLUSTER = {
    "apiVersion": "qsync.dev/v1alpha1",
    "kind": "QsyncCluster",
    "metadata": {"name": "orders"},
}
TEXTS = ["", "\0\0", "7", "[7]", '{"kind": 7}', '"\xff"']
LOADS: dict[str, Callable[[ClusterFiles], object]] = {
    "cluster.json": ClusterFiles.load_cluster,
    "retained.json": ClusterFiles.load_retained,
    "secrets.json": ClusterFiles.load_secrets,
    "state.json": ClusterFiles.load_state,
    "brokers.json": ClusterFiles.load_brokers,
    "journals.json": ClusterFiles.load_journals,
}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("text", TEXTS)
def test_damaged_file_is_no_state(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(DamagedFileError, match="it is damaged"):
        LOADS[name](ClusterFiles(tmp_path))


@pytest.mark.parametrize("text", TEXTS)
def test_command_names_a_damaged_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "orders" / "cluster.json"
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    for words in (("local", "scale", "orders", "--replicas", "5"), ("destroy", "orders", "--yes")):
        said = Home(tmp_path).refuse(*words)
        assert said.startswith(f"qsync: cannot use {path}: it is damaged"), said
        assert said.endswith("restore it from a copy (Damaged)\n")


def test_manifest_of_another_version_names_its_field(tmp_path: Path) -> None:
    document = {**CLUSTER, "spec": {"replicas": 3, "later": 1}}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    with pytest.raises(DamagedFileError, match=r"it is damaged \(spec\.later is not a known"):
        ClusterFiles(tmp_path).load_cluster()


def test_supervisor_names_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({**CLUSTER, "spec": {}}))
    (tmp_path / "secrets.json").write_text("")
    command = [sys.executable, "-m", "qsync_local", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"cannot use {tmp_path}/secrets.json: it is damaged")
