"""The socket of a client connection, with a transport and a node that do nothing."""

import asyncio
import io
import itertools
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import error_code
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder, encode_request
from qsync_client.protocol.greeting import GREETING_BYTES
from qsync_node.consensus import effects as fx
from qsync_node.format.mp import pack
from qsync_node.peering.handshake import HELLO
from qsync_node.server.admission import (
    ADMIN_RESERVE,
    REQUESTS_TOTAL_BYTES_MAX,
    UNAUTHENTICATED_MAX,
    UNREAD_TOTAL_BYTES_MAX,
    Admission,
)
from qsync_node.server.bounds import REQUEST_BYTES_MAX, ConnectionBounds
from qsync_node.server.connection import ServerConnectionState
from qsync_node.server.logs import Log
from qsync_node.server.services import Services
from qsync_node.server.session import DRAINED_BYTES, LINGER_BYTES_MAX, ServerSession
from qsync_node.server.sessions import Sessions
from qsync_node.server.timings import Timings

UUID = "11111111-1111-4111-8111-111111111111"


class SessionWire(asyncio.Transport):
    """A transport that keeps the output, with an adjustable number of unsent bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.output = b""
        self.unsent = 0
        self.is_reading_paused = False
        self.is_aborted = False
        self.is_closed = False
        self.unsent_after_write: int | None = None

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self.output += data
        if self.unsent_after_write is not None:
            self.unsent = self.unsent_after_write

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keep no limits: a test calls `pause_writing`."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False


class SessionPeer:
    """The link that a connection becomes."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False

    def feed(self, data: bytes) -> None:
        self.received += data

    def lost(self) -> None:
        self.is_lost = True


class SessionBench:
    """A session that has sent its greeting; `inputs` are those of the node."""

    def __init__(self, is_ended: bool = False) -> None:
        self.inputs: list[Any] = []
        self.peer = SessionPeer()
        self.wire = SessionWire()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        nothing = SimpleNamespace(cancel=lambda: None)

        def call_later(
            delay_s: float, what: Callable[..., None], *arguments: object
        ) -> SimpleNamespace:
            self.timers.append((delay_s, partial(what, *arguments)))
            return nothing

        log = Log("n0", "error", io.StringIO())
        self.sessions = Sessions(itertools.count(1), 100, self.inputs.append, lambda: None, log)
        stub: Any = SimpleNamespace(
            config=SimpleNamespace(max_request=1 << 20, guest=True, secret="secret"),
            uuid=UUID,
            loop=SimpleNamespace(call_later=call_later),
            node=SimpleNamespace(
                schema_version=1,
                context=SimpleNamespace(has_origin=True),
                database=SimpleNamespace(user_by_name=lambda name: None),
            ),
            bounds=ConnectionBounds(),
            feed=self.inputs.append,
            sessions=self.sessions,
            watchers=None,
            certificates=None,
            timings=Timings(),
            is_ended=lambda: is_ended,
            accept=self._accept,
        )
        self._services: Services = stub
        self.session = self.connect(self.wire)
        if is_ended:
            return
        assert len(self.wire.output) == GREETING_BYTES
        self.wire.output = b""

    def connect(self, wire: SessionWire) -> ServerSession:
        """Return a further session of the same node."""
        session = ServerSession(self._services)
        session.connection_made(wire)
        return session

    def _accept(self, session: ServerSession, sync: int, fields: dict[int, Any]) -> None:
        self.sessions.remove(session)
        session.become_peer(self.peer)

    def codes(self) -> list[int]:
        """Return the codes of the answers so far."""
        frames = FrameDecoder().feed(self.wire.output)
        self.wire.output = b""
        return [error_code(kind) for kind, _, _, _ in frames]


HELLO_PACKET = encode_request(HELLO, 1, pack({Key.INSTANCE_UUID: UUID}))


def test_link_is_read_while_data_waits_to_be_sent_on_it() -> None:
    bench = SessionBench()
    bench.session.data_received(HELLO_PACKET)
    bench.wire.unsent = 1 << 20
    bench.session.pause_writing()
    assert not bench.wire.is_reading_paused
    bench.session.data_received(b"a message")
    assert bench.peer.received == b"a message"
    bench.session.resume_writing()
    assert bench.sessions.admission.unread_sessions() == []
    bench.session.connection_lost(None)
    assert bench.peer.is_lost


def test_client_is_not_read_while_answers_wait_for_it() -> None:
    bench = SessionBench()
    bench.wire.unsent = 1 << 20
    bench.session.pause_writing()
    assert bench.wire.is_reading_paused
    bench.wire.unsent = 0
    bench.session.resume_writing()
    assert not bench.wire.is_reading_paused


def test_hello_that_is_followed_by_other_packets_is_refused() -> None:
    bench = SessionBench()
    bench.session.data_received(HELLO_PACKET + encode_request(Type.PING, 2))
    assert bench.codes() == [ErrorCode.PROTOCOL]
    assert bench.session.peer is None
    bench.session.data_received(encode_request(Type.PING, 3))
    assert bench.codes() == [0]


@pytest.mark.parametrize("becomes_link", [True, False])
def test_requests_of_a_lost_connection_leave_the_common_budget(becomes_link: bool) -> None:
    bench = SessionBench()
    body = pack({Key.SPACE_ID: 512, Key.TUPLE: [1]})
    bench.session.data_received(encode_request(Type.INSERT, 1, body))
    assert bench.sessions.requests.total > 0
    if becomes_link:
        bench.session.data_received(HELLO_PACKET)
    bench.session.connection_lost(None)
    assert bench.sessions.requests.total == 0


# --- bounds ---------------------------------------------------------------------------------------


def test_unread_answers_of_requests_that_the_node_does_not_see_count() -> None:
    bench = SessionBench()
    bench.wire.unsent = 900_000
    bench.session.data_received(encode_request(Type.PING, 1))
    assert bench.sessions.admission.unread_sessions() == [bench.session.number]


def test_client_with_most_unread_answers_is_closed_above_the_budget() -> None:
    bench = SessionBench()
    other = 1 << 30
    bench.sessions.set_unread(other, UNREAD_TOTAL_BYTES_MAX)
    bench.sessions.flush()
    assert not bench.wire.is_aborted
    bench.wire.unsent_after_write = UNREAD_TOTAL_BYTES_MAX + 1
    bench.session.data_received(encode_request(Type.PING, 1))
    bench.sessions.flush()
    assert bench.wire.is_aborted


def test_only_the_client_with_most_unread_answers_is_closed() -> None:
    """The connection is lost only later, when the event loop calls."""
    bench = SessionBench()
    wire = SessionWire()
    other = bench.connect(wire)
    bench.wire.unsent_after_write = UNREAD_TOTAL_BYTES_MAX
    wire.unsent_after_write = 1_000
    for session in (bench.session, other):
        session.data_received(encode_request(Type.PING, 1))
    bench.sessions.flush()
    assert bench.wire.is_aborted
    assert not wire.is_aborted
    bench.session.connection_lost(None)
    bench.sessions.flush()
    assert not wire.is_aborted


def test_client_that_has_read_its_answers_meanwhile_is_not_closed() -> None:
    """The transport reports an empty buffer only to connections that it had paused."""
    bench = SessionBench()
    bench.wire.unsent_after_write = UNREAD_TOTAL_BYTES_MAX + 1
    bench.session.data_received(encode_request(Type.PING, 1))
    bench.wire.unsent = 0
    bench.sessions.flush()
    assert not bench.wire.is_aborted
    assert not bench.sessions.admission.is_over_unread_budget()


def test_oldest_connection_without_a_log_in_is_replaced() -> None:
    bench = SessionBench()
    others = [SessionWire() for _ in range(UNAUTHENTICATED_MAX)]
    for wire in others[:-1]:
        bench.connect(wire)
    assert not bench.wire.is_aborted
    bench.connect(others[-1])
    assert bench.wire.is_aborted
    assert not any(wire.is_aborted for wire in others)


def test_client_with_large_requests_is_read_again_once_they_are_answered() -> None:
    """No packet waits then: nothing else would resume its socket."""
    bench = SessionBench()
    body = pack({Key.SPACE_ID: 512, Key.TUPLE: [b"x" * (REQUEST_BYTES_MAX // 4)]})
    session = bench.session
    session.connection.log_in("app", 2 * REQUEST_BYTES_MAX)
    bench.session.data_received(encode_request(Type.INSERT, 1, body) * 4)
    assert bench.wire.is_reading_paused
    assert not session.requests.waiting
    for number in sorted(session.requests.running):
        bench.sessions.answer(fx.Answer(session.number, number, 0, "", [], 0))
    bench.sessions.flush()
    assert not bench.wire.is_reading_paused


def test_lines_of_a_console_count_until_they_are_answered() -> None:
    """The node receives a CALL, which is smaller than the EVAL."""
    bench = SessionBench()
    session = bench.session
    session.connection.log_in("app", REQUEST_BYTES_MAX)
    program, unused = 'return require("console").eval(...)', "x" * (REQUEST_BYTES_MAX // 4)
    for sync in range(1, 9):
        body = pack({Key.EXPR: program, Key.TUPLE: ["\\help", unused]})
        session.data_received(encode_request(Type.EVAL, sync, body))
        (number,) = session.requests.running
        assert session.requests.size_bytes < 1_000
        bench.sessions.answer(fx.Answer(session.number, number, 0, "", [], 0))
        bench.sessions.flush()
    assert not bench.wire.is_reading_paused
    assert (session.requests.size_bytes, bench.sessions.requests.total) == (0, 0)


def test_client_that_waits_for_the_common_budget_is_read_again() -> None:
    bench = SessionBench()
    bench.sessions.requests.add(REQUESTS_TOTAL_BYTES_MAX)
    body = pack({Key.SPACE_ID: 512, Key.TUPLE: [1]})
    bench.session.data_received(encode_request(Type.INSERT, 1, body) * 2)
    assert bench.wire.is_reading_paused
    bench.sessions.flush()
    assert bench.wire.is_reading_paused
    bench.sessions.requests.remove(REQUESTS_TOTAL_BYTES_MAX)
    bench.sessions.flush()
    assert not bench.wire.is_reading_paused


def test_link_is_read_although_its_hello_had_to_wait() -> None:
    bench = SessionBench()
    bench.wire.unsent = 1 << 20
    bench.session.data_received(HELLO_PACKET)
    assert bench.wire.is_reading_paused
    bench.wire.unsent = 0
    bench.session.resume_writing()
    assert bench.session.peer is not None
    assert not bench.wire.is_reading_paused


def test_connection_that_ends_is_aborted_after_a_moment() -> None:
    """`close` would wait for a client that does not read."""
    bench = SessionBench()
    bench.timers.clear()
    bench.session.end()
    ((delay_s, end),) = bench.timers
    assert 0 < delay_s <= 10
    end()
    assert bench.wire.is_aborted


def test_connection_that_ends_is_read_again() -> None:
    """Unread bytes would let the kernel reset it, and discard the last answer."""
    bench = SessionBench()
    bench.wire.unsent = 1 << 20
    bench.session.pause_writing()
    assert bench.wire.is_reading_paused
    bench.session.end()
    assert not bench.wire.is_reading_paused


def test_client_that_does_not_stop_sending_after_the_end_is_closed() -> None:
    bench = SessionBench()
    bench.session.end()
    data = bytes(1 << 20)
    for _ in range(LINGER_BYTES_MAX // len(data)):
        bench.session.data_received(data)
    assert not bench.wire.is_closed
    bench.session.data_received(data)
    assert bench.wire.is_closed


def test_packets_after_the_end_of_a_connection_reach_no_node() -> None:
    bench = SessionBench()
    insert = encode_request(Type.INSERT, 2, pack({Key.SPACE_ID: 512, Key.TUPLE: [1]}))
    bench.session.data_received(encode_request(Type.JOIN, 1, pack({})) + insert * 2)
    assert bench.codes() == [ErrorCode.PROTOCOL]
    assert [type(one) for one in bench.inputs] == [fx.TarantoolRequest]


def test_packets_before_an_invalid_one_are_handled() -> None:
    bench = SessionBench()
    bench.session.data_received(encode_request(Type.PING, 1) + b"\xce\xff\xff\xff\xff")
    answered, refused = bench.codes()
    assert answered == 0
    assert refused != 0


def test_client_is_not_read_while_its_refusal_is_delayed() -> None:
    """Each guess of a password costs the delay, and the kernel keeps the next ones."""
    bench = SessionBench()
    bench.timers.clear()
    guess = {Key.USER_NAME: "app", Key.TUPLE: ["chap-sha1", bytes(20)]}
    bench.session.data_received(encode_request(Type.AUTH, 1, pack(guess)))
    assert bench.wire.is_reading_paused
    bench.session.resume_writing()
    assert bench.wire.is_reading_paused, "an answer was read, which ends no delay"
    assert bench.codes() == []
    ((_, refuse),) = bench.timers
    refuse()
    assert bench.codes() == [ErrorCode.PASSWORD_MISMATCH]
    assert not bench.wire.is_reading_paused


def test_stream_continues_once_its_replica_has_read() -> None:
    bench = SessionBench()
    session = bench.session
    session.data_received(encode_request(Type.JOIN, 1, pack({})))
    bench.inputs.clear()
    bench.wire.unsent = DRAINED_BYTES + 1
    session.send_to_tarantool(fx.TarantoolPackets(session.number, [b"x"], True, False))
    assert not bench.inputs
    bench.wire.unsent = 0
    session.resume_writing()
    assert bench.inputs == [fx.TarantoolDrained(session.number)]
    session.resume_writing()
    assert len(bench.inputs) == 1, "the stream was not blocked"


def test_connection_of_a_stream_that_the_node_ends_is_closed() -> None:
    """A replaced stream ends without an error: its replica connects again at the end only."""
    bench = SessionBench()
    bench.session.send_to_tarantool(fx.TarantoolPackets(bench.session.number, [], False, True))
    assert bench.session.connection.state is ServerConnectionState.ENDING
    bench.timers[-1][1]()
    assert bench.wire.is_aborted


def test_connection_to_a_process_run_that_has_ended_is_aborted() -> None:
    """A handshake of TLS may have outlived its listener."""
    bench = SessionBench(is_ended=True)
    assert bench.wire.is_aborted
    assert not len(bench.sessions)


def test_places_of_connections_are_free_again() -> None:
    admission = Admission(1, unauthenticated_max=2)
    for number in range(ADMIN_RESERVE):
        admission.connect(number)
        assert admission.log_in(number, "admin")
    assert admission.log_in(100, "admin")
    assert not admission.log_in(101, "admin")
    admission.close(0)
    assert admission.log_in(101, "admin")
    assert admission.unauthenticated == 0, "a client that has logged in is not replaced"


def test_connection_that_logs_in_again_keeps_its_place() -> None:
    admission = Admission(1)
    for number in range(ADMIN_RESERVE + 1):
        assert admission.log_in(number, "admin")
    for number in range(ADMIN_RESERVE + 1):
        assert admission.log_in(number, "admin")
        assert admission.log_in(number, "app")
    assert not admission.log_in(100, "app")


def test_failed_log_ins_are_reported_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now_s = io.StringIO(), [100.0]
    monkeypatch.setattr("qsync_node.server.sessions.time", SimpleNamespace(monotonic=now_s.pop))
    log = Log("n0", "info", stream)
    sessions = Sessions(itertools.count(1), 100, lambda item: None, lambda: None, log)
    client = SessionBench().session
    for at_s in (100.0, 100.5, 100.6, 102.0, 104.0):
        now_s[:] = [at_s]
        sessions.note_failed_log_in(client, "app")
    counts = [json.loads(line)["count"] for line in stream.getvalue().splitlines()]
    assert counts == [1, 3, 1]
    assert sessions.failed_log_ins == 5
