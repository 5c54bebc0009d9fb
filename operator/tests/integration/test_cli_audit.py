"""The parts of `qsync local audit` and its results that need no Spark."""

import json
from pathlib import Path

from qsync_cli.local import audit
from qsync_local.store import ClusterFiles
from qsync_testing.operator.local_clusters import Home


def cluster(home: Home, spec: str = "{}") -> None:
    folder = home.directory / "orders"
    folder.mkdir(parents=True)
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster",
        "metadata": {"name": "orders"}, "spec": json.loads(spec),
    }  # fmt: skip
    (folder / "cluster.json").write_text(json.dumps(document))


def test_an_audit_needs_an_archive_and_its_ledger(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert "(NotFound)" in home.refuse("local", "audit", "orders")
    cluster(home)
    assert "set spec.archive.url" in home.refuse("local", "audit", "orders")
    (tmp_path / "orders" / "cluster.json").unlink()
    (tmp_path / "orders").rmdir()
    cluster(home, json.dumps({"archive": {"url": f"file://{tmp_path}/nowhere"}}))
    said = home.refuse("local", "audit", "orders", "--ledger", tmp_path / "no.jsonl")
    assert "(NotFound)" in said


def test_stopped_cluster_has_one_warning(tmp_path: Path) -> None:
    home = Home(tmp_path)
    cluster(home, '{"hibernate": true, "archive": {"url": "file:///nowhere"}}')
    members = {f"orders-{n}": {"kind": "voter", "iproto": 1, "admin": 1} for n in range(3)}
    (tmp_path / "orders" / "state.json").write_text(json.dumps({"members": members}))
    (text,) = audit.archive_now(ClusterFiles(tmp_path / "orders"))
    assert text.startswith("orders is stopped, so the audit ends before rows")


def test_audits_are_listed_and_their_pages_found(tmp_path: Path) -> None:
    home = Home(tmp_path)
    cluster(home)
    assert "has no audit" in home.do("local", "audits", "orders")
    assert "(NotFound)" in home.refuse("local", "report", "orders")
    for name, verdict in (("20260101T000000Z", "Passed"), ("20260102T000000Z", "Violated")):
        folder = tmp_path / "orders" / "audits" / name
        folder.mkdir(parents=True)
        said = {"verdict": verdict, "auditedIndex": 7, "violationCount": 0, "seconds": 1.0}
        (folder / "audit.json").write_text(json.dumps(said))
    (tmp_path / "orders" / "audits" / "20260103T000000Z").mkdir()  # an audit that did not finish
    shown = home.do("local", "audits", "orders").splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        ["20260101T000000Z", "Passed"], ["20260102T000000Z", "Violated"],
    ]  # fmt: skip
    assert home.do("local", "report", "orders").strip().endswith("20260102T000000Z/report.html")
    assert "(NotFound)" in home.refuse("local", "report", "orders", "other")
