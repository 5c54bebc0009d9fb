"""Journals that the token of a client selects, and those that do not exist for the client."""

from pathlib import Path

import grpc
import pytest

from qsync_broker.auth import Capability
from qsync_broker.rpc import journal_pb2 as pb
from qsync_testing.brokers.grpc_client import JOURNAL, GrpcClient, error_of, label_set, spec
from qsync_testing.brokers.tokens import claims, guarded

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
