"""Connections to other members: who may speak for an instance, and the frames between them (P1).

A member opens a connection to every address it knows, reads the greeting, and says HELLO: its
instance uuid, the replica set's uuid, and a proof over the greeting's salt with the cluster's
secret. The other end answers with its own proof over the nonce in the HELLO. Neither end takes a
word before; both say where they listen, and the accepting end says whom it knows, so that one
address is enough to find everybody. Afterwards the connection carries messages of the core in both
directions, each behind four bytes of length. The sender of a message is the connection's, never the
body's.
"""

import asyncio
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Any, cast

import msgpack

from qsync_node.core import effects as fx
from qsync_node.core import messages as msg
from qsync_node.core.membership import LEVEL
from qsync_node.errors import ErrorCode
from qsync_node.format.frame import (
    FrameDecoder,
    FrameError,
    encode_error,
    encode_ok,
    encode_request,
)
from qsync_node.format.greeting import GreetingError, decode_greeting
from qsync_node.server.config import ConfigError, split_address

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer
    from qsync_node.server.session import Session

HELLO = 80
FRAME_BYTES_MAX = 64 << 20
UNSENT_BYTES_MAX = 256 << 20
RETRY_S = 0.05
RETRY_MAX_S = 1.0
DISCOVERED_MAX = 64
FORGET_AFTER_S = 600.0
HANDSHAKE_TIMEOUT_S = 5.0
_UUID, _REPLICASET, _PROOF, _NONCE, _LEVEL = 0x24, 0x25, 0x73, 0x74, 0x75
_KNOWN = 0x76  # name -> host:port of members


def proof(secret: str, purpose: bytes, challenge: bytes, uuid: str) -> bytes:
    """That the sender knows `secret`, for one challenge and one identity only."""
    return hmac.digest(secret.encode(), purpose + challenge + uuid.encode(), hashlib.sha256)


class PeerLink:
    """One authenticated connection, whichever end opened it."""

    def __init__(
        self,
        server: "NodeServer",
        transport: asyncio.Transport,
        uuid: str,
        is_mine: bool,
        level: int,
    ) -> None:
        self.server = server
        self.transport = transport
        self.uuid = uuid
        self.out: list[bytes] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 4
        self._is_lost = False
        self.number = server.add_link(self)
        server.feed(fx.LinkUp(self.number, uuid, is_mine, level))

    def send(self, message: Any) -> None:
        self.out.append(msg.encode(message))

    def flush(self) -> None:
        parts: list[bytes] = []
        for data in self.out:
            parts.append(len(data).to_bytes(4, "big"))
            parts.append(data)
        self.out = []
        if not self.transport.is_closing():
            self.transport.write(b"".join(parts))
            if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self.close("the peer does not read")

    def feed(self, data: bytes) -> None:
        """Bytes of the connection; a whole message goes to the core."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return
        buffer = b"".join(self._parts) if len(self._parts) > 1 else data
        position = 0
        end = len(buffer)
        self._wanted = 4
        while end - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if length > FRAME_BYTES_MAX:
                self.close("a frame is too long")
                return
            if end - position - 4 < length:
                self._wanted = 4 + length
                break
            position += 4
            if not self._take(buffer[position : position + length]):
                return
            position += length
        rest = buffer[position:]
        self._parts = [rest] if rest else []
        self._size = len(rest)

    def _take(self, data: bytes) -> bool:
        try:
            message = msg.decode(data)
        except ValueError as error:
            self.close(str(error))
            return False
        self.server.feed(fx.Received(self.number, message))
        return True

    def close(self, reason: str) -> None:
        self.server.log("link_closed", peer=self.uuid, reason=reason)
        self.transport.abort()
        self.lost()

    def lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.server.remove_link(self)
            self.server.feed(fx.LinkDown(self.number))


class Dialer(asyncio.Protocol):
    """Our end of a connection that we opened: greeting, HELLO, then a `PeerLink`."""

    def __init__(self, server: "NodeServer", name: str, done: "asyncio.Future[str]") -> None:
        self.server = server
        self.name = name
        self.done = done
        self.nonce = os.urandom(16)
        self.transport: asyncio.Transport | None = None
        self.link: PeerLink | None = None
        self.peer_uuid = ""
        self._buffer = b""
        self._decoder: FrameDecoder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.link.feed(data)
            return
        self._buffer += data
        if self._decoder is None:
            if len(self._buffer) < 128:
                return
            self._greet(self._buffer[:128])
            self._buffer = self._buffer[128:]
        if self._decoder is not None and self._buffer:
            rest, self._buffer = self._buffer, b""
            self._expect_answer(rest)

    def _greet(self, greeting: bytes) -> None:
        server = self.server
        try:
            decoded = decode_greeting(greeting)
        except GreetingError as error:
            self._give_up(f"{self.name} is not a member: {error}")
            return
        if decoded.instance_uuid == server.uuid:
            self._give_up("this address is our own")
            return
        self.peer_uuid = decoded.instance_uuid
        self._decoder = FrameDecoder(1 << 16)
        body = msgpack.packb(
            {
                _UUID: server.uuid,
                _REPLICASET: server.config.replicaset_uuid,
                _PROOF: proof(server.config.secret, b"dial", decoded.salt, server.uuid),
                _NONCE: self.nonce,
                _LEVEL: LEVEL,
                _KNOWN: server.peers.own_address(),
            }
        )
        assert self.transport is not None
        self.transport.write(encode_request(HELLO, 1, body))

    def _expect_answer(self, data: bytes) -> None:
        assert self._decoder is not None
        assert self.transport is not None
        length = _packet_length(data)
        if length is None or len(data) < length:
            self._buffer = data
            return
        try:
            frames = self._decoder.feed(data[:length])
        except FrameError as error:
            self._give_up(error.why)
            return
        kind, _, _, body = frames[0]
        fields = msgpack.unpackb(body, strict_map_key=False)
        if kind != 0:
            self._give_up(str(fields.get(0x31, "refused")))
            return
        server = self.server
        expected = proof(server.config.secret, b"accept", self.nonce, self.peer_uuid)
        if not hmac.compare_digest(fields.get(_PROOF, b""), expected):
            self._give_up(f"{self.name} does not know the cluster's secret")
            return
        self.link = PeerLink(server, self.transport, self.peer_uuid, True, fields.get(_LEVEL, 1))
        server.peers.discover(fields.get(_KNOWN))
        if not self.done.done():
            self.done.set_result("")
        if data[length:]:
            self.link.feed(data[length:])

    def _give_up(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_result(reason)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.link is not None:
            self.link.lost()
        if not self.done.done():
            self.done.set_result("the connection broke during the handshake")


def _packet_length(data: bytes) -> int | None:
    """Bytes of the first packet with its five-byte length; None while that is not there."""
    if len(data) < 5:
        return None
    return 5 + int.from_bytes(data[1:5], "big")


class Peers:
    """Keeps one connection open to each known address, and accepts those of others."""

    def __init__(self, server: "NodeServer") -> None:
        self.server = server
        self.addresses: dict[str, str] = {}  # what was configured
        self.discovered: dict[str, str] = {}  # what other members said
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def set_addresses(self, addresses: dict[str, str]) -> None:
        """Who to connect to: name -> host:port. Removed ones are no longer dialled."""
        before = {**self.discovered, **self.addresses}
        self.addresses = dict(addresses)
        self.discovered = {
            name: address
            for name, address in self.discovered.items()
            if name not in addresses and address not in addresses.values()
        }
        now = {**self.discovered, **self.addresses}
        for name in list(self._tasks):
            if now.get(name) != before.get(name):
                self._tasks.pop(name).cancel()
        self._dial(now)

    def _dial(self, addresses: dict[str, str]) -> None:
        for name, address in addresses.items():
            if name != self.server.config.name and name not in self._tasks:
                self._tasks[name] = asyncio.get_running_loop().create_task(
                    self._keep_connected(name, address)
                )

    def own_address(self) -> dict[str, str]:
        """Where others reach this member, if that can be told from its configuration."""
        config = self.server.config
        host, port = self.server.peer_address()
        if config.advertise:
            host = split_address(config.advertise)[0]
        if host in ("0.0.0.0", "::", ""):  # every interface: no address for others
            return {}
        return {config.name: f"{host}:{port}"}

    def known(self) -> dict[str, str]:
        return {**self.discovered, **self.addresses, **self.own_address()}

    def discover(self, said: Any) -> None:
        """Dial members that a member named and nobody configured."""
        if not isinstance(said, dict):
            return
        fresh: dict[str, str] = {}
        for name, address in said.items():
            if not isinstance(name, str) or not isinstance(address, str):
                continue
            known = self.known()
            if name in known or address in known.values() or len(self.discovered) >= DISCOVERED_MAX:
                continue
            try:
                split_address(address)
            except ConfigError:
                continue
            self.discovered[name] = fresh[name] = address
            self.server.log("peer_discovered", peer=name, address=address)
        self._dial(fresh)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _keep_connected(self, name: str, address: str) -> None:
        wait = RETRY_S
        loop = asyncio.get_running_loop()
        reached_s = loop.time()
        while True:
            reason = await self._connect(name, address)
            if reason:
                self.server.log("link_lost", peer=name, address=address, reason=reason)
                if name in self.discovered and loop.time() - reached_s > FORGET_AFTER_S:
                    del self.discovered[name], self._tasks[name]
                    return
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MAX_S)
            else:
                reached_s = loop.time()
                wait = RETRY_S
                await asyncio.sleep(RETRY_S)

    async def _connect(self, name: str, address: str) -> str:
        """Connect and stay connected; returns why a connection was never made, or ""."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()
        try:
            host, port = split_address(address)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                _, dialer = await loop.create_connection(
                    lambda: Dialer(self.server, name, done),
                    host,
                    port,
                    ssl=self.server.peer_tls,
                    server_hostname="" if self.server.peer_tls else None,
                )
                reason = await done
        except (OSError, TimeoutError, ConfigError) as error:
            return str(error) or type(error).__name__
        if reason or dialer.link is None:
            return reason
        await self.server.until_lost(dialer.link)
        return ""

    def accept(self, session: "Session", sync: int, fields: dict[int, Any]) -> None:
        """A HELLO arrived: check it, answer it, and make the connection a peer's."""
        server = self.server
        uuid, replicaset = fields.get(_UUID), fields.get(_REPLICASET)
        nonce, given = fields.get(_NONCE), fields.get(_PROOF)
        assert session.transport is not None
        code, reason = ErrorCode.UNKNOWN, ""
        if (
            not isinstance(uuid, str)
            or not isinstance(nonce, bytes)
            or not isinstance(given, bytes)
        ):
            code, reason = ErrorCode.PROTOCOL, "a HELLO has a uuid, a nonce and a proof"
        elif not hmac.compare_digest(
            given, proof(server.config.secret, b"dial", session.salt, uuid)
        ):
            code, reason = ErrorCode.ACCESS_DENIED, "the proof of the cluster's secret is wrong"
        elif replicaset != server.config.replicaset_uuid:
            code = ErrorCode.REPLICASET_UUID_MISMATCH
            reason = (
                f"Replica set UUID mismatch: expected {server.config.replicaset_uuid}, "
                f"got {replicaset}"
            )
        elif uuid == server.uuid:
            code, reason = ErrorCode.CONNECTION_TO_SELF, "Connection to itself"
        if reason:
            session.transport.write(encode_error(sync, 1, int(code), reason))
            session.transport.close()
            return
        assert isinstance(uuid, str)
        assert isinstance(nonce, bytes)
        answer = {
            _UUID: server.uuid,
            _PROOF: proof(server.config.secret, b"accept", nonce, server.uuid),
            _LEVEL: LEVEL,
            _KNOWN: self.known(),
        }
        self.discover(fields.get(_KNOWN))
        server.remove_session(session)
        session.transport.write(encode_ok(sync, 1, msgpack.packb(answer)))
        level = fields.get(_LEVEL, 1)
        session.peer = PeerLink(
            server, session.transport, uuid, False, level if isinstance(level, int) else 1
        )
