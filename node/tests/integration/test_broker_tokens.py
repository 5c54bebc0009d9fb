"""Journals that the token of a client selects, and those that do not exist for the client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import grpc
import pytest
from aiohttp import web

from qsync_broker.auth import EXPIRED, Capability, Claims
from qsync_broker.batch import encode_item
from qsync_broker.client import JournalClient
from qsync_broker.events import Watched
from qsync_broker.http.access import JournalAccess
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc.service import JournalService
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.grpc_client import JOURNAL, GrpcClient, error_of, label_set, spec
from qsync_testing.brokers.servers import BrokerNode, FakeCoordination, create, start_broker
from qsync_testing.brokers.tokens import bearer, claims, guarded
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio


async def until_assigned(node: BrokerNode, journal: str) -> None:
    """Wait until a broker has a journal."""
    keys = node.server.core.keys
    async with asyncio.timeout(10):
        while not keys.route(journal).members:
            await asyncio.sleep(0.01)


OTHER = {"include": {"labels": [{"name": "name", "value": "b/journal"}]}}
EU = {"include": {"labels": [{"name": "region", "value": "eu"}]}}


async def test_excluded_journal_does_not_exist(tmp_path: Path) -> None:
    """The selector of a token excludes labels, by value or by prefix."""
    async with guarded(tmp_path) as nodes:
        for label in ({"name": "name", "value": JOURNAL}, {"name": "prefix", "value": "a/"}):
            token = claims({"exclude": {"labels": [label]}}, 60)
            async with JournalClient(nodes[0].url, token) as client:
                assert await client.journals() == []
        token = claims({"exclude": {"labels": [{"name": "prefix", "value": "b/"}]}}, 60)
        async with JournalClient(nodes[0].url, token) as client:
            assert [one.spec.name for one in await client.journals()] == [JOURNAL]


async def test_unselected_journal_is_not_described_by_its_name(tmp_path: Path) -> None:
    """A view with the argument `name` describes only journals that the token selects."""
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/debug/journals?name={JOURNAL}"
        for selector, count in (({}, 1), (OTHER, 0)):
            answer = await http.get(url, headers=bearer(claims(selector, 60)))
            assert len((await answer.json())["journals"]) == count


async def test_metadata_after_the_name_reveals_no_unselected_journal(tmp_path: Path) -> None:
    """A client may add metadata to the name, and appends to the same journal."""
    name, token = f"{JOURNAL};x=y", claims(OTHER, 60)
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/{name}"
        assert (await http.put(url, data=b"x", headers=bearer(token))).status == 404
        assert (await http.get(url, headers=bearer(token))).status == 404
        async with GrpcClient(nodes[0], token) as client:
            assert (await client.append(b"x", journal=name)).status == pb.JOURNAL_NOT_FOUND
            assert (await client.read(journal=name))[0].status == pb.JOURNAL_NOT_FOUND
        answer = await http.put(f"{nodes[0].url}/{JOURNAL}", headers=bearer(claims({}, 60)))
        assert answer.headers["X-Write-Head"] == "0"


async def test_expired_token_permits_no_request(tmp_path: Path) -> None:
    """The clocks of a client and a broker may differ by a few seconds only."""
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        headers = bearer(claims({}, -10))
        url = f"{nodes[0].url}/{JOURNAL}"
        assert (await http.put(url, data=b"x", headers=headers)).status == 401
        assert (await http.get(url, headers=headers)).status == 401


async def test_watch_of_journals_ends_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client would otherwise receive changes without an end."""
    monkeypatch.setattr("qsync_broker.auth._LEEWAY_S", 0)

    listings = []

    async def watch(client: GrpcClient) -> None:
        async with asyncio.timeout(20):
            request = pb.ListRequest(watch=True)
            async for listing in client.stub.List(request, metadata=client.metadata):
                listings.append(listing)

    async with guarded(tmp_path) as nodes, GrpcClient(nodes[0], claims({}, 3)) as client:
        code, text = await error_of(watch(client))
        assert (code, text) == (grpc.StatusCode.UNAUTHENTICATED, EXPIRED)
        assert listings


async def test_token_changes_only_journals_that_it_selects(tmp_path: Path) -> None:
    """Labels of a new specification do not give access to a journal that had others."""
    token = claims(EU, 60, Capability.ALL)
    async with (
        guarded(tmp_path) as nodes,
        GrpcClient(nodes[0], token) as client,
        GrpcClient(nodes[0], claims({}, 60)) as other,
    ):
        eu = label_set(region="eu")
        for change in (
            pb.ApplyRequest.Change(expect_mod_revision=-1, delete=JOURNAL),
            pb.ApplyRequest.Change(upsert=spec("b/journal", labels=label_set(region="us"))),
            pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=spec(JOURNAL, labels=eu)),
        ):
            code, text = await error_of(client.apply(change))
            assert (code, "the token does not select" in text) == (
                grpc.StatusCode.UNAUTHENTICATED,
                True,
            )
        mine = pb.ApplyRequest.Change(upsert=spec("b/journal", labels=eu))
        assert (await client.apply(mine)).status == pb.OK
        mine.expect_mod_revision = -1
        assert (await client.apply(mine)).status == pb.OK
        assert [one.spec.name for one in await client.list()] == ["b/journal"]
        assert [len(one.spec.labels.labels) for one in await other.list()] == [0, 1]
        removal = pb.ApplyRequest.Change(expect_mod_revision=-1, delete="b/journal")
        assert (await client.apply(removal)).status == pb.OK
        assert [one.spec.name for one in await other.list()] == [JOURNAL]


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_token_is_checked_at_the_revision_of_the_request(tmp_path: Path, method: str) -> None:
    """A journal that is created while its request waits for a revision is not selected, either."""
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        server, keys = nodes[0].server, nodes[0].keys
        coordination = server._coordination
        assert isinstance(coordination, FakeCoordination)
        coordination.is_cut = True
        headers = {**bearer(claims(EU, 60)), "X-Qsync-Proxied": str(keys.revision + 1)}
        request = http.request(method, f"{nodes[0].url}/b/journal", headers=headers, data=b"\xc4\0")
        waiting = asyncio.ensure_future(request)
        async with asyncio.timeout(10):
            while not server._revisions and not server.core.appends_in_flight:
                await asyncio.sleep(0.01)
            create(keys, "b/journal", 1)
            coordination.is_cut = False
            assert (await waiting).status == 404
            await until_assigned(nodes[0], "b/journal")
        async with http.get(f"{nodes[0].url}/b/journal", headers=bearer(claims({}, 60))) as full:
            assert full.status != 404


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_token_is_checked_after_the_content_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A journal that is created while the content arrives is not selected, either."""
    checked, check = asyncio.Event(), JournalAccess.check

    async def noted(access: JournalAccess, request: web.Request, capability: Capability) -> Claims:
        found = await check(access, request, capability)
        checked.set()
        return found

    monkeypatch.setattr(JournalAccess, "check", noted)
    content = encode_item(b"late")
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:

        async def arriving() -> AsyncIterator[bytes]:
            yield content[:1]
            await checked.wait()
            create(nodes[0].keys, "b/journal", 1)
            await until_assigned(nodes[0], "b/journal")
            yield content[1:]

        url, headers = f"{nodes[0].url}/b/journal", bearer(claims(EU, 60))
        headers["Content-Length"] = str(len(content))
        async with (
            asyncio.timeout(10),
            http.request(method, url, headers=headers, data=arriving()) as answer,
        ):
            assert answer.status == 404
        replica = nodes[0].server.core.replica("b/journal")
        assert replica is not None
        assert replica.visible_end == 0


async def test_token_is_checked_after_the_content_has_arrived_by_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labels of a journal may change meanwhile, so that the token no longer selects it."""
    checked, is_hidden = asyncio.Event(), JournalService._is_hidden

    def noted(service: JournalService, journal: str, claims: Claims) -> bool:
        checked.set()
        return is_hidden(service, journal, claims)

    async with (
        guarded(tmp_path) as nodes,
        GrpcClient(nodes[0], claims(EU, 60)) as client,
        GrpcClient(nodes[0], claims({}, 60)) as other,
    ):
        await other.apply(
            pb.ApplyRequest.Change(upsert=spec("b/eu", labels=label_set(region="eu")))
        )
        await until_assigned(nodes[0], "b/eu")
        assert (await client.append(b"x", journal="b/eu")).status == pb.OK
        monkeypatch.setattr(JournalService, "_is_hidden", noted)

        async def requests() -> AsyncIterator[pb.AppendRequest]:
            yield pb.AppendRequest(journal="b/eu")
            await checked.wait()
            us = spec("b/eu", labels=label_set(region="us"))
            await other.apply(pb.ApplyRequest.Change(upsert=us, expect_mod_revision=-1))
            yield pb.AppendRequest(content=b"late")
            yield pb.AppendRequest()

        async with asyncio.timeout(10):
            answer = await client.stub.Append(requests(), metadata=client.metadata)
        assert answer.status == pb.JOURNAL_NOT_FOUND
        assert await other.content(journal="b/eu") == b"x"


async def test_broker_without_rows_permits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interfaces accept requests before it knows the journals."""
    keys, ports, may_watch = SimKeySpace(), free_ports(2), asyncio.Event()
    (tmp_path / "keys").write_text("c2VjcmV0")
    create(keys, JOURNAL, 1)
    watch = FakeCoordination.watch

    async def late(coordination: FakeCoordination, deliver: Callable[[Watched], None]) -> None:
        await may_watch.wait()
        await watch(coordination, deliver)

    monkeypatch.setattr(FakeCoordination, "watch", late)
    token = claims(EU, 60)
    node = await start_broker(tmp_path, "broker-0", ports, keys, auth_keys_file=tmp_path / "keys")
    try:
        async with GrpcClient(node, token) as client, aiohttp.ClientSession() as http:
            url, headers = f"{node.url}/{JOURNAL}", bearer(token)
            put = asyncio.ensure_future(http.put(url, data=b"x", headers=headers))
            append = asyncio.ensure_future(client.append(b"x"))
            done, _ = await asyncio.wait({put, append}, timeout=0.3)
            assert not done
            may_watch.set()
            async with asyncio.timeout(10):
                assert (await put).status == 404
                assert (await append).status == pb.JOURNAL_NOT_FOUND
    finally:
        await node.stop()
