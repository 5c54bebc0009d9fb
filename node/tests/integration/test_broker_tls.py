"""TLS of brokers: clients by gRPC and HTTP, other brokers, and connections of neither."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qsync_broker import server as server_module
from qsync_broker.auth import AuthError, Capability
from qsync_broker.client import JournalClient, JournalError
from qsync_broker.config import split_address
from qsync_broker.handshake import Handshake, HandshakeError
from qsync_broker.keyfile import BYTES_MAX, KeyFile
from qsync_broker.tls import BrokerTls
from qsync_node.format.journals import BrokerId
from qsync_node.server.tlsconfig import TlsConfig
from qsync_testing.brokers.servers import BrokerNode, brokers
from qsync_testing.brokers.tokens import bearer, claims, guarded
from qsync_testing.certificates import another_certificate, certificates

pytestmark = pytest.mark.asyncio
NAMES = "DNS:events.brokers.qsync.local,DNS:localhost,IP:127.0.0.1"
JOURNAL = "a/journal"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls") / "events", "events", NAMES)


@contextlib.asynccontextmanager
async def secure(
    folder: Path, files: dict[str, str], count: int = 3, **settings: Any
) -> AsyncIterator[list[BrokerNode]]:
    async with brokers(folder, count, tls=files, **settings) as nodes:
        yield nodes


def trusting(files: dict[str, str]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files["ca"])


def imported_by_a_broker() -> set[str]:
    script = "import sys, qsync_broker.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


async def test_a_broker_without_tls_and_keys_does_not_wait_for_cryptography() -> None:
    assert not {"cryptography", "jwt"} & await asyncio.to_thread(imported_by_a_broker)


async def test_grpc_and_https_share_the_port(tmp_path: Path, files: dict[str, str]) -> None:
    connector = aiohttp.TCPConnector(ssl=trusting(files))
    async with secure(tmp_path, files) as nodes, aiohttp.ClientSession(connector=connector) as http:
        for number, node in enumerate(nodes):  # two of three forward to the primary
            assert node.url.startswith("https://")
            async with JournalClient(node.url, ca=Path(files["ca"])) as client:
                commit = await client.append(JOURNAL, [b"grpc\n"])
                assert commit.begin == 10 * number
            answer = await http.put(f"{node.url}/{JOURNAL}", data=b"http\n")
            assert answer.status == 204, await answer.text()
        await asyncio.sleep(0.1)
        for node in nodes:
            answer = await http.get(f"{node.url}/{JOURNAL}")
            assert await answer.read() == b"grpc\nhttp\n" * 3
            async with JournalClient(node.url, ca=Path(files["ca"])) as client:
                parts = [part async for _, part in client.read(JOURNAL, 0)]
                assert b"".join(parts) == b"grpc\nhttp\n" * 3


async def test_alpn_names_the_protocol(tmp_path: Path, files: dict[str, str]) -> None:
    async with secure(tmp_path, files, 1) as nodes:
        both = ["h2", "http/1.1"]  # as curl offers them: it wants HTTP, and not gRPC
        for offered, chosen in (
            (["h2"], "h2"),
            (["http/1.1"], "http/1.1"),
            (both, "http/1.1"),
            ([], None),
        ):
            context = trusting(files)
            if offered:
                context.set_alpn_protocols(offered)
            host, port = split_address(nodes[0].server.config.listen)
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            writer.close()


async def test_client_without_the_authority_is_refused(
    tmp_path: Path, files: dict[str, str]
) -> None:
    async with secure(tmp_path, files, 1) as nodes, JournalClient(nodes[0].url) as client:
        with pytest.raises(JournalError):
            await client.journals()


async def test_plain_request_gets_a_clear_answer(tmp_path: Path, files: dict[str, str]) -> None:
    async with secure(tmp_path, files, 1) as nodes, aiohttp.ClientSession() as http:
        plain = nodes[0].url.replace("https", "http")
        answer = await http.get(f"{plain}/{JOURNAL}")
        assert answer.status == 400
        assert "https://" in await answer.text()
        async with JournalClient(plain) as client:
            with pytest.raises(JournalError):
                await client.journals()


async def test_silent_handshakes_hold_back_no_client(tmp_path: Path, files: dict[str, str]) -> None:
    async with secure(tmp_path, files, 1) as nodes:
        host, port = split_address(nodes[0].server.config.listen)
        silent = [socket.create_connection((host, port)) for _ in range(300)]
        for one in silent[::2]:
            one.sendall(b"\x16\x03\x01")
        async with JournalClient(nodes[0].url, ca=Path(files["ca"])) as client:
            async with asyncio.timeout(5):
                await client.append(JOURNAL, [b"content"])
        for one in silent:
            one.close()


async def test_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, files: dict[str, str]
) -> None:
    folder = tmp_path / "tls"
    shutil.copytree(Path(files["ca"]).parent, folder)
    own = {name: str(folder / Path(path).name) for name, path in files.items()}

    def serial(node: BrokerNode) -> Any:
        address = split_address(node.server.config.listen)
        plain = socket.create_connection(address)
        with trusting(files).wrap_socket(plain, server_hostname="127.0.0.1") as one:
            certificate = one.getpeercert()
            assert certificate is not None
            return certificate["serialNumber"]

    async with secure(tmp_path, own) as nodes:
        before = await asyncio.to_thread(serial, nodes[0])
        renewed = another_certificate(folder, "renewed", NAMES)
        shutil.copy(renewed["key"], own["key"])
        for node in nodes:  # a key that does not belong to the certificate is not used
            assert node.server.tls is not None
            node.server.tls.reload()
        assert await asyncio.to_thread(serial, nodes[0]) == before
        shutil.copy(renewed["cert"], own["cert"])
        for node in nodes:
            assert node.server.tls is not None
            node.server.tls.reload()
        assert await asyncio.to_thread(serial, nodes[0]) != before
        for node in nodes:
            async with JournalClient(node.url, ca=Path(files["ca"])) as client:
                await client.append(JOURNAL, [b"content"])


# --- between brokers ------------------------------------------------------------------------------


async def greet(node: BrokerNode, context: ssl.SSLContext | None, secret: bytes) -> None:
    """Open a connection to a broker's port for other brokers, as another broker does.

    Raises:
        OSError: the broker closed the connection.
        HandshakeError: the broker refused the handshake.
    """
    host, port = split_address(node.server.config.peer_listen)
    me = BrokerId("default", "broker-1")
    handshake = Handshake(me, secret, node.server.core.me)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(handshake.start())
        while not handshake.is_done:
            data = await reader.read(1000)
            if not data:
                raise ConnectionError("the broker closed the connection")
            writer.write(handshake.feed(data))
        await asyncio.sleep(0.1)
        assert len(node.server._peers) == 1
    finally:
        writer.close()


def calling(files: dict[str, str]) -> ssl.SSLContext:
    return BrokerTls(TlsConfig.model_validate(files)).calling


async def test_member_of_the_cluster_greets(tmp_path: Path, files: dict[str, str]) -> None:
    async with secure(tmp_path, files, 1) as nodes:
        await greet(nodes[0], calling(files), b"secret")


async def test_stranger_cannot_greet(tmp_path: Path, files: dict[str, str]) -> None:
    foreign = certificates(tmp_path / "foreign", "foreign", NAMES)
    foreign_context = calling(foreign)
    foreign_context.load_verify_locations(files["ca"])
    other = another_certificate(Path(files["ca"]).parent, "other", "DNS:other.brokers.qsync.local")
    other_context = ssl.create_default_context(cafile=files["ca"])
    other_context.load_cert_chain(other["cert"], other["key"])
    other_context.check_hostname = False
    anonymous = ssl.create_default_context(cafile=files["ca"])
    anonymous.check_hostname = False
    async with secure(tmp_path, files, 1) as nodes:
        for context in (None, anonymous, foreign_context, other_context):
            with pytest.raises(OSError):  # closed, or refused by TLS
                await greet(nodes[0], context, b"secret")
        with pytest.raises((HandshakeError, OSError)):
            await greet(nodes[0], calling(files), b"another secret")
        assert not nodes[0].server._peers


async def test_broker_calls_no_stranger(tmp_path: Path, files: dict[str, str]) -> None:
    """The address of a peer belongs to another process, with another certificate."""
    foreign = certificates(tmp_path / "foreign", "foreign", NAMES)
    received: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(foreign["cert"], foreign["key"])
    stranger = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    port = stranger.sockets[0].getsockname()[1]
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", port, ssl=calling(files))
    stranger.close()
    assert not any(received)


async def test_silent_connections_hold_back_no_broker(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "GREETING_MAX", 4)
    for tls in (None, files):
        (tmp_path / str(tls is None)).mkdir()
        async with brokers(tmp_path / str(tls is None), 1, tls=tls) as nodes:
            host, port = split_address(nodes[0].server.config.peer_listen)
            silent = [socket.create_connection((host, port)) for _ in range(50)]
            await asyncio.sleep(0.2)
            assert len(nodes[0].server._greeting) <= 4
            await greet(nodes[0], calling(files) if tls else None, b"secret")
            for one in silent:
                one.close()


# --- tokens ---------------------------------------------------------------------------------------


async def test_gateway_wants_a_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/{JOURNAL}"
        for path in (url, f"{nodes[0].url}/debug/journals"):
            answer = await http.get(path)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "authorization: Bearer TOKEN" in await answer.text()
        reader = bearer(claims({}, 60, Capability.READ))
        assert (await http.put(url, data=b"x", headers=reader)).status == 401
        writer = bearer(claims({}, 60, Capability.APPEND))
        assert (await http.put(url, data=b"x", headers=writer)).status == 204
        assert (await http.get(url, headers=writer)).status == 401
        assert (await http.get(url, headers=reader)).status == 206


@pytest.mark.parametrize("path", [JOURNAL, "debug/journals"])
async def test_token_with_invalid_bytes_is_refused(tmp_path: Path, path: str) -> None:
    async with guarded(tmp_path) as nodes:
        host, _, port = nodes[0].url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /{path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ".encode()
        writer.write(head + b"\xff\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_changed_keys_are_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.keyfile.RELOAD_CHECK_S", 0.01)
    keys, first, second = tmp_path / "keys", claims({}, 60), claims({}, 60, key="b3RoZXI=")
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:

        async def statuses() -> list[int]:
            url, found = f"{nodes[0].url}/debug/journals", []
            for headers in ({}, bearer(first), bearer(second)):
                async with http.get(url, headers=headers) as answer:
                    found.append(answer.status)
            return found

        async def become(wanted: list[int]) -> None:
            async with asyncio.timeout(10):
                while await statuses() != wanted:
                    await asyncio.sleep(0.01)

        assert await statuses() == [401, 200, 401]
        keys.write_text("c2VjcmV0 b3RoZXI=")
        await become([401, 200, 200])
        keys.write_text("b3RoZXI=")
        await become([401, 401, 200])


async def test_unusable_keys_leave_the_earlier_ones_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0")
    file = KeyFile(keys)
    header = f"Bearer {claims({}, 60)}"
    for text in ("", "not Base64!", "A" * (BYTES_MAX + 4), None):
        caplog.clear()
        if text is None:
            keys.unlink()
        else:
            keys.write_text(text)
        for _ in range(3):
            file.reload()
        assert len(caplog.records) == 1
        assert "cannot be used" in caplog.text
        file.authorizer.verify(header, Capability.LIST)
        with pytest.raises(AuthError):
            file.authorizer.verify("", Capability.LIST)


async def test_selector_of_gazettes_client_may_be_empty(tmp_path: Path) -> None:
    empty = {"include": {"labels": None}, "exclude": {"labels": None}}
    async with guarded(tmp_path) as nodes, JournalClient(nodes[0].url, claims(empty, 60)) as client:
        assert [one.spec.name for one in await client.journals()] == [JOURNAL]


@pytest.mark.parametrize(("prefix", "count"), [("a/", 1), ("b/", 0)])
async def test_token_selects_journals_below_a_prefix(
    tmp_path: Path, prefix: str, count: int
) -> None:
    selected = {"include": {"labels": [{"name": "prefix", "value": prefix}]}}
    token = claims(selected, 60)
    async with guarded(tmp_path) as nodes, JournalClient(nodes[0].url, token) as client:
        assert len(await client.journals()) == count


async def test_unselected_journal_does_not_exist(tmp_path: Path) -> None:
    other = {"include": {"labels": [{"name": "name", "value": "b/journal"}]}}
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        headers = bearer(claims(other, 60))
        for name in (JOURNAL, "no/journal"):
            url = f"{nodes[0].url}/{name}"
            assert (await http.get(url, headers=headers)).status == 404
            assert (await http.put(url, data=b"x", headers=headers)).status == 404
        answer = await http.get(f"{nodes[0].url}/debug/journals", headers=headers)
        assert (await answer.json())["journals"] == []


async def test_long_read_ends_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.auth._LEEWAY_S", 0)
    async with guarded(tmp_path, 2) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/{JOURNAL}", data=b"x", headers=bearer(claims({}, 60)))
        for node in nodes:
            began = time.monotonic()
            headers = bearer(claims({}, 2))
            answer = await http.get(f"{node.url}/{JOURNAL}?block=true", headers=headers)
            assert await answer.read() == b"x"
            assert time.monotonic() - began < 3
            answer = await http.get(f"{node.url}/{JOURNAL}?block=true", headers=headers)
            assert answer.status == 401
            assert "expired" in await answer.text()
            async with JournalClient(node.url, claims({}, 2)) as client:
                with pytest.raises(JournalError, match="expired"):
                    async for _ in client.read(JOURNAL, 0, is_blocking=True):
                        pass


# --- slow clients ---------------------------------------------------------------------------------


async def test_slow_content_of_a_small_append_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.http.appends.BODY_S", 0.3)
    async with brokers(tmp_path, 1) as nodes:
        reader, writer = await asyncio.open_connection(
            *split_address(nodes[0].server.config.listen)
        )
        writer.write(f"PUT /{JOURNAL} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_large_metadata_is_refused(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes:
        async with JournalClient(nodes[0].url, "x" * (64 << 10)) as client:
            with pytest.raises(JournalError):
                await client.journals()
        async with JournalClient(nodes[0].url) as client:
            assert await client.journals()


async def test_http2_without_settings_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qsync_broker.rpc.serving.HANDSHAKE_MS", 500)
    async with brokers(tmp_path, 1) as nodes:
        reader, writer = await asyncio.open_connection(
            *split_address(nodes[0].server.config.listen)
        )
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
        writer.close()
