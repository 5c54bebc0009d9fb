"""Operators and nodes read data of other versions; operators keep fields that they do not know."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_agent.start import node_document
from qsync_node.server.config import load_config
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.manager.clusters import Clusters
from qsync_operator.members.links import LinkError, NodeLinks
from qsync_operator.members.orders import MemberOrders, OrderPlace
from qsync_operator.plan.actions import CreateMember
from qsync_operator.resources.config import member_settings
from qsync_operator.resources.secrets import decoded, encoded
from qsync_operator.resources.state import ClusterState
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import IMAGE, cluster_of, document_of, opened

NEWER_STATUS = {
    "phase": "Levitating",
    "leader": "orders-1",
    "members": [{"name": "orders-0", "role": "witness"}, {"role": "leader"}],
    "conditions": [
        {"type": "Sideways", "status": "True"},
        {"type": "Ready", "status": "Perhaps"},
        {"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ],
    "lastFailover": {"from": "orders-0", "to": 7},
    "orbit": {"height": 3},
}


def test_status_of_another_version_is_read_as_far_as_it_can_be() -> None:
    found = QsyncCluster.model_validate({**document_of(), "status": NEWER_STATUS}).status
    assert (found.phase, found.leader) == ("Levitating", "orders-1")
    assert [(m.name, m.role) for m in found.members] == [("orders-0", "down")]
    assert found.is_true("Available")
    assert found.last_failover is not None
    assert (found.last_failover.from_, found.last_failover.to) == ("orders-0", "")


@pytest.mark.asyncio
async def test_cluster_with_a_status_of_another_version_is_supervised() -> None:
    clusters = Clusters(FakeApi(), Cache(), IMAGE)
    document = document_of()
    await clusters.on_event({**document, "status": NEWER_STATUS}, False)
    await clusters.begin()
    try:
        assert clusters.count() == 1
    finally:
        await clusters.close()


def test_state_of_another_version_is_read_and_its_fields_are_kept() -> None:
    state = {
        "is_formed": True,
        "orbit": {"height": 3},
        "members": {"orders-0": {"kind": "voter", "uuid": "u", "moon": "io"}},
    }
    given = {"replicasetUUID": "rs", "secret": "s", "state.json": json.dumps(state), "more": "x"}
    found = ClusterState.from_strings(given)
    assert (found.is_formed, found.members["orders-0"].uuid) == (True, "u")
    written = found.with_instance("orders-0", "v").with_member("orders-1", "voter").strings()
    kept = json.loads(written["state.json"])
    assert (written["more"], kept["orbit"]) == ("x", {"height": 3})
    assert (kept["members"]["orders-0"]["moon"], kept["members"]["orders-0"]["uuid"]) == ("io", "v")
    assert "unknown" not in kept
    assert "unknown" not in kept["members"]["orders-1"]


@pytest.mark.asyncio
async def test_an_operator_keeps_another_versions_state_in_the_secret() -> None:
    api, cluster = FakeApi(), cluster_of()
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
    stored = api.named("Secret", "orders-identity")
    strings = decoded(stored)
    strings["state.json"] = json.dumps({**json.loads(strings["state.json"]), "orbit": 3})
    stored["data"] = encoded(strings)
    api.put(stored)
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-1", "voter"))
    kept = json.loads(decoded(api.named("Secret", "orders-identity"))["state.json"])
    assert kept["orbit"] == 3
    assert set(kept["members"]) == {"orders-0", "orders-1"}


def node_file(tmp_path: Path, **more: object) -> Path:
    settings = {**member_settings(cluster_of(), "voter"), **more}
    members = {"orders-0": {"address": "a:1", "advertise": "a:2", "role": "voter"}}
    uuid = "11111111-2222-3333-4444-555555555555"
    identity = {"replicasetUUID": uuid, "secret": "a long secret"}
    document = node_document(settings, members, identity, "orders-0", tmp_path)
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_node_takes_settings_of_its_own_version(tmp_path: Path) -> None:
    assert load_config(node_file(tmp_path)).unknown_settings() == []


def test_node_ignores_and_reports_settings_of_a_newer_operator(tmp_path: Path) -> None:
    tls = {**member_settings(cluster_of(), "voter")["tls"], "curves": ["x25519"]}
    config = load_config(node_file(tmp_path, warp="9", tls=tls))
    assert config.unknown_settings() == ["warp", "tls.curves"]
    assert config.tls is not None


def test_node_takes_settings_of_an_older_operator(tmp_path: Path) -> None:
    file = node_file(tmp_path)
    document = yaml.safe_load(file.read_text())
    needed = ("directory", "name", "replicaset_uuid", "secret")
    file.write_text(yaml.safe_dump({key: document[key] for key in needed}))
    assert load_config(file).unknown_settings() == []


class OlderNode(NodeLinks):
    """A node that refuses the setting `warp`, and applies the others."""

    def __init__(self) -> None:
        super().__init__("secret")
        self.applied: dict[str, Any] = {}

    async def post(
        self, address: str, path: str, fields: dict[str, Any], instance: str = ""
    ) -> None:
        if "warp" in fields:
            raise LinkError("unknown setting 'warp'", is_refusal=True)
        self.applied.update(fields)


@pytest.mark.asyncio
async def test_settings_that_an_older_node_does_not_know_keep_no_other_from_it() -> None:
    node = OlderNode()
    orders = MemberOrders(node, lambda _: OrderPlace("node:1", ""))
    await orders.configure("orders-0", {"warp": 9, "heartbeat_ns": 5})
    assert node.applied == {"heartbeat_ns": 5}
    with pytest.raises(LinkError):
        await orders.configure("orders-0", {"warp": 9})
    await node.close()


@pytest.mark.asyncio
async def test_order_to_a_member_without_an_address_is_not_sent() -> None:
    node = OlderNode()
    with pytest.raises(LinkError, match="no address"):
        await MemberOrders(node, lambda _: OrderPlace("", "")).send("orders-0", "/verb/fence", {})
    await node.close()
