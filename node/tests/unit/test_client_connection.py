"""The client's side of a connection, without sockets: bytes in, events out."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_client.feed import Feed, FeedRefused
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import (
    Answered,
    ClientConnection,
    ClientConnectionState,
    ConnectionEvent,
    Credentials,
    Ended,
    Notified,
    Opened,
    StreamPacket,
    Switched,
)
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import encode_greeting

UUID = "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"
GREETING = encode_greeting(UUID, b"s" * 32)


def state_of(connection: ClientConnection) -> ClientConnectionState:
    """Return the state. mypy narrows the type of an attribute, but not that of a result."""
    return connection.state


def answer(kind: int, sync: int, body: object = None, schema_version: int = 7) -> bytes:
    header = msgpack.packb({0: kind, 1: sync, 5: schema_version})
    packed = header + (b"" if body is None else msgpack.packb(body))
    return bytes(msgpack.packb(len(packed)) + packed)


def new() -> ClientConnection:
    return ClientConnection(Credentials("app", "secret"), 0.0, silence_s=1.0)


def ready() -> ClientConnection:
    connection = new()
    connection.receive(GREETING, 0.0)
    connection.take_output()
    connection.receive(answer(0, 1), 0.0)
    assert state_of(connection) is ClientConnectionState.READY
    return connection


def sent(connection: ClientConnection) -> list[tuple[int, int, dict[int, object]]]:
    """Return type, number and header of each packet of the output."""
    frames = FrameDecoder().feed(connection.take_output())
    return [(kind, sync, header) for kind, sync, header, _ in frames]


@pytest.mark.parametrize("size", [1, 7, 128])
def test_greeting_in_any_pieces_is_answered_with_a_log_in(size: int) -> None:
    connection = new()
    for start in range(0, len(GREETING), size):
        assert state_of(connection) is ClientConnectionState.GREETING
        assert connection.receive(GREETING[start : start + size], 0.0) == []
    assert state_of(connection) is ClientConnectionState.AUTHENTICATING
    assert [kind for kind, _, _ in sent(connection)] == [Type.AUTH]
    (event,) = connection.receive(answer(0, 1), 0.0)
    assert isinstance(event, Opened)
    assert event.greeting.instance_uuid == UUID
    assert state_of(connection) is ClientConnectionState.READY


def test_refused_log_in_ends_the_connection_with_its_code() -> None:
    connection = new()
    connection.receive(GREETING, 0.0)
    code = int(ErrorCode.PASSWORD_MISMATCH)
    events = connection.receive(answer(0x8000 + code, 1, {Key.ERROR_24: "no"}), 0.0)
    assert events == [Ended("no", code)]
    assert state_of(connection) is ClientConnectionState.CLOSED


@pytest.mark.parametrize(
    ("before", "data"),
    [
        (b"", b"HTTP/1.1 400 Bad Request".ljust(128)),
        (GREETING + answer(0, 1), b"\xa3abc"),
        (GREETING + answer(0, 1), answer(int(Type.EVENT), 3, {1: 2})),
        (GREETING, b""),
    ],
)
def test_invalid_bytes_and_the_end_of_the_stream_end_the_connection(
    before: bytes, data: bytes
) -> None:
    connection = new()
    if before:
        connection.receive(before, 0.0)
    events = connection.receive(data, 0.0)
    assert [type(event) for event in events] == [Ended]
    assert state_of(connection) is ClientConnectionState.CLOSED
    assert connection.receive(b"more", 0.0) == []
    assert connection.close() == []


def test_answers_are_matched_by_number_and_carry_the_schema_version() -> None:
    connection = ready()
    first = connection.request(int(Type.SELECT), b"\x80", 0.0)
    second = connection.request(
        int(Type.COMMIT), b"\x80", 0.0, stream=4, key=("me", 1, 9), schema_version=3
    )
    headers = [header for _, _, header in sent(connection)]
    assert headers[1] == {
        0: int(Type.COMMIT),
        1: second,
        Key.STREAM_ID: 4,
        Key.IDEMPOTENCY: ["me", 1, 9],
        5: 3,
    }
    assert connection.pending == 2
    unrelated = answer(0, 99)
    events = connection.receive(answer(0, second, {Key.DATA: []}, 8) + unrelated, 0.0)
    assert events == [Answered(second, 0, msgpack.packb({Key.DATA: []}), 8)]
    assert connection.receive(answer(0, first), 0.0) == [Answered(first, 0, b"", 7)]
    assert connection.pending == 0


def test_silence_while_an_answer_is_pending_causes_one_ping_then_the_end() -> None:
    connection = ready()
    assert connection.tick(100.0) == [], "an idle connection may be silent"
    connection.request(int(Type.INSERT), b"\x80", 100.0)
    connection.take_output()
    assert connection.tick(100.9) == []
    assert sent(connection) == []
    connection.tick(101.1)
    connection.tick(101.5)
    assert [kind for kind, _, _ in sent(connection)] == [Type.PING]
    (event,) = connection.tick(102.1)
    assert isinstance(event, Ended)


def test_answered_ping_keeps_a_connection_whose_write_waits_for_its_quorum() -> None:
    connection = ready()
    write = connection.request(int(Type.INSERT), b"\x80", 0.0)
    connection.take_output()
    events: list[ConnectionEvent] = []
    for second in range(1, 60):
        events += connection.tick(second + 0.5)
        for kind, sync, _ in sent(connection):
            assert kind == Type.PING
            events += connection.receive(answer(0, sync), second + 0.5)
    assert events == []
    assert connection.receive(answer(0, write), 60.0) == [Answered(write, 0, b"", 7)]


def test_notification_is_repeated_only_after_it_is_acknowledged() -> None:
    connection = ready()
    connection.watch("box.status")
    assert [kind for kind, _, _ in sent(connection)] == [Type.WATCH]
    data = answer(
        int(Type.EVENT), 2, {Key.EVENT_KEY: "box.status", Key.EVENT_DATA: {"is_ro": False}}
    )
    assert connection.receive(data, 0.0) == [Notified("box.status", {"is_ro": False})]
    assert sent(connection) == []
    connection.acknowledge("box.status")
    assert [kind for kind, _, _ in sent(connection)] == [Type.WATCH]
    connection.unwatch("box.status")
    assert [kind for kind, _, _ in sent(connection)] == [Type.UNWATCH]


def test_a_message_before_the_final_answer_is_ignored() -> None:
    connection = ready()
    sync = connection.request(int(Type.CALL), b"\x80", 0.0)
    assert connection.receive(answer(int(Type.CHUNK), sync, {Key.DATA: []}), 0.0) == []
    assert connection.receive(answer(0, sync), 0.0) == [Answered(sync, 0, b"", 7)]


def test_closed_connection_ignores_watches() -> None:
    """Events of one read may end with `Ended`; the caller still acknowledges those before it."""
    connection = ready()
    connection.watch("box.status")
    data = answer(int(Type.EVENT), 2, {Key.EVENT_KEY: "box.status", Key.EVENT_DATA: 1}) + b"\xa3abc"
    assert [type(event) for event in connection.receive(data, 0.0)] == [Notified, Ended]
    connection.take_output()
    connection.acknowledge("box.status")
    connection.unwatch("box.status")
    assert connection.take_output() == b""


def greeted(answer_max: int = 1 << 16) -> ClientConnection:
    """Return a connection without a user, which is ready after the greeting."""
    connection = ClientConnection(None, answer_max=answer_max)
    (event,) = connection.receive(GREETING)
    assert isinstance(event, Opened)
    assert (connection.state, connection.take_output()) == (ClientConnectionState.READY, b"")
    return connection


def test_stream_delivers_each_packet_and_sends_acknowledgements() -> None:
    connection = ready()
    connection.stream(Type.FETCH_SNAPSHOT, {int(Key.INSTANCE_UUID): UUID})
    assert state_of(connection) is ClientConnectionState.STREAM
    row = answer(int(Type.INSERT), 2, {Key.SPACE_ID: 512})
    error = answer(0x8000 + 5, 2, {Key.ERROR_24: "no"})
    events = connection.receive(row + error)
    assert [(type(event), event.kind) for event in events if isinstance(event, StreamPacket)] == [
        (StreamPacket, Type.INSERT),
        (StreamPacket, 0x8005),
    ]
    connection.stream(Type.OK, {int(Key.VCLOCK): {1: 5}})
    assert [kind for kind, _, _ in sent(connection)] == [Type.FETCH_SNAPSHOT, Type.OK]
    with pytest.raises(AssertionError):
        connection.request(int(Type.SELECT), b"\x80")
    (ended,) = connection.receive(b"\x02\x82\x00")
    assert isinstance(ended, Ended)


@given(st.integers(0, 200))
def test_bytes_after_the_answer_to_a_switch_belong_to_another_protocol(cut: int) -> None:
    connection = greeted()
    connection.switch(80, {1: 2})
    data = answer(0, 1, {3: 4}) + b"\xa3rest"
    events = connection.receive(data[:cut]) if cut else []
    if not events:
        events = connection.receive(data[cut:])
        cut = len(data)
    (switched,) = events
    assert isinstance(switched, Switched)
    assert (switched.kind, switched.body) == (0, msgpack.packb({3: 4}))
    assert switched.rest == b"\xa3rest"[: len(switched.rest)]
    assert state_of(connection) is ClientConnectionState.SWITCHED
    with pytest.raises(AssertionError):
        connection.receive(b"more")


@pytest.mark.parametrize(
    "data",
    [
        b"\xce\xff\xff\xff\xff",
        b"\xce" + (1 << 16).to_bytes(4, "big"),
        b"\xa3",
        b"\x02\xc1\xc1",
        b"",
    ],
)
def test_large_or_invalid_answer_to_a_switch_ends_the_connection(data: bytes) -> None:
    connection = greeted()
    connection.switch(80, {1: 2})
    (event,) = connection.receive(data)
    assert isinstance(event, Ended)
    assert state_of(connection) is ClientConnectionState.CLOSED


def test_answer_larger_than_the_limit_ends_the_connection() -> None:
    connection = greeted(answer_max=1 << 10)
    connection.request(int(Type.SELECT), b"\x80")
    (event,) = connection.receive(answer(0, 1, "x" * 2000))
    assert isinstance(event, Ended)


def test_invalid_bytes_after_the_greeting_end_a_handshake_and_a_feed() -> None:
    connection = ClientConnection(None, 0.0)
    events = connection.receive(GREETING + b"\xc0", 0.0)
    assert [type(event) for event in events] == [Opened, Ended]
    connection.switch(int(Type.HELLO), {})  # the caller has handled the first event only
    connection.stream(int(Type.SUBSCRIBE), {})
    assert connection.take_output() == b""
    feed = Feed.changes("app", "secret", after=0, spaces=())
    assert feed.receive(GREETING) == []
    with pytest.raises(FeedRefused):
        feed.receive(answer(0, 1) + b"\xc0")


def test_feed_that_continues_names_its_cluster() -> None:
    """The index means other rows in another cluster, so that cluster must refuse the feed."""
    feed = Feed.changes("app", "", after=7, spaces=(513, 512), replicaset=UUID)
    feed.receive(GREETING)
    feed.take_output()
    feed.receive(answer(0, 1))
    ((kind, _, _, body),) = FrameDecoder().feed(feed.take_output())
    asked = msgpack.unpackb(body, strict_map_key=False)
    assert kind == Type.SUBSCRIBE
    assert (asked[Key.REPLICASET_UUID], asked[Key.INDEX]) == (UUID, 7)
    assert asked[Key.SPACES] == [512, 513]
