"""A raw IPROTO connection that uses no client: a test can send any bytes."""

import socket
import ssl
from collections.abc import Mapping
from typing import Any, TypeVar

from qsync_client.protocol.auth import scramble
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder, encode_request
from qsync_client.protocol.greeting import decode_greeting
from qsync_node.format.mp import pack, unpack
from qsync_testing.processes import PASSWORD, USER

PING = 64
KeyT = TypeVar("KeyT", bound=int)
"""A mapping is invariant in its keys: this allows `Key` as well as plain numbers."""


class Raw:
    """A connection that sends any bytes."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        if context is not None:
            self.socket = context.wrap_socket(self.socket)
        self.greeting = decode_greeting(self._exactly(128))
        self.decoder = FrameDecoder()
        self.frames: list[Any] = []

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data))
        return data

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> Any:
        while not self.frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)

    def answer(self) -> tuple[int, dict[int, Any]]:
        """Return (code, body) of the next answer; code 0 is success.

        Raises:
            EOFError: The server closed the connection.
        """
        kind, _, _, body = self.frame()
        return kind & 0x7FFF, unpack(body) if body else {}

    def ask(
        self, kind: int, fields: Mapping[KeyT, Any], **header: int
    ) -> tuple[int, dict[int, Any]]:
        self.send(encode_request(kind, 1, pack(fields), **header))
        return self.answer()

    def send_bodies(self, requests: list[tuple[int, bytes, int]]) -> None:
        """Send requests, each (type, body, stream), in one write."""
        packets = [
            encode_request(kind, 1, body, **({"stream_id": stream} if stream else {}))
            for kind, body, stream in requests
        ]
        self.send(b"".join(packets))

    def drain(self) -> None:
        """Send a PING and read up to its answer; the server has then read all earlier requests."""
        self.send(encode_request(PING, 77))
        while self.frame()[1] != 77:
            pass

    def log_in(self, password: str = PASSWORD, user: str = USER) -> int:
        proof = scramble(password, self.greeting.salt)
        return self.ask(Type.AUTH, {Key.USER_NAME: user, Key.TUPLE: ["chap-sha1", proof]})[0]
