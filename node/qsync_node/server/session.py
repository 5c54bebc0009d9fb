"""Client connections: IPROTO in, requests to the core, answers out (data path).

A connection begins as a client's. A `HELLO` packet with the cluster's proof turns it into a peer's
(`peers.py`). Requests of one turn of the event loop reach the core together, and the answers of a
turn leave in one write. What the core does not need to see is answered here: PING, ID, AUTH, WATCH.

Limits (what a stranger can send): the size of a packet, the number of connections, the requests in
flight on one connection and the bytes of answers that nobody reads.
"""

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

from qsync_node.core import effects as fx
from qsync_node.core.keys import check_key
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.auth import EMPTY_HASH, is_valid
from qsync_node.format.frame import (
    MALFORMED,
    MALFORMED_HEADER_MESSAGE,
    Frame,
    FrameDecoder,
    FrameError,
    encode_answer,
    encode_error,
    encode_ok,
    encode_tuples,
)
from qsync_node.format.greeting import encode_greeting
from qsync_node.format.keys import Type
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer
    from qsync_node.server.peerlink import PeerLink

HELLO = 80
IN_FLIGHT_MAX = 4096
UNREAD_BYTES_MAX = 64 << 20
# What one connection may make us keep before it said who it is; there may be ten thousand.
STRANGER_REQUEST_BYTES_MAX = 2 << 20
WATCHED_KEY_MAX = 256
WATCHED_KEYS_MAX = 1024
DRAINED_BYTES = 1 << 20
# Who is refused for good may still be sending: a reset would take the reason away from it.
LINGER_S = 2.0
LINGER_BYTES_MAX = 64 << 20
CORE_TYPES = frozenset({1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16})
STOCK_TYPES = frozenset({65, 66, 68, 69, 70})
_VOTE, _ACK = 68, 0
PROTOCOL_VERSION = 6
FEATURES = [0, 1, 2, 3, 4, 6, 11]
_SCHEMA_VERSION, _STREAM, _IDEMPOTENCY = 0x05, 0x0A, 0x70
_INSTEAD = {
    int(Type.EVAL): "EVAL is not supported: there is no Lua here; use requests and streams",
    int(Type.EXECUTE): "EXECUTE is not supported: there is no SQL here; use requests and streams",
    int(Type.PREPARE): "PREPARE is not supported: there is no SQL here; use requests and streams",
}
_BAD_CREDENTIALS = "User not found or supplied credentials are invalid"


class Session(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "NodeServer") -> None:
        self.server = server
        self.number = 0
        self.user = "guest"
        self.salt = os.urandom(32)
        self.decoder = FrameDecoder(min(server.config.max_request, STRANGER_REQUEST_BYTES_MAX))
        self.transport: asyncio.Transport | None = None
        self.in_flight = 0
        self.out: list[bytes] = []
        self.peer: PeerLink | None = None
        self.watched: dict[str, int] = {}
        self.is_stock = False  # the connection belongs to a replication stream
        self._owes_drained = False
        self._is_reading = True
        self._is_ending = False
        self._ignored_bytes = 0

    # --- connection -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self.transport = cast(asyncio.Transport, transport)
        server = self.server
        if server.ended.done():
            # A TLS handshake outlived its listener: nobody of this life answers any more.
            self.transport.abort()
            return
        if len(server.sessions) >= server.config.max_connections:
            self.transport.write(
                encode_error(0, 1, ErrorCode.TOO_MANY, "too many connections: close some first")
            )
            self.transport.close()
            return
        self.number = server.add_session(self)
        self.transport.set_write_buffer_limits(high=DRAINED_BYTES)
        self.transport.write(encode_greeting(server.uuid, self.salt))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self.peer.lost()
        elif self.number:
            self.server.remove_session(self)

    def pause_writing(self) -> None:
        """Nobody reads our answers: read no more requests either (back-pressure)."""
        self._pause_reading()

    def resume_writing(self) -> None:
        if self._owes_drained:
            self._owes_drained = False
            self.server.feed(fx.StockDrained(self.number))
        self._consider_reading()

    def _pause_reading(self) -> None:
        if self._is_reading and self.transport is not None:
            self._is_reading = False
            self.transport.pause_reading()

    def _consider_reading(self) -> None:
        transport = self.transport
        if self._is_reading or transport is None or transport.is_closing():
            return
        if self.in_flight < IN_FLIGHT_MAX // 2 and transport.get_write_buffer_size() < 1 << 20:
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
            self._take(error.frames)
            self._write(encode_error(0, self._schema_version(), error.code, error.why))
            self._end()
            return
        self._take(frames)

    def _end(self) -> None:
        """Say no more and close, but not before the other side could read why.

        Closing while bytes lie unread makes the kernel reset the connection, and a reset throws
        away what the other side has not read yet.
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
        self.server.loop.call_later(LINGER_S, transport.close)

    def _ignore(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.close()

    def _speaking(self) -> asyncio.Transport | None:
        """The transport, as long as anything may be written to it."""
        transport = self.transport
        if transport is None or self._is_ending or transport.is_closing():
            return None
        return transport

    def _schema_version(self) -> int:
        return self.server.node.database.schema_version

    def _take(self, frames: list[Frame]) -> None:
        feed = self.server.feed
        for position, (kind, sync, header, body) in enumerate(frames):
            if kind in STOCK_TYPES or self.is_stock:
                self._take_stock(kind, sync, body)
            elif kind in CORE_TYPES:
                if self._is_other_schema(header, sync) or self._is_bad_key(header, sync):
                    continue
                self.in_flight += 1
                feed(
                    fx.Request(
                        self.number,
                        sync,
                        kind,
                        body,
                        header.get(_STREAM, 0),
                        self.user,
                        header.get(_IDEMPOTENCY),
                    )
                )
            elif kind == HELLO:
                rest = b"".join(frame[3] for frame in frames[position + 1 :])
                if rest:
                    self._refuse(sync, ErrorCode.PROTOCOL, "a HELLO is the last client packet")
                self._hello(sync, body)
                return
            else:
                self._answer_here(kind, sync, header, body)
        if self.in_flight >= IN_FLIGHT_MAX:
            self._pause_reading()

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
        """Whether the header had a malformed idempotency key, and was refused for it (T9)."""
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
        """From its first replication request on a connection is nothing else."""
        if kind not in STOCK_TYPES and kind != _ACK:
            self._refuse(sync, ErrorCode.PROTOCOL, "this connection is a replication stream")
            self._end()
            return
        self.is_stock = self.is_stock or kind != _VOTE
        self.server.feed(fx.StockRequest(self.number, sync, kind, body, self.user))

    def send_stock(self, effect: fx.StockPackets) -> None:
        """Packets of a stream; the core sends the next when these have left."""
        transport = self._speaking()
        if transport is None:
            return
        transport.write(b"".join(effect.packets))
        if effect.is_last:
            self._end()
        elif effect.tell_drained:
            if transport.get_write_buffer_size() <= DRAINED_BYTES:
                self.server.feed(fx.StockDrained(self.number))
            else:
                self._owes_drained = True

    # --- answers --------------------------------------------------------------------------------

    def answer(self, answer: fx.Answer) -> None:
        """One answer of the core; it leaves with the others of this turn."""
        self.in_flight -= 1
        if answer.code:
            self.out.append(
                encode_error(answer.sync, self._schema_version(), answer.code, answer.reason)
            )
        else:
            self.out.append(
                encode_tuples(answer.sync, self._schema_version(), answer.tuples, answer.position)
            )

    def flush(self) -> None:
        """Write what this turn answered, at once."""
        out, self.out = self.out, []
        transport = self._speaking()
        if transport is None:
            return
        transport.write(b"".join(out) if len(out) > 1 else out[0])
        if transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            # Answers that nobody reads must not fill the memory.
            transport.abort()
            return
        if not self._is_reading:
            self._consider_reading()

    def _write(self, data: bytes) -> None:
        transport = self._speaking()
        if transport is not None:
            transport.write(data)

    def _refuse(self, sync: int, code: int, reason: str) -> None:
        self._write(encode_error(sync, self._schema_version(), int(code), reason))

    # --- what is answered here --------------------------------------------------------------------

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
        """The body's map, or None after an error 20."""
        try:
            fields = unpack(body)
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
        node = self.server.node
        if not node.replica.has_origin:
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
        user = node.database.user_by_name(name)
        stored = user.password_hash if user is not None else None
        if stored in (None, EMPTY_HASH) and not proof and name == "guest":
            self.user = name
        elif (
            stored is None
            or len(proof) < 2
            or proof[0] != "chap-sha1"
            or not is_valid(proof[1], self.salt, stored)
        ):
            self._refuse(sync, ErrorCode.PASSWORD_MISMATCH, _BAD_CREDENTIALS)
            return
        assert user is not None
        try:
            # Not before the password was right: a stranger learns nothing about users.
            user.check_session()
        except ClientError as error:
            self._refuse(sync, error.code, error.message)
            return
        self.user = name
        if name != "guest":
            self.decoder.limit_bytes = self.server.config.max_request
        self._write(encode_ok(sync, self._schema_version()))

    # --- watchers -------------------------------------------------------------------------------

    def _watch(self, kind: int, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None:
            return
        key = fields.get(0x57)
        if not isinstance(key, str) or len(key) > WATCHED_KEY_MAX:
            self._refuse(sync, ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")
        elif kind == Type.WATCH_ONCE:
            value = self.server.event_value(key)
            self._write(
                encode_tuples(sync, self._schema_version(), [] if value is None else [value])
            )
        elif kind == Type.UNWATCH:
            self.watched.pop(key, None)
        else:
            # A WATCH of a key that is watched acknowledges its last event.
            first = key not in self.watched
            if first and len(self.watched) >= WATCHED_KEYS_MAX:
                self._refuse(sync, ErrorCode.TOO_MANY, "too many keys are watched: unwatch some")
                return
            self.watched[key] = sync
            self.server.watch(self, key, is_first=first)

    def notify(self, key: str, value: bytes | None) -> None:
        """One event; the next of this key only after the client has acknowledged it."""
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
        self.server.peers.accept(self, sync, fields)
