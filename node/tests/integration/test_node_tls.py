"""Three members that use TLS among themselves, and the connections that they refuse."""

import contextlib
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from qsync_client.protocol.constants import HelloKey, Key
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import decode_greeting, encode_greeting
from qsync_node.adminport import AdminPort
from qsync_node.format.frame import encode_ok
from qsync_node.format.mp import pack, unpack
from qsync_node.format.proofs import certificate_binding, is_marked, marked_challenge, peer_proof
from qsync_node.server.admission import HANDSHAKES_MAX
from qsync_node.server.config import ConfigError
from qsync_node.server.tls import RELOAD_CHECK_S, Certificates
from qsync_node.server.tlsconfig import TlsConfig
from qsync_testing.certificates import another_certificate, certificates
from qsync_testing.ports import free_port
from qsync_testing.processes import REPLICASET, SECRET, NodeProcess, ProcessCluster, wait_until
from qsync_testing.raw import Raw


def loaded(files: dict[str, str], *names: str) -> Certificates:
    """Return the certificates of a node with these files and names of its cluster."""
    cert, key, ca = (Path(files[kind]) for kind in ("cert", "key", "ca"))
    return Certificates(TlsConfig(cert=cert, key=key, ca=ca, names=list(names)))


def _is_linked(node: NodeProcess, uuid: str) -> bool:
    return uuid in node.status()["links"]


@pytest.fixture
def cluster(tmp_path: Path) -> ProcessCluster:
    files = certificates(tmp_path / "certificates", "qsync test")
    made = ProcessCluster(tmp_path / "nodes", 3)
    for node in made.nodes:
        node.settings["tls"] = files
    return made


def test_members_find_each_other_over_tls_and_other_clients_do_not(
    cluster: ProcessCluster, tmp_path: Path
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


def test_a_plain_port_beside_the_tls_one(cluster: ProcessCluster) -> None:
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
    cluster: ProcessCluster, tmp_path: Path
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
        # A key that does not match its certificate is refused, and the valid pair stays in use.
        other = certificates(tmp_path / "other", "another authority")
        Path(node.settings["tls"]["key"]).write_bytes(Path(other["key"]).read_bytes())
        time.sleep(RELOAD_CHECK_S + 1)  # it checked the files once
        assert shown() == before
        for name in ("cert", "ca"):
            Path(node.settings["tls"][name]).write_bytes(Path(other[name]).read_bytes())
        deadline = time.monotonic() + 10 * RELOAD_CHECK_S
        while shown() == before:
            assert time.monotonic() < deadline, "the new certificate was never shown"
            time.sleep(0.2)
    finally:
        cluster.close()


def test_two_ports_that_both_ask_for_tls(cluster: ProcessCluster) -> None:
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


HELLO = 80
MEMBER = "00000000-0000-4000-8000-000000000004"


@pytest.fixture
def one(cluster: ProcessCluster) -> Iterator[NodeProcess]:
    """Run one member with a plain port and a TLS port."""
    node = cluster.nodes[0]
    more = {"listen": f"127.0.0.1:{free_port()}"}
    node.settings["tls"] = {**node.settings["tls"], **more}
    cluster.nodes = [node]
    try:
        cluster.start()
        yield node
    finally:
        cluster.close()


def hello(raw: Raw, bindings: dict[int, bytes]) -> int:
    """Send a HELLO with a proof for each field, bound as given; return the answer's code."""
    proofs = {
        field: peer_proof(SECRET, b"dial", raw.greeting.salt, MEMBER, binding)
        for field, binding in bindings.items()
    }
    fields = {
        Key.INSTANCE_UUID: MEMBER,
        Key.REPLICASET_UUID: REPLICASET,
        HelloKey.NONCE: bytes(16),
        HelloKey.LEVEL: 1,
        HelloKey.INCARNATION: b"one",
        **proofs,
    }
    code, _ = raw.ask(HELLO, fields)
    raw.socket.close()
    return int(code)


def secure(node: NodeProcess, files: dict[str, str] | None) -> tuple[Raw, bytes]:
    """Connect to the TLS port, with a client certificate if `files` is given.

    Returns:
        The connection, and the binding of the member's certificate.
    """
    context = ssl.create_default_context(cafile=node.settings["tls"]["ca"])
    context.check_hostname = False
    if files is not None:
        context.load_cert_chain(files["cert"], files["key"])
    address = node.settings["tls"]["listen"]
    raw = Raw(address, context)
    assert isinstance(raw.socket, ssl.SSLSocket)
    shown = raw.socket.getpeercert(binary_form=True)
    assert shown is not None
    return raw, certificate_binding(shown)


def test_a_hello_takes_tls_a_certificate_of_the_cluster_and_a_bound_proof(
    one: NodeProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "certificates"
    other = another_certificate(folder, "shop", "DNS:shop,DNS:localhost")
    assert hello(Raw(one.address), {HelloKey.PROOF: b""}) == 42
    raw, binding = secure(one, None)
    assert hello(raw, {HelloKey.BOUND_PROOF: binding, HelloKey.PROOF: b""}) == 42
    raw, binding = secure(one, other)
    assert hello(raw, {HelloKey.BOUND_PROOF: binding, HelloKey.PROOF: b""}) == 42
    raw, _ = secure(one, one.settings["tls"])
    # A man in the middle presents its own certificate and forwards the messages.
    assert hello(raw, {HelloKey.BOUND_PROOF: certificate_binding(b"his")}) == 42
    raw, binding = secure(one, one.settings["tls"])
    assert hello(raw, {HelloKey.BOUND_PROOF: binding}) == 0


def test_unbound_proof_takes_a_certificate_of_the_cluster(one: NodeProcess, tmp_path: Path) -> None:
    """An earlier version knows no bound proofs: its certificate admits it."""
    other = another_certificate(tmp_path / "certificates", "shop", "DNS:shop")
    assert hello(Raw(one.address), {HelloKey.PROOF: b""}) == 42
    for files in (None, other):
        raw, _ = secure(one, files)
        assert hello(raw, {HelloKey.PROOF: b""}) == 42
    raw, _ = secure(one, one.settings["tls"])
    assert hello(raw, {HelloKey.PROOF: b""}) == 0


def test_challenge_is_marked_for_members_only(one: NodeProcess) -> None:
    raw, _ = secure(one, one.settings["tls"])
    assert is_marked(SECRET, raw.greeting.salt)
    assert not is_marked("another secret", raw.greeting.salt)
    # Others could otherwise try secrets against the mark without asking the member.
    for shown in (secure(one, None)[0], Raw(one.address)):
        assert not is_marked(SECRET, shown.greeting.salt)


def test_log_in_works_with_a_marked_challenge(one: NodeProcess) -> None:
    raw, _ = secure(one, one.settings["tls"])
    assert raw.log_in() == 0


class Acceptor(threading.Thread):
    """A server that accepts members over TLS and answers HELLO with the proof of `field`."""

    def __init__(self, files: dict[str, str], salt: bytes, field: int) -> None:
        super().__init__(daemon=True)
        self.salt, self.field = salt, field
        self.heard: queue.Queue[dict[int, Any] | None] = queue.Queue()  # None: it disconnected
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files["ca"])
        self.context.load_cert_chain(files["cert"], files["key"])
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self.context.wrap_socket(self.socket.accept()[0], server_side=True) as member:
                    self.speak(member)

    def speak(self, member: ssl.SSLSocket) -> None:
        member.sendall(encode_greeting(MEMBER, self.salt))
        decoder = FrameDecoder()
        frames: list[Any] = []
        while not frames:
            frames = decoder.feed(member.recv(65536))
        fields = unpack(frames[0][3])
        self.heard.put(fields)
        proof = peer_proof(SECRET, b"accept", fields[HelloKey.NONCE], MEMBER)
        member.sendall(encode_ok(frames[0][1], 1, pack({self.field: proof, HelloKey.LEVEL: 1})))
        if not member.recv(1):
            self.heard.put(None)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@pytest.mark.parametrize("is_updated", [False, True])
def test_member_sends_and_takes_unbound_proofs_only_to_and_from_earlier_versions(
    one: NodeProcess, is_updated: bool
) -> None:
    salt = marked_challenge(SECRET) if is_updated else os.urandom(32)
    acceptor = Acceptor(one.settings["tls"], salt, HelloKey.PROOF)
    try:
        one.post("/peers", {"addresses": {"n9": acceptor.address}})
        fields = acceptor.heard.get(timeout=30)
        assert fields is not None
        assert (HelloKey.BOUND_PROOF in fields, HelloKey.PROOF in fields) == (
            is_updated,
            not is_updated,
        )
        if is_updated:
            # The answer was unbound, so a relay in the middle may have forwarded it.
            assert acceptor.heard.get(timeout=30) is None
            assert MEMBER not in one.status()["links"]
        else:
            wait_until("it is linked", lambda: MEMBER in one.status()["links"])
    finally:
        acceptor.close()


def test_updated_cluster_takes_an_earlier_member_back(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """All three members have used bound proofs when one of them returns to an earlier version."""
    back = cluster.nodes[2]
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(EARLIER_VERSION)
    try:
        cluster.start()
        uuid = back.status()["uuid"]
        for environment in ({"PYTHONPATH": str(hook)}, {}):
            back.kill()
            back.environment = environment
            back.start(cluster.peers)
            for node in cluster.nodes[:2]:
                name = node.status()["uuid"]
                wait_until("it is linked", partial(_is_linked, node, uuid))
                wait_until("they are linked", partial(_is_linked, back, name))
    finally:
        cluster.close()


EARLIER_VERSION = """
import os
import qsync_node.peering.handshake as peers
import qsync_node.server.session as session
real = peers.peer_proof
def unbound(secret, purpose, challenge, uuid, binding=b""):
    assert not binding
    return real(secret, purpose, challenge, uuid)
peers.peer_proof = unbound
peers._BOUND = 0x7F
peers.is_marked = lambda secret, challenge: False
session.marked_challenge = lambda secret: os.urandom(32)
"""


def test_a_certificate_without_names_of_the_cluster_is_refused(tmp_path: Path) -> None:
    files = certificates(tmp_path / "nameless", "qsync test", "DNS:localhost")
    with pytest.raises(ConfigError, match=r"tls\.names"):
        loaded(files)
    assert loaded(files, "Orders").names == {"orders"}


def test_members_bind_their_proofs_to_a_changed_certificate_and_expect_its_names(
    tmp_path: Path,
) -> None:
    """After a rotation, no member could link otherwise."""
    files = certificates(tmp_path / "ours", "qsync test", "DNS:before")
    node = loaded(files)
    assert not node.reload()
    other = certificates(tmp_path / "other", "another authority", "DNS:after")
    for kind, name in files.items():
        Path(name).write_bytes(Path(other[kind]).read_bytes())
    assert node.reload()
    changed = loaded(other)
    assert (node.binding, node.names) == (changed.binding, changed.names)
    assert node.names == {"after"}
    assert not node.reload()


def test_certificate_without_its_key_leaves_the_earlier_pair_in_use(tmp_path: Path) -> None:
    """Files may be replaced one after the other: the node must not lose its key meanwhile."""
    files = certificates(tmp_path / "ours", "qsync test", "DNS:orders")
    node = loaded(files)
    other = certificates(tmp_path / "other", "another authority", "DNS:orders")
    Path(files["cert"]).write_bytes(Path(other["cert"]).read_bytes())
    with pytest.raises(ConfigError, match="cannot use the certificates"):
        node.reload()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = node.dialling.wrap_bio(to_client, to_server)
    server = node.listening.wrap_bio(to_server, to_client, server_side=True)
    shake_hands(client, server)
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    assert certificate_binding(shown) == node.binding


def test_addresses_of_certificates_are_compared_in_one_form(tmp_path: Path) -> None:
    files = certificates(tmp_path / "ours", "qsync test", "IP:fd00:0:0:0::5,URI:Spiffe://Orders")
    assert loaded(files).names == {"fd00::5", "spiffe://orders"}
    members = [loaded(files, name) for name in ("FD00::5", "fd00:0:0:0:0:0:0:5")]
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = members[0].dialling.wrap_bio(to_client, to_server)
    server = members[1].listening.wrap_bio(to_server, to_client, server_side=True)
    shake_hands(client, server)
    assert client.version()


def test_only_loopback_names_are_refused_as_those_of_a_cluster(tmp_path: Path) -> None:
    files = certificates(tmp_path / "ours", "qsync test", "IP:::1,DNS:localhost")
    for names in ([], ["0:0:0:0:0:0:0:1"]):
        with pytest.raises(ConfigError, match=r"tls\.names"):
            loaded(files, *names)


def test_a_member_ends_a_handshake_with_a_foreign_certificate_of_the_same_ca(
    tmp_path: Path,
) -> None:
    ours = certificates(tmp_path / "ours", "qsync test")
    theirs = another_certificate(tmp_path / "ours", "shop", "DNS:shop")
    ends = [loaded(files) for files in (ours, theirs)]
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ends[0].dialling.wrap_bio(to_client, to_server)
    server = ends[1].listening.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="shop"):
        shake_hands(client, server)


def test_cluster_of_the_same_name_in_another_namespace_is_refused(tmp_path: Path) -> None:
    def names(namespace: str) -> str:
        return f"DNS:orders-leader,DNS:*.orders,DNS:*.orders.{namespace}.svc,DNS:localhost"

    ours = certificates(tmp_path / "ours", "one company", names("shop"))
    theirs = another_certificate(tmp_path / "ours", "theirs", names("bank"))
    again = another_certificate(tmp_path / "ours", "again", names("shop"))
    one, other, same = (loaded(files) for files in (ours, theirs, again))
    for end, is_member in ((same, True), (other, False)):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = one.dialling.wrap_bio(to_client, to_server)
        server = end.listening.wrap_bio(to_server, to_client, server_side=True)
        try:
            shake_hands(client, server)
        except ssl.SSLCertVerificationError:
            assert not is_member
        else:
            assert is_member
    # If a certificate has short names too, `tls.names` selects the names of the cluster.
    assert loaded(ours, "*.orders").names == {"*.orders"}


def test_names_of_other_kinds_and_loopback_addresses_name_no_cluster(tmp_path: Path) -> None:
    kinds = "DNS:orders,IP:127.0.0.1,otherName:1.2.3.4;UTF8:orders@corp"
    ours = certificates(tmp_path / "ours", "qsync test", kinds)
    theirs = another_certificate(
        tmp_path / "ours", "laptop", "DNS:laptop,IP:127.0.0.1,otherName:1.2.3.4;UTF8:me@corp"
    )
    one, other = (loaded(files) for files in (ours, theirs))
    assert one.names == {"orders"}
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = one.dialling.wrap_bio(to_client, to_server)
    server = other.listening.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="laptop"):
        shake_hands(client, server)


def test_handshakes_under_way_are_bounded(one: NodeProcess) -> None:
    """The oldest handshake makes room, as with connections that have not logged in."""
    host, _, port = one.settings["tls"]["listen"].rpartition(":")
    silent = []
    for _ in range(HANDSHAKES_MAX + 50):
        sock = socket.create_connection((host, int(port)), 10)
        sock.sendall(b"\x16")
        silent.append(sock)

    def closed() -> int:
        return sum(bool(select.select([sock], [], [], 0)[0]) for sock in silent)

    wait_until("the oldest handshakes are ended", lambda: closed() == 50)
    assert not select.select(silent[50:], [], [], 0)[0]
    for sock in silent:
        sock.close()


def shake_hands(*ends: ssl.SSLObject) -> None:
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def test_the_admin_port_speaks_tls_and_answers_probes_without(one: NodeProcess) -> None:
    plain = AdminPort(f"127.0.0.1:{one.admin_port}", SECRET)
    assert [plain.get(path, 5)[0] for path in ("/live", "/ready")] == [200, 200]
    refused = [plain.get(path, 5)[0] for path in ("/status", "/metrics", "/order-challenge")]
    assert refused == [426, 426, 426]
    with contextlib.closing(HTTPConnection("127.0.0.1", one.admin_port, timeout=5)) as connection:
        connection.request("POST", "/verb/snapshot", b"{}")
        assert connection.getresponse().status == 426, "it takes no order, either"
    assert one.status()["uuid"]
    assert one.post_status("/verb/snapshot", {}) == 200
