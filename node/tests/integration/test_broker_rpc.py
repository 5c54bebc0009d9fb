"""The gRPC interface of brokers, over real connections and disks."""

import asyncio
import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from qsync_broker import persister
from qsync_broker.auth import Authorizer, Capability
from qsync_broker.client import JournalClient, JournalError
from qsync_broker.grouping import Grouped
from qsync_broker.requests import Append
from qsync_broker.rpc import base, service
from qsync_broker.rpc import content as early_content
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.status import Status
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.grpc_client import JOURNAL, LOST, GrpcClient
from qsync_testing.brokers.servers import BrokerNode, brokers, start_broker
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio


def spec(name: str, **fields: Any) -> pb.JournalSpec:
    fragment = pb.JournalSpec.Fragment(length=1 << 20, compression_codec=pb.SNAPPY)
    fragment.refresh_interval.seconds = 60
    return pb.JournalSpec(**{"name": name, "replication": 1, "fragment": fragment, **fields})


def selector(**labels: str) -> pb.LabelSelector:
    include = [pb.Label(name=name, value=value) for name, value in labels.items()]
    return pb.LabelSelector(include=pb.LabelSet(labels=include))


def label_set(**labels: str) -> pb.LabelSet:
    return pb.LabelSet(labels=[pb.Label(name=name, value=labels[name]) for name in labels])


def sum_bytes(message: pb.SHA1Sum) -> bytes:
    parts = ((message.part1, 8), (message.part2, 8), (message.part3, 4))
    return b"".join(part.to_bytes(size, "big") for part, size in parts)


# --- append and read ------------------------------------------------------------------------------


async def test_append_at_any_broker_is_read_at_any_broker(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes:
        for number, node in enumerate(nodes):
            async with GrpcClient(node) as client:
                answer = await client.append(b"foo", b"bar\n")
                assert (answer.status, answer.commit.begin) == (pb.OK, 7 * number)
                assert (answer.commit.end, answer.total_chunks) == (7 * number + 7, 3)
                assert sum_bytes(answer.commit.sum) == hashlib.sha1(b"foobar\n").digest()
                assert answer.HasField("registers")
        await asyncio.sleep(0.1)
        for node in nodes:
            async with GrpcClient(node) as client:
                assert await client.content() == b"foobar\n" * 3


async def test_header_satisfies_the_rules_of_clients(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, GrpcClient(nodes[0]) as client:
        header = (await client.append(b"x")).header
        etcd = header.etcd
        assert all((etcd.cluster_id, etcd.member_id, etcd.raft_term, etcd.revision))
        members = [(one.zone, one.suffix) for one in header.route.members]
        assert members == sorted(set(members))
        assert sorted(header.route.endpoints) == sorted(node.url for node in nodes)
        assert 0 <= header.route.primary < 3
        (listing,) = [one async for one in client.stub.List(pb.ListRequest())]
        assert listing.header.route.primary == -1
        assert listing.header.process_id.suffix == "broker-0"


async def test_read_describes_fragments_and_ends_at_the_head(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        await client.append(b"content")
        described, content, last = await client.read(offset=2)
        assert (described.status, described.offset, described.write_head) == (pb.OK, 2, 7)
        fragment = described.fragment
        assert (fragment.journal, fragment.begin, fragment.end) == (JOURNAL, 0, 7)
        assert sum_bytes(fragment.sum) == hashlib.sha1(b"content").digest()
        assert described.HasField("header")
        assert (content.offset, content.content) == (2, b"ntent")
        assert not content.HasField("header")
        assert (last.status, last.offset, last.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 7, 7)


async def test_read_at_the_head_tells_its_offset(tmp_path: Path) -> None:
    """`reset-head` reads the head by this answer."""
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        await client.append(b"content")
        (answer,) = await client.read(offset=-1, metadata_only=True)
        assert (answer.status, answer.offset) == (pb.OFFSET_NOT_YET_AVAILABLE, 7)
        assert answer.HasField("header")


async def test_read_stops_at_the_end_offset(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        await client.append(b"content")
        assert await client.content(offset=1, end_offset=4) == b"ont"


async def test_blocked_read_gets_later_appends(tmp_path: Path) -> None:
    async with (
        brokers(tmp_path) as nodes,
        GrpcClient(nodes[0]) as one,
        GrpcClient(nodes[2]) as other,
    ):
        reading = one.stub.Read(pb.ReadRequest(journal=JOURNAL, block=True))
        await other.append(b"first")
        await other.append(b"second")
        got = b""
        async with asyncio.timeout(10):
            while len(got) < 11:
                got += (await reading.read()).content
        assert got == b"firstsecond"
        reading.cancel()


async def test_metadata_of_the_name_is_ignored(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        answer = await client.append(b"x", journal=f"{JOURNAL};meta")
        assert (answer.status, answer.commit.journal) == (pb.OK, JOURNAL)
        assert await client.content(journal=f"{JOURNAL};other") == b"x"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"journal": "no/journal"}, pb.JOURNAL_NOT_FOUND),
        ({"offset": 5}, pb.WRONG_APPEND_OFFSET),
        ({"suspend": pb.AppendRequest.SUSPEND_KEEP}, pb.NOT_ALLOWED),
    ],
)
async def test_refused_append_has_a_status(
    tmp_path: Path, fields: dict[str, Any], status: int
) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        assert (await client.append(b"x", **fields)).status == status
        assert (await client.append(b"y")).commit.begin == 0


@pytest.mark.parametrize(
    ("journal", "may_proxy", "statuses"),
    [
        (JOURNAL, False, {pb.OK, pb.NOT_JOURNAL_PRIMARY_BROKER}),
        (JOURNAL, True, {pb.OK}),
    ],
)
async def test_other_broker_forwards_only_if_permitted(
    tmp_path: Path, journal: str, may_proxy: bool, statuses: set[int]
) -> None:
    async with brokers(tmp_path) as nodes:
        found = set()
        for node in nodes:
            async with GrpcClient(node) as client:
                found.add((await client.append(b"x", do_not_proxy=not may_proxy)).status)
        assert found == statuses


async def test_registers_guard_an_append(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        answer = await client.append(b"x", union_registers=label_set(lock="mine"))
        assert answer.registers == label_set(lock="mine")
        refused = await client.append(b"y", check_registers=selector(lock="other"))
        assert refused.status == pb.REGISTER_MISMATCH
        assert refused.registers == label_set(lock="mine")
        answer = await client.append(
            b"y",
            check_registers=selector(lock="mine"),
            subtract_registers=label_set(lock="mine"),
        )
        assert (answer.status, answer.registers) == (pb.OK, pb.LabelSet())


async def error_of(call: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


@pytest.mark.parametrize("count", [1, 3])
async def test_append_without_its_commit_leaves_nothing(tmp_path: Path, count: int) -> None:
    async with brokers(tmp_path, count) as nodes:
        for node in nodes:
            async with GrpcClient(node) as client:
                code, text = await error_of(client.append(b"lost", is_committed=False))
                assert code is grpc.StatusCode.UNKNOWN
                assert "unexpected EOF" in text
                assert (await client.append()).commit.end == 0


async def test_cancelled_append_leaves_nothing(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes:
        for node in nodes:
            async with GrpcClient(node) as client:
                call = client.stub.Append()
                await call.write(pb.AppendRequest(journal=JOURNAL))
                await call.write(pb.AppendRequest(content=b"lost"))
                await asyncio.sleep(0.1)
                call.cancel()
                async with asyncio.timeout(5):
                    assert (await client.append()).commit.end == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": b"x"}, "content: the first message"),
        ({"offset": -1}, "offset: must not be negative"),
        ({"journal": ""}, "name: must have 4 to 512 bytes"),
        ({"journal": "/a/journal"}, "name: '/a/journal' must be a path"),
        ({"suspend": 9}, "suspend: unknown value 9"),
        ({"union_registers": label_set(lock="a\r\nX: y")}, "union_registers: the value of 'lock'"),
        ({"subtract_registers": label_set(**{"": "1"})}, "subtract_registers: the name ''"),
        (
            {"union_registers": label_set(**{f"name-{n}": "" for n in range(1025)})},
            "union_registers: at most 1024 registers, not 1025",
        ),
    ],
)
async def test_invalid_append_is_refused(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        code, found = await error_of(client.append(b"x", **fields))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in found


async def test_content_after_the_commit_is_refused(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        _, text = await error_of(client.append(b"x", b"", b"y"))
        assert "content follows the commit" in text
        assert (await client.append()).commit.end == 0


@pytest.mark.parametrize("fields", [{"offset": -2}, {"offset": 9, "end_offset": 8}])
async def test_invalid_read_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        code, text = await error_of(client.read(**fields))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "offset: must" in text


async def test_request_for_another_cluster_or_broker_is_refused(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        header = (await client.append()).header
        header.etcd.cluster_id += 1
        code, text = await error_of(client.read(header=header))
        assert (code, "cluster" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        header.etcd.cluster_id -= 1
        header.process_id.suffix = "broker-9"
        code, text = await error_of(client.read(header=header))
        assert (code, "broker" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_request_for_a_revision_that_does_not_come_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "REVISION_S", 0.1, raising=False)
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        header = pb.Header(etcd=pb.Header.Etcd(revision=1 << 40))
        for fields in ({"min_etcd_revision": 1 << 40}, {"header": header}):
            for call in (client.append(b"content", **fields), client.read(**fields)):
                code, text = await error_of(asyncio.wait_for(call, 5))
                assert code is grpc.StatusCode.UNAVAILABLE
                assert text.endswith("does not know revision 1099511627776: repeat the request")


async def test_large_append_passes_through_another_broker(tmp_path: Path) -> None:
    piece = bytes(range(256)) * 4096
    async with brokers(tmp_path) as nodes:
        for node in nodes:
            async with GrpcClient(node) as client:
                answer = await client.append(*[piece] * 8)
                assert answer.commit.end - answer.commit.begin == 8 << 20
                assert await client.content(offset=answer.commit.begin) == piece * 8


# --- List and Apply -------------------------------------------------------------------------------


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


# --- fragments ------------------------------------------------------------------------------------


async def test_fragments_are_listed_in_pages(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, GrpcClient(nodes[0]) as client:
        for _ in range(4):
            await client.append(b"x" * 1500)

        async def page(**fields: Any) -> Any:
            request = pb.FragmentsRequest(journal=JOURNAL, **fields)
            return await client.stub.ListFragments(request)

        async with asyncio.timeout(10):
            while sum(bool(one.spec.mod_time) for one in (await page()).fragments) < 3:
                await asyncio.sleep(0.05)
        whole = await page()
        spans = [(one.spec.begin, one.spec.end) for one in whole.fragments]
        assert spans == [(1500 * n, 1500 * n + 1500) for n in range(4)]
        assert [bool(one.spec.mod_time) for one in whole.fragments] == [True] * 3 + [False]
        assert whole.fragments[0].spec.backing_store == store
        first = await page(page_limit=3)
        assert (len(first.fragments), first.next_page_token) == (3, 4500)
        (last,) = (await page(page_limit=3, next_page_token=4500)).fragments
        assert last.spec.begin == 4500
        now = int(time.time())
        assert len((await page(end_mod_time=now + 9)).fragments) == 3
        assert len((await page(begin_mod_time=now + 9)).fragments) == 1
        described = await client.read(do_not_proxy=True)
        assert described[0].fragment_url.startswith(store)
        assert len(described) == 1


async def test_read_finds_a_fragment_that_the_last_listing_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persister, "LIST_AGAIN_NS", 100_000_000)
    store = f"file://{tmp_path}/store/"
    started = brokers(tmp_path, 1, length=1024, stores=[store])
    async with started as nodes, GrpcClient(nodes[0]) as client:
        for _ in range(2):
            await client.append(b"x" * 1500)
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        async with asyncio.timeout(10):
            while not replica.remote.covers(0, 1500):
                await asyncio.sleep(0.01)
            replica.remote.replace([])  # as if another broker had persisted it after the listing
            found = await client.read(offset=0, end_offset=1500, block=True)
        assert b"".join(one.content for one in found) == b"x" * 1500


async def test_client_reports_an_offset_after_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.client.LAG_S", 0.2)
    async with brokers(tmp_path, 1) as nodes, JournalClient(nodes[0].url) as client:
        assert [part async for part in client.read(JOURNAL)] == []
        await client.append(JOURNAL, [b"content"])
        for offset in (7, -1):
            assert [part async for part in client.read(JOURNAL, offset)] == []
        with pytest.raises(JournalError) as raised:
            [part async for part in client.read(JOURNAL, 8)]
        assert raised.value.status is Status.OFFSET_NOT_YET_AVAILABLE
        assert str(raised.value) == (
            "a/journal: OFFSET_NOT_YET_AVAILABLE: the offset is 8, and the write head is 7; read"
            " from the write head or less, or wait with a blocking read"
        )
        monkeypatch.setattr("qsync_broker.client.LAG_S", 10.0)
        later = asyncio.ensure_future(anext(client.read(JOURNAL, 9)))
        await asyncio.sleep(0.2)
        await client.append(JOURNAL, [b"more"])
        assert await later == (9, b"re"), "the broker was late"


@pytest.mark.parametrize("retention", ["0s", "1h"])
async def test_client_reports_lost_bytes(tmp_path: Path, retention: str) -> None:
    """A read passes over a gap that is final; otherwise, the missing bytes are an error."""
    started = brokers(
        tmp_path, 1, length=1024, stores=[f"file://{tmp_path}/store/"], retention=retention
    )
    async with started as nodes, JournalClient(nodes[0].url) as client:
        for _ in range(3):
            await client.append(JOURNAL, [b"x" * 1500])
        replica = nodes[0].server.core.replica(JOURNAL)
        assert replica is not None
        async with asyncio.timeout(10):
            while replica.completed or not replica.remote.covers(0, 3000):
                await asyncio.sleep(0.01)
        listed = await client.fragments(JOURNAL)
        replica.remote.replace([one for one in listed if one.begin == 1500])
        gaps: list[tuple[int, int]] = []

        async def read(offset: int, end: int = 0) -> int:
            parts = client.read(JOURNAL, offset, end=end, on_gap=lambda *gap: gaps.append(gap))
            return sum([len(data) async for _, data in parts])

        if retention == "1h":
            assert await read(100) == 3000
            assert await read(100, 1600) == 100
            assert await read(100, 200) == 0
            assert gaps == [(100, 1500), (100, 1500), (100, 200)]
            return
        for end in (0, 200):
            with pytest.raises(JournalError) as raised:
                await read(100, end)
            assert raised.value.status is Status.OFFSET_NOT_YET_AVAILABLE
            assert "no fragment has the byte at 100, and the write head is 4500" in str(
                raised.value
            )
        assert gaps == []


async def test_client_reports_a_read_that_the_broker_ends(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, JournalClient(nodes[0].url) as client:
        await client.append(JOURNAL, [b"content"])
        parts = client.read(JOURNAL, is_blocking=True)
        assert await anext(parts) == (0, b"content")
        nodes[0].server.end_reads()
        with pytest.raises(JournalError, match="the broker stops; read again from offset 7"):
            await anext(parts)


async def test_health_of_a_store(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:

        async def health(url: str) -> Any:
            request = pb.FragmentStoreHealthRequest(fragment_store=url, check_delete=True)
            return await client.stub.FragmentStoreHealth(request)

        missing = await health(f"file://{tmp_path}/store/")
        assert missing.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert not (tmp_path / "store").exists()
        (tmp_path / "store").mkdir()
        assert (await health(f"file://{tmp_path}/store/")).status == pb.OK
        (tmp_path / "file").write_text("no folder")
        broken = await health(f"file://{tmp_path}/file/")
        assert broken.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert broken.store_health_error
        code, text = await error_of(health("ftp://x/"))
        assert (code, "scheme" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_url_of_a_fragment_is_valid_for_a_week_at_most(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store/"
    async with brokers(tmp_path, 1, stores=[store]) as nodes, GrpcClient(nodes[0]) as client:

        async def page(seconds: int, nanos: int = 0) -> Any:
            request = pb.FragmentsRequest(journal=JOURNAL)
            request.signature_ttl.seconds, request.signature_ttl.nanos = seconds, nanos
            return await client.stub.ListFragments(request)

        assert (await page(604_800)).status == pb.OK
        for wrong in ((604_800, 1), (-1, 0), ((1 << 63) - 1, 0)):
            code, text = await error_of(page(*wrong))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith("signature_ttl: must be 0s to 604800s, not ")


async def test_content_waits_at_its_client_until_the_append_has_its_turn(tmp_path: Path) -> None:
    """One message is received early, because its size is not known; another one fills buffers."""
    part = pb.AppendRequest(content=bytes(1 << 20))
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        first, second = client.stub.Append(), client.stub.Append()
        for append in (first, second):
            await append.write(pb.AppendRequest(journal=JOURNAL))
            await append.write(part)
            async with asyncio.timeout(10):
                while nodes[0].server.core.appends_in_flight < 1:
                    await asyncio.sleep(0.01)
        written = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                for _ in range(16):
                    await second.write(part)
                    written += 1
        assert written <= 3
        first.cancel()
        second.cancel()


async def test_content_is_received_early_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_content, "EARLY_READS", 2)
    monkeypatch.setattr(early_content, "EARLY_S", 0.05)
    early = early_content.EarlyContent()
    assert [await early.may_read() for _ in range(3)] == [True, True, False]
    waiting = asyncio.ensure_future(early.may_read())
    await asyncio.sleep(0)
    early.end()
    assert await waiting
    early.end()
    early.end()
    large = pb.AppendRequest(content=bytes(early_content.EARLY_BYTES + 1))
    with early.holding([large]):
        assert not await early.may_read()
    assert (early.held, await early.may_read()) == (0, True)


async def test_appends_are_grouped_after_many_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_content, "EARLY_READS", 2)
    monkeypatch.setattr(early_content, "EARLY_S", 0.05)
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        groups = nodes[0].server.groups
        append, grouped = groups.append, 0

        def counted(request: Append, content: bytes) -> Grouped:
            nonlocal grouped
            grouped += 1
            return append(request, content)

        monkeypatch.setattr(groups, "append", counted)
        for number in range(1, 6):
            assert (await client.append(b"x")).commit.end == number
        assert grouped == 5


async def test_append_whose_content_cannot_be_received_early_is_not_grouped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_content, "EARLY_BYTES", -1)
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        groups: list[object] = []
        monkeypatch.setattr(nodes[0].server.groups, "append", lambda *one: groups.append(one))
        assert (await client.append(b"one", b"two")).commit.end == 6
        assert groups == []
        assert await client.content() == b"onetwo"


async def test_append_without_a_first_message_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_S", 0.1)
    async with brokers(tmp_path, 1) as nodes, GrpcClient(nodes[0]) as client:
        code, text = await error_of(client.stub.Append())
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert text == "the first message did not arrive within 0.1 s"


# --- tokens ---------------------------------------------------------------------------------------


async def test_tokens_limit_operations_and_journals(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n")
    signer = Authorizer.of_text(keys.read_text())
    everything: dict[str, Any] = {}
    only_orders = {"include": {"labels": [{"name": "name", "value": "orders/", "prefix": True}]}}
    async with brokers(tmp_path, 2, auth_keys_file=keys) as nodes:

        def client(capability: Capability, wanted: dict[str, Any], node: BrokerNode) -> GrpcClient:
            return GrpcClient(node, signer.sign(capability, wanted, 60))

        for node in nodes:
            async with GrpcClient(node) as none, GrpcClient(node, "x.y.z") as wrong:
                for one in (none, wrong):
                    code, _ = await error_of(one.append(b"x"))
                    assert code is grpc.StatusCode.UNAUTHENTICATED
            async with client(Capability.READ, everything, node) as reader:
                code, text = await error_of(reader.append(b"x"))
                assert (code, text) == (
                    grpc.StatusCode.UNAUTHENTICATED,
                    "the token does not permit APPEND",
                )
            async with client(Capability.ALL, only_orders, node) as limited:
                assert (await limited.append(b"x")).status == pb.JOURNAL_NOT_FOUND
                assert (await limited.read())[0].status == pb.JOURNAL_NOT_FOUND
                assert await limited.list() == []
            async with client(Capability.ALL, everything, node) as permitted:
                assert (await permitted.append(b"x")).status == pb.OK


async def test_reader_checks_only_stores_that_its_journals_name(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n")
    signer = Authorizer.of_text(keys.read_text())
    other = tmp_path / "other"
    other.mkdir()
    store = f"file://{tmp_path}/store/"
    only_orders = {"include": {"labels": [{"name": "name", "value": "orders/", "prefix": True}]}}
    async with brokers(tmp_path, 1, auth_keys_file=keys, stores=[store]) as nodes:

        async def health(url: str, capability: Capability, selector: Any = None) -> Any:
            async with GrpcClient(nodes[0], signer.sign(capability, selector or {}, 60)) as client:
                request = pb.FragmentStoreHealthRequest(fragment_store=url)
                return await client.stub.FragmentStoreHealth(request, metadata=client.metadata)

        async with asyncio.timeout(10):  # the broker creates the folder as it lists the store
            while not (tmp_path / "store").exists():
                await asyncio.sleep(0.01)
        assert (await health(store, Capability.READ)).status == pb.OK
        for refused in (
            health(f"file://{other}/", Capability.READ),
            health(store, Capability.READ, only_orders),
            health("s3://bucket/?endpoint=http://127.0.0.1:1/", Capability.READ),
        ):
            code, text = await error_of(refused)
            assert (code, "no journal that the token selects names" in text) == (
                grpc.StatusCode.UNAUTHENTICATED,
                True,
            )
        assert list(other.iterdir()) == []
        both = Capability.READ | Capability.APPLY
        assert (await health(f"file://{other}/", both)).status == pb.OK


class Losing:
    """A stub whose first calls lose the broker's error, as gRPC does if the client still writes."""

    def __init__(self, stub: Any, count: int) -> None:
        self.stub = stub
        self.count = count

    def Append(self, requests: Any, metadata: Any) -> Any:  # name of the method
        self.count -= 1
        return self.lose() if self.count >= 0 else self.stub.Append(requests, metadata=metadata)

    async def lose(self) -> None:
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, LOST)


async def test_refusal_that_grpc_lost_is_asked_for_again(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, JournalClient(nodes[0].url) as client:
        client._stub = Losing(client._stub, 3)
        with pytest.raises(JournalError, match="must have 4 to 512 bytes"):
            await client.append("abc", [b"content"])


async def test_socket_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    keys, ports = SimKeySpace(), free_ports(2)
    node = await start_broker(tmp_path, "broker-0", ports, keys)
    note = tmp_path / "broker-0" / "data" / "socket-folder"
    await node.stop()
    killed, other = Path(note.read_text()), tmp_path / "mine"
    for folder in (killed, other):
        folder.mkdir()
    await (await start_broker(tmp_path, "broker-0", ports, keys)).stop()
    assert not killed.exists()
    note.write_text(str(other))
    await (await start_broker(tmp_path, "broker-0", ports, keys)).stop()
    assert other.exists(), "only such folders are removed"
