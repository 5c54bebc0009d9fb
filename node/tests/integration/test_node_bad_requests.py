"""Clients without rights, bad requests and false members, at real processes."""

import base64
import hashlib
from collections.abc import Iterator

import msgpack
import pytest

from qsync_client.protocol.auth import scramble
from qsync_client.protocol.constants import HelloKey, Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.proofs import peer_proof
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    SECRET,
    USER,
    ProcessCluster,
    wait_until,
)
from qsync_testing.raw import Raw
from qsync_testing.server_cluster import READ, SPACE, cluster_with_space


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_with_space(tmp_path_factory.mktemp("bad")) as running:
        yield running


def test_wrong_password_and_unknown_user_have_the_same_answer(raw: Raw) -> None:
    first = raw.ask(
        7, {Key.USER_NAME: USER, Key.TUPLE: ["chap-sha1", scramble("wrong", raw.greeting.salt)]}
    )
    second = raw.ask(
        7, {Key.USER_NAME: "unknown", Key.TUPLE: ["chap-sha1", scramble("x", raw.greeting.salt)]}
    )
    assert first[0] == second[0] == 47
    assert first[1][Key.ERROR_24] == second[1][Key.ERROR_24]
    assert raw.log_in() == 0


def test_without_the_right_session_no_client_logs_in(cluster: ProcessCluster, raw: Raw) -> None:
    stored = base64.b64encode(hashlib.sha1(hashlib.sha1(b"pw").digest()).digest()).decode()
    assert raw.log_in(password=ADMIN_PASSWORD, user="admin") == 0
    user = [60, 1, "caller", "user", {"chap-sha1": stored}, [], 0]
    assert raw.ask(Type.INSERT, {Key.SPACE_ID: SystemSpace.USER, Key.TUPLE: user})[0] == 0
    caller = Raw(cluster.leader().address)
    proof = ["chap-sha1", scramble("pw", caller.greeting.salt)]
    code, body = caller.ask(Type.AUTH, {Key.USER_NAME: "caller", Key.TUPLE: proof})
    assert (code, body[Key.ERROR_24]) == (
        42,
        "Session access to universe '' is denied for user 'caller'",
    )
    # The refused client remains guest. Without the right password, the error is less specific.
    assert caller.ask(Type.SELECT, READ)[1][Key.ERROR_24].endswith("denied for user 'guest'")
    assert caller.log_in(password="wrong", user="caller") == 47
    assert (
        raw.ask(
            Type.INSERT, {Key.SPACE_ID: SystemSpace.PRIV, Key.TUPLE: [1, 60, "universe", 0, 8 | 16]}
        )[0]
        == 0
    )
    assert caller.log_in(password="pw", user="caller") == 0
    caller.socket.close()


def test_an_unknown_client_reads_nothing(raw: Raw) -> None:
    code, _ = raw.ask(Type.SELECT, {Key.SPACE_ID: SPACE, Key.LIMIT: 1, Key.KEY: []})
    assert code == 42
    assert raw.ask(Type.INSERT, {Key.SPACE_ID: SPACE, Key.TUPLE: [1]})[0] == 42
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info", Key.TUPLE: []})[0] == 42
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.vclock", Key.TUPLE: []})[0] == 42
    assert raw.log_in() == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.info.vclock", Key.TUPLE: []})[0] == 0
    assert raw.ask(Type.CALL, {Key.FUNCTION_NAME: "box.ctl.demote", Key.TUPLE: []})[0] == 42


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (encode_request(200, 1, b"\x80"), 48),
        (encode_request(Type.EVAL, 1, msgpack.packb({Key.EXPR: "return 1", Key.TUPLE: []})), 5),
        (
            encode_request(
                Type.EXECUTE, 1, msgpack.packb({Key.SQL_TEXT: "SELECT 1", Key.SQL_BIND: []})
            ),
            5,
        ),
        (encode_request(Type.INSERT, 1, msgpack.packb({Key.SPACE_ID: SPACE})), 69),
        (
            encode_request(Type.INSERT, 1, msgpack.packb({Key.SPACE_ID: "space", Key.TUPLE: [1]})),
            20,
        ),
        (encode_request(Type.INSERT, 1, b"\xc1\xc1"), 20),
        (encode_request(Type.INSERT, 1, b"\x82\x10\xce\x00\x00\x03\x20\x21\x91\xc1"), 20),
        (encode_request(Type.COMMIT, 1, b"\x80"), 230),
        (encode_request(Type.SELECT, 1, msgpack.packb(READ), schema_version=9999), 109),
        (b"\x05\x92\x00\x01\x02\x03", 20),
    ],
    ids=[
        "unknown",
        "eval",
        "sql",
        "no tuple",
        "bad type",
        "junk",
        "junk tuple",
        "no stream",
        "schema",
        "header",
    ],
)
def test_bad_requests_get_one_clear_error_and_the_connection_stays(
    raw: Raw, packet: bytes, code: int
) -> None:
    assert raw.log_in() == 0
    raw.send(packet)
    got, body = raw.answer()
    assert got == code
    assert body[Key.ERROR_24]
    assert raw.ask(Type.PING, {})[0] == 0


def test_an_oversized_packet_closes_the_connection_and_nothing_else(
    cluster: ProcessCluster,
) -> None:
    raw = Raw(cluster.leader().address)
    raw.send(b"\xce\x7f\xff\xff\xff" + b"\x82\x00\x02\x01\x01")
    code, _ = raw.answer()
    assert code == 20
    with pytest.raises((EOFError, ConnectionError)):
        raw.answer()
    assert Raw(cluster.leader().address).log_in() == 0


def test_a_false_member_is_not_let_in(cluster: ProcessCluster, raw: Raw) -> None:
    fields = {
        Key.INSTANCE_UUID: "00000000-0000-4000-8000-000000000001",
        Key.REPLICASET_UUID: "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11",
        HelloKey.PROOF: b"\x00" * 32,
        HelloKey.NONCE: b"\x00" * 16,
    }
    assert raw.ask(Type.HELLO, fields)[0] == 42
    with pytest.raises((EOFError, ConnectionError)):
        raw.answer()


def _join_in(raw: Raw, uuid: str, incarnation: bytes) -> None:
    """Send HELLO as a member that knows the secret."""
    fields = {
        Key.INSTANCE_UUID: uuid,
        Key.REPLICASET_UUID: "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11",
        HelloKey.PROOF: peer_proof(SECRET, b"dial", raw.greeting.salt, uuid),
        HelloKey.NONCE: b"\x00" * 16,
        HelloKey.LEVEL: 1,
        HelloKey.INCARNATION: incarnation,
    }
    assert raw.ask(Type.HELLO, fields)[0] == 0


def _hears_until_closed(raw: Raw) -> bool:
    """Return true once the connection is closed; the leader's heartbeats arrive before."""
    try:
        while raw.socket.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_a_connection_to_a_silent_peer_is_closed(cluster: ProcessCluster, raw: Raw) -> None:
    node = cluster.leader()
    silent, talking = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "23")
    _join_in(raw, silent, b"one")
    other = Raw(node.address)
    _join_in(other, talking, b"one")
    assert {silent, talking} <= set(node.status()["links"])

    def is_gone() -> bool:
        other.send(bytes(4))  # an empty frame shows that the peer is alive
        return silent not in node.status()["links"]

    wait_until("the connection to the silent peer to be closed", is_gone)
    assert talking in node.status()["links"]
    other.socket.close()


def test_a_restarted_peer_has_one_process_run(cluster: ProcessCluster, raw: Raw) -> None:
    node = cluster.leader()
    uuid = "00000000-0000-4000-8000-000000000004"
    _join_in(raw, uuid, b"one")
    again = Raw(node.address)
    _join_in(again, uuid, b"two")
    raw.socket.settimeout(60)
    assert _hears_until_closed(raw)
    assert uuid in node.status()["links"]
    again.socket.close()
