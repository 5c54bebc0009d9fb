"""Three members that speak TLS to each other, and who is not let in."""

import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from processes import Cluster, free_port

from qsync_node.format.greeting import decode_greeting
from qsync_node.server.tls import RELOAD_CHECK_S


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificates(folder: Path, name: str) -> dict[str, str]:
    """A CA of its own and one certificate."""
    folder.mkdir()
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(ca_key), "-out",
            str(ca), "-days", "2", "-subj", f"/CN={name}")  # fmt: skip
    key, request, cert = folder / "key.pem", folder / "request.pem", folder / "cert.pem"
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(request),
            "-subj", "/CN=member")  # fmt: skip
    openssl("x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key),
            "-CAcreateserial", "-out", str(cert), "-days", "2")  # fmt: skip
    return {"cert": str(cert), "key": str(key), "ca": str(ca)}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    files = certificates(tmp_path / "certificates", "qsync test")
    made = Cluster(tmp_path / "nodes", 3)
    for node in made.nodes:
        node.settings["tls"] = files
    return made


def test_members_find_each_other_over_tls_and_strangers_do_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    try:
        cluster.start()
        port = cluster.nodes[0].port
        trusting = ssl.create_default_context(cafile=cluster.nodes[0].settings["tls"]["ca"])
        trusting.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            trusting.wrap_socket(plain) as secure,
        ):
            assert decode_greeting(secure.recv(128)).version == "2.11.0"
        other = certificates(tmp_path / "other", "another authority")
        distrusting = ssl.create_default_context(cafile=other["ca"])
        distrusting.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            pytest.raises(ssl.SSLError),
        ):
            distrusting.wrap_socket(plain)
    finally:
        cluster.close()


def test_a_plain_port_beside_the_tls_one(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    secure = free_port()
    node.settings["tls"] = {**node.settings["tls"], "listen": f"127.0.0.1:{secure}"}
    cluster.nodes = [node]
    try:
        cluster.start()
        with socket.create_connection(("127.0.0.1", node.port), 10) as plain:
            assert plain.recv(9) == b"Tarantool"
        with socket.create_connection(("127.0.0.1", secure), 10) as raw:
            context = ssl.create_default_context(cafile=node.settings["tls"]["ca"])
            context.check_hostname = False
            with context.wrap_socket(raw) as connection:
                assert connection.recv(9) == b"Tarantool"
    finally:
        cluster.close()


def test_a_certificate_that_changes_is_shown_without_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.nodes[0]
    cluster.nodes = [node]

    def shown() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", node.port), 10) as plain,
            context.wrap_socket(plain) as secure,
        ):
            certificate = secure.getpeercert(binary_form=True)
            assert certificate is not None
            return certificate

    try:
        cluster.start()
        before = shown()
        # A key without its certificate is refused, and what was good stays in use.
        other = certificates(tmp_path / "other", "another authority")
        Path(node.settings["tls"]["key"]).write_bytes(Path(other["key"]).read_bytes())
        time.sleep(RELOAD_CHECK_S + 1)  # it looked once
        assert shown() == before
        for name in ("cert", "ca"):
            Path(node.settings["tls"][name]).write_bytes(Path(other[name]).read_bytes())
        deadline = time.monotonic() + 10 * RELOAD_CHECK_S
        while shown() == before:
            assert time.monotonic() < deadline, "the new certificate was never shown"
            time.sleep(0.2)
    finally:
        cluster.close()


def test_two_ports_that_both_ask_for_tls(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    second = free_port()
    more = {"listen": f"127.0.0.1:{second}", "is_required": True}
    node.settings["tls"] = {**node.settings["tls"], **more}
    cluster.nodes = [node]
    try:
        cluster.start()
        for port in (node.port, second):
            context = ssl.create_default_context(cafile=node.settings["tls"]["ca"])
            context.check_hostname = False
            with (
                socket.create_connection(("127.0.0.1", port), 10) as raw,
                context.wrap_socket(raw) as connection,
            ):
                assert connection.recv(9) == b"Tarantool"
    finally:
        cluster.close()
