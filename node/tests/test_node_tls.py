"""Three members that speak TLS to each other, and who is not let in."""

import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from processes import Cluster, free_port

from qsync_node.format.greeting import decode_greeting


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
