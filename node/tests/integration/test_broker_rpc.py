"""The gRPC interface of brokers, over real connections and disks."""

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from qsync_broker.auth import Authorizer, Capability
from qsync_broker.client import JournalClient, JournalError
from qsync_broker.grouping import Grouped
from qsync_broker.requests import Append
from qsync_broker.rpc import base, service
from qsync_broker.rpc import content as early_content
from qsync_broker.rpc import journal_pb2 as pb
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.grpc_client import (
    JOURNAL,
    LOST,
    GrpcClient,
    error_of,
    label_set,
    selector,
    sum_bytes,
)
from qsync_testing.brokers.servers import BrokerNode, brokers, start_broker
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio


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
