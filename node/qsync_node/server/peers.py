"""Connections to other members: the sockets of the protocol in `qsync_node.peering` (P1).

A member opens a connection to every known address. After the handshake, a connection carries
messages of the core in both directions. The connection determines the sender of a message, never
its body.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from qsync_node.format.frame import encode_error, encode_ok
from qsync_node.peering.addresses import AddressBook
from qsync_node.peering.dialling import HANDSHAKE_TIMEOUT_S, Attempt, Dialling, superseded
from qsync_node.peering.frames import KEEPALIVE_S
from qsync_node.peering.handshake import (
    Established,
    HandshakeFailed,
    HelloRefused,
    Opening,
    OwnAddress,
    PeerIdentity,
    answer_hello,
)
from qsync_node.server.config import ConfigError, NodeConfig, split_address
from qsync_node.server.links import Links
from qsync_node.server.logs import Log
from qsync_node.server.peerlink import PeerLink
from qsync_node.server.refusals import Refusals
from qsync_node.server.services import Newcomer
from qsync_node.server.sessions import Sessions
from qsync_node.server.tls import Certificates


class LinkFailure(NamedTuple):
    """A connection to a member was not opened.

    Attributes:
        reason: the cause.
        is_refusal: whether it persists until a person changes the configuration.
    """

    reason: str
    is_refusal: bool = False


class Dialer(asyncio.Protocol):
    """The socket of a connection that this member opens: the handshake, then a `PeerLink`."""

    def __init__(
        self, peers: "Peers", name: str, done: "asyncio.Future[LinkFailure | None]"
    ) -> None:
        """Begin before the connection is open.

        Args:
            peers: the connections of this member.
            name: name of the member to which it connects.
            done: gets the failure of the handshake, or None after a success.
        """
        self.link: PeerLink | None = None
        self._peers = peers
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._opening = peers.opening(name, self._certificate)

    def _certificate(self) -> bytes:
        """Return the certificate that the other end has presented."""
        assert self._transport is not None
        shown: bytes = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not the class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.link.feed(data)
            return
        assert self._transport is not None
        try:
            hello, found = self._opening.receive(data)
        except HandshakeFailed as failed:
            self._finish(LinkFailure(str(failed), not isinstance(failed, OwnAddress)))
            self._transport.abort()
            return
        if hello:
            self._transport.write(hello)
        if found is not None:
            self.link = self._peers.establish(self._transport, found, is_mine=True)
            self._finish(None)
            if found.rest:
                self.link.feed(found.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.link is not None:
            self.link.lost()
        self._finish(LinkFailure("the connection broke during the handshake"))

    def _finish(self, failure: LinkFailure | None) -> None:
        if not self._done.done():
            self._done.set_result(failure)


class Peers:
    """The connections of a member: one opened to each known address, and accepted ones.

    Attributes:
        refusals: refused handshakes.
    """

    def __init__(
        self,
        config: NodeConfig,
        uuid: str,
        links: Links,
        sessions: Sessions,
        feed: Callable[[Any], None],
        log: Log,
        address: Callable[[], tuple[str, int] | None],
    ) -> None:
        """Begin without connections.

        Args:
            config: the member's configuration.
            uuid: its instance.
            links: all links of the member.
            sessions: all client connections; one that sends HELLO becomes a link.
            feed: takes an input of its node.
            log: its log.
            address: returns host and port for other members, or None while it does not listen.
        """
        self._config = config
        self._uuid = uuid
        self._links = links
        self._sessions = sessions
        self._feed = feed
        self._log = log
        self._listening_at = address
        self.refusals = Refusals(log)
        self._loop = asyncio.get_running_loop()
        self._certificates: Certificates | None = None
        self._book = AddressBook(config.name)
        self._dialling = Dialling(self._book)
        self._incarnation = os.urandom(8)
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # of the next attempt

    @property
    def refused_count(self) -> int:
        """Refused handshakes since the start, in both directions."""
        return self.refusals.count

    @property
    def _me(self) -> PeerIdentity:
        config = self._config
        has_certificate = self._certificates is not None
        return PeerIdentity(
            self._uuid, config.replicaset_uuid, config.secret, self._incarnation, has_certificate
        )

    def use_certificates(self, certificates: Certificates) -> None:
        """Connect to other members with TLS."""
        self._certificates = certificates

    # --- addresses ----------------------------------------------------------------------------

    def set_addresses(self, addresses: dict[str, str]) -> None:
        """Set the configured targets, name -> host:port, and stop dialling removed ones."""
        for attempt in self._dialling.set_configured(addresses, self._loop.time()):
            task = self._tasks.pop(attempt, None)
            if task is not None:
                task.cancel()
        self.refusals.keep_targets(self._book.targets.keys())
        self._dial()

    def _dial(self) -> None:
        """Begin all attempts that are due, and return at the time of the next one."""
        loop = self._loop
        for attempt in self._dialling.due(loop.time()):
            self._tasks[attempt] = loop.create_task(self._attempt(attempt))
        if self._timer is not None:
            self._timer.cancel()
        next_s = self._dialling.next_s
        self._timer = loop.call_at(next_s, self._dial) if next_s is not None else None

    def _own_address(self) -> dict[str, str]:
        """Return the name and address of this member; {} if others cannot use the address."""
        config = self._config
        address = self._listening_at()
        if address is None:
            return {}
        host, port = address
        if config.advertise:
            host = split_address(config.advertise)[0]
        if host in ("0.0.0.0", "::", ""):  # every interface: not an address for others
            return {}
        return {config.name: f"{host}:{port}"}

    def _discover(self, reported: object) -> None:
        """Dial the members that another member reports and that are not known yet."""
        now_s = self._loop.time()
        fresh = self._dialling.discover(reported, self._own_address(), now_s)
        for name, address in fresh.items():
            self._log("peer_discovered", peer=name, address=address)
        if fresh:
            self._dial()

    # --- connections --------------------------------------------------------------------------

    def opening(self, name: str, certificate: Callable[[], bytes]) -> Opening:
        """Return the handshake of a connection to a member."""
        return Opening(self._me, name, os.urandom(16), self._own_address(), certificate)

    def establish(
        self, transport: asyncio.Transport, found: Established, *, is_mine: bool
    ) -> PeerLink:
        """Begin a link, and close links to earlier processes of the same instance."""
        link = PeerLink(self._links, self._feed, self._log, transport, found, is_mine)
        for other in superseded(self._links.by_number.values(), found):
            other.close("the peer was restarted")
        if self._watch is None:
            self._keep_alive()
        self._discover(found.known)
        return link

    def _keep_alive(self) -> None:
        for link in list(self._links.by_number.values()):
            link.keep_alive()
        self._watch = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._keep_alive)

    def stop(self) -> None:
        for timer in (self._watch, self._timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def _attempt(self, attempt: Attempt) -> None:
        """Connect, wait until the link is lost, and arrange the next attempt."""
        failure = await self._connect(attempt)
        self._tasks.pop(attempt, None)
        now_s = self._loop.time()
        if failure is None:
            self._dialling.on_lost(attempt, now_s)
        else:
            self._dialling.on_failed(attempt, now_s)
            name, address, reason = attempt.name, attempt.address, failure.reason
            if failure.is_refusal:
                self.refusals.on_dialled(name, address, reason, now_s)
                self.refusals.keep_targets(self._book.targets.keys())
            else:
                self._log("link_lost", peer=name, address=address, reason=reason)
        self._dial()

    async def _connect(self, attempt: Attempt) -> LinkFailure | None:
        """Connect, and wait until the link is lost.

        Returns:
            the failure to connect, or None after a link was lost.
        """
        loop = self._loop
        tls = self._certificates.dialling if self._certificates is not None else None
        done: asyncio.Future[LinkFailure | None] = loop.create_future()
        transport, dialer = None, None
        try:
            host, port = split_address(attempt.address)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                transport, dialer = await loop.create_connection(
                    lambda: Dialer(self, attempt.name, done),
                    host,
                    port,
                    ssl=tls,
                    server_hostname="" if tls else None,
                )
                failure = await done
        except (OSError, TimeoutError, ConfigError, ValueError) as error:
            # Of the TLS errors, only a refused certificate is not caused by a lost connection.
            if isinstance(error, ssl.SSLCertVerificationError | ConfigError):
                return LinkFailure(str(error), is_refusal=True)
            if isinstance(error, ValueError):  # the name of the host has no encoding
                reason = f"invalid address {attempt.address!r}: {error}"
                return LinkFailure(reason, is_refusal=True)
            return LinkFailure(str(error) or type(error).__name__)
        finally:
            if transport is not None and dialer is not None and dialer.link is None:
                transport.abort()  # the other end is silent, and could answer much later
        if failure is not None or dialer.link is None:
            return failure
        self.refusals.on_linked(attempt.name)
        await self._links.until_lost(dialer.link.number)
        return None

    def accept(self, session: Newcomer, sync: int, fields: dict[int, Any]) -> None:
        """Check and answer a HELLO; if it is valid, turn the session into a peer link."""
        transport = session.transport
        assert transport is not None
        try:
            found, answer = answer_hello(
                self._me,
                self._book.known(self._own_address()),
                fields,
                salt=session.connection.salt,
                binding=session.connection.binding,
                is_member=session.connection.is_member,
            )
        except HelloRefused as refusal:
            host = str((transport.get_extra_info("peername") or ("unknown",))[0])
            self.refusals.on_accepted(host, str(refusal), self._loop.time())
            transport.write(encode_error(sync, 1, int(refusal.code), str(refusal)))
            transport.close()
            return
        self._sessions.remove(session)
        transport.write(encode_ok(sync, 1, answer))
        session.become_peer(self.establish(transport, found, is_mine=False))
