"""The socket of one client connection: IPROTO in, answers out (data path).

Every connection begins as a client connection (`connection.py` lists its states). Requests of one
turn of the event loop reach the core together, and the answers of a turn leave in one write.
`dispatch.py` handles each packet.

The resources of a connection are bounded (`admission.py` bounds all connections together):

  before log-in   `LOGIN_S` seconds, and packets of at most `UNAUTHENTICATED_BYTES_MAX`. If
                  `guest` is off, also at most `UNAUTHENTICATED_PACKETS_MAX` packets, of the types
                  that precede a log-in. The answer to each failed log-in is delayed (`login.py`).
  requests        `in_flight` requests and `request_bytes` that await their answer (`bounds.py`).
  answers         `unread_bytes` that the client has not read. Above that, its requests
                  are neither executed nor read from the socket until less than half remains.

    reading   event                                                               next
    READING   packets wait, a budget is used up, a log-in is delayed, or the      PAUSED
              client does not read its answers
    PAUSED    half of each budget of the connection is free, and the common one   READING
              permits requests
    PAUSED    the connection ends: received bytes are discarded                   READING
"""

import asyncio
import os
from enum import Enum, auto
from typing import cast

from qsync_client.protocol.frame import Frame, FrameError
from qsync_node.consensus import effects as fx
from qsync_node.errors import ErrorCode
from qsync_node.format.frame import encode_committed, encode_error, encode_tuples
from qsync_node.format.proofs import marked_challenge
from qsync_node.server.connection import (
    LOGIN_S,
    UNAUTHENTICATED_BYTES_MAX,
    ServerConnection,
    ServerConnectionState,
)
from qsync_node.server.dispatch import Dispatch
from qsync_node.server.login import LOGIN_DELAY_S, LogIn, LogInState, WrongPassword
from qsync_node.server.requestqueue import RequestQueue
from qsync_node.server.services import Peer, Services
from qsync_node.server.watches import Watches

DRAINED_BYTES = 1 << 20
PACKETS_PER_CHECK = 32
# A refused client may still be sending. A reset would discard the reason for the refusal.
LINGER_S = 2.0
LINGER_BYTES_MAX = 64 << 20
_ENDING, _DELAYED = ServerConnectionState.ENDING, LogInState.DELAYED


class ReceiveState(Enum):
    """States of the receiving side of the socket."""

    READING = auto()
    PAUSED = auto()


class ServerSession(asyncio.Protocol):
    """One client connection."""

    def __init__(self, services: Services) -> None:
        config = services.config
        self.services = services
        self._bounds = services.bounds
        self.number = 0
        self.connection = ServerConnection(config.max_request, has_guest=config.guest)
        self.requests = RequestQueue(services.sessions.requests, services.bounds)
        self.watches = Watches()
        self.transport: asyncio.Transport | None = None
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.peer: Peer | None = None
        self._log_in = LogIn(has_guest=config.guest)
        self._dispatch = Dispatch(services, self.connection, self._log_in, self.requests, self)
        self._login_timer: asyncio.TimerHandle | None = None
        self._reading = ReceiveState.READING
        self._ignored_bytes = 0

    @property
    def user(self) -> str:
        """Return the user whose privileges requests have."""
        return self.connection.user

    # --- connection -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self.transport = cast(asyncio.Transport, transport)
        services = self.services
        if services.is_ended():
            # A TLS handshake outlived its listener: this process run no longer answers.
            self.transport.abort()
            return
        binding, is_member = b"", False
        if services.certificates is not None and self.transport.get_extra_info("ssl_object"):
            binding = services.certificates.binding
            is_member = services.certificates.is_member(self.transport)
        salt = marked_challenge(services.config.secret) if is_member else os.urandom(32)
        self.number = services.sessions.add(self)
        self.transport.set_write_buffer_limits(high=UNAUTHENTICATED_BYTES_MAX)
        self.transport.write(
            self.connection.open(services.uuid, salt, binding=binding, is_member=is_member)
        )
        self._login_timer = services.loop.call_later(LOGIN_S, self._check_log_in)

    def _check_log_in(self) -> None:
        """Close the connection if it has neither logged in nor sent a request as guest."""
        if self.connection.state is not ServerConnectionState.UNAUTHENTICATED:
            return
        transport = self._speaking()
        if transport is not None:
            reason = (
                f"log-in failed: no request arrived within {LOGIN_S:.0f} s; connect again "
                "and log in immediately"
            )
            transport.write(encode_error(0, self._schema_version(), ErrorCode.TIMEOUT, reason))
            transport.close()

    def note_logged_in(self) -> None:
        """Let more bytes of answers wait: the client has logged in."""
        if self.transport is not None:
            # Below the bound: `resume_writing` must end a pause caused by that limit.
            self.transport.set_write_buffer_limits(high=self._bounds.unread_bytes // 2)

    def become_peer(self, peer: Peer) -> None:
        """Pass all further bytes to a link between members, which bounds its own data."""
        self.connection.become_peer()
        self.peer = peer
        if self.transport is not None:
            self._resume_reading(self.transport)

    def peer_name(self) -> str:
        """Return HOST:PORT of the client."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    def evict(self) -> None:
        """Close the connection immediately, to free resources for others."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.lose()
        if self._login_timer is not None:
            self._login_timer.cancel()  # it would keep the session in memory
        self.requests.clear()
        if self.peer is not None:
            self.peer.lost()
        elif self.number:
            self.services.sessions.remove(self)

    def _speaking(self) -> asyncio.Transport | None:
        """Return the transport while it accepts data."""
        transport = self.transport
        if transport is None or self.connection.state is _ENDING or transport.is_closing():
            return None
        return transport

    def _schema_version(self) -> int:
        return self.services.node.schema_version

    # --- end ------------------------------------------------------------------------------------

    def end(self) -> None:
        """Close the connection, with time for the client to read the last answer.

        Closing with unread bytes makes the kernel reset the connection, and a reset discards data
        that the client has not read yet.
        """
        transport = self._speaking()
        if transport is None:
            return
        self.connection.end()
        if transport.can_write_eof():
            transport.write_eof()
        self._resume_reading(transport)
        # `close` would wait for a client that never reads.
        self.services.loop.call_later(LINGER_S, transport.abort)

    def _ignore(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.close()

    # --- back-pressure --------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Stop reading requests: the client does not read its answers (back-pressure).

        A member is read however much is sent to it: its acknowledgements let the rest follow, and
        `PeerLink` would take an unread member for a silent one.
        """
        if self.peer is None:
            self._pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            return
        if self.connection.resume_stream():
            self.services.feed(fx.TarantoolDrained(self.number))
        self.services.sessions.set_unread(self.number, self.unread_bytes())
        self.work()

    def unread_bytes(self) -> int:
        """Return the number of bytes of unread answers, without the kernel's buffers."""
        assert self.transport is not None
        return self.out_bytes + self.transport.get_write_buffer_size()

    def _may_answer(self) -> bool:
        """Return whether more answers may wait for the client, and none to a log-in is delayed."""
        is_delayed = self._log_in.state is _DELAYED
        return not is_delayed and self.unread_bytes() < self._bounds.unread_bytes

    def _is_blocked(self) -> bool:
        """Return whether the next request must wait."""
        return self.requests.is_full() or not self._may_answer()

    def _pause_reading(self) -> None:
        if self._reading is ReceiveState.READING and self.transport is not None:
            self._reading = ReceiveState.PAUSED
            self.transport.pause_reading()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if self._reading is ReceiveState.PAUSED:
            self._reading = ReceiveState.READING
            transport.resume_reading()

    def _consider_reading(self) -> None:
        """Resume reading from the socket if the budget permits it."""
        transport = self.transport
        if (
            self._reading is ReceiveState.PAUSED
            and transport is not None
            and not transport.is_closing()
            and self._log_in.state is not _DELAYED
            and self.requests.has_room()
            and self.unread_bytes() < self._bounds.unread_bytes // 2
            and self.services.sessions.may_read(self)
        ):
            self._resume_reading(transport)

    # --- requests -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.connection.state is _ENDING:
            self._ignore(data)
            return
        if self.peer is not None:
            self.peer.feed(data)
            return
        try:
            frames = self.connection.receive(data)
        except FrameError as error:
            self._queue(error.frames)
            self.write(encode_error(0, self._schema_version(), error.code, error.why))
            self.end()
            return
        self._queue(frames)

    def _queue(self, frames: list[Frame]) -> None:
        self.requests.add(frames)
        self.work()

    def work(self) -> None:
        """Handle the packets that the budget permits. If others remain, stop reading the socket."""
        if self._speaking() is None:
            return
        requests = self.requests
        waiting, returned = requests.waiting, requests.returned
        if returned and self._may_answer():
            # One per turn: the core returned it because the reads of a turn have a budget. It is
            # counted as running already, so the bound of running requests must not stop it.
            self.services.feed(returned.popleft())
        unchecked = 0
        while waiting and not returned and self._log_in.state is not _DELAYED:
            if not unchecked:
                if self._is_blocked():
                    break
                unchecked = PACKETS_PER_CHECK
            unchecked -= 1
            frame = waiting.popleft()
            if not self._dispatch.take(frame):
                requests.drop(frame)
                if self.peer is not None or self.connection.state is _ENDING:
                    return
        if waiting or returned or requests.size_bytes >= self._bounds.request_bytes:
            self._pause_reading()
            if returned and self._may_answer():
                self.services.sessions.note_ready(self)
        elif not self.services.sessions.may_read(self):
            self._pause_reading()
        else:
            self._consider_reading()

    def delay_refusal(self, sync: int, refusal: WrongPassword) -> None:
        """Refuse a log-in after a delay, and stop reading until then."""
        self.services.sessions.note_failed_log_in(self, refusal.user)
        self._pause_reading()
        self.services.loop.call_later(LOGIN_DELAY_S, self._refuse_log_in, sync, refusal)

    def _refuse_log_in(self, sync: int, refusal: WrongPassword) -> None:
        self._log_in.on_refused()
        self._dispatch.refuse(sync, refusal.code, refusal.message)
        if self._log_in.state is LogInState.EXHAUSTED:
            self.end()
        else:
            self.work()

    # --- answers --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write a packet at once, if the connection accepts data."""
        transport = self._speaking()
        if transport is not None:
            self._write(transport, data)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        transport.write(data)
        self.services.sessions.set_unread(self.number, transport.get_write_buffer_size())

    def answer(self, answer: fx.Answer) -> None:
        """Add one answer of the core to the answers of this turn."""
        request, sync, begun_ns = self.requests.finish(answer.sync)
        self.services.timings.note(request.type, begun_ns, answer)
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
        self.requests.put_back(number)
        self.services.sessions.note_ready(self)

    def flush(self) -> None:
        """Write the answers of this turn, and resume requests that waited for them."""
        out, self.out, self.out_bytes = self.out, [], 0
        transport = self._speaking()
        if transport is None:
            return
        self._write(transport, b"".join(out) if len(out) > 1 else out[0])
        if self.requests.waiting or self.requests.returned or self._reading is ReceiveState.PAUSED:
            self.work()

    def send_to_tarantool(self, effect: fx.TarantoolPackets) -> None:
        """Send packets of a stream. The core sends more once the connection has taken these."""
        transport = self._speaking()
        if transport is None:
            return
        self._write(transport, b"".join(effect.packets))
        if effect.is_last:
            self.end()
        elif effect.tell_drained:
            if transport.get_write_buffer_size() <= DRAINED_BYTES:
                self.services.feed(fx.TarantoolDrained(self.number))
            else:
                self.connection.block_stream()

    def notify(self, key: str, value: bytes | None) -> None:
        """Send the value of a watched key, or None if the key does not exist."""
        self.write(self.watches.event(key, value, self._schema_version()))
