"""Connections to other members: authentication of instances, and the frames between them (P1).

A member opens a connection to every known address, reads the greeting, and sends HELLO: its
instance uuid, the replica set's uuid, and a proof over the greeting's salt with the cluster's
secret. The other end answers with its own proof over the nonce in the HELLO. Until then, neither
end accepts any other message. Both send their addresses, and the accepting end names the members
that it knows, so that one address is enough to find all members.

If `tls` is set, a HELLO is accepted over TLS only, from an end whose certificate names the cluster
(`tls.py`). The proofs are bound to the connection (`format/proofs.py`). Earlier versions prove the
secret without a binding. Their proofs are always accepted from an end with such a certificate,
because an image may be rolled back. Two members that know bound proofs never exchange unbound ones:
the challenge reveals this capability. Without TLS a proof covers the challenge and the identity. It
shows knowledge of the secret and cannot be replayed, but does not protect later data of the
connection.

Afterwards the connection carries messages of the core in both directions, each with four bytes of
length before it. The connection determines the sender of a message, never its body.
"""

import asyncio
import hmac
import os
from typing import TYPE_CHECKING, Any, cast

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
from qsync_node.format.mp import pack, unpack
from qsync_node.format.proofs import certificate_binding, is_marked, peer_proof
from qsync_node.server.config import ConfigError, split_address
from qsync_node.server.peerlink import PeerLink

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer
    from qsync_node.server.session import Session

HELLO = 80
RETRY_S = 0.05
RETRY_MAX_S = 1.0
DISCOVERED_MAX = 64
FORGET_AFTER_S = 600.0
HANDSHAKE_TIMEOUT_S = 5.0
_UUID, _REPLICASET, _PROOF, _NONCE, _LEVEL = 0x24, 0x25, 0x73, 0x74, 0x75
_KNOWN = 0x76  # name -> host:port of members
_LIFE = 0x77  # random, per process: a new value means that the peer was restarted
_BOUND = 0x78  # the proof over TLS, instead of _PROOF
KEEPALIVE_S = 1.0
WRONG_PROOF = "the proof of the cluster's secret is wrong; configure the same secret on all members"


class Dialer(asyncio.Protocol):
    """The opening end of a connection: greeting, HELLO, then a `PeerLink`."""

    def __init__(self, server: "NodeServer", name: str, done: "asyncio.Future[str]") -> None:
        self.server = server
        self.name = name
        self.done = done
        self.nonce = os.urandom(16)
        self.transport: asyncio.Transport | None = None
        self.link: PeerLink | None = None
        self.peer_uuid = ""
        self._buffer = b""
        self._binding = b""  # of this connection, if both ends know bound proofs
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
            self._give_up(f"{self.name} is not a Qsync member: {error}")
            return
        if decoded.instance_uuid == server.uuid:
            self._give_up("the address leads to the member itself")
            return
        self.peer_uuid = decoded.instance_uuid
        self._decoder = FrameDecoder(1 << 16)
        fields = {
            _UUID: server.uuid,
            _REPLICASET: server.config.replicaset_uuid,
            _NONCE: self.nonce,
            _LEVEL: LEVEL,
            _KNOWN: server.peers.own_address(),
            _LIFE: server.peers.life,
        }
        assert self.transport is not None
        proofs = (server.config.secret, b"dial", decoded.salt, server.uuid)
        if server.certificates is not None and is_marked(server.config.secret, decoded.salt):
            shown = self.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self._binding = certificate_binding(shown)
        fields[_BOUND if self._binding else _PROOF] = peer_proof(*proofs, self._binding)
        self.transport.write(encode_request(HELLO, 1, pack(fields)))

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
        fields = unpack(body)
        if kind != 0:
            self._give_up(str(fields.get(0x31, "refused")))
            return
        server = self.server
        expected = peer_proof(
            server.config.secret, b"accept", self.nonce, self.peer_uuid, self._binding
        )
        if not _is_same(fields.get(_BOUND if self._binding else _PROOF), expected):
            self._give_up(f"{self.name}: {WRONG_PROOF}")
            return
        level = fields.get(_LEVEL, 1)
        self.link = PeerLink(server, self.transport, self.peer_uuid, True, level)
        server.peers.on_link(self.link, fields.get(_LIFE))
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


def _is_same(given: Any, expected: bytes) -> bool:
    return isinstance(given, bytes) and hmac.compare_digest(given, expected)


def _packet_length(data: bytes) -> int | None:
    """Return the size of the first packet, with its five-byte length; None if not yet known."""
    if len(data) < 5:
        return None
    return 5 + int.from_bytes(data[1:5], "big")


class Peers:
    """The connections of a member: one opened to each known address, and accepted ones."""

    def __init__(self, server: "NodeServer") -> None:
        self.server = server
        self.addresses: dict[str, str] = {}  # configured
        self.discovered: dict[str, str] = {}  # reported by other members
        self.life = os.urandom(8)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.TimerHandle | None = None

    def set_addresses(self, addresses: dict[str, str]) -> None:
        """Set the configured targets, name -> host:port, and stop dialling removed ones."""
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
        """Return the name and address of this member; {} if others cannot use the address."""
        config = self.server.config
        address = self.server.peer_address()
        if address is None:
            return {}
        host, port = address
        if config.advertise:
            host = split_address(config.advertise)[0]
        if host in ("0.0.0.0", "::", ""):  # every interface: not an address for others
            return {}
        return {config.name: f"{host}:{port}"}

    def known(self) -> dict[str, str]:
        return {**self.discovered, **self.addresses, **self.own_address()}

    def discover(self, said: Any) -> None:
        """Dial the members that another member reported and that are not known yet."""
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

    def on_link(self, link: PeerLink, life: Any) -> None:
        """Register a link, and close links to earlier processes of the same instance."""
        link.life = life if isinstance(life, bytes) else b""
        for other in list(self.server.links.values()):
            if other.uuid == link.uuid and other.life != link.life:
                other.close("the peer was restarted")
        if self._watch is None:
            self._keep_alive()

    def _keep_alive(self) -> None:
        for link in list(self.server.links.values()):
            link.keep_alive()
        self._watch = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._keep_alive)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
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
        """Connect, and wait until the link is lost.

        Returns:
            the reason of a failure to connect, or "" after a link was lost.
        """
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
        """Check and answer a HELLO; if it is valid, turn the session into a peer link."""
        server = self.server
        uuid, replicaset = fields.get(_UUID), fields.get(_REPLICASET)
        nonce, given = fields.get(_NONCE), fields.get(_BOUND, fields.get(_PROOF))
        # An end of an earlier version, authenticated by a certificate, sends only an unbound proof.
        binding = session.binding if _BOUND in fields else b""
        assert session.transport is not None
        code, reason = ErrorCode.UNKNOWN, ""
        if (
            not isinstance(uuid, str)
            or not isinstance(nonce, bytes)
            or not isinstance(given, bytes)
        ):
            code, reason = ErrorCode.PROTOCOL, "HELLO refused: it lacks a uuid, a nonce or a proof"
        elif server.certificates is not None and not session.is_member:
            code = ErrorCode.ACCESS_DENIED
            reason = "HELLO refused: it requires TLS and a certificate for the cluster"
        elif not _is_same(
            given, peer_proof(server.config.secret, b"dial", session.salt, uuid, binding)
        ):
            code, reason = ErrorCode.ACCESS_DENIED, f"HELLO refused: {WRONG_PROOF}"
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
            _LEVEL: LEVEL,
            _KNOWN: self.known(),
            _LIFE: self.life,
        }
        answer[_BOUND if binding else _PROOF] = peer_proof(
            server.config.secret, b"accept", nonce, server.uuid, binding
        )
        self.discover(fields.get(_KNOWN))
        server.remove_session(session)
        session.transport.write(encode_ok(sync, 1, pack(answer)))
        level = fields.get(_LEVEL, 1)
        level = level if isinstance(level, int) else 1
        session.peer = PeerLink(server, session.transport, uuid, False, level)
        self.on_link(session.peer, fields.get(_LIFE))
