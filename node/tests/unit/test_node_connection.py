"""States of one client connection without sockets: packets, log-ins, watched keys, requests."""

from collections.abc import Callable

import pytest

from qsync_client.protocol.auth import EMPTY_HASH, MECHANISM, scramble
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder, FrameError, encode_request
from qsync_client.protocol.greeting import GREETING_BYTES, decode_greeting
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.engine.database import Database
from qsync_node.errors import ClientError
from qsync_node.format.body import put_body
from qsync_node.format.mp import pack, unpack
from qsync_node.peering.handshake import HELLO
from qsync_node.server.admission import RequestBytes
from qsync_node.server.bounds import IN_FLIGHT_MAX, ConnectionBounds
from qsync_node.server.connection import (
    TRANSITIONS,
    UNAUTHENTICATED_BYTES_MAX,
    UNAUTHENTICATED_PACKETS_MAX,
    ServerConnection,
    ServerConnectionState,
)
from qsync_node.server.login import LOGIN_FAILURES_MAX, LogIn, LogInState, WrongPassword
from qsync_node.server.requestqueue import REQUEST_OVERHEAD_BYTES, RequestQueue
from qsync_node.server.watches import WATCHED_KEYS_MAX, Watches

UUID = "11111111-1111-4111-8111-111111111111"
SALT = b"s" * 32
REQUEST_MAX = 1 << 20


def log_in_state_of(log_in: LogIn) -> LogInState:
    return log_in.state


def state_of(connection: ServerConnection) -> ServerConnectionState:
    """Return the state. mypy narrows the type of an attribute, but not that of a result."""
    return connection.state


def opened(*, has_guest: bool = True, is_member: bool = False) -> ServerConnection:
    connection = ServerConnection(REQUEST_MAX, has_guest=has_guest)
    greeting = connection.open(UUID, SALT, binding=b"", is_member=is_member)
    assert len(greeting) == GREETING_BYTES
    assert decode_greeting(greeting).salt == SALT
    return connection


def test_every_state_has_transitions_and_can_be_lost() -> None:
    assert set(TRANSITIONS) == set(ServerConnectionState)
    assert all(
        ServerConnectionState.CLOSED in following for state, following in TRANSITIONS.items()
        if state is not ServerConnectionState.CLOSED
    )  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        lambda one: one.open(UUID, SALT, binding=b"", is_member=False),
        ServerConnection.begin_stream,
        ServerConnection.block_stream,
        lambda one: (one.become_peer(), one.log_in("app", REQUEST_MAX)),
        lambda one: (one.end(), one.end()),
        lambda one: (one.lose(), one.become_peer()),
    ],
)
def test_illegal_transition_raises(event: Callable[[ServerConnection], object]) -> None:
    connection = opened()
    with pytest.raises(AssertionError):
        event(connection)


def test_request_as_guest_changes_the_state_and_a_log_in_ends_all_limits() -> None:
    connection = opened()
    assert connection.admit(Type.PING) is None
    assert state_of(connection) is ServerConnectionState.UNAUTHENTICATED
    assert connection.admit(Type.SELECT) is None
    assert state_of(connection) is ServerConnectionState.GUEST
    connection.log_in("guest", REQUEST_MAX)
    assert state_of(connection) is ServerConnectionState.GUEST
    connection.log_in("app", REQUEST_MAX)
    assert (connection.state, connection.user) == (ServerConnectionState.AUTHENTICATED, "app")
    large = encode_request(Type.INSERT, 1, b"\x80" + bytes(UNAUTHENTICATED_BYTES_MAX))
    assert len(connection.receive(large)) == 1


def test_log_in_as_guest_ends_the_privileges_of_the_user_before() -> None:
    """Pools of connections log in as guest to return one."""
    connection = opened()
    connection.log_in("app", REQUEST_MAX)
    connection.log_in("guest", REQUEST_MAX)
    assert (connection.state, connection.user) == (ServerConnectionState.AUTHENTICATED, "guest")


def test_large_packet_before_log_in_is_refused() -> None:
    large = encode_request(Type.INSERT, 1, b"\x80" + bytes(UNAUTHENTICATED_BYTES_MAX))
    with pytest.raises(FrameError):
        opened().receive(large)


def test_without_guest_only_packets_of_a_log_in_are_admitted_and_their_number_is_limited() -> None:
    connection = opened(has_guest=False)
    refusal = connection.admit(Type.SELECT)
    assert refusal is not None
    assert (refusal.code, refusal.is_last) == (ErrorCode.ACCESS_DENIED, False)
    for _ in range(UNAUTHENTICATED_PACKETS_MAX - 1):
        assert connection.admit(Type.PING) is None
    assert state_of(connection) is ServerConnectionState.UNAUTHENTICATED
    refusal = connection.admit(HELLO)
    assert refusal is not None
    assert (refusal.code, refusal.is_last) == (ErrorCode.TOO_MANY, True)
    refusal = connection.admit(Type.SELECT)
    assert refusal is not None
    assert (refusal.code, refusal.is_last) == (ErrorCode.ACCESS_DENIED, True)


def test_member_certificate_admits_watches_without_guest() -> None:
    connection = opened(has_guest=False, is_member=True)
    assert connection.admit(Type.WATCH) is None
    assert state_of(connection) is ServerConnectionState.GUEST
    assert connection.admit(Type.SELECT) is not None
    assert opened(has_guest=False).admit(Type.WATCH) is not None


def test_stream_blocks_and_resumes() -> None:
    connection = opened()
    assert connection.admit(Type.JOIN) is None
    connection.begin_stream()
    connection.begin_stream()
    assert not connection.resume_stream()
    connection.block_stream()
    connection.block_stream()
    assert state_of(connection) is ServerConnectionState.STREAM_BLOCKED
    assert connection.resume_stream()
    assert state_of(connection) is ServerConnectionState.STREAM


# --- log-ins ------------------------------------------------------------------------------------


def credentials(user: str, password: str) -> dict[int, object]:
    return {Key.USER_NAME: user, Key.TUPLE: [MECHANISM, scramble(password, SALT)]}


def test_wrong_passwords_are_delayed_and_the_last_one_exhausts() -> None:
    log_in, users = LogIn(has_guest=True), Database.bootstrap(UUID)
    for number in range(1, LOGIN_FAILURES_MAX + 1):
        assert log_in_state_of(log_in) is LogInState.OPEN
        with pytest.raises(WrongPassword):
            log_in.check(users, credentials("unknown", "x"), SALT)
        assert log_in_state_of(log_in) is LogInState.DELAYED
        with pytest.raises(AssertionError):
            log_in.check(users, credentials("unknown", "x"), SALT)
        log_in.on_refused()
        assert (log_in_state_of(log_in) is LogInState.EXHAUSTED) is (number == LOGIN_FAILURES_MAX)


def test_guest_logs_in_without_a_proof_if_permitted() -> None:
    fields: dict[int, object] = {Key.USER_NAME: "guest", Key.TUPLE: []}
    assert LogIn(has_guest=True).check(Database.bootstrap(UUID), fields, SALT) == "guest"
    with pytest.raises(ClientError, match="guest is off"):
        LogIn(has_guest=False).check(Database.bootstrap(UUID), fields, SALT)


def users_with(*fields: object) -> Database:
    """Return the users of a new cluster and one more."""
    users = Database.bootstrap(UUID)
    users.apply(Type.REPLACE, put_body(SystemSpace.USER, pack(fields)))
    return users


@pytest.mark.parametrize("auth", [{}, {"chap-sha1": EMPTY_HASH}])
def test_user_without_a_password_does_not_log_in_without_a_proof(auth: dict[str, str]) -> None:
    """Of all users, only guest may."""
    users = users_with(40, 1, "joe", "user", auth)
    for name in ("joe", "unknown"):
        with pytest.raises(WrongPassword):
            LogIn(has_guest=True).check(users, {Key.USER_NAME: name, Key.TUPLE: []}, SALT)


# --- watched keys -------------------------------------------------------------------------------


def test_next_event_of_a_key_waits_for_the_acknowledgement() -> None:
    watches = Watches()
    watches.watch("box.status", 7)
    assert watches.may_notify("box.status")
    ((kind, sync, _, body),) = FrameDecoder().feed(
        watches.event("box.status", pack([49, 50, 51]), 1)
    )
    assert (kind, sync) == (Type.EVENT, 7)
    assert unpack(body) == {Key.EVENT_KEY: "box.status", Key.EVENT_DATA: [49, 50, 51]}
    assert not watches.may_notify("box.status")
    with pytest.raises(AssertionError):
        watches.event("box.status", None, 1)
    watches.watch("box.status", 8)
    ((_, sync, _, body),) = FrameDecoder().feed(watches.event("box.status", None, 1))
    assert (sync, unpack(body)) == (8, {Key.EVENT_KEY: "box.status"})
    watches.unwatch("box.status")
    assert "box.status" not in watches
    assert not watches.may_notify("box.status")


def test_number_of_watched_keys_is_limited() -> None:
    watches = Watches()
    for number in range(WATCHED_KEYS_MAX):
        assert not watches.is_full()
        watches.watch(f"key {number}", 1)
    assert watches.is_full()


# --- requests -----------------------------------------------------------------------------------


def test_bytes_of_requests_count_until_they_are_gone() -> None:
    common = RequestBytes()
    requests = RequestQueue(common, ConnectionBounds())
    frames = FrameDecoder().feed(encode_request(Type.SELECT, 9, b"\x80") * 3)
    requests.add(frames)
    size = 1 + REQUEST_OVERHEAD_BYTES
    assert (requests.size_bytes, common.total) == (3 * size, 3 * size)
    assert not requests.has_room()
    request = requests.run(1, "app", requests.waiting.popleft())
    requests.put_back(request.sync)
    assert requests.returned.popleft() == request
    assert requests.finish(request.sync)[:2] == (request, 9)
    assert common.total == 2 * size
    requests.drop(requests.waiting.popleft())
    requests.drop_waiting()
    assert (requests.size_bytes, common.total) == (0, 0)
    assert requests.has_room()


def test_requests_of_a_lost_connection_leave_the_common_budget() -> None:
    common = RequestBytes()
    requests = RequestQueue(common, ConnectionBounds())
    requests.add(FrameDecoder().feed(encode_request(Type.SELECT, 9, b"\x80") * 2))
    requests.run(1, "app", requests.waiting.popleft())
    requests.clear()
    assert (requests.size_bytes, common.total) == (0, 0)


def test_number_of_running_requests_is_limited() -> None:
    requests = RequestQueue(RequestBytes(), ConnectionBounds())
    (frame,) = FrameDecoder().feed(encode_request(Type.SELECT, 9, b"\x80"))
    for _ in range(IN_FLIGHT_MAX):
        assert not requests.is_full()
        requests.run(1, "app", frame)
    assert requests.is_full()
    assert not requests.has_room()
