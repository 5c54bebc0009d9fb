"""`qsync restore` and `bootstrap.fromArchive` with real clusters.

The restored rows are exactly those confirmed at the restore point. The archive stays unchanged.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tarantool

from qsync_agent.start import restore_first
from qsync_operator.api.manifest import ClusterManifestError, parse_manifest
from qsync_testing.operator.local_clusters import Home, archive_now

pytestmark = pytest.mark.timeout(300)
SPACE, COUNTED = 600, 601


def manifest(folder: Path, name: str, **spec: object) -> Path:
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster", "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(document))
    return path


def make_spaces(connection: tarantool.Connection) -> None:
    parts = [[0, "unsigned"]]
    for space, name in ((SPACE, "things"), (COUNTED, "counted")):
        connection.insert(280, [space, 32, name, "memtx", 0, {}, []])
        connection.insert(288, [space, 0, "primary", "tree", {"unique": True}, parts])
    connection.insert(284, [1, 32, "numbers", 1, 1, 2**62, 1, 0, False])
    connection.insert(340, [COUNTED, 1, False, 0, ""])


def rows(connection: tarantool.Connection, space: int = SPACE) -> dict[int, str]:
    return {row[0]: row[1] for row in connection.select(space)}


def in_a_pod(folder: Path, url: str, index: int) -> None:
    """Restore as the founding member's pod does before its node starts; other pods do nothing."""
    config = folder / "config"
    config.mkdir()
    document = {"name": "orders-0", "directory": str(folder / "volume" / "data-0")}
    assert restore_first(config, document) == document
    begin = {"member": "orders-0", "fromArchive": {"url": url, "toSignature": index}}
    (config / "restore.json").write_text(json.dumps(begin))
    other = {**document, "name": "orders-1"}
    assert restore_first(config, other) == other
    for _ in range(2):
        made = restore_first(config, document)
        (snapshot,) = Path(made["bootstrap_from"]).glob("*.snap")
    (folder / "volume" / "data-0").mkdir()
    snapshot.rename(folder / "volume" / "data-0" / snapshot.name)
    assert restore_first(config, document) == document, "it has its data"


def test_a_cluster_comes_back_as_it_was(home: Home, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    home.do("local", "apply", "-f", manifest(tmp_path, "orders", replicas=3), "--archive", url)
    connection = home.connect("orders")
    make_spaces(connection)
    for number in range(50):
        connection.replace(SPACE, [number, f"old {number}"])
        connection.insert(COUNTED, [None, "x"])
    first = home.status("orders")["status"]["confirmedSignature"]
    time.sleep(0.05)
    moment = time.time()
    time.sleep(0.05)
    for number in range(25, 75):
        connection.replace(SPACE, [number, f"new {number}"])
    connection.delete(SPACE, 0)
    wanted = rows(connection)
    archive_now(home, "orders")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "archive").rglob("*")}

    said = home.refuse("restore", "late", "--archive", url, "--to-signature", str(10**9))
    assert "outside of the archive" in said
    assert not (home.directory / "late").exists()
    assert "(AlreadyExists)" in home.refuse("restore", "orders", "--archive", url)
    assert home.run("restore", "x", "--archive", url, "--to-time", "2026-01-01T00:00:00Z",
                    "--to-signature", "1").returncode == 2  # fmt: skip

    in_a_pod(tmp_path, url, first)
    home.do("local", "delete", "orders", "--keep-data")
    old = {n: f"old {n}" for n in range(50)}
    stamp = f"{moment:.6f}"
    for name, point in (("by-time", ("--to-time", stamp)),
                        ("by-index", ("--to-signature", str(first)))):  # fmt: skip
        done = home.run("restore", name, "--archive", url, "--replicas", "1", *point)
        assert done.returncode == 0, done.stderr
        assert f"{name}: rows of log with equal copies: " in done.stderr
        assert "warning:" not in done.stderr
        again = home.connect(name)
        assert rows(again) == old
        status = home.status(name)["status"]
        assert status["confirmedSignature"] > first - 5, "indexes continue"
        again.insert(COUNTED, [None, "y"])
        assert max(rows(again, COUNTED)) == 51, "the sequence continues"
        home.do("local", "delete", name, "--yes")

    new = f"file://{tmp_path}/second"
    spec = {"replicas": 3, "archive": {"url": new}, "bootstrap": {"fromArchive": {"url": url}}}
    path = manifest(tmp_path, "end", **spec)
    home.do("local", "apply", "-f", path)
    assert rows(home.connect("end")) == wanted
    assert len(home.status("end")["status"]["members"]) == 3
    assert "unchanged" in home.do("local", "apply", "-f", path)
    spec["bootstrap"] = {"fromArchive": {"url": url, "toSignature": 5}}
    assert "bootstrap cannot change" in home.refuse(
        "local", "apply", "-f", manifest(tmp_path, "end", **spec)
    )
    home.connect("end").replace(SPACE, [1000, "after"])
    archive_now(home, "end")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "archive").rglob("*")} == before


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        ({"toTime": "2026-01-31T12:00:00Z", "toSignature": 5}, "exclude each other"),
        ({"toTime": "2026-01-31T12:00:00"}, "has no time zone"),
        ({"toTime": "soon"}, "invalid time 'soon'"),
        ({"url": "file:///own"}, "a new cluster needs its own archive"),
    ],
)
def test_a_manifest_that_cannot_be_restored(begin: dict[str, Any], why: str) -> None:
    spec = {
        "archive": {"url": "file:///own/"},
        "bootstrap": {"fromArchive": {"url": "file:///other", **begin}},
    }
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster",
        "metadata": {"name": "orders"}, "spec": spec,
    }  # fmt: skip
    with pytest.raises(ClusterManifestError, match=why):
        parse_manifest(json.dumps(document))
