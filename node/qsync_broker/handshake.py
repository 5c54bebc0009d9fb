"""The handshake of two brokers: both prove that they know the cluster's secret, without I/O.

    primary -> peer   HELLO       version, zone and name of both brokers, 16 random bytes
    peer -> primary   CHALLENGE   16 random bytes; HMAC-SHA-256 of both under the secret, as peer
    primary -> peer   PROOF       HMAC-SHA-256 of both under the secret, as primary

Each part has its length (2 bytes) first. No frame is decoded before the handshake has ended.
"""

import hmac
import os

import msgpack

from qsync_node.format.journals import BrokerId

VERSION = 1
PART_MAX = 1024
_NONCE = 16


class HandshakeError(Exception):
    """The other side did not prove that it belongs to the cluster."""


def _proof(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + nonce + hello, "sha256")


def _part(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


class Handshake:
    """One side of a handshake.

    Attributes:
        peer: the other broker; known from the start, or once it has proven itself.
        is_done: whether the other side has proven that it knows the secret.
        rest: bytes that came after the handshake.
    """

    def __init__(self, me: BrokerId, secret: bytes, peer: BrokerId | None) -> None:
        """Begin a handshake; `peer` is the broker to reach, or None to accept one."""
        self.peer = peer
        self.is_done = False
        self.rest = b""
        self._me = me
        self._secret = secret
        self._is_primary = peer is not None
        self._buffer = b""
        self._nonce = b""
        self._hello = b""

    def start(self) -> bytes:
        """Return the first bytes to send."""
        if self.peer is None:
            return b""
        self._hello = msgpack.packb([VERSION, *self._me, *self.peer, os.urandom(_NONCE)])
        return _part(self._hello)

    def feed(self, data: bytes) -> bytes:
        """Handle received bytes, and return bytes to send.

        Raises:
            HandshakeError: the connection must end.
        """
        self._buffer += data
        output = b""
        while not self.is_done and len(self._buffer) >= 2:
            end = 2 + int.from_bytes(self._buffer[:2], "big")
            if end > PART_MAX:
                raise HandshakeError("a part of the handshake is too long")
            if len(self._buffer) < end:
                break
            part, self._buffer = self._buffer[2:end], self._buffer[end:]
            output += self._on_challenge(part) if self._is_primary else self._on_part(part)
        if self.is_done:
            self.rest, self._buffer = self._buffer, b""
        return output

    def _on_challenge(self, part: bytes) -> bytes:
        nonce, answer = part[:_NONCE], part[_NONCE:]
        if not hmac.compare_digest(answer, _proof(self._secret, b"peer", self._hello, nonce)):
            raise HandshakeError("the peer does not know the secret of the cluster")
        self.is_done = True
        return _part(_proof(self._secret, b"primary", self._hello, nonce))

    def _on_part(self, part: bytes) -> bytes:
        if not self._hello:
            self._hello, self._nonce = part, os.urandom(_NONCE)
            self._read_hello()
            answer = _proof(self._secret, b"peer", self._hello, self._nonce)
            return _part(self._nonce + answer)
        if not hmac.compare_digest(
            part, _proof(self._secret, b"primary", self._hello, self._nonce)
        ):
            raise HandshakeError("the broker does not know the secret of the cluster")
        self.peer = self._read_hello()
        self.is_done = True
        return b""

    def _read_hello(self) -> BrokerId:
        try:
            version, zone, suffix, *wanted, _ = msgpack.unpackb(self._hello)
        except (ValueError, TypeError, msgpack.UnpackException):
            raise HandshakeError("the connection began with no valid handshake") from None
        if version != VERSION or tuple(wanted) != tuple(self._me):
            raise HandshakeError(f"the broker wants to reach {wanted} in version {version}")
        return BrokerId(str(zone), str(suffix))
