"""Requests of the operator to real members: TLS, signed orders, and no secret in any request."""

import asyncio
import http.server
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from qsync_client.protocol.auth import stored_hash
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.certificates import context_of
from qsync_operator.members.access import differing, password_of
from qsync_operator.members.iproto import DatabaseError, IprotoConnection, connect_as_admin
from qsync_operator.members.links import LinkError, NodeLinks
from qsync_operator.members.livelinks import LiveLinks
from qsync_operator.reconcile.access import AccessReconciler
from qsync_operator.resources.authority import Bundle, CertificateAuthority, renew
from qsync_testing.json_handler import JsonHandler
from qsync_testing.ports import free_port
from qsync_testing.processes import ADMIN_PASSWORD, SECRET, NodeProcess, ProcessCluster

NAMES = ["orders-leader", "localhost"]
OTHERS = ["shop-leader", "localhost"]
USER_SPACE = 304


def write(bundle: Bundle, folder: Path) -> dict[str, str]:
    folder.mkdir()
    texts = {"ca": bundle.authorities, "cert": bundle.certificate, "key": bundle.key}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in texts}


@pytest.fixture(scope="module")
def made() -> tuple[CertificateAuthority, Bundle]:
    return renew(None, None, "orders", NAMES, datetime.now(UTC))


@pytest.fixture(scope="module")
def member(
    made: tuple[CertificateAuthority, Bundle], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeProcess]:
    """Run one member with TLS and without guest, as the operator configures it."""
    folder = tmp_path_factory.mktemp("links")
    cluster = ProcessCluster(folder / "nodes", 1, guest=False)
    files = write(made[1], folder / "tls")
    cluster.nodes[0].settings["tls"] = {**files, "listen": f"127.0.0.1:{free_port()}"}
    try:
        cluster.start()
        yield cluster.nodes[0]
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def context(made: tuple[CertificateAuthority, Bundle]) -> ssl.SSLContext:
    return context_of(made[1], NAMES)


@asynccontextmanager
async def links_with(context: ssl.SSLContext) -> AsyncIterator[NodeLinks]:
    links = NodeLinks(SECRET, lambda: context)
    try:
        yield links
    finally:
        await links.close()


@pytest_asyncio.fixture
async def links(context: ssl.SSLContext) -> AsyncIterator[NodeLinks]:
    async with links_with(context) as links:
        yield links


@pytest.mark.asyncio
async def test_orders_go_over_tls_to_the_instance_that_is_meant(
    member: NodeProcess, links: NodeLinks, made: tuple[CertificateAuthority, Bundle]
) -> None:
    address = f"127.0.0.1:{member.admin_port}"
    instance = (await links.status(address))["uuid"]
    assert await links.post(address, "/log-level", {"level": "debug"}, instance) == "debug"
    with pytest.raises(LinkError, match="not another"):
        await links.post(address, "/log-level", {"level": "info"}, "another")
    async with links_with(context_of(made[1], OTHERS)) as other:
        with pytest.raises(LinkError):
            await other.status(address)


@pytest.mark.asyncio
async def test_members_are_watched_where_guest_is_off(
    member: NodeProcess, context: ssl.SSLContext
) -> None:
    told = asyncio.Event()
    links = LiveLinks(told.set, lambda: context)
    links.set_addresses({"n0": member.settings["tls"]["listen"]})
    try:
        async with asyncio.timeout(30):
            await told.wait()  # the link is connected
            assert links.state("n0").is_connected
            told.clear()
            await told.wait()  # an event with its status arrived; a refused watch gets none
            assert links.state("n0").number == 1
    finally:
        await links.close()


@pytest.mark.asyncio
async def test_an_older_clusters_admin_password_is_replaced(
    member: NodeProcess, context: ssl.SSLContext
) -> None:
    address = member.settings["tls"]["listen"]
    with IprotoConnection(address, "admin", ADMIN_PASSWORD, 10, context) as database:
        row = next(one for one in database.select(USER_SPACE) if one[2] == "admin")
        older = {"chap-sha1": stored_hash(SECRET)}
        database.replace(USER_SPACE, [*row[:4], older, *row[5:]])
    with pytest.raises(DatabaseError) as refused:
        IprotoConnection(address, "admin", ADMIN_PASSWORD, 10, context)
    assert refused.value.code == 47
    with connect_as_admin(address, SECRET, 10, context) as database:
        assert differing(database, [password_of("admin", ADMIN_PASSWORD)]) == ("admin",)

    async def no_password(_: str) -> str | None:
        return None

    async def application(_: QsyncCluster) -> str:
        return "app's password"

    keeper = AccessReconciler(SECRET, no_password, application, lambda: context)
    await keeper.bring(CLUSTER, address)
    IprotoConnection(address, "admin", ADMIN_PASSWORD, 10, context).__exit__(None, None, None)
    with pytest.raises(DatabaseError):
        IprotoConnection(address, "admin", SECRET, 10, context)


CLUSTER = QsyncCluster.model_validate(
    {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
        "spec": {},
    }
)


class OlderMember(JsonHandler):
    """Node of an earlier version: the admin port has no TLS and obeys any sender of the secret."""

    asked: list[tuple[str, str, dict[str, str]]]

    def do_GET(self) -> None:
        self._answer({"name": "n0"})

    def do_POST(self) -> None:
        self._answer({"result": "ok"})

    def _answer(self, said: dict[str, Any]) -> None:
        self.asked.append((self.command, self.path, dict(self.headers)))
        self.answer(said)


@contextmanager
def older_node() -> Iterator[tuple[str, list[Any]]]:
    """Run an `OlderMember` node; yield its address and the requests that it received."""
    asked: list[Any] = []
    handler = type("Handler", (OlderMember,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.asyncio
async def test_an_older_node_is_watched_and_gets_no_orders(links: NodeLinks) -> None:
    with older_node() as (address, asked):
        assert await links.status(address) == {"name": "n0"}
        with pytest.raises(LinkError, match="update the image of the member") as refused:
            await links.post(address, "/verb/fence", {})
        assert refused.value.is_refusal
    assert [(method, path) for method, path, _ in asked] == [("GET", "/status")]
    assert "Authorization" not in str(asked)


@pytest.mark.asyncio
async def test_a_member_that_spoke_tls_is_not_believed_without_it(links: NodeLinks) -> None:
    with older_node() as (taken_over, asked):
        links._secure.add(taken_over)
        with pytest.raises(LinkError):
            await links.status(taken_over)
    assert asked == []


def test_the_command_line_asks_a_node_over_tls(member: NodeProcess) -> None:
    qsync = str(Path(sys.executable).parent / "qsync")
    where = ["--address", f"127.0.0.1:{member.admin_port}", "--secret", SECRET]
    trusts = ["--ca", str(member.settings["tls"]["ca"])]
    plain = subprocess.run([qsync, "snapshot", *where], capture_output=True, text=True, check=False)
    assert plain.returncode == 1
    assert "requires TLS" in plain.stderr
    subprocess.run([qsync, "snapshot", *where, *trusts], capture_output=True, check=True)
