"""Requests without the cluster's secret to the admin port are refused and bounded."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tarantool

import qsync_node.adminport
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.adminport import AdminPort
from qsync_node.format.proofs import ORDER_SCHEME, sign_order
from qsync_node.server.admin import SERVED_MAX, SKIP_BYTES_MAX
from qsync_testing.processes import PASSWORD, SECRET, USER, NodeProcess, ProcessCluster


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    cluster = ProcessCluster(tmp_path_factory.mktemp("admin"), 1)
    try:
        cluster.start()
        yield cluster.nodes[0]
    finally:
        cluster.close()


def dial(node: NodeProcess, timeout_s: float = 8) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.admin_port), timeout_s)


def read_all(connection: socket.socket) -> bytes:
    """Read until the other end closes the connection.

    Raises:
        TimeoutError: The other end stays silent and keeps the connection open.
    """
    read = b""
    while part := connection.recv(65536):
        read += part
    return read


UNSIGNED = b"POST /verb/fence HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("header", [b"", f"Authorization: {ORDER_SCHEME} a:b:c\r\n".encode()])
def test_refused_order_is_answered_before_its_body_arrives(
    node: NodeProcess, header: bytes
) -> None:
    with dial(node) as connection:
        connection.sendall(UNSIGNED + header + b"Content-Length: 1000000\r\n\r\n{")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Order" in answer


def test_order_whose_body_was_exchanged_on_its_way_is_refused(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another body would make a different order of it, such as the loss of acknowledged rows."""

    def sign_another(
        secret: str, challenge: str, instance: str, method: str, path: str, body: bytes
    ) -> str:
        return sign_order(secret, challenge, instance, method, path, b'{"quorum": "majority"}')

    monkeypatch.setattr(qsync_node.adminport, "sign_order", sign_another)
    port = AdminPort(f"127.0.0.1:{node.admin_port}", SECRET)
    status, text = port.post("/verb/configure", b'{"quorum": 1}', 8)
    assert status == 401, text
    assert port.post("/verb/configure", b'{"quorum": "majority"}', 8)[0] == 200


def flood(connection: socket.socket, for_s: float) -> int:
    """Send an endless body until the node closes or resets; return the number of accepted bytes."""
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    sent, began_s = 0, time.monotonic()
    connection.sendall(UNSIGNED + b"Transfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < began_s + for_s:
            connection.sendall(chunk)
            sent += len(chunk)
    return sent


def test_refused_order_with_an_endless_body_is_closed(node: NodeProcess) -> None:
    with dial(node) as connection:
        # The rest fits into the buffers of both sockets.
        assert flood(connection, 10) < SKIP_BYTES_MAX + (16 << 20)


def test_connections_are_bounded_and_the_oldest_one_makes_room(node: NodeProcess) -> None:
    with node.paused():  # it then accepts all of them at once
        connections = [dial(node) for _ in range(SERVED_MAX + 20)]
    try:
        with dial(node) as last:
            last.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(last).startswith(b"HTTP/1.1 200 ")
        for connection in connections[:20]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    finally:
        for connection in connections:
            connection.close()


MALFORMED = [
    b"GET http://[ HTTP/1.1\r\n\r\n",
    b"GET http://host:port/ HTTP/1.1\r\n\r\n",
    b"GET //[host/live HTTP/1.1\r\n\r\n",
    b"GET /live\xff HTTP/1.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"POST /verb/fence HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnumber\r\n",
    b"\x00\x01\x02\x03\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", MALFORMED)
def test_malformed_request_is_refused_without_a_log_line(
    node: NodeProcess, request_bytes: bytes
) -> None:
    log = Path(node.folder / f"{node.name}.log")
    before = log.stat().st_size
    with dial(node) as connection:
        connection.sendall(request_bytes)
        answer = read_all(connection)
    assert answer.split(b" ")[1] == b"400"
    assert b"Traceback" not in log.read_bytes()[before:]
    assert b"Error handling" not in log.read_bytes()[before:]


@pytest.mark.parametrize("path", ["/publish", "/publication"])
def test_publication_without_a_signature_is_refused(node: NodeProcess, path: str) -> None:
    with dial(node) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
        connection.sendall(head.encode())
        assert read_all(connection).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("path", "fields", "status", "cause"),
    [
        ("/publish", {"journal": "orders/eu", "content": "eA=="}, 409, "journals are not enabled"),
        ("/publish", {"journal": "orders/eu", "content": "?"}, 400, "no Base64"),
        ("/publish", {"content": "eA=="}, 400, "journal is no string"),
        ("/publication", {"journal": "orders/eu"}, 409, "takes a journal, a sequence"),
        ("/publication", {"journal": "orders/eu", "sequence": 1}, 409, "are not enabled"),
    ],
)
def test_publication_that_is_refused_names_the_cause(
    node: NodeProcess, path: str, fields: dict[str, object], status: int, cause: str
) -> None:
    found, text = AdminPort(f"127.0.0.1:{node.admin_port}", SECRET).post(
        path, json.dumps(fields).encode(), 10
    )
    assert (found, cause in text) == (status, True), text


def test_spaces_are_listed_with_their_confirmed_rows(node: NodeProcess) -> None:
    database = tarantool.Connection("127.0.0.1", node.port, user=USER, password=PASSWORD)
    with contextlib.closing(database):
        for number, name in enumerate(("small", "large")):
            space = 700 + number
            database.insert(SystemSpace.SPACE, (space, 1, name, "memtx", 0, {}, []))
            database.insert(
                SystemSpace.INDEX, (space, 0, "pk", "tree", {"unique": True}, [(0, "unsigned")])
            )
            for key in range(2 + 3 * number):
                database.insert(space, (key, "x" * 100))
    status, text = AdminPort(f"127.0.0.1:{node.admin_port}").get("/spaces", 8)
    found = json.loads(text)
    assert (status, found["total"]) == (200, 2)
    assert [(one["name"], one["rows"]) for one in found["spaces"]] == [("large", 5), ("small", 2)]
    assert found["spaces"][0]["bytes"] > 500
