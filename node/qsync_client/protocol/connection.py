"""The client's side of one IPROTO connection, without input and output (sans-IO, as in h11).

All clients of a member use it: applications, the operator, brokers that watch the key space, and
other members until their HELLO is answered. The caller passes the bytes that it received to
`receive`, and sends the bytes that `take_output` returns. Times are seconds of any monotonic clock;
only `tick` needs them.

    state            input                               output, event               next
    GREETING         a greeting; a user is given         AUTH                        AUTHENTICATING
    GREETING         a greeting; no user is given        Opened                      READY
    AUTHENTICATING   OK for AUTH                         Opened                      READY
    AUTHENTICATING   error for AUTH                      Ended, with the code        CLOSED
    READY            `request`                           the packet                  READY
    READY            an answer                           Answered                    READY
    READY            `watch`, `acknowledge`              WATCH                       READY
    READY            a notification                      Notified                    READY
    READY            silence while answers are pending   PING, at most one           READY
    READY            `stream`                            a replication request       STREAM
    STREAM           `stream`                            a request, an ACK           STREAM
    STREAM           a packet                            Received                    STREAM
    READY            `switch`                            HELLO                       SWITCHING
    SWITCHING        its answer                          Switched, with all          SWITCHED
                                                         further bytes
    any              twice that silence                  Ended                       CLOSED
    any              invalid bytes, end of the stream    Ended                       CLOSED
    CLOSED           anything                            nothing                     CLOSED

`Ended` occurs once. Requests without an answer at that time have an unknown outcome. Calls that the
state does not permit raise an assertion.
"""

import itertools
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from qsync_client.protocol.auth import MECHANISM, scramble
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import (
    FRAME_BYTES_LIMIT,
    MALFORMED,
    MALFORMED_HEADER_MESSAGE,
    Frame,
    FrameDecoder,
    FrameError,
    encode_packet,
    packet_bytes,
)
from qsync_client.protocol.greeting import (
    GREETING_BYTES,
    Greeting,
    GreetingError,
    decode_greeting,
)
from qsync_client.protocol.packing import INVALID, pack, unpack

SILENCE_S = 1.0
"""Time without a byte, while answers are pending, after which the client sends a PING. After twice
that time it closes the connection. A write may wait longer for its quorum, because the member still
answers PINGs."""
ANSWER_BYTES_MAX = 64 << 20
"""Maximum size of an answer. The server sends at most 16 MiB of tuples in one, plus the last."""
_ERROR = int(Type.ERROR)
_CODE_MASK = _ERROR - 1
_EVENT, _CHUNK = int(Type.EVENT), int(Type.CHUNK)
_TYPE, _SYNC, _SCHEMA_VERSION = int(Key.REQUEST_TYPE), int(Key.SYNC), int(Key.SCHEMA_VERSION)
_STREAM, _IDEMPOTENCY = int(Key.STREAM_ID), int(Key.IDEMPOTENCY)
_EVENT_KEY, _EVENT_DATA = int(Key.EVENT_KEY), int(Key.EVENT_DATA)


class ClientConnectionState(Enum):
    """States of a connection."""

    GREETING = auto()
    AUTHENTICATING = auto()
    READY = auto()
    STREAM = auto()
    SWITCHING = auto()
    SWITCHED = auto()
    CLOSED = auto()


class Credentials(NamedTuple):
    """A user and its password."""

    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The server has greeted, and has accepted the user if one is given."""

    greeting: Greeting


class Answered(NamedTuple):
    """An answer to a request: type 0 is success."""

    sync: int
    kind: int
    body: bytes
    schema_version: int


@dataclass(frozen=True, slots=True)
class Notified:
    """The value of a watched key; the next one follows after `acknowledge`."""

    key: str
    value: Any


class StreamPacket(NamedTuple):
    """A packet of a replication stream: a row, an answer or an error."""

    kind: int
    header: dict[int, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class Switched:
    """The answer to `switch`, and the bytes after it, which belong to another protocol."""

    kind: int
    body: bytes
    rest: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection cannot be used again; `code` is the refusal of the log-in, or 0."""

    reason: str
    code: int = 0


ConnectionEvent = Opened | Answered | Notified | StreamPacket | Switched | Ended


def error_code(kind: int) -> int:
    """Return the error code of an answer of type `kind`, which is at least `Type.ERROR`."""
    return kind & _CODE_MASK


def error_reason(body: bytes) -> str:
    """Return the text of an error answer, "" if it has none.

    Raises:
        Exception: one of `INVALID`; the body is malformed.
    """
    return str(unpack(body).get(int(Key.ERROR_24), "")) if body else ""


class ClientConnection:
    """The state of one connection."""

    def __init__(
        self,
        credentials: Credentials | None,
        now_s: float = 0.0,
        silence_s: float = SILENCE_S,
        answer_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        """Wait for the greeting.

        Args:
            credentials: the user to log in, or None to send requests without a log-in.
            now_s: the time.
            silence_s: time without a byte, while answers are pending, until a PING.
            answer_max: maximum size of a received packet in bytes.
        """
        self.state = ClientConnectionState.GREETING
        self.silence_s = silence_s
        self.pending = 0
        """Number of requests without an answer."""
        self.greeting: Greeting | None = None
        self._credentials = credentials
        self._answer_max = min(answer_max, FRAME_BYTES_LIMIT)
        self._heard_s = now_s
        self._has_pinged = False
        self._received = b""
        self._decoder = FrameDecoder(self._answer_max)
        self._syncs = itertools.count(1)
        self._output: list[bytes] = []
        self._unanswered: set[int] = set()
        self._ping = 0

    # --- output ---------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Return the bytes to send, and forget them."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def request(
        self,
        kind: int,
        body: bytes,
        now_s: float = 0.0,
        *,
        stream: int = 0,
        key: tuple[str, int, int] | None = None,
        schema_version: int = 0,
    ) -> int:
        """Send a request and return its number, which its answer carries.

        Args:
            kind: type of the request.
            body: body of the request.
            now_s: the time.
            stream: stream of an interactive transaction; 0 for none.
            key: idempotency key, or None.
            schema_version: version that the server must have, or 0 for any.
        """
        assert self.state is ClientConnectionState.READY, self.state
        header: dict[int, Any] = {_TYPE: kind, _SYNC: 0}
        if stream:
            header[_STREAM] = stream
        if key is not None:
            header[_IDEMPOTENCY] = key
        if schema_version:
            header[_SCHEMA_VERSION] = schema_version
        self.pending += 1
        return self._send(header, body, now_s)

    def watch(self, key: str) -> None:
        """Watch a key, or request the value after the last notification."""
        if self.state is ClientConnectionState.READY:
            self._send_unanswered(Type.WATCH, {_EVENT_KEY: key})

    acknowledge = watch

    def unwatch(self, key: str) -> None:
        """End the notifications of a key."""
        if self.state is ClientConnectionState.READY:
            self._send_unanswered(Type.UNWATCH, {_EVENT_KEY: key})

    def stream(self, kind: int, fields: dict[int, Any]) -> None:
        """Send a replication request or an acknowledgement; all later packets are `StreamPacket`.

        Nothing is sent on a connection that has ended: its `Ended` may follow the event that leads
        here in the same list.
        """
        if self.state is ClientConnectionState.CLOSED:
            return
        assert self.state in (ClientConnectionState.READY, ClientConnectionState.STREAM), self.state
        self.state = ClientConnectionState.STREAM
        self._send_unanswered(kind, fields)

    def switch(self, kind: int, fields: dict[int, Any]) -> None:
        """Send the last request of this protocol; the event of its answer is `Switched`.

        Nothing is sent on a connection that has ended, as in `stream`.
        """
        if self.state is ClientConnectionState.CLOSED:
            return
        assert self.state is ClientConnectionState.READY, self.state
        assert not self._unanswered, "an earlier answer would be taken for that of the switch"
        self.state = ClientConnectionState.SWITCHING
        self._decoder = FrameDecoder(self._answer_max)  # earlier bytes belong to no answer
        self._send_unanswered(kind, fields)

    def _send(self, header: dict[int, Any], body: bytes, now_s: float) -> int:
        if not self._unanswered:
            self._heard_s = now_s  # silence counts from the first request that waits
        sync = header[_SYNC] = next(self._syncs)
        self._unanswered.add(sync)
        self._output.append(encode_packet(pack(header), body))
        return sync

    def _send_unanswered(self, kind: int, fields: dict[int, Any]) -> None:
        header = pack({_TYPE: int(kind), _SYNC: next(self._syncs)})
        self._output.append(encode_packet(header, pack(fields)))

    # --- input ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float = 0.0) -> list[ConnectionEvent]:
        """Return the events of received bytes. No bytes are the end of the stream."""
        state = self.state
        if state is ClientConnectionState.CLOSED:
            return []
        if not data:
            return self._end("the server closed the connection")
        self._heard_s = now_s
        self._has_pinged = False
        if state is ClientConnectionState.GREETING:
            return self._greet(data, now_s)
        if state is ClientConnectionState.SWITCHING:
            return self._receive_switch(data)
        assert state is not ClientConnectionState.SWITCHED, "the bytes belong to another protocol"
        return self._decode(data)

    def _greet(self, data: bytes, now_s: float) -> list[ConnectionEvent]:
        self._received += data
        if len(self._received) < GREETING_BYTES:
            return []
        greeted, rest = self._received[:GREETING_BYTES], self._received[GREETING_BYTES:]
        self._received = b""
        try:
            self.greeting = decode_greeting(greeted)
        except GreetingError as error:
            return self._end(str(error))
        events: list[ConnectionEvent] = []
        if self._credentials is None:
            self.state = ClientConnectionState.READY
            events.append(Opened(self.greeting))
        else:
            user, password = self._credentials
            proof = scramble(password, self.greeting.salt)
            body = {int(Key.USER_NAME): user, int(Key.TUPLE): [MECHANISM, proof]}
            self.state = ClientConnectionState.AUTHENTICATING
            self._send({_TYPE: int(Type.AUTH), _SYNC: 0}, pack(body), now_s)
        if rest:
            events += self._decode(rest)
        return events

    def _decode(self, data: bytes) -> list[ConnectionEvent]:
        events: list[ConnectionEvent] = []
        failure = ""
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            frames, failure = error.frames, error.why  # answers before the error are valid
        try:
            for frame in frames:
                self._take(frame, events)
        except INVALID as error:
            failure = str(error) or type(error).__name__
        if failure and self.state is not ClientConnectionState.CLOSED:
            events += self._end_invalid(failure)
        return events

    def _take(self, frame: Frame, events: list[ConnectionEvent]) -> None:
        kind, sync, header, body = frame
        if kind == MALFORMED and self.state is not ClientConnectionState.READY:
            raise ValueError(MALFORMED_HEADER_MESSAGE)
        if self.state is ClientConnectionState.STREAM:
            events.append(StreamPacket(kind, header, body))
        elif self.state is ClientConnectionState.AUTHENTICATING:
            self._finish_login(kind, sync, body, events)
        elif kind == _EVENT:
            fields = unpack(body)
            if not isinstance(fields[_EVENT_KEY], str):
                raise ValueError("a notification has no key")
            events.append(Notified(fields[_EVENT_KEY], fields.get(_EVENT_DATA)))
        elif sync in self._unanswered and kind != _CHUNK:
            self._unanswered.discard(sync)
            if sync != self._ping:
                self.pending -= 1
                events.append(Answered(sync, kind, body, header.get(_SCHEMA_VERSION, 0)))

    def _finish_login(
        self, kind: int, sync: int, body: bytes, events: list[ConnectionEvent]
    ) -> None:
        self._unanswered.discard(sync)
        assert self.greeting is not None
        if kind == Type.OK:
            self.state = ClientConnectionState.READY
            events.append(Opened(self.greeting))
            return
        events += self._end(error_reason(body), error_code(kind))

    def _receive_switch(self, data: bytes) -> list[ConnectionEvent]:
        """Take the bytes of one packet only: the rest belongs to another protocol."""
        self._received += data
        try:
            size = packet_bytes(self._received)
            if size > self._answer_max:
                return self._end(f"the server sends a packet of {size} bytes")
            if not size or len(self._received) < size:
                return []
            packet, rest = self._received[:size], self._received[size:]
            ((kind, _, _, body),) = self._decoder.feed(packet)
        except FrameError as error:
            return self._end_invalid(error.why)
        if kind == MALFORMED:
            return self._end_invalid(MALFORMED_HEADER_MESSAGE)
        self._received = b""
        self.state = ClientConnectionState.SWITCHED
        return [Switched(kind, body, rest)]

    # --- time and end ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[ConnectionEvent]:
        """Send a PING after a silence, and end the connection after a longer one.

        The caller calls this at least twice in `silence_s`.
        """
        if self.state is ClientConnectionState.CLOSED or not self._unanswered:
            return []
        silent_s = now_s - self._heard_s
        if silent_s > 2 * self.silence_s:
            return self._end(f"the server was silent for {silent_s:.1f} s")
        if (
            silent_s > self.silence_s
            and not self._has_pinged
            and self.state is ClientConnectionState.READY
        ):
            self._has_pinged = True
            header = {_TYPE: int(Type.PING), _SYNC: next(self._syncs)}
            self._ping = header[_SYNC]
            self._unanswered.add(self._ping)
            self._output.append(encode_packet(pack(header), b""))
        return []

    def close(self, reason: str = "the client closed the connection") -> list[ConnectionEvent]:
        """End the connection."""
        return [] if self.state is ClientConnectionState.CLOSED else self._end(reason)

    def _end_invalid(self, why: str) -> list[ConnectionEvent]:
        return self._end(f"the server sent invalid bytes: {why}")

    def _end(self, reason: str, code: int = 0) -> list[ConnectionEvent]:
        self.state = ClientConnectionState.CLOSED
        self._unanswered.clear()
        self._received = b""
        self.pending = 0
        return [Ended(reason, code)]
