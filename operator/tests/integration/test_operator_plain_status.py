"""Status without TLS: the answers that the operator trusts, and the images that it stops asking."""

import http.server
import ssl
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qsync_node.format.proofs import ORDER_SCHEME
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.plan.actions import CreateMember, RecordBootstrap, RecordFormed
from qsync_operator.plan.planner import plan
from qsync_operator.resources.state import TLS_IMAGES_MAX, ClusterState
from qsync_testing.json_handler import JsonHandler
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import cluster_of, observed, opened, pod_of

REAL, FALSE = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000009"
NEW, EARLIER = "sha256:new", "sha256:earlier"


class FakeAdmin(JsonHandler):
    """Admin port that answers every GET with a member's status."""

    uuid = REAL
    member = "orders-0"
    replicaset_uuid = ""
    members: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        fields = {
            "name": self.member, "uuid": self.uuid, "replicaset_uuid": self.replicaset_uuid,
            "role": "joining",
            "term": 0, "last_term": 0, "last_index": 0, "confirmed_index": 0, "replica_id": 0,
            "leader_uuid": "", "is_writable": False, "can_stand": False, "is_open": False,
            "split_brain": "", "refused": "", "quorum": 1, "members": self.members,
            "order_schemes": [ORDER_SCHEME],
        }  # fmt: skip
        self.answer(fields)


@contextmanager
def answering(
    port: int, uuid: str, context: ssl.SSLContext | None = None, **fields: object
) -> Iterator[int]:
    """Run an admin port on 127.0.0.1, with TLS if `context` is given; yield its port."""
    handler = type("Handler", (FakeAdmin,), {"uuid": uuid, **fields})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def context_of(api: FakeApi, folder: Path) -> ssl.SSLContext:
    """Return a TLS context with the cluster's certificate, as the member mounts it."""
    secret = api.named("Secret", "orders-tls")["data"]
    file = folder / "tls.pem"
    file.write_bytes(b64decode(secret["tls.key"]) + b64decode(secret["tls.crt"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@asynccontextmanager
async def platform_of(
    api: FakeApi, port: int, image: str
) -> AsyncIterator[tuple[KubernetesPlatform, Any]]:
    """Start an operator while `orders-0` runs `image`; yield its platform and the cluster."""
    cluster = cluster_of(ports={"admin": port})
    node = {"name": "node", "state": {"running": {}}, "imageID": image}
    cache = Cache()
    async with opened(api, cluster, cache) as (platform, _):
        if "orders-0" not in platform._state.members:
            await platform.act(cluster, CreateMember("orders-0", "voter"))
        cache.note("Pod", pod_of("orders-0", podIP="127.0.0.1", containerStatuses=[node]))
        yield platform, cluster


async def observe(api: FakeApi, port: int, image: str) -> str | None:
    """Return the uuid that a newly started operator accepts from the member.

    None means that the operator accepts no status.
    """
    async with platform_of(api, port, image) as (platform, cluster):
        status = (await observed(platform, cluster)).members[0].status
        return status.uuid if status is not None else None


@pytest.mark.asyncio
async def test_image_that_answered_over_tls_is_never_asked_without_it(tmp_path: Path) -> None:
    api = FakeApi()
    with answering(0, REAL) as port:
        pass
    async with platform_of(api, port, NEW):
        secure = context_of(api, tmp_path)
    with answering(port, REAL, secure):
        assert await observe(api, port, NEW) == REAL
    with answering(port, FALSE):
        assert await observe(api, port, NEW) is None, "another operator process remembers, too"
        assert await observe(api, port, EARLIER) is None, "another instance, and no proof of it"
    with answering(port, REAL):
        assert await observe(api, port, EARLIER) == REAL, "rolled back"
    state = await stored(api, port)
    assert (state.members["orders-0"].uuid, state.tls_images) == (REAL, (NEW,))


@pytest.mark.asyncio
async def test_identity_is_not_stored_from_an_answer_without_tls(tmp_path: Path) -> None:
    api = FakeApi()
    with answering(0, FALSE) as port:
        assert await observe(api, port, EARLIER) == FALSE
    state = await stored(api, port)
    assert (state.members["orders-0"].uuid, state.tls_images) == ("", ())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "is_believed"),
    [
        ({}, True),
        ({"member": "orders-1"}, False),
        ({"replicaset_uuid": "another"}, False),
    ],
)
async def test_another_node_at_a_reused_address_does_not_answer_for_the_member(
    fields: dict[str, str], is_believed: bool
) -> None:
    with answering(0, REAL, None, **fields) as port:
        assert (await observe(FakeApi(), port, NEW) == REAL) is is_believed


async def stored(api: FakeApi, port: int) -> ClusterState:
    async with platform_of(api, port, EARLIER) as (platform, _):
        return platform._state


def test_remembered_images_are_bounded() -> None:
    state = ClusterState("rs", "secret")
    for number in range(TLS_IMAGES_MAX + 5):
        state = state.with_tls_images([f"image-{number}", "", "image-0"])
    assert len(state.tls_images) == TLS_IMAGES_MAX
    assert f"image-{TLS_IMAGES_MAX + 4}" in state.tls_images
    assert "" not in state.tls_images
    assert ClusterState.from_strings(state.strings()) == state


@pytest.mark.asyncio
async def test_founder_is_named_by_a_proven_answer_only(tmp_path: Path) -> None:
    """A recorded false founder would end in `FounderLost`, which requires deleting the cluster."""
    api = FakeApi()
    with answering(0, FALSE) as port:
        async with platform_of(api, port, NEW) as (platform, cluster):
            waiting = plan(cluster, await observed(platform, cluster), 0, 0.0)
            secure = context_of(api, tmp_path)
    assert not [one for one in waiting.actions if isinstance(one, RecordBootstrap)]
    assert "to answer over TLS" in str(waiting.status)
    with answering(port, REAL, secure):
        async with platform_of(api, port, NEW) as (platform, cluster):
            proven = plan(cluster, await observed(platform, cluster), 0, 0.0)
    assert RecordBootstrap("orders-0", REAL) in proven.actions


@pytest.mark.asyncio
async def test_cluster_is_formed_by_a_proven_answer_only() -> None:
    member = {"uuid": FALSE, "name": "orders-0", "replica_id": 1, "role": "voter"}
    with answering(0, FALSE, members=[{**member, "is_voting": True}]) as port:
        async with platform_of(FakeApi(), port, NEW) as (platform, cluster):
            waiting = plan(cluster, await observed(platform, cluster), 0, 0.0)
    assert RecordFormed() not in waiting.actions
