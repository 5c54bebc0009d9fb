"""Client connections: IPROTO in, requests to the core, answers out (data path).

Every connection begins as a client connection. A `HELLO` packet with the cluster's proof turns it
into a peer connection (`peers.py`). Requests of one turn of the event loop reach the core together,
and the answers of a turn leave in one write. Requests that do not need the core are answered here:
PING, ID, AUTH, WATCH.

The resources of a connection are bounded (`admission.py` bounds all connections together):

  before log-in   `LOGIN_S` seconds, and packets of at most `UNAUTHENTICATED_BYTES_MAX`. If
                  `guest` is off, also at most `UNAUTHENTICATED_PACKETS_MAX` packets, of the types
                  that precede a log-in. The answer to each failed log-in is delayed.
  requests        `IN_FLIGHT_MAX` requests and `REQUEST_BYTES_MAX` bytes that await their answer.
  answers         `UNREAD_BYTES_MAX` bytes that the client has not read. Above that, its requests
                  are neither executed nor read from the socket until less than half remains.
"""

import asyncio
import os
from collections import deque
from typing import Any, cast

from qsync_client.protocol.auth import EMPTY_HASH, is_valid
from qsync_client.protocol.frame import (
    MALFORMED,
    MALFORMED_HEADER_MESSAGE,
    Frame,
    FrameDecoder,
    FrameError,
)
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.consensus import effects as fx
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.frame import (
    encode_answer,
    encode_committed,
    encode_error,
    encode_ok,
    encode_tuples,
)
from qsync_node.format.keys import Type
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack_bounded
from qsync_node.format.proofs import marked_challenge
from qsync_node.peering.handshake import HELLO
from qsync_node.server.services import Peer, Services
from qsync_node.transactions.idempotency import check_key

IN_FLIGHT_MAX = 4096
REQUEST_BYTES_MAX = 4 << 20
UNREAD_BYTES_MAX = 1 << 20
LOGIN_S = 10.0
LOGIN_DELAY_S = 0.5
LOGIN_FAILURES_MAX = 3
UNAUTHENTICATED_BYTES_MAX = 16 << 10
UNAUTHENTICATED_PACKETS_MAX = 64
WATCHED_KEY_MAX = 256
WATCHED_KEYS_MAX = 1024
DRAINED_BYTES = 1 << 20
PACKETS_PER_CHECK = 32
REQUEST_OVERHEAD_BYTES = 256
# A refused client may still be sending. A reset would discard the reason for the refusal.
LINGER_S = 2.0
LINGER_BYTES_MAX = 64 << 20
UNAUTHENTICATED_TYPES = frozenset(
    {
        int(Type.PING),
        int(Type.ID),
        int(Type.AUTH),
        HELLO,
        68,  # VOTE: sent by a Tarantool replica before it logs in
    }
)
CORE_TYPES = frozenset({1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16})
STOCK_TYPES = frozenset({65, 66, 68, 69, 70})
_VOTE, _ACK = 68, 0
PROTOCOL_VERSION = 6
FEATURES = [0, 1, 2, 3, 4, 6, 11]
_SCHEMA_VERSION, _STREAM, _IDEMPOTENCY = 0x05, 0x0A, 0x70
_INSTEAD = {
    int(Type.EVAL): "EVAL is not supported: Qsync has no Lua; use requests and streams",
    int(Type.EXECUTE): "EXECUTE is not supported: Qsync has no SQL; use requests and streams",
    int(Type.PREPARE): "PREPARE is not supported: Qsync has no SQL; use requests and streams",
}
_BAD_CREDENTIALS = "User not found or supplied credentials are invalid"


class Session(asyncio.Protocol):
    """One client connection."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.number = 0
        self.user = "guest"
        self.salt = os.urandom(32)
        self.decoder = FrameDecoder(min(services.config.max_request, UNAUTHENTICATED_BYTES_MAX))
        self.transport: asyncio.Transport | None = None
        self.binding = b""  # of this TLS connection; empty without TLS
        self.is_member = False  # the client presented a certificate of the cluster
        self.calls: dict[int, fx.Request] = {}  # requests in the core, by the number passed to it
        self.syncs: dict[int, int] = {}  # the client's number of each request
        self._next_call = 1
        self.request_bytes = 0  # size of calls and backlog
        self.backlog: deque[Frame] = deque()  # packets that wait for the budget
        self.deferred: deque[fx.Request] = deque()  # reads that the core returned
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.peer: Peer | None = None
        self.watched: dict[str, int] = {}
        self.unacknowledged: set[str] = set()  # watched keys with an unacknowledged event
        self.is_authenticated = False
        self.is_stock = False  # the connection belongs to a replication stream
        self._has_used_guest = False
        self._packets = 0  # before log-in
        self._login_timer: asyncio.TimerHandle | None = None
        self._login_failures = 0
        self._is_held = False  # the answer to a failed log-in is delayed
        self._owes_drained = False
        self._is_reading = True
        self._is_ending = False
        self._ignored_bytes = 0

    # --- connection -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self.transport = cast(asyncio.Transport, transport)
        services = self.services
        if services.is_ended():
            # A TLS handshake outlived its listener: this process run no longer answers.
            self.transport.abort()
            return
        if services.certificates is not None and self.transport.get_extra_info("ssl_object"):
            self.binding = services.certificates.binding
            self.is_member = services.certificates.is_member(self.transport)
        if self.is_member:
            self.salt = marked_challenge(services.config.secret)
        self.number = services.sessions.add(self)
        self.transport.set_write_buffer_limits(high=UNAUTHENTICATED_BYTES_MAX)
        self.transport.write(encode_greeting(services.uuid, self.salt))
        self._login_timer = services.loop.call_later(LOGIN_S, self._check_log_in)

    def _check_log_in(self) -> None:
        """Close the connection if it has neither logged in nor sent a request as guest."""
        if self.is_authenticated or self._has_used_guest or self.is_stock or self.peer is not None:
            return
        transport = self._speaking()
        if transport is not None:
            reason = (
                f"log-in failed: no request arrived within {LOGIN_S:.0f} s; connect again "
                "and log in immediately"
            )
            transport.write(encode_error(0, self._schema_version(), ErrorCode.TIMEOUT, reason))
            transport.close()

    def peer_name(self) -> str:
        """Return HOST:PORT of the client."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    def evict(self) -> None:
        """Close the connection immediately, to free resources for others."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()  # it would keep the session in memory
        if self.peer is not None:
            self.peer.lost()
        elif self.number:
            self._drop_backlog()
            self.deferred.clear()
            self._hold_bytes(-self.request_bytes)
            self.services.sessions.remove(self)

    def pause_writing(self) -> None:
        """Stop reading requests: the client does not read its answers (back-pressure)."""
        self._pause_reading()

    def resume_writing(self) -> None:
        if self._owes_drained:
            self._owes_drained = False
            self.services.feed(fx.StockDrained(self.number))
        self.services.sessions.admission.set_unread(self.number, self.unread_bytes())
        self.work()

    def unread_bytes(self) -> int:
        """Return the number of bytes of unread answers, without the kernel's buffers."""
        assert self.transport is not None
        return self.out_bytes + self.transport.get_write_buffer_size()

    def _is_blocked(self) -> bool:
        """Return whether the next request must wait for the budget or a delayed log-in answer."""
        return (
            self._is_held
            or len(self.calls) >= IN_FLIGHT_MAX
            or self.unread_bytes() >= UNREAD_BYTES_MAX
        )

    def _pause_reading(self) -> None:
        if self._is_reading and self.transport is not None:
            self._is_reading = False
            self.transport.pause_reading()

    def _consider_reading(self) -> None:
        """Resume reading from the socket if the budget permits it."""
        transport = self.transport
        if self._is_reading or transport is None or transport.is_closing() or self._is_held:
            return
        has_room = (
            not self.backlog
            and not self.deferred
            and len(self.calls) < IN_FLIGHT_MAX // 2
            and self.request_bytes < REQUEST_BYTES_MAX // 2
            and self.unread_bytes() < UNREAD_BYTES_MAX // 2
        )
        if has_room and self.services.sessions.may_read(self):
            self._is_reading = True
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            self._ignore(data)
            return
        if self.peer is not None:
            self.peer.feed(data)
            return
        try:
            frames = self.decoder.feed(data)
        except FrameError as error:
            self._queue(error.frames)
            self._write(encode_error(0, self._schema_version(), error.code, error.why))
            self._end()
            return
        self._queue(frames)

    def _queue(self, frames: list[Frame]) -> None:
        self.backlog.extend(frames)
        self._hold_bytes(sum(len(frame[3]) + REQUEST_OVERHEAD_BYTES for frame in frames))
        self.work()

    def _hold_bytes(self, size: int) -> None:
        self.request_bytes += size
        self.services.sessions.requests.add(size)

    def _drop_backlog(self) -> None:
        for frame in self.backlog:
            self._hold_bytes(-len(frame[3]) - REQUEST_OVERHEAD_BYTES)
        self.backlog.clear()

    def work(self) -> None:
        """Handle the packets that the budget permits. If others remain, stop reading the socket."""
        if self._speaking() is None:
            return
        if self.deferred and not self._is_blocked():
            # One per turn: the core returned it because the reads of a turn have a budget.
            self.services.feed(self.deferred.popleft())
        unchecked = 0
        while self.backlog and not self.deferred and not self._is_held:
            if not unchecked:
                if self._is_blocked():
                    break
                unchecked = PACKETS_PER_CHECK
            unchecked -= 1
            frame = self.backlog.popleft()
            if not self._take(frame):
                self._hold_bytes(-len(frame[3]) - REQUEST_OVERHEAD_BYTES)
                if self.peer is not None or self._is_ending:
                    return
        if self.backlog or self.deferred or self.request_bytes >= REQUEST_BYTES_MAX:
            self._pause_reading()
            if self.deferred and not self._is_blocked():
                self.services.sessions.note_ready(self)
        elif not self.services.sessions.may_read(self):
            self._pause_reading()
        else:
            self._consider_reading()

    def _end(self) -> None:
        """Close the connection, with time for the client to read the last answer.

        Closing with unread bytes makes the kernel reset the connection, and a reset discards data
        that the client has not read yet.
        """
        transport = self._speaking()
        if transport is None:
            return
        self._is_ending = True
        if transport.can_write_eof():
            transport.write_eof()
        if not self._is_reading:
            self._is_reading = True
            transport.resume_reading()
        self.services.loop.call_later(LINGER_S, transport.close)

    def _ignore(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.close()

    def _speaking(self) -> asyncio.Transport | None:
        """Return the transport while it accepts data."""
        transport = self.transport
        if transport is None or self._is_ending or transport.is_closing():
            return None
        return transport

    def _schema_version(self) -> int:
        return self.services.node.database.schema_version

    def _take(self, frame: Frame) -> bool:
        """Handle one packet. Return True if it is a request that the core answers later."""
        kind, sync, header, body = frame
        if not self.is_authenticated and not self._may_say(kind, sync):
            return False
        if kind in STOCK_TYPES or self.is_stock:
            self._take_stock(kind, sync, body)
        elif kind in CORE_TYPES:
            if self._is_other_schema(header, sync) or self._is_bad_key(header, sync):
                return False
            number = self._next_call
            self._next_call += 1
            request = fx.Request(
                self.number,
                number,
                kind,
                body,
                header.get(_STREAM, 0),
                self.user,
                header.get(_IDEMPOTENCY),
            )
            self.calls[number] = request
            self.syncs[number] = sync
            self.services.feed(request)
            return True
        elif kind == HELLO:
            if self.backlog:
                self._drop_backlog()
                self._refuse(
                    sync,
                    ErrorCode.PROTOCOL,
                    "HELLO refused: it must be the last client packet of the connection",
                )
            self._hello(sync, body)
        else:
            self._answer_here(kind, sync, header, body)
        return False

    def _may_say(self, kind: int, sync: int) -> bool:
        """Return whether an unauthenticated client may send this packet; if not, refuse it."""
        self._packets += 1
        if kind in UNAUTHENTICATED_TYPES:
            if self.services.config.guest or self._packets <= UNAUTHENTICATED_PACKETS_MAX:
                return True
            self._refuse(
                sync, ErrorCode.TOO_MANY, "too many packets arrived before log-in: log in first"
            )
            self._end()
            return False
        # The operator watches with a certificate, even before any user can log in.
        is_watch = kind in (Type.WATCH, Type.UNWATCH) and self.is_member
        if self.services.config.guest or is_watch:
            self._has_used_guest = True
            return True
        self._refuse(
            sync, ErrorCode.ACCESS_DENIED, "access denied: guest is off; log in before any request"
        )
        if self._packets > UNAUTHENTICATED_PACKETS_MAX:
            self._end()
        return False

    def _is_other_schema(self, header: dict[int, Any], sync: int) -> bool:
        wanted = header.get(_SCHEMA_VERSION, 0)
        current = self._schema_version()
        if not wanted or wanted == current:
            return False
        self._refuse(
            sync,
            ErrorCode.WRONG_SCHEMA_VERSION,
            f"Wrong schema version, current: {current}, in request: {wanted}",
        )
        return True

    def _is_bad_key(self, header: dict[int, Any], sync: int) -> bool:
        """Return whether the header contains a malformed idempotency key; if so, refuse it (T9)."""
        if _IDEMPOTENCY not in header:
            return False
        try:
            check_key(header[_IDEMPOTENCY])
        except ClientError as error:
            self._refuse(sync, error.code, error.message)
            return True
        return False

    # --- replication streams ----------------------------------------------------------------------

    def _take_stock(self, kind: int, sync: int, body: bytes) -> None:
        """Handle a replication request. The first one dedicates the connection to a stream."""
        if kind not in STOCK_TYPES and kind != _ACK:
            self._refuse(
                sync,
                ErrorCode.PROTOCOL,
                "the request is not allowed: the connection is a replication stream",
            )
            self._end()
            return
        self.is_stock = self.is_stock or kind != _VOTE
        self.services.feed(fx.StockRequest(self.number, sync, kind, body, self.user))

    def send_stock(self, effect: fx.StockPackets) -> None:
        """Send packets of a stream. The core sends more once the connection has taken these."""
        transport = self._speaking()
        if transport is None:
            return
        transport.write(b"".join(effect.packets))
        if effect.is_last:
            self._end()
        elif effect.tell_drained:
            if transport.get_write_buffer_size() <= DRAINED_BYTES:
                self.services.feed(fx.StockDrained(self.number))
            else:
                self._owes_drained = True

    # --- answers --------------------------------------------------------------------------------

    def answer(self, answer: fx.Answer) -> None:
        """Add one answer of the core to the answers of this turn."""
        request = self.calls.pop(answer.sync)
        sync = self.syncs.pop(answer.sync)
        self._hold_bytes(-len(request.body) - REQUEST_OVERHEAD_BYTES)
        if answer.code:
            data = encode_error(sync, self._schema_version(), answer.code, answer.reason)
        elif request.key is not None and answer.log_index:
            data = encode_committed(sync, self._schema_version(), answer.tuples, answer.log_index)
        else:
            data = encode_tuples(sync, self._schema_version(), answer.tuples, answer.position)
        self.out.append(data)
        self.out_bytes += len(data)

    def defer(self, number: int) -> None:
        """Queue, for a later turn, a read that the core did not execute."""
        self.deferred.append(self.calls[number])
        self.services.sessions.note_ready(self)

    def flush(self) -> None:
        """Write the answers of this turn, and resume requests that waited for them."""
        out, self.out, self.out_bytes = self.out, [], 0
        transport = self._speaking()
        if transport is None:
            return
        transport.write(b"".join(out) if len(out) > 1 else out[0])
        self.services.sessions.admission.set_unread(self.number, transport.get_write_buffer_size())
        if self.backlog or self.deferred or not self._is_reading:
            self.work()

    def _write(self, data: bytes) -> None:
        transport = self._speaking()
        if transport is not None:
            transport.write(data)

    def _refuse(self, sync: int, code: int, reason: str) -> None:
        self._write(encode_error(sync, self._schema_version(), int(code), reason))

    # --- requests without the core ----------------------------------------------------------------

    def _answer_here(self, kind: int, sync: int, header: dict[int, Any], body: bytes) -> None:
        if kind == Type.PING:
            if not body or self._fields(sync, body) is not None:
                self._write(encode_ok(sync, self._schema_version()))
        elif kind == Type.AUTH:
            self._authenticate(sync, body)
        elif kind == Type.ID:
            fields = {0x54: PROTOCOL_VERSION, 0x55: FEATURES, 0x5B: "chap-sha1"}
            self._write(encode_ok(sync, self._schema_version(), pack(fields)))
        elif kind in (Type.WATCH, Type.UNWATCH, Type.WATCH_ONCE):
            self._watch(kind, sync, body)
        elif kind == MALFORMED:
            self._refuse(sync, ErrorCode.INVALID_MSGPACK, MALFORMED_HEADER_MESSAGE)
        elif kind in _INSTEAD:
            self._refuse(sync, ErrorCode.UNSUPPORTED, _INSTEAD[kind])
        else:
            self._refuse(sync, ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {kind}")

    def _fields(self, sync: int, body: bytes) -> dict[int, Any] | None:
        """Return the map in a body. If it is invalid, answer with error 20 and return None."""
        try:
            fields = unpack_bounded(body)
        except BAD_MSGPACK:
            fields = None
        if not isinstance(fields, dict):
            self._refuse(sync, ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")
            return None
        return fields

    def _authenticate(self, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None:
            return
        node = self.services.node
        if not node.context.has_origin:
            self._refuse(sync, ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
            return
        name, proof = fields.get(0x23), fields.get(0x21)
        if not isinstance(name, str) or not isinstance(proof, list):
            missing = "tuple" if isinstance(name, str) else "user name"
            self._refuse(
                sync,
                ErrorCode.MISSING_REQUEST_FIELD,
                f"Missing mandatory field '{missing}' in request",
            )
            return
        if self._login_failures >= LOGIN_FAILURES_MAX:
            return
        user = node.database.user_by_name(name)
        stored = user.password_hash if user is not None else None
        if name == "guest" and stored in (None, EMPTY_HASH) and not proof:
            if not self.services.config.guest:
                self._refuse(
                    sync,
                    ErrorCode.ACCESS_DENIED,
                    "log-in as guest failed: guest is off; log in as another user",
                )
                return
        elif (
            stored is None
            or len(proof) < 2
            or proof[0] != "chap-sha1"
            or not is_valid(proof[1], self.salt, stored)
        ):
            self._fail_log_in(sync, name)
            return
        assert user is not None
        try:
            # Only after a correct password: an unauthenticated client learns nothing about users.
            user.check_session()
        except ClientError as error:
            self._refuse(sync, error.code, error.message)
            return
        if name != "guest" and not self.services.sessions.admission.log_in(self.number, name):
            reason = (
                "log-in failed: too many connections are open; close some first, or raise "
                "max_connections"
            )
            self._refuse(sync, ErrorCode.TOO_MANY, reason)
            self._end()
            return
        self.user = name
        if name != "guest":
            self.is_authenticated = True
            self.decoder.limit_bytes = self.services.config.max_request
            if self.transport is not None:
                # Below `UNREAD_BYTES_MAX`: `resume_writing` must end a pause caused by that limit.
                self.transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX // 2)
        self._write(encode_ok(sync, self._schema_version()))

    def _fail_log_in(self, sync: int, name: str) -> None:
        """Delay the answer, and stop reading until then: each guess costs `LOGIN_DELAY_S`."""
        self._login_failures += 1
        self.services.sessions.note_failed_log_in(self, name)
        self._is_held = True
        self._pause_reading()
        self.services.loop.call_later(LOGIN_DELAY_S, self._answer_failed_log_in, sync)

    def _answer_failed_log_in(self, sync: int) -> None:
        self._is_held = False
        self._refuse(sync, ErrorCode.PASSWORD_MISMATCH, _BAD_CREDENTIALS)
        if self._login_failures >= LOGIN_FAILURES_MAX:
            self._end()
        else:
            self.work()

    # --- watchers -------------------------------------------------------------------------------

    def _watch(self, kind: int, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None:
            return
        key = fields.get(0x57)
        if not isinstance(key, str) or len(key) > WATCHED_KEY_MAX:
            self._refuse(sync, ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")
        elif kind == Type.WATCH_ONCE:
            value = self.services.watchers.value_of(key)
            self._write(
                encode_tuples(sync, self._schema_version(), [] if value is None else [value])
            )
        elif kind == Type.UNWATCH:
            self.watched.pop(key, None)
        else:
            # A WATCH of an already watched key acknowledges its last event.
            first = key not in self.watched
            if first and len(self.watched) >= WATCHED_KEYS_MAX:
                self._refuse(
                    sync,
                    ErrorCode.TOO_MANY,
                    "the key cannot be watched: too many keys are watched; unwatch some first",
                )
                return
            self.watched[key] = sync
            self.services.watchers.watch(self, key, is_first=first)

    def notify(self, key: str, value: bytes | None) -> None:
        """Send one event. The next one for this key waits for the client's acknowledgement."""
        sync = self.watched.get(key, 0)
        body = pack({0x57: key})
        if value is not None:
            body = b"\x82" + body[1:] + b"\x58" + value
        self._write(encode_answer(int(Type.EVENT), sync, self._schema_version(), body))

    # --- peers ----------------------------------------------------------------------------------

    def _hello(self, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None or self.transport is None:
            return
        self.services.accept(self, sync, fields)
