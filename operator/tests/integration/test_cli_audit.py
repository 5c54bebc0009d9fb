"""The parts of `qsync local audit` and its results that need no Spark."""

import json
from pathlib import Path

import pytest

from qsync_cli.local import audit
from qsync_local.store import ClusterFiles
from qsync_testing.operator.local_clusters import Home
from qsync_testing.ports import free_port


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
    archived = audit.archive_now(ClusterFiles(tmp_path / "orders"))
    (text,) = archived.warnings
    assert text.startswith("orders is stopped, so the audit ends before rows")
    assert not archived.unarchived


@pytest.mark.parametrize("hibernate", ["true", "false"])
def test_audit_of_lost_data_cannot_pass_and_names_the_restore(
    tmp_path: Path, hibernate: str
) -> None:
    home = Home(tmp_path)
    cluster(home, f'{{"hibernate": {hibernate}, "archive": {{"url": "file:///archive"}}}}')
    state = {"is_formed": True, "members": {"orders-0": {"kind": "voter", "iproto": 1, "admin": 1}}}
    (tmp_path / "orders" / "state.json").write_text(json.dumps(state))
    (tmp_path / "orders" / "nodes" / "orders-0" / "data").mkdir(parents=True)
    archived = audit.archive_now(ClusterFiles(tmp_path / "orders"))
    assert "the data of orders-0 is gone" in archived.unarchived
    assert "`qsync restore NEW --archive file:///archive`" in archived.unarchived


def test_audit_without_a_majority_of_archived_voters_cannot_pass(tmp_path: Path) -> None:
    home = Home(tmp_path)
    cluster(home, '{"archive": {"url": "file:///archive"}}')
    secrets = {"cluster": "secret", "username": "app", "password": "password"}
    (tmp_path / "orders" / "secrets.json").write_text(json.dumps(secrets))
    members = {
        f"orders-{n}": {"kind": "voter", "iproto": 1, "admin": free_port()} for n in range(3)
    }
    state = {"is_formed": True, "members": members}
    (tmp_path / "orders" / "state.json").write_text(json.dumps(state))
    data = ClusterFiles(tmp_path / "orders").data_directory("orders-0")
    data.mkdir(parents=True)
    (data / "00000000000000000001.snap").touch()
    archived = audit.archive_now(ClusterFiles(tmp_path / "orders"))
    assert archived.unarchived.startswith("fewer than a majority of the voters archived")
    assert "audit again" in archived.unarchived


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
    for name, text in (("20260103T000000Z", None), ("20260104T000000Z", ""), ("20260105", "[]")):
        folder = tmp_path / "orders" / "audits" / name
        folder.mkdir()  # an audit that did not finish
        if text is not None:
            (folder / "audit.json").write_text(text)
    shown = home.do("local", "audits", "orders").splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        ["20260101T000000Z", "Passed"], ["20260102T000000Z", "Violated"],
    ]  # fmt: skip
    assert home.do("local", "report", "orders").strip().endswith("20260102T000000Z/report.html")
    assert "(NotFound)" in home.refuse("local", "report", "orders", "other")
