"""`qsync demo` after an interrupted one, and a restore whose record cannot be written."""

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qsync_cli import demo
from qsync_cli.data.connecting import ConnectionTarget
from qsync_cli.options import Output
from qsync_local import restoration
from qsync_local.store import ClusterFiles
from qsync_operator.api.manifest import parse_manifest
from qsync_operator.reconcile.platform import ActionRefused

RESTORED = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {name: copy}
spec: {bootstrap: {fromArchive: {url: "file:///archive"}}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSYNC_HOME", str(tmp_path))


def test_demo_that_was_interrupted_waits_until_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / demo.NAME).mkdir()
    (tmp_path / demo.NAME / "cluster.json").write_text("{}")
    steps: list[str] = []

    @contextmanager
    def connect(target: ConnectionTarget) -> Iterator[None]:
        steps.append("connect")
        yield

    def wait_ready(store: ClusterFiles, timeout_s: float, is_quiet: bool) -> None:
        assert is_quiet
        steps.append(f"wait for {store.name}")

    monkeypatch.setattr("qsync_cli.clusters.ensure_supervisor", lambda _: steps.append("start"))
    monkeypatch.setattr("qsync_cli.waiting.wait_ready", wait_ready)
    monkeypatch.setattr(ConnectionTarget, "connect", connect)
    monkeypatch.setattr(demo, "_fill", lambda _: 208)
    demo.demo(Output.json)
    assert steps == ["start", "wait for demo", "connect"]


def test_record_of_a_restore_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = parse_manifest(RESTORED, "the test").cluster
    monkeypatch.setattr(restoration, "restore_into", lambda *_: {"notes": ["one"]})

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = ClusterFiles(tmp_path / "copy")
    store.directory.mkdir()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(ActionRefused):
            asyncio.run(restoration.Restoration(store).make(cluster, "copy-0"))
    file = store.directory / restoration.RESTORED_NAME
    assert not file.exists()
    asyncio.run(restoration.Restoration(store).make(cluster, "copy-0"))
    assert file.read_text() == '{"notes": ["one"]}'
