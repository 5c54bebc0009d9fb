"""Handles the packets of one client connection (data path).

Requests for the database go to the node. So do replication requests, the first of which dedicates
the connection to a stream. A `HELLO` with the cluster's proof turns the connection into a link
between members (`peers.py`). The others are answered here: PING, ID, AUTH, WATCH.
"""

from typing import Any, Final, Protocol

from qsync_client.protocol.auth import MECHANISM
from qsync_client.protocol.constants import FEATURES, PROTOCOL_VERSION, Key, Type
from qsync_client.protocol.frame import MALFORMED, MALFORMED_HEADER_MESSAGE, Frame
from qsync_node.consensus import effects as fx
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.frame import encode_error, encode_ok, encode_tuples
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack_bounded
from qsync_node.peering.handshake import HELLO
from qsync_node.server.connection import (
    GUEST_NAME,
    STREAMING,
    ServerConnection,
    ServerConnectionState,
)
from qsync_node.server.login import LogIn, WrongPassword
from qsync_node.server.requestqueue import RequestQueue
from qsync_node.server.services import Newcomer, Services
from qsync_node.server.watches import WATCHED_KEY_MAX, Watches
from qsync_node.transactions.console import CONSOLE_PROCEDURE, Line, program

NODE_TYPES: Final = frozenset(
    int(one)
    for one in (
        Type.SELECT, Type.INSERT, Type.REPLACE, Type.UPDATE, Type.DELETE, Type.UPSERT,
        Type.CALL, Type.CALL_16, Type.BEGIN, Type.COMMIT, Type.ROLLBACK,
    )
)  # fmt: skip
STREAM_TYPES: Final = frozenset(
    int(one) for one in (Type.JOIN, Type.SUBSCRIBE, Type.VOTE, Type.FETCH_SNAPSHOT, Type.REGISTER)
)
_WATCH_TYPES: Final = frozenset({int(Type.WATCH), int(Type.UNWATCH), int(Type.WATCH_ONCE)})
_VOTE, _ACK = int(Type.VOTE), int(Type.OK)
_SCHEMA_VERSION = int(Key.SCHEMA_VERSION)
_INSTEAD = {
    int(Type.EVAL): "EVAL is not supported: Qsync has no Lua; use requests and streams",
    int(Type.EXECUTE): "EXECUTE is not supported: Qsync has no SQL; use requests and streams",
    int(Type.PREPARE): "PREPARE is not supported: Qsync has no SQL; use requests and streams",
}
_IDENTITY = pack(
    {
        int(Key.VERSION): PROTOCOL_VERSION,
        int(Key.FEATURES): [int(one) for one in FEATURES],
        int(Key.AUTH_TYPE): MECHANISM,
    }
)
_AUTHENTICATED = ServerConnectionState.AUTHENTICATED


class Port(Newcomer, Protocol):
    """The socket of a connection, as the handling of its packets uses it."""

    watches: Watches

    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def note_logged_in(self) -> None: ...
    def delay_refusal(self, sync: int, refusal: WrongPassword) -> None: ...


class Dispatch:
    """The handling of the packets of one connection."""

    def __init__(
        self,
        services: Services,
        connection: ServerConnection,
        log_in: LogIn,
        requests: RequestQueue,
        port: Port,
    ) -> None:
        """Begin without packets.

        Args:
            services: the parts of the node that serve requests.
            connection: the state of the connection.
            log_in: its log-ins.
            requests: its requests.
            port: its socket.
        """
        self._services = services
        self._connection = connection
        self._log_in = log_in
        self._requests = requests
        self._port = port

    def take(self, frame: Frame) -> bool:
        """Handle one packet. Return True if it is a request that the node answers later."""
        kind, sync, header, body = frame
        connection = self._connection
        is_streaming = False
        if connection.state is not _AUTHENTICATED:
            refusal = connection.admit(kind)
            if refusal is not None:
                self.refuse(sync, refusal.code, refusal.reason)
                if refusal.is_last:
                    self._port.end()
                return False
            is_streaming = connection.state in STREAMING
        if is_streaming or kind in STREAM_TYPES:
            self._take_stream(kind, sync, body)
        elif kind in NODE_TYPES:
            if self._is_other_schema(header, sync):
                return False
            request = self._requests.run(self._port.number, connection.user, frame)
            self._services.feed(request)
            return True
        elif kind == HELLO:
            self._hello(sync, body)
        elif kind == Type.EVAL:
            return self._evaluate(frame)
        else:
            self._answer_here(kind, sync, body)
        return False

    def refuse(self, sync: int, code: int, reason: str) -> None:
        """Answer a request with an error."""
        self._services.timings.note_error(int(code))
        self._port.write(encode_error(sync, self._schema_version(), int(code), reason))

    def _schema_version(self) -> int:
        return self._services.node.schema_version

    def _is_other_schema(self, header: dict[int, Any], sync: int) -> bool:
        wanted = header.get(_SCHEMA_VERSION, 0)
        if not wanted:
            return False
        current = self._schema_version()
        if wanted == current:
            return False
        reason = f"Wrong schema version, current: {current}, in request: {wanted}"
        self.refuse(sync, ErrorCode.WRONG_SCHEMA_VERSION, reason)
        return True

    def _evaluate(self, frame: Frame) -> bool:
        """Handle EVAL. Return True if a line of a console is a request for the node."""
        _, sync, header, body = frame
        fields = self._fields(sync, body)
        if fields is None:
            return False
        found = program(fields.get(Key.EXPR), fields.get(Key.TUPLE))
        if isinstance(found, Line):
            call = pack({int(Key.FUNCTION_NAME): CONSOLE_PROCEDURE, int(Key.TUPLE): [found.text]})
            is_taken = self.take((int(Type.CALL), sync, header, call))
            if is_taken:
                self._requests.resize(len(body), len(call))
            return is_taken
        if found is None:
            self.refuse(sync, ErrorCode.UNSUPPORTED, _INSTEAD[Type.EVAL])
        else:
            values = [pack(value) for value in found.values]
            self._port.write(encode_tuples(sync, self._schema_version(), values))
        return False

    def _take_stream(self, kind: int, sync: int, body: bytes) -> None:
        """Handle a replication request, or an acknowledgement within a stream."""
        if kind not in STREAM_TYPES and kind != _ACK:
            reason = "the request is not allowed: the connection is a replication stream"
            self.refuse(sync, ErrorCode.PROTOCOL, reason)
            self._port.end()
            return
        if kind != _VOTE:  # a replica sends VOTE before it decides to replicate from this member
            self._connection.begin_stream()
        user = self._connection.user
        self._services.feed(fx.TarantoolRequest(self._port.number, sync, kind, body, user))

    def _hello(self, sync: int, body: bytes) -> None:
        if self._requests.waiting:
            self._requests.drop_waiting()
            reason = "HELLO refused: it must be the last client packet of the connection"
            self.refuse(sync, ErrorCode.PROTOCOL, reason)
            return
        fields = self._fields(sync, body)
        if fields is not None and self._port.transport is not None:
            self._services.accept(self._port, sync, fields)

    # --- requests without the node ----------------------------------------------------------------

    def _answer_here(self, kind: int, sync: int, body: bytes) -> None:
        if kind == Type.PING:
            if not body or self._fields(sync, body) is not None:
                self._port.write(encode_ok(sync, self._schema_version()))
        elif kind == Type.AUTH:
            self._authenticate(sync, body)
        elif kind == Type.ID:
            self._port.write(encode_ok(sync, self._schema_version(), _IDENTITY))
        elif kind in _WATCH_TYPES:
            self._watch(kind, sync, body)
        elif kind == MALFORMED:
            self.refuse(sync, ErrorCode.INVALID_MSGPACK, MALFORMED_HEADER_MESSAGE)
        elif kind in _INSTEAD:
            self.refuse(sync, ErrorCode.UNSUPPORTED, _INSTEAD[kind])
        else:
            self.refuse(sync, ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {kind}")

    def _fields(self, sync: int, body: bytes) -> dict[int, Any] | None:
        """Return the map in a body. If it is invalid, answer with error 20 and return None."""
        try:
            fields = unpack_bounded(body)
        except BAD_MSGPACK:
            fields = None
        if not isinstance(fields, dict):
            self._refuse_body(sync)
            return None
        return fields

    def _refuse_body(self, sync: int) -> None:
        self.refuse(sync, ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")

    def _authenticate(self, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None:
            return
        node, connection = self._services.node, self._connection
        if not node.context.has_origin:
            self.refuse(sync, ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
            return
        try:
            user = self._log_in.check(node.database, fields, connection.salt)
        except WrongPassword as refusal:
            self._port.delay_refusal(sync, refusal)
            return
        except ClientError as error:
            self.refuse(sync, error.code, error.message)
            return
        admission = self._services.sessions.admission
        if user != GUEST_NAME and not admission.log_in(self._port.number, user):
            reason = (
                "log-in failed: too many connections are open; close some first, or raise "
                "max_connections"
            )
            self.refuse(sync, ErrorCode.TOO_MANY, reason)
            self._port.end()
            return
        connection.log_in(user, self._services.config.max_request)
        if user != GUEST_NAME:
            self._port.note_logged_in()
        self._port.write(encode_ok(sync, self._schema_version()))

    def _watch(self, kind: int, sync: int, body: bytes) -> None:
        fields = self._fields(sync, body)
        if fields is None:
            return
        key = fields.get(Key.EVENT_KEY)
        watches, watchers = self._port.watches, self._services.watchers
        if not isinstance(key, str) or len(key) > WATCHED_KEY_MAX:
            self._refuse_body(sync)
        elif kind == Type.WATCH_ONCE:
            value = watchers.value_of(key)
            values = [] if value is None else [value]
            self._port.write(encode_tuples(sync, self._schema_version(), values))
        elif kind == Type.UNWATCH:
            watches.unwatch(key)
        elif key not in watches and watches.is_full():
            self.refuse(
                sync,
                ErrorCode.TOO_MANY,
                "the key cannot be watched: too many keys are watched; unwatch some first",
            )
        else:
            is_first = key not in watches
            watches.watch(key, sync)
            watchers.watch(self._port, key, is_first=is_first)
