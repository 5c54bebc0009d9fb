"""The connections of one simulated process: a driver of `qsync_node.peering` in virtual time.

Handshakes and keep-alives pass through the network as bytes, and so does every 16th message of the
core. The others pass as objects, which takes less time.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import SALT_BYTES, encode_greeting
from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.format.frame import encode_error, encode_ok
from qsync_node.format.mp import unpack
from qsync_node.peering.addresses import AddressBook
from qsync_node.peering.dialling import HANDSHAKE_TIMEOUT_S, Attempt, Dialling, superseded
from qsync_node.peering.frames import (
    EMPTY_FRAME,
    KEEPALIVE_S,
    Beat,
    Frames,
    FrameTooLong,
    KeepAlive,
    encode_frames,
)
from qsync_node.peering.handshake import (
    HELLO,
    Established,
    HandshakeFailed,
    HelloRefused,
    Opening,
    PeerIdentity,
    answer_hello,
)
from qsync_sim.network import ConnectionEnd, Network, NetworkHost

SECRET = "secret"
SECOND = 1_000_000_000
ENCODED_EVERY = 16


class LinkOwner(NetworkHost, Protocol):
    """A member, as the connections of its process use it (shell.py)."""

    settings: ConsensusSettings

    def feed(self, item: object) -> None: ...


class SimLink:
    """An authenticated connection."""

    def __init__(self, end: ConnectionEnd, found: Established, name: str) -> None:
        self.end = end
        self.name = name  # of the address that this process dialled, "" if it accepted
        self.uuid = found.uuid
        self.incarnation = found.incarnation
        self.frames = Frames()
        self.keep_alive = KeepAlive()


class SimPeers:
    """The connections of one process run.

    Attributes:
        shell: the member.
        links: open links by number.
    """

    def __init__(
        self,
        shell: LinkOwner,
        network: Network,
        replicaset_uuid: str,
        on_send: Callable[[str, Any], None],
        rng: Random,
    ) -> None:
        """Begin without connections.

        Args:
            shell: the member.
            network: the network of its machine.
            replicaset_uuid: the cluster.
            on_send: receives the instance and the message before a message is sent.
            rng: the source of nonces and tokens.
        """
        self.shell = shell
        self.links: dict[int, SimLink] = {}
        self._timeline = network.timeline
        self._network = network
        self._on_send = on_send
        self._rng = rng
        self._own = {shell.name: network.address_of(shell)}
        self._book = AddressBook(shell.name)
        self._dialling = Dialling(self._book)
        self._identity = PeerIdentity(
            shell.uuid,
            replicaset_uuid,
            SECRET,
            rng.randbytes(8),
            has_certificate=False,
            level=shell.settings.level,
        )
        self._dial_at_s: float | None = None
        self._sent = 0

    # --- dialling -----------------------------------------------------------------------------

    def start(self, addresses: dict[str, str]) -> None:
        """Dial the configured addresses, name -> address."""
        self.set_addresses(addresses)
        self._keep_alive()

    def set_addresses(self, addresses: dict[str, str]) -> None:
        self._dialling.set_configured(addresses, self._now_s())
        self._dial()

    def _now_s(self) -> float:
        return self._timeline.now_ns / SECOND

    def _dial(self) -> None:
        for attempt in self._dialling.due(self._now_s()):
            self._open(attempt)
        next_s = self._dialling.next_s
        if next_s is not None and next_s != self._dial_at_s:
            self._dial_at_s = next_s
            at_ns = int(next_s * SECOND) + 1000  # not before it is due, however it is rounded
            self._timeline.at(at_ns, partial(self.shell.run_in, self, self._redial))

    def _redial(self) -> None:
        self._dial_at_s = None
        self._dial()

    def _open(self, attempt: Attempt) -> None:
        target = self._network.at_address(attempt.address)
        opening = Opening(self._identity, attempt.name, self._rng.randbytes(16), self._own, bytes)
        failed = partial(self._on_failed, attempt)
        end = self._network.dial(self, target, failed)
        end.on_data = partial(self._on_handshake, end, attempt, opening)
        end.on_closed = failed
        timeout = partial(self.shell.run_in, self, partial(self._on_timeout, end, attempt))
        self._timeline.after(int(HANDSHAKE_TIMEOUT_S * SECOND), timeout)

    def _on_failed(self, attempt: Attempt) -> None:
        self._timeline.count("attempts to connect failed")
        self._dialling.on_failed(attempt, self._now_s())
        self._dial()

    def _on_timeout(self, end: ConnectionEnd, attempt: Attempt) -> None:
        if end.is_open and not end.number:
            self._timeline.count("handshakes timed out")
            self._network.close(end)
            self._on_failed(attempt)

    def _on_handshake(
        self, end: ConnectionEnd, attempt: Attempt, opening: Opening, data: bytes
    ) -> None:
        try:
            hello, found = opening.receive(data)
        except HandshakeFailed:
            self._network.close(end)
            self._on_failed(attempt)
            return
        if hello:
            self._network.send(end, hello)
        if found is not None:
            self._establish(end, found, attempt)

    # --- accepting ----------------------------------------------------------------------------

    def accept(self, end: ConnectionEnd) -> None:
        """Greet the opener of a connection."""
        salt = self._rng.randbytes(SALT_BYTES)
        end.on_data = partial(self._on_hello, end, salt)
        self._network.send(end, encode_greeting(self.shell.uuid, salt))

    def _on_hello(self, end: ConnectionEnd, salt: bytes, data: bytes) -> None:
        ((kind, sync, _, body),) = FrameDecoder(1 << 16).feed(data)
        assert kind == HELLO, kind
        try:
            found, answer = answer_hello(
                self._identity,
                self._book.known(self._own),
                unpack(body),
                salt=salt,
                binding=b"",
                is_member=False,
            )
        except HelloRefused as refusal:
            self._network.send(end, encode_error(sync, 1, int(refusal.code), str(refusal)))
            self._network.close(end)
            return
        self._network.send(end, encode_ok(sync, 1, answer))
        self._establish(end, found, None)

    # --- links --------------------------------------------------------------------------------

    def _establish(self, end: ConnectionEnd, found: Established, attempt: Attempt | None) -> None:
        number = end.number = self._network.next_link()
        link = self.links[number] = SimLink(end, found, attempt.name if attempt else "")
        end.on_data = partial(self._on_data, link)
        end.on_closed = partial(self._on_lost, link, attempt)
        self.shell.feed(fx.LinkUp(number, found.uuid, attempt is not None, found.level))
        for other in superseded(self.links.values(), found):
            self._timeline.count("links to earlier processes closed")
            self._close(other)
        self._check_superseded(end, found.uuid)
        if self._dialling.discover(found.known, self._own, self._now_s()):
            self._timeline.count("members discovered")
            self._dial()

    def _check_superseded(self, end: ConnectionEnd, uuid: str) -> None:
        """Check that all links to a member lead to the process that has connected now.

        A process may have ended since it connected. Then the notice of that is under way.
        """
        peers = self._network.hosts[uuid].peers
        if end.other.peers is not peers:
            return
        for link in self.links.values():
            if link.uuid == uuid and link.end.other.peers is not peers:
                self._timeline.fail(f"M6: {self.shell.name} keeps a link to an earlier process")

    def unfinished(self) -> list[str]:
        """Return the links that must be closed, because the other end is, or must be opened."""
        open_names = {link.name for link in self.links.values() if link.end.other.is_open}
        closed = [link for link in self.links.values() if not link.end.other.is_open]
        missing = [
            name
            for name, address in self._book.targets.items()
            if self._network.at_address(address).is_alive and name not in open_names
        ]
        return [f"keeps a link to {link.uuid}" for link in closed] + [
            f"has no link to {name}" for name in missing
        ]

    def _on_lost(self, link: SimLink, attempt: Attempt | None) -> None:
        if self.links.pop(link.end.number, None) is None:
            return
        self.shell.feed(fx.LinkDown(link.end.number))
        if attempt is not None:
            self._dialling.on_lost(attempt, self._now_s())
            self._dial()

    def _close(self, link: SimLink) -> None:
        self._network.close(link.end)
        link.end.on_closed()

    def close(self, number: int) -> None:
        """Close a link on behalf of the core."""
        link = self.links.get(number)
        if link is not None:
            self._close(link)

    def send(self, number: int, message: msg.PeerMessage) -> None:
        """Send a message of the core, if the link is open."""
        link = self.links.get(number)
        if link is None:
            return
        self._on_send(link.uuid, message)
        link.keep_alive.on_sent()
        self._sent += 1
        item: msg.PeerMessage | bytes = message
        if self._sent % ENCODED_EVERY == 0:
            item = encode_frames([msg.encode(message)])
        self._network.send(link.end, item)

    def _on_data(self, link: SimLink, item: msg.PeerMessage | bytes) -> None:
        link.keep_alive.on_received()
        if not isinstance(item, bytes):
            self.shell.feed(fx.Received(link.end.number, item))
            return
        try:
            messages = [msg.decode(one) for one in link.frames.feed(item)]
        except (FrameTooLong, ValueError):
            self._timeline.count("links closed because of garbage")
            self._close(link)
            return
        for message in messages:
            self.shell.feed(fx.Received(link.end.number, message))

    def _keep_alive(self) -> None:
        for link in list(self.links.values()):
            beat = link.keep_alive.tick()
            if beat is Beat.SILENT:
                self._timeline.count("silent links closed")
                self._close(link)
            elif beat is Beat.SEND:
                self._network.send(link.end, EMPTY_FRAME)
        again = partial(self.shell.run_in, self, self._keep_alive)
        self._timeline.after(int(KEEPALIVE_S * SECOND), again)
