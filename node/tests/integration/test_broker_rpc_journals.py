"""List and Apply of the gRPC interface of brokers."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from qsync_broker.rpc import journal_pb2 as pb
from qsync_testing.brokers.grpc_client import (
    JOURNAL,
    GrpcClient,
    error_of,
    label_set,
    selector,
    spec,
)
from qsync_testing.brokers.servers import brokers, create

pytestmark = pytest.mark.asyncio


async def test_applied_journals_are_listed(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        labels = label_set(region="eu")
        wanted = [
            spec("orders/eu", labels=labels),
            spec("orders/us", flags=1, max_append_rate=7),
        ]
        for one in wanted:
            one.fragment.retention.SetInParent()
            one.fragment.flush_interval.SetInParent()
            one.labels.SetInParent()
        answer = await client.apply(*[pb.ApplyRequest.Change(upsert=one) for one in wanted])
        assert answer.status == pb.OK
        listed = {one.spec.name: one for one in await client.list()}
        assert list(listed) == [JOURNAL, "orders/eu", "orders/us"]
        assert [listed[one.name].spec for one in wanted] == wanted
        assert all(one.mod_revision > 0 and one.create_revision > 0 for one in listed.values())
        assert all(one.mod_revision <= answer.header.etcd.revision for one in listed.values())
        names = [one.spec.name for one in await client.list(selector=selector(region="eu"))]
        assert names == ["orders/eu"]
        names = [one.spec.name for one in await client.list(selector=selector(prefix="orders/"))]
        assert names == ["orders/eu", "orders/us"]
        names = [one.spec.name for one in await client.list(selector=selector(name=JOURNAL))]
        assert names == [JOURNAL]


async def test_apply_needs_the_expected_revision(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:

        async def change(revision: int, **fields: Any) -> int:
            upsert = pb.ApplyRequest.Change(expect_mod_revision=revision, **fields)
            return int((await client.apply(upsert)).status)

        assert await change(0, upsert=spec("orders/eu")) == pb.OK
        assert await change(0, upsert=spec("orders/eu")) == pb.ETCD_TRANSACTION_FAILED
        (listed,) = await client.list(selector=selector(name="orders/eu"))
        revision = listed.mod_revision
        assert await change(revision, upsert=spec("orders/eu", replication=2)) == pb.OK
        assert await change(revision, upsert=spec("orders/eu")) == pb.ETCD_TRANSACTION_FAILED
        assert await change(revision, delete="orders/eu") == pb.ETCD_TRANSACTION_FAILED
        assert await change(1 << 40, upsert=spec("orders/eu")) == pb.ETCD_TRANSACTION_FAILED
        assert await change(-1, upsert=spec("orders/eu", replication=3)) == pb.OK
        (listed,) = await client.list(selector=selector(name="orders/eu"))
        assert (listed.spec.replication, listed.create_revision) == (3, revision)
        assert await change(-1, delete="orders/eu") == pb.OK
        assert await client.list(selector=selector(name="orders/eu")) == []
        assert await change(-1, delete="orders/eu") == pb.OK
        assert await change(5, delete="orders/eu") == pb.ETCD_TRANSACTION_FAILED


async def test_apply_is_all_or_nothing(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        answer = await client.apply(
            pb.ApplyRequest.Change(upsert=spec("orders/eu")),
            pb.ApplyRequest.Change(upsert=spec(JOURNAL)),
        )
        assert answer.status == pb.ETCD_TRANSACTION_FAILED
        assert [one.spec.name for one in await client.list()] == [JOURNAL]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([{"upsert": spec("x")}], "changes[0].upsert.name: must have 4 to 512 bytes, not 1"),
        ([{"upsert": spec("orders/eu", replication=6)}], "replication: must be 1 to 5, not 6"),
        ([{"delete": "orders/eu"}], "changes[0].expect_mod_revision: must be -1 or positive"),
        ([{"upsert": spec("orders")}] * 2, "changes[1]: 'orders' occurs twice"),
        ([{"upsert": spec("orders/eu")}, {"upsert": spec("orders")}], "would share a folder"),
        ([{"upsert": spec(f"{JOURNAL}/x")}], "'a/journal/x' and 'a/journal' would share a folder"),
        ([{"upsert": spec("orders/eu", suspend={"level": 7})}], "suspend.level: use NONE"),
        ([{"upsert": spec("orders/eu"), "delete": "orders/us"}], "either upsert or delete"),
        ([{"upsert": spec(f"orders/{n}")} for n in range(513)], "may have 512 changes: split it"),
    ],
)
async def test_invalid_change_is_refused(
    tmp_path: Path, changes: list[dict[str, Any]], text: str
) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        wanted = [pb.ApplyRequest.Change(**change) for change in changes]
        code, found = await error_of(client.apply(*wanted))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in found
        assert [one.spec.name for one in await client.list()] == [JOURNAL]


async def test_watch_lists_again_after_changes(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        watch = client.stub.List(pb.ListRequest(selector=selector(prefix="orders/"), watch=True))

        async def snapshot() -> tuple[int, list[str]]:
            """Read as Gazette's client does, which expects an end also after an empty message."""
            first = message = await watch.read()
            names: list[str] = []
            while message is first or message.journals:
                names += [one.spec.name for one in message.journals]
                message = await watch.read()
            return first.header.etcd.revision, names

        async with asyncio.timeout(10):
            first, names = await snapshot()
            assert names == []
            await client.apply(pb.ApplyRequest.Change(upsert=spec("other/eu")))
            changes = [pb.ApplyRequest.Change(upsert=spec(f"orders/{n:02}")) for n in range(60)]
            await client.apply(*changes)
            second, names = await snapshot()
            assert names == [f"orders/{n:02}" for n in range(60)]
            await client.apply(pb.ApplyRequest.Change(expect_mod_revision=-1, delete="orders/07"))
            third, names = await snapshot()
            assert len(names) == 59
            await client.apply(
                *(pb.ApplyRequest.Change(expect_mod_revision=-1, delete=name) for name in names)
            )
            fourth, names = await snapshot()
            assert names == []
            assert first < second < third < fourth
        watch.cancel()


async def test_suspension_survives_a_change_and_can_be_changed(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        await client.append(b"x")
        answer = await client.append(suspend=pb.AppendRequest.SUSPEND_NOW)
        assert answer.status == pb.SUSPENDED  # as it is now, with its offset
        (listed,) = await client.list()
        assert (listed.spec.suspend.level, listed.spec.suspend.offset) == (1, 1)
        listed.spec.max_append_rate = 9
        listed.spec.ClearField("suspend")
        change = pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=listed.spec)
        await client.apply(change)
        (listed,) = await client.list()
        assert (listed.spec.suspend.level, listed.spec.max_append_rate) == (1, 9)
        listed.spec.suspend.level = 0
        await client.apply(pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=listed.spec))
        (listed,) = await client.list()
        assert listed.spec.suspend.level == 0


async def test_journal_for_appends_only_is_not_read(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        create(nodes[0].keys, "b/journal", 1, flags="O_WRONLY")
        async with asyncio.timeout(10):
            while (await client.append(b"x", journal="b/journal")).status != pb.OK:
                await asyncio.sleep(0.05)
        assert [one.status for one in await client.read(journal="b/journal")] == [pb.NOT_ALLOWED]
        listed = await client.stub.ListFragments(pb.FragmentsRequest(journal="b/journal"))
        assert (listed.status, list(listed.fragments)) == (pb.NOT_ALLOWED, [])
