"""Data verbs on Kubernetes: the cluster and its Secret are found, and pods are reached by tunnels.

An API server with one cluster forwards ports to the members of a local cluster.
"""

import asyncio
import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from qsync_operator.resources.authority import Bundle, renew
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES

SECRET = "/api/v1/namespaces/shop/secrets/orders-app"
CLUSTERS = "/apis/qsync.dev/v1alpha1/namespaces/shop/qsyncclusters"


@dataclass
class ApiServer:
    """The API server of a cluster whose pods are local members."""

    members: dict[str, int]
    secret: dict[str, str]
    forwarded: list[str] = field(default_factory=list)
    refusal: int = 0
    port: int = 0
    tls: Bundle | None = None
    """Certificate of the members if clients must use TLS."""

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get(CLUSTERS, self._clusters)
        app.router.add_get(SECRET, self._read_secret)
        path = "/api/v1/namespaces/shop/pods/{pod}/portforward"
        app.router.add_get(path, self._forward)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # it runs

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _clusters(self, request: web.Request) -> web.Response:
        spec = {"tls": {"clients": "Require"}} if self.tls is not None else {}
        return web.json_response({"items": [{"metadata": {"name": "orders"}, "spec": spec}]})

    async def _read_secret(self, request: web.Request) -> web.Response:
        encoded = {key: base64.b64encode(text.encode()).decode()
                   for key, text in self.secret.items()}  # fmt: skip
        return web.json_response({"data": encoded})

    async def _decrypting(self, port: int) -> int:
        """Return a port that speaks TLS, and forwards to a member, which does not."""
        assert self.tls is not None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.tls.key + self.tls.certificate)
            file.flush()
            context.load_cert_chain(file.name)

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, outer), copy(inner, writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        return int(server.sockets[0].getsockname()[1])

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if self.refusal:
            return web.json_response({"message": "pods is forbidden"}, status=self.refusal)
        assert request.query["ports"] == ("3301" if self.tls is None else "3302")
        stream = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await stream.prepare(request)
        pod = request.match_info["pod"]
        self.forwarded.append(pod)
        name = int(request.query["ports"]).to_bytes(2, "little")
        await stream.send_bytes(b"\0" + name)
        await stream.send_bytes(b"\1" + name)
        port = self.members[pod]
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port if self.tls is None else await self._decrypting(port)
            )
        except OSError as error:
            await stream.send_bytes(b"\1" + str(error).encode())
            return stream

        async def send() -> None:
            while data := await reader.read(1 << 16):
                await stream.send_bytes(b"\0" + data)
            await stream.close()

        sending = asyncio.create_task(send())
        async for message in stream:
            assert message.type is WSMsgType.BINARY
            assert message.data[0] == 0
            writer.write(message.data[1:])
        sending.cancel()
        writer.close()
        return stream


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("tunnels") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


@pytest.fixture
def server(local: Home) -> Iterator[ApiServer]:
    shown = json.loads(local.do("local", "credentials", "orders", "-o", "json"))
    ports = {
        name: int(member["address"].rpartition(":")[2])
        for name, member in local.members("orders").items()
    }
    addresses = ",".join(f"{name}.orders.shop.svc:3301" for name in ports)
    server = ApiServer(ports, {"username": shown["username"], "password": shown["password"],
                               "port": "3301", "addresses": addresses})  # fmt: skip
    server.start()
    yield server
    server.stop()


@pytest.fixture
def home(server: ApiServer, tmp_path: Path) -> Home:
    """Return a home without local clusters, and with a kubeconfig."""
    home = Home(tmp_path / "empty")
    url = f"http://127.0.0.1:{server.port}"
    config: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
        "contexts": [{"name": "test",
                      "context": {"cluster": "test", "user": "test", "namespace": "shop"}}],
    }  # fmt: skip
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    home.environment["KUBECONFIG"] = str(path)
    return home


def test_rows_are_written_and_read_through_pods(home: Home, server: ApiServer) -> None:
    assert home.do("put", "orders", "orders", '[1, "alice", 9.5]').startswith("committed at")
    shown = home.do("get", "orders", "orders", "1", "-n", "shop", "-o", "json")
    assert json.loads(shown)["customer"] == "alice"
    assert set(server.forwarded) <= set(server.members)


def test_changes_and_files_pass_through_pods(home: Home, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,customer\n" + "".join(f"{n},{'x' * 5000}\n" for n in range(10, 210)))
    done = home.run("import", "orders", "orders", rows, "--replace")
    assert "imported 200 rows" in done.stderr, done.stderr
    exported = tmp_path / "again.csv"
    done = home.run("export", "orders", "orders", "--consistent", "-o", exported)
    assert done.returncode == 0, done.stderr
    assert "x" * 5000 in exported.read_text()
    assert len(home.do("tail", "orders").splitlines()) >= 200


def test_verify_names_pods_and_not_their_tunnels(
    home: Home, server: ApiServer, tmp_path: Path
) -> None:
    home.do("put", "orders", "orders", '[7, "eve", 1]')
    ledger = tmp_path / "ledger.jsonl"
    line = {"space": "orders", "key": 7, "value": "eve", "outcome": "committed"}
    ledger.write_text(json.dumps(line) + "\n")
    shown = home.do("verify", ledger, "orders")
    lines = shown.splitlines()
    named = [line.split()[0] for line in lines if line.endswith("as recorded")]
    assert sorted(named) == sorted(server.members)
    assert "127.0.0.1" not in shown


def test_member_whose_pod_is_gone_is_passed_over(home: Home, server: ApiServer) -> None:
    server.members |= {next(iter(server.members)): 1}
    assert home.do("put", "orders", "orders", '[2, "bob", 1]').startswith("committed at")


def test_refusal_of_the_api_server_is_the_cause(home: Home, server: ApiServer) -> None:
    server.refusal = 403
    said = home.refuse("count", "orders", "orders")
    assert "port-forward to orders-0: the API server answered with HTTP 403" in said
    said = home.refuse("count", "orders-eu", "orders")
    assert "it has no clusters" in said
    assert "QsyncCluster orders-eu not found in namespace shop" in said
    assert "(NotFound)" in said


def test_tunnel_carries_tls_if_clients_must_use_it(
    home: Home, server: ApiServer, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    authority, bundle = renew(None, None, "orders", ["orders-0.orders.shop.svc"], now)
    server.tls = bundle
    server.secret |= {"tlsPort": "3302", "ca.crt": authority.certificate}
    assert home.do("put", "orders", "orders", '[3, "tls", 1]').startswith("committed at")
    assert json.loads(home.do("tail", "orders").splitlines()[-1])["row"]["customer"] == "tls"
    done = home.run("export", "orders", "orders", "--consistent", "-o", tmp_path / "a.csv")
    assert done.returncode == 0, done.stderr
    other, _ = renew(None, None, "orders", ["orders-0.orders.shop.svc"], now)
    server.secret["ca.crt"] = other.certificate
    refusal = home.refuse("count", "orders", "orders")
    assert "(Unreachable)" in refusal
    assert "certificate verify failed" in refusal


def test_local_cluster_comes_first(local: Home, home: Home, server: ApiServer) -> None:
    both = Home(local.directory)
    both.environment |= {"KUBECONFIG": home.environment["KUBECONFIG"]}
    assert both.do("spaces", "orders")
    assert server.forwarded == []
    assert both.do("spaces", "orders", "-n", "shop")
    assert server.forwarded
