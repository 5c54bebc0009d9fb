"""The HTTP gateway of brokers, over real connections and disks."""

import asyncio
import gzip
import hashlib
from pathlib import Path

import aiohttp
import pytest

from qsync_broker import space
from qsync_broker.auth import Authorizer, Capability
from qsync_broker.batch import encode_item
from qsync_broker.lease import BrokerLease
from qsync_testing.brokers.servers import brokers, create, start_broker
from qsync_testing.ports import free_ports

pytestmark = pytest.mark.asyncio


async def test_append_at_any_broker_is_read_at_any_broker(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        for number, node in enumerate(nodes):
            answer = await http.put(f"{node.url}/a/journal", data=f"line {number}\n".encode())
            assert answer.status == 204, await answer.text()
            assert answer.headers["X-Commit-Begin"] == str(7 * number)
            assert answer.headers["X-Commit-End"] == str(7 * number + 7)
        await asyncio.sleep(0.1)
        for node in nodes:
            answer = await http.get(f"{node.url}/a/journal")
            assert (answer.status, await answer.read()) == (206, b"line 0\nline 1\nline 2\n")
            assert answer.headers["X-Write-Head"] == "21"


async def test_absolute_url_in_a_request_names_the_journal_at_every_broker(tmp_path: Path) -> None:
    """Clients of proxies send it; a broker that forwards the request uses its path only."""
    async with brokers(tmp_path) as nodes:
        for node in nodes:
            host, _, port = node.url.removeprefix("http://").partition(":")
            stream, writer = await asyncio.open_connection(host, int(port))
            head = (
                "PUT http://other/a/journal HTTP/1.1\r\nHost: other\r\nContent-Length: 1\r\n\r\nx"
            )
            writer.write(head.encode())
            answer = await stream.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 204"), answer
            location = next(line for line in answer.split(b"\r\n") if line.startswith(b"Location"))
            assert location.endswith(b"/a/journal")
            assert b"other" not in location
            writer.close()


async def test_sum_of_an_append_covers_its_bytes_only(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/a/journal", data=b"first")
        answer = await http.put(f"{nodes[0].url}/a/journal", data=b"second")
        assert answer.headers["X-Commit-SHA1-Sum"] == hashlib.sha1(b"second").hexdigest()


async def test_append_is_refused_until_the_disk_has_free_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "CHECK_S", 0.02)
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"

        async def until(status: int) -> str:
            async with asyncio.timeout(5):
                while True:
                    async with http.put(url, data=b"x") as answer:
                        if answer.status == status:
                            return await answer.text()

        await until(204)
        with monkeypatch.context() as full:
            full.setattr(space, "free_bytes", lambda _: (128 << 20) - 1)
            text = await until(503)
        assert text.startswith(
            "a/journal: INSUFFICIENT_JOURNAL_BROKERS: the disk of broker broker-0"
        )
        assert "has less than 128 MiB of free space: free space, or enlarge the disk" in text
        await until(204)

        def fail(_: Path) -> int:
            raise OSError("the file system does not answer")

        monkeypatch.setattr(space, "free_bytes", fail)
        await asyncio.sleep(0.1)
        await until(204)


async def test_large_append_is_streamed(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        answer = await http.put(f"{nodes[1].url}/a/journal", data=data)
        assert answer.headers["X-Commit-End"] == str(len(data))
        answer = await http.get(f"{nodes[2].url}/a/journal?offset=100")
        assert await answer.read() == data[100:]


async def test_offset_is_a_precondition(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        await http.put(url, data=b"content")
        answer = await http.put(url, data=b"x", headers={"X-Offset": "3"})
        assert answer.status == 412
        assert await answer.text() == (
            "a/journal: WRONG_APPEND_OFFSET: the next append begins at 7, not at 3; read the write"
            " head again\n"
        )
        assert answer.headers["X-Write-Head"] == "7"
        answer = await http.put(url, data=b"x", headers={"X-Offset": "7"})
        assert answer.status == 204


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a/journal?offset=x", "invalid offset 'x'"),
        ("a/journal?offset=-2", "invalid offset '-2'"),
        ("a/journal?offset=1_0", "invalid offset '1_0'"),
        (f"a/journal?offset={'9' * 5000}", "invalid offset '999"),
        ("a/journal?block=maybe", "invalid block 'maybe'"),
        ("a/journal?offsett=1", "unknown argument 'offsett'"),
    ],
)
async def test_invalid_argument_is_refused(tmp_path: Path, path: str, text: str) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        answer = await http.get(f"{nodes[0].url}/{path}")
        assert answer.status == 400
        assert text in await answer.text()


async def test_journal_that_the_token_does_not_select_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("c2VjcmV0" * 6)
    only_orders = {"include": {"labels": [{"name": "name", "value": "orders/", "prefix": True}]}}
    token = Authorizer.of_text(path.read_text()).sign(Capability.ALL, only_orders, 60)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        brokers(tmp_path, 1, auth_keys_file=path) as nodes,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        for method in ("GET", "HEAD", "PUT", "POST"):
            answer = await http.request(method, f"{nodes[0].url}/a/journal", data=b"\xc4\x01x")
            assert answer.status == 404
        replica = nodes[0].server.core.replica("a/journal")
        assert replica is not None
        assert replica.spool.end == 0


async def test_unknown_journal_is_not_found(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        for answer in (
            await http.get(f"{nodes[0].url}/another/journal"),
            await http.put(f"{nodes[0].url}/another/journal", data=b"x"),
        ):
            assert answer.status == 404
            assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert await answer.text() == (
                "another/journal: JOURNAL_NOT_FOUND; create the journal, or correct its name\n"
            )


async def test_client_that_breaks_off_leaves_no_bytes(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        _, writer = await asyncio.open_connection("127.0.0.1", int(nodes[0].url[-5:]))
        head = "PUT /a/journal HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"5\r\nhello\r\n")
        await asyncio.sleep(0.2)
        writer.transport.abort()
        async with asyncio.timeout(3):  # the journal does not wait for content of that client
            answer = await http.put(f"{nodes[0].url}/a/journal", data=b"kept")
        assert answer.headers["X-Commit-Begin"] == "0"


@pytest.mark.parametrize("number", [0, 1])
async def test_body_is_appended_as_it_was_sent(tmp_path: Path, number: int) -> None:
    data = gzip.compress(bytes(4 << 20))
    async with brokers(tmp_path, 2) as nodes, aiohttp.ClientSession(auto_decompress=False) as http:
        url = f"{nodes[number].url}/a/journal"
        encoding = {"Content-Encoding": "gzip"}
        for body in (data, b"not compressed"):
            answer = await http.put(url, data=body, headers=encoding)
            assert answer.status == 204, await answer.text()
        read = await http.get(f"{nodes[0].url}/a/journal")
        assert await read.read() == data + b"not compressed"
        batch = gzip.compress(encode_item(bytes(1 << 20)) * 100)
        answer = await http.post(url, data=batch, headers=encoding)
        assert answer.status == 400
        assert "the batch is invalid" in await answer.text()


async def test_client_that_sends_too_slowly_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.flow.PATIENCE_NS", 100_000_000)
    async with brokers(tmp_path, 1) as nodes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(nodes[0].url[-5:]))
        head = b"PUT /a/journal HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 500 ")
            assert b"the client has sent less than 64 KiB/s" in await reader.read(4096)
        writer.close()


async def test_registers_are_refused_that_would_break_an_answer(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        for registers in ("lock=a;b", "lo ck=a", f"lock={'x' * 1025}"):
            answer = await http.put(url, data=b"x", headers={"X-Registers-Union": registers})
            assert answer.status == 400
            assert "invalid X-Registers-Union: the " in await answer.text()
        answer = await http.put(url, data=b"", headers={"X-Registers-Union": "lock=mine"})
        assert answer.status == 400
        assert "send content" in await answer.text()


async def test_register_mismatch_states_registers_and_write_head(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        for node in nodes:
            url = f"{node.url}/a/journal"
            lock = {"X-Registers-Union": "lock=mine"}
            head = (await http.put(url, data=b"content", headers=lock)).headers["X-Write-Head"]
            check = {"X-Registers-Check": "lock=other"}
            answer = await http.put(url, data=b"x", headers=check)
            assert answer.status == 412
            assert await answer.text() == (
                "a/journal: REGISTER_MISMATCH: the registers do not match the check; read the"
                " registers again\n"
            )
            assert (answer.headers["X-Write-Head"], answer.headers["X-Registers"]) == (
                head,
                "lock=mine",
            )


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"X-Registers-Union": "lock"}, "invalid X-Registers-Union 'lock': use NAME=VALUE, "),
        ({"X-Registers-Union": "a=b,lock"}, "invalid X-Registers-Union 'a=b,lock': use NAME="),
        ({"X-Registers-Subtract": "lock"}, "invalid X-Registers-Subtract 'lock': use NAME="),
        ({"X-Registers-Check": "a b"}, "invalid X-Registers-Check: invalid selector at 'a b'"),
        ({"X-Registers-Intersect": "a=b"}, "unknown header 'X-Registers-Intersect': use one of X"),
    ],
)
async def test_invalid_registers_change_nothing(
    tmp_path: Path, headers: dict[str, str], text: str
) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/a/journal"
        answer = await http.put(url, data=b"x", headers=headers)
        assert answer.status == 400
        assert (await answer.text()).startswith(text)
        answer = await http.put(url, data=b"y", headers={"X-Registers-Union": "lock="})
        assert (answer.status, answer.headers["X-Commit-Begin"]) == (204, "0")
        assert answer.headers["X-Registers"] == "lock=", "an empty value is stated"


async def test_error_answers_have_a_sentence_of_limited_length(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = nodes[0].url
        long = {"X-Registers-Check": "!" * 8000}
        for answer in (
            await http.get(f"{url}/a/journal?{'o' * 4000}=1"),
            await http.put(f"{url}/a/journal", data=b"x", headers=long),
            await http.put(f"{url}/a/journal", data=b"x", headers={"X-Suspend": "x" * 4000}),
            await http.put(f"{url}/{'a' * 4000}", data=b"x"),
            await http.delete(f"{url}/a/journal"),
            await http.get(f"{url}/"),
        ):
            text = await answer.text()
            assert answer.status in (400, 404, 405)
            assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert text.endswith("\n")
            assert len(text) <= 1025
            assert ": " in text, text


async def test_long_registers_are_left_out_of_answers(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        for number in range(10):
            union = {"X-Registers-Union": f"name-{number}={'x' * 1000}"}
            answer = await http.put(f"{nodes[0].url}/a/journal", data=b"x", headers=union)
            assert answer.status == 204
            assert ("X-Registers" in answer.headers) == (number < 4)
        for node in nodes:
            answer = await http.put(f"{node.url}/a/journal", data=b"x")
            assert answer.status == 204, await answer.text()


async def test_refused_suspension_suspends_nothing(tmp_path: Path) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        assert (await http.put(f"{nodes[0].url}/a/journal", data=b"x")).status == 204
        for node in nodes:
            for content in (b"x", b"x" * 100_000):
                url, headers = f"{node.url}/a/journal", {"X-Suspend": "NOW"}
                assert (await http.put(url, data=content, headers=headers)).status == 403
        assert nodes[0].server.core.keys.journals["a/journal"].suspend_level == 0
        assert (await http.put(f"{nodes[0].url}/a/journal", data=b"x")).status == 204


async def test_append_at_a_broker_without_a_lease_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        with monkeypatch.context() as fenced:
            fenced.setattr(BrokerLease, "is_over", True)
            answer = await http.put(f"{nodes[0].url}/a/journal", data=b"x" * 100_000)
        assert answer.status == 503
        assert await answer.text() == (
            "a/journal: NO_JOURNAL_PRIMARY_BROKER: broker broker-0 has no lease; retry; if it"
            " lasts, start the missing brokers\n"
        )


REFUSED_CONTENT = (
    "a/journal: NOT_ALLOWED: an append with suspend {} carries no content; send no content, or"
    " append with suspend RESUME\n"
)


@pytest.mark.parametrize(("first", "level"), [(b"", "FULL"), (b"first", "PARTIAL")])
async def test_suspension_is_answered_by_its_level(
    tmp_path: Path, first: bytes, level: str
) -> None:
    async with brokers(tmp_path) as nodes, aiohttp.ClientSession() as http:
        for node in nodes:
            url = f"{node.url}/a/journal"
            if first and node is nodes[0]:
                assert (await http.put(url, data=first)).status == 204
            answer = await http.put(url, headers={"X-Suspend": "NOW"})
            assert (answer.status, answer.headers["X-Suspended"]) == (204, level)
            assert "X-Commit-End" not in answer.headers
            without_length = "PUT /a/journal HTTP/1.1\r\nHost: x\r\nX-Suspend: NOW\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", int(node.url[-5:]))
            writer.write(without_length.encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 204 ")
            writer.close()
            for suspend in ("NOW", "IF_FLUSHED", "KEEP"):
                answer = await http.put(url, data=b"x", headers={"X-Suspend": suspend})
                assert answer.status == 403
                assert await answer.text() == REFUSED_CONTENT.format(suspend)
            answer = await http.put(url, data=b"x", headers={"X-Suspend": "NO_RESUME"})
            assert answer.status == 409
            assert await answer.text() == (
                "a/journal: SUSPENDED: an append with suspend NO_RESUME does not resume the"
                " journal; append with suspend RESUME\n"
            )
            answer = await http.put(url, headers={"X-Suspend": "KEEP"})
            assert answer.status == (204 if level == "PARTIAL" else 409)
            answer = await http.get(url)
            assert answer.status == (206 if level == "PARTIAL" else 409)
        if level == "FULL":
            assert await answer.text() == (
                "a/journal: SUSPENDED; append to the journal to resume it\n"
            )
        async with asyncio.timeout(10):
            while (answer := await http.put(url, data=b"x")).status != 204:
                assert answer.status in (421, 503)
                assert (await answer.text()).startswith("a/journal: ")
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_flags_that_permit_no_request_are_named(tmp_path: Path, method: str) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        keys = nodes[0].keys
        flags = "O_RDONLY" if method == "PUT" else "O_WRONLY"
        create(keys, "another/journal", 1, flags=flags)
        async with asyncio.timeout(10):
            url = f"{nodes[0].url}/another/journal"
            while (answer := await http.request(method, url, data=b"x")).status != 403:
                await asyncio.sleep(0.05)
        noun = "appends" if method == "PUT" else "reads"
        assert await answer.text() == (
            f"another/journal: NOT_ALLOWED: the flags of the journal permit no {noun}; change the"
            " flags of the journal\n"
        )


async def test_restarted_broker_has_its_bytes(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/a/journal", data=b"content")
        node = nodes.pop()
        await node.stop()
        nodes.append(await start_broker(tmp_path, "broker-0", free_ports(2), node.keys))
        url = f"{nodes[0].url}/a/journal"
        async with asyncio.timeout(5):
            while (await http.put(url, data=b"more")).status != 204:
                await asyncio.sleep(0.05)
        answer = await http.get(url)
        assert (await answer.read()).startswith(b"contentmore")


async def test_clients_that_have_gone_are_forgotten(tmp_path: Path) -> None:
    """Neither reads that wait for bytes nor those that wait for a revision stay in memory."""
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        server, url = nodes[0].server, f"{nodes[0].url}/a/journal"
        far = {"X-Qsync-Proxied": str(1 << 60)}
        waiting = [asyncio.ensure_future(http.get(f"{url}?block=true")) for _ in range(5)]
        waiting += [asyncio.ensure_future(http.get(url, headers=far)) for _ in range(5)]
        async with asyncio.timeout(10):
            while len(server._revisions) < 5 or len(server._readers.get("a/journal", ())) < 5:
                await asyncio.sleep(0.01)
            for one in waiting:
                one.cancel()
            while server._revisions or server._readers:
                await asyncio.sleep(0.01)
