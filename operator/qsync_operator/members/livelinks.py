"""A connection to each member that reports changes of leader and ended processes at once.

It uses IPROTO's WATCH, which needs no password. A node pushes its status when that changes, and the
kernel closes the connections of a process that ended. So no change has to wait for the next poll.

A closed connection is only a hint. The member counts as ended until a new connection is open. If
another member is nominated by mistake, the voters refuse.
"""

import asyncio
import asyncio.sslproto
import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from qsync_client.protocol.connection import (
    ClientConnection,
    ClientConnectionState,
    ConnectionEvent,
    Ended,
    Notified,
)

WATCHED = ("box.status", "box.election")
CONNECT_TIMEOUT_S = 3.0
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
READ_BYTES = 1 << 16
# asyncio allocates a buffer of this size for each TLS connection; the default is 256 KiB. A hundred
# clusters have three hundred connections, which carry little data.
asyncio.sslproto.SSLProtocol.max_size = 1 << 14
KEEPALIVE = (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4))


@dataclass(slots=True)
class LinkState:
    """The observed state of one connection."""

    address: str
    number: int = 0  # unique number of its last open connection; 0 for none
    is_connected: bool = False
    ended_at_ns: int = 0  # when its last connection was closed by the other end

    @property
    def has_ended(self) -> bool:
        return bool(self.ended_at_ns) and not self.is_connected


class LiveLinks:
    """One connection for each member; the caller must close it."""

    def __init__(
        self,
        wake: Callable[[], None],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Prepare the links.

        Args:
            wake: called when a member changes.
            context: returns the TLS context of each connection, because trusted authorities may
                change.
        """
        self._wake = wake
        self._context = context
        self._targets: dict[str, str] = {}
        self._links: dict[str, LinkState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Numbers are never reused: a member that returned is another process.
        self._numbers = itertools.count(1)

    def state(self, member: str) -> LinkState:
        return self._links.get(member) or LinkState("")

    def set_addresses(self, addresses: dict[str, str]) -> None:
        """Set the current addresses of members.

        An open connection is kept even if its member is reported elsewhere or gone. A force-deleted
        pod keeps running for a while, and may lead.
        """
        self._targets = dict(addresses)
        for member in {*self._links, *addresses}:
            link = self._links.setdefault(member, LinkState(""))
            if link.is_connected or addresses.get(member) == link.address:
                continue
            task = self._tasks.pop(member, None)
            if task is not None:
                task.cancel()
            if member in addresses:
                link.address = addresses[member]
                self._tasks[member] = asyncio.create_task(self._keep(member, link))
            else:
                del self._links[member]

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, member: str, link: LinkState) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            # After any of these errors, the connection has ended.
            with contextlib.suppress(OSError, EOFError, ValueError):
                await self._watch(link)
            if link.is_connected:
                link.is_connected = False
                link.ended_at_ns = time.monotonic_ns()
                pause_s = RETRY_FIRST_S
                self._wake()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)
            link.address = self._targets.get(member, link.address)

    async def _watch(self, link: LinkState) -> None:
        host, _, port = link.address.rpartition(":")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=self._context()
            )
        _notice_silence(writer.get_extra_info("socket"))
        protocol = ClientConnection(None)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while protocol.state is ClientConnectionState.GREETING:
                    await _receive(reader, protocol)
            for key in WATCHED:
                protocol.watch(key)
            writer.write(protocol.take_output())
            link.number = next(self._numbers)
            link.is_connected = True
            self._wake()
            while True:
                for event in await _receive(reader, protocol):
                    if isinstance(event, Notified):
                        # Only after this does the node send the next event.
                        protocol.acknowledge(event.key)
                        self._wake()
                writer.write(protocol.take_output())
        finally:
            writer.close()


async def _receive(
    reader: asyncio.StreamReader, protocol: ClientConnection
) -> list[ConnectionEvent]:
    """Return the next events. Raises EOFError if the connection has ended."""
    events = protocol.receive(await reader.read(READ_BYTES))
    for event in events:
        if isinstance(event, Ended):
            raise EOFError(event.reason)
    return events


def _notice_silence(connection: socket.socket) -> None:
    """Detect a machine that lost its power and closes nothing: the kernel probes the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):  # if the system has it
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
