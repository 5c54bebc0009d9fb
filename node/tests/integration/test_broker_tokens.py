"""Journals that the token of a client selects, and those that do not exist for the client."""

import asyncio
from pathlib import Path

import aiohttp
import grpc
import pytest

from qsync_broker.auth import Capability
from qsync_broker.rpc import journal_pb2 as pb
from qsync_testing.brokers.grpc_client import JOURNAL, GrpcClient, error_of, label_set, spec
from qsync_testing.brokers.servers import FakeCoordination, create
from qsync_testing.brokers.tokens import bearer, claims, guarded

pytestmark = pytest.mark.asyncio
EU = {"include": {"labels": [{"name": "region", "value": "eu"}]}}


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
