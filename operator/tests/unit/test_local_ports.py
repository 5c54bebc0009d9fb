"""Ports of the members of a local cluster."""

import asyncio
import random
from pathlib import Path

import pytest

from qsync_local.platform import LocalPlatform
from qsync_local.ports import choose_port
from qsync_local.store import ClusterFiles, Secrets
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.plan.actions import CreateMember


def test_chosen_port_is_none_that_the_manifest_assigns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = choose_port(())
    other = choose_port(range(first, first + 3))
    cluster = QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders"},
            "spec": {"replicas": 3, "ports": {"iproto": first}},
        }
    )
    files = ClusterFiles(tmp_path / "orders")
    platform = LocalPlatform(files, Secrets("secret", "app", "password"))
    monkeypatch.setattr(platform.processes, "start", lambda name: None)
    choices = iter([first + 1, first + 2, other])
    monkeypatch.setattr(random, "randint", lambda *_: next(choices))
    asyncio.run(platform.act(cluster, CreateMember("orders-0", "voter")))
    record = files.load_state().members["orders-0"]
    assert (record.iproto, record.admin) == (first, other)
