"""The client's side of one IPROTO connection, without input and output (sans-IO, as in h11).

The caller passes the bytes that it received to `receive`, and sends the bytes that `take_output`
returns. Times are seconds of any monotonic clock.

    state     input                                 output, event                     next state
    GREETING  a greeting (128 bytes)                AUTH                              LOGIN
    LOGIN     OK for AUTH                           LoggedIn                          READY
    LOGIN     error for AUTH                        Ended, with the code              CLOSED
    READY     `request`                             the packet                        READY
    READY     an answer                             Answered                          READY
    READY     `watch`, `acknowledge`                WATCH                             READY
    READY     a notification                        Notified                          READY
    READY     silence while answers are pending     PING, at most one                 READY
    any       twice that silence                    Ended                             CLOSED
    any       invalid bytes, end of the stream      Ended                             CLOSED
    CLOSED    anything                              nothing                           CLOSED

`Ended` occurs once. Requests without an answer at that time have an unknown outcome.
"""

import itertools
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from qsync_client.packing import INVALID, pack, unpack
from qsync_client.protocol.auth import MECHANISM, scramble
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import Frame, FrameDecoder, FrameError
from qsync_client.protocol.greeting import (
    GREETING_BYTES,
    Greeting,
    GreetingError,
    decode_greeting,
)

SILENCE_S = 1.0
"""Time without a byte, while answers are pending, after which the client sends a PING. After twice
that time it closes the connection. A write may wait longer for its quorum, because the member still
answers PINGs."""
ANSWER_BYTES_MAX = 64 << 20
"""Maximum size of an answer. The server sends at most 16 MiB of tuples in one, plus the last."""
_CODE_MASK = int(Type.ERROR) - 1
_EVENT, _CHUNK = int(Type.EVENT), int(Type.CHUNK)
_TYPE, _SYNC, _SCHEMA_VERSION = int(Key.REQUEST_TYPE), int(Key.SYNC), int(Key.SCHEMA_VERSION)
_STREAM, _IDEMPOTENCY = int(Key.STREAM_ID), int(Key.IDEMPOTENCY)
_EVENT_KEY, _EVENT_DATA = int(Key.EVENT_KEY), int(Key.EVENT_DATA)


class State(Enum):
    """States of a connection."""

    GREETING = auto()
    LOGIN = auto()
    READY = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The server accepted the user."""

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


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection cannot be used again; `code` is the refusal of the log-in, or 0."""

    reason: str
    code: int = 0


Event = LoggedIn | Answered | Notified | Ended


class Connection:
    """The state of one connection."""

    def __init__(
        self, user: str, password: str, now_s: float, silence_s: float = SILENCE_S
    ) -> None:
        self.state = State.GREETING
        self.silence_s = silence_s
        self.pending = 0
        """Number of requests without an answer."""
        self.greeting: Greeting | None = None
        self._user = user
        self._password = password
        self._heard_s = now_s
        self._has_pinged = False
        self._received = b""
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)
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
        now_s: float,
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
        assert self.state is State.READY, self.state
        header: dict[int, Any] = {_TYPE: kind, _SYNC: 0}
        if stream:
            header[_STREAM] = stream
        if key is not None:
            header[_IDEMPOTENCY] = key
        if schema_version:
            header[_SCHEMA_VERSION] = schema_version
        self.pending += 1
        return self._send(header, body, now_s)

    def watch(self, key: str, now_s: float) -> None:
        """Watch a key, or request the value after the last notification."""
        if self.state is State.READY:
            self._send_unanswered(Type.WATCH, {_EVENT_KEY: key})

    acknowledge = watch

    def unwatch(self, key: str) -> None:
        """End the notifications of a key."""
        if self.state is State.READY:
            self._send_unanswered(Type.UNWATCH, {_EVENT_KEY: key})

    def _send(self, header: dict[int, Any], body: bytes, now_s: float) -> int:
        if not self._unanswered:
            self._heard_s = now_s  # silence counts from the first request that waits
        sync = header[_SYNC] = next(self._syncs)
        self._unanswered.add(sync)
        self._write(header, body)
        return sync

    def _send_unanswered(self, kind: Type, body: dict[int, Any]) -> None:
        self._write({_TYPE: int(kind), _SYNC: next(self._syncs)}, pack(body))

    def _write(self, header: dict[int, Any], body: bytes) -> None:
        packed = pack(header)
        size = len(packed) + len(body)
        self._output.append(b"\xce" + size.to_bytes(4, "big") + packed + body)

    # --- input ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Return the events of received bytes. No bytes are the end of the stream."""
        if self.state is State.CLOSED:
            return []
        if not data:
            return self._end("the server closed the connection")
        self._heard_s = now_s
        self._has_pinged = False
        if self.state is State.GREETING:
            return self._greet(data, now_s)
        return self._decode(data)

    def _greet(self, data: bytes, now_s: float) -> list[Event]:
        self._received += data
        if len(self._received) < GREETING_BYTES:
            return []
        greeted, rest = self._received[:GREETING_BYTES], self._received[GREETING_BYTES:]
        self._received = b""
        try:
            self.greeting = decode_greeting(greeted)
        except GreetingError as error:
            return self._end(str(error))
        proof = scramble(self._password, self.greeting.salt)
        body = {int(Key.USER_NAME): self._user, int(Key.TUPLE): [MECHANISM, proof]}
        self.state = State.LOGIN
        self._send({_TYPE: int(Type.AUTH), _SYNC: 0}, pack(body), now_s)
        return self._decode(rest) if rest else []

    def _decode(self, data: bytes) -> list[Event]:
        events: list[Event] = []
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
        if failure and self.state is not State.CLOSED:
            events += self._end(f"the server sent invalid bytes: {failure}")
        return events

    def _take(self, frame: Frame, events: list[Event]) -> None:
        kind, sync, header, body = frame
        if self.state is State.LOGIN:
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

    def _finish_login(self, kind: int, sync: int, body: bytes, events: list[Event]) -> None:
        self._unanswered.discard(sync)
        assert self.greeting is not None
        if kind == Type.OK:
            self.state = State.READY
            events.append(LoggedIn(self.greeting))
            return
        reason = str(unpack(body).get(int(Key.ERROR_24)))
        events += self._end(reason, kind & _CODE_MASK)

    # --- time and end ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Event]:
        """Send a PING after a silence, and end the connection after a longer one.

        The caller calls this at least twice in `silence_s`.
        """
        if self.state is State.CLOSED or not self._unanswered:
            return []
        silent_s = now_s - self._heard_s
        if silent_s > 2 * self.silence_s:
            return self._end(f"the server was silent for {silent_s:.1f} s")
        if silent_s > self.silence_s and not self._has_pinged and self.state is State.READY:
            self._has_pinged = True
            header = {_TYPE: int(Type.PING), _SYNC: next(self._syncs)}
            self._ping = header[_SYNC]
            self._unanswered.add(self._ping)
            self._write(header, b"")
        return []

    def close(self, reason: str = "the client closed the connection") -> list[Event]:
        """End the connection."""
        return [] if self.state is State.CLOSED else self._end(reason)

    def _end(self, reason: str, code: int = 0) -> list[Event]:
        self.state = State.CLOSED
        self._unanswered.clear()
        self.pending = 0
        return [Ended(reason, code)]
