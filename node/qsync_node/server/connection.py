"""The server's side of one client connection, without input and output (sans-IO, as in h11).

    state             event                                                next state
    NEW               the connection is open: the greeting is sent         UNAUTHENTICATED
    UNAUTHENTICATED   a request as guest, or a watch with a certificate    GUEST
                      of the cluster
    UNAUTHENTICATED,  a log-in                                             AUTHENTICATED
    GUEST
    AUTHENTICATED     a log-in as another user                             AUTHENTICATED
    GUEST,            JOIN, SUBSCRIBE or another replication request       STREAM
    AUTHENTICATED
    STREAM            the replica reads slower than the node sends         STREAM_BLOCKED
    STREAM_BLOCKED    the replica has read enough                          STREAM
    UNAUTHENTICATED,  HELLO with the proof of the cluster's secret         PEER
    GUEST,
    AUTHENTICATED
    any open state    the last answer is sent: a refusal, or invalid       ENDING
                      bytes
    any               the connection is lost                               CLOSED

Input never causes another transition: each one is checked. In PEER, the bytes belong to the
protocol between members (`peering`). In ENDING, received bytes are ignored.

A connection that stays UNAUTHENTICATED for `LOGIN_S` is closed. Until a log-in, packets are limited
in size, and also in number and type if `guest` is off.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from qsync_client.protocol.frame import Frame, FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import Type
from qsync_node.peering.handshake import HELLO

GUEST_NAME = "guest"
LOGIN_S = 10.0
UNAUTHENTICATED_BYTES_MAX = 16 << 10
UNAUTHENTICATED_PACKETS_MAX = 64
UNAUTHENTICATED_TYPES: Final = frozenset(
    {
        int(Type.PING),
        int(Type.ID),
        int(Type.AUTH),
        HELLO,
        int(Type.VOTE),  # sent by a Tarantool replica before it logs in
    }
)
WATCH_TYPES: Final = frozenset({int(Type.WATCH), int(Type.UNWATCH)})


class ServerConnectionState(Enum):
    """States of a connection."""

    NEW = auto()
    UNAUTHENTICATED = auto()
    GUEST = auto()
    AUTHENTICATED = auto()
    STREAM = auto()
    STREAM_BLOCKED = auto()
    PEER = auto()
    ENDING = auto()
    CLOSED = auto()


_ENDS: Final = frozenset({ServerConnectionState.ENDING, ServerConnectionState.CLOSED})
TRANSITIONS: Final = {
    ServerConnectionState.NEW: frozenset(
        {ServerConnectionState.UNAUTHENTICATED, ServerConnectionState.CLOSED}
    ),
    ServerConnectionState.UNAUTHENTICATED: frozenset(
        {
            ServerConnectionState.GUEST,
            ServerConnectionState.AUTHENTICATED,
            ServerConnectionState.PEER,
        }
    )
    | _ENDS,
    ServerConnectionState.GUEST: frozenset(
        {
            ServerConnectionState.AUTHENTICATED,
            ServerConnectionState.STREAM,
            ServerConnectionState.PEER,
        }
    )
    | _ENDS,
    ServerConnectionState.AUTHENTICATED: frozenset(
        {
            ServerConnectionState.AUTHENTICATED,
            ServerConnectionState.STREAM,
            ServerConnectionState.PEER,
        }
    )
    | _ENDS,
    ServerConnectionState.STREAM: frozenset({ServerConnectionState.STREAM_BLOCKED}) | _ENDS,
    ServerConnectionState.STREAM_BLOCKED: frozenset({ServerConnectionState.STREAM}) | _ENDS,
    # Invalid bytes may arrive together with the HELLO.
    ServerConnectionState.PEER: _ENDS,
    ServerConnectionState.ENDING: frozenset({ServerConnectionState.CLOSED}),
    ServerConnectionState.CLOSED: frozenset[ServerConnectionState](),
}
"""States that may follow each state."""

STREAMING: Final = frozenset({ServerConnectionState.STREAM, ServerConnectionState.STREAM_BLOCKED})
_BEFORE_LOG_IN: Final = frozenset(
    {ServerConnectionState.UNAUTHENTICATED, ServerConnectionState.GUEST}
)


class ConnectionRefusal(NamedTuple):
    """A packet is not handled.

    Attributes:
        code: code of the error answer.
        reason: its text.
        is_last: whether the connection ends with this answer.
    """

    code: ErrorCode
    reason: str
    is_last: bool


class ServerConnection:
    """The state of one client connection.

    Attributes:
        state: the state.
        user: the user whose privileges requests have.
        salt: the challenge of the greeting.
        binding: hash of the TLS certificate that the server has presented, b"" without TLS.
        is_member: whether the client has presented a certificate of the cluster.
    """

    __slots__ = ("_decoder", "_has_guest", "_packets", "binding", "is_member", "salt",
                 "state", "user")  # fmt: skip

    def __init__(self, request_max: int, *, has_guest: bool) -> None:
        """Begin before the connection is open.

        Args:
            request_max: maximum size of a request in bytes.
            has_guest: whether clients may send requests without a log-in.
        """
        self.state = ServerConnectionState.NEW
        self.user = GUEST_NAME
        self.salt = b""
        self.binding = b""
        self.is_member = False
        self._has_guest = has_guest
        self._packets = 0  # before the log-in
        self._decoder = FrameDecoder(min(request_max, UNAUTHENTICATED_BYTES_MAX))

    def _move(self, state: ServerConnectionState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state

    def open(self, uuid: str, salt: bytes, *, binding: bytes, is_member: bool) -> bytes:
        """Return the greeting of a new connection.

        Args:
            uuid: instance uuid of the server.
            salt: 32 random bytes, the challenge of log-ins.
            binding: hash of the certificate that the server has presented, b"" without TLS.
            is_member: whether the client has presented a certificate of the cluster.
        """
        self._move(ServerConnectionState.UNAUTHENTICATED)
        self.salt, self.binding, self.is_member = salt, binding, is_member
        return encode_greeting(uuid, salt)

    def receive(self, data: bytes) -> list[Frame]:
        """Return the packets that `data` completes.

        Raises:
            FrameError: no packet can be decoded any more; the connection must end.
        """
        return self._decoder.feed(data)

    def admit(self, kind: int) -> ConnectionRefusal | None:
        """Return why a packet of this type is refused, or None if the client may send it."""
        if self.state not in _BEFORE_LOG_IN:
            return None
        self._packets += 1
        is_flood = not self._has_guest and self._packets > UNAUTHENTICATED_PACKETS_MAX
        if kind in UNAUTHENTICATED_TYPES:
            if not is_flood:
                return None
            reason = "too many packets arrived before log-in: log in first"
            return ConnectionRefusal(ErrorCode.TOO_MANY, reason, True)
        # The operator watches with a certificate, even before any user can log in.
        if self._has_guest or (kind in WATCH_TYPES and self.is_member):
            if self.state is ServerConnectionState.UNAUTHENTICATED:
                self._move(ServerConnectionState.GUEST)
            return None
        reason = "access denied: guest is off; log in before any request"
        return ConnectionRefusal(ErrorCode.ACCESS_DENIED, reason, is_flood)

    def log_in(self, user: str, request_max: int) -> None:
        """Note that a user has proven the password, and accept requests of the full size.

        Args:
            user: the user. A log-in as guest changes neither state nor limits.
            request_max: maximum size of a request in bytes.
        """
        self.user = user
        if user != GUEST_NAME:
            self._move(ServerConnectionState.AUTHENTICATED)
            self._decoder.limit_bytes = request_max

    def begin_stream(self) -> None:
        """Dedicate the connection to a replication stream."""
        if self.state not in STREAMING:
            self._move(ServerConnectionState.STREAM)

    def block_stream(self) -> None:
        """Note that the replica must read before more rows are sent."""
        if self.state is not ServerConnectionState.STREAM_BLOCKED:
            self._move(ServerConnectionState.STREAM_BLOCKED)

    def resume_stream(self) -> bool:
        """Note that the replica has read; return whether the stream was blocked."""
        was_blocked = self.state is ServerConnectionState.STREAM_BLOCKED
        if was_blocked:
            self._move(ServerConnectionState.STREAM)
        return was_blocked

    def become_peer(self) -> None:
        """Note that the other end is a member: it sends no more packets of IPROTO."""
        self._move(ServerConnectionState.PEER)

    def end(self) -> None:
        """Note that the last answer is sent; received bytes are ignored from here on."""
        self._move(ServerConnectionState.ENDING)

    def lose(self) -> None:
        """Note that the connection is lost."""
        self._move(ServerConnectionState.CLOSED)
