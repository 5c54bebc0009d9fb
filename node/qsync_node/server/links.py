"""All connections between this member and others."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from qsync_node.consensus.messages import PeerMessage


class LinkSocket(Protocol):
    """A connection to another member."""

    number: int
    uuid: str
    incarnation: bytes
    out: list[bytes]

    def send(self, message: PeerMessage) -> None: ...
    def flush(self) -> None: ...
    def keep_alive(self) -> None: ...
    def close(self, reason: str) -> None: ...
    def abort(self) -> None: ...


class Links:
    """The links of a member by number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: Iterator[int]) -> None:
        """Begin without links.

        Args:
            loop: the event loop.
            numbers: numbers for links, which no session has.
        """
        self._loop = loop
        self._numbers = numbers
        self.by_number: dict[int, LinkSocket] = {}
        self._lost: dict[int, asyncio.Future[None]] = {}
        self._dirty: list[LinkSocket] = []

    def __len__(self) -> int:
        return len(self.by_number)

    def add(self, link: LinkSocket) -> int:
        number = next(self._numbers)
        self.by_number[number] = link
        return number

    def remove(self, link: LinkSocket) -> None:
        self.by_number.pop(link.number, None)
        waiting = self._lost.pop(link.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def until_lost(self, number: int) -> None:
        """Wait until a link is lost."""
        if number in self.by_number:
            await self._lost.setdefault(number, self._loop.create_future())

    def send(self, number: int, message: PeerMessage) -> None:
        """Add a message to those of this turn; without such a link it is lost."""
        link = self.by_number.get(number)
        if link is not None:
            if not link.out:
                self._dirty.append(link)
            link.send(message)

    def close(self, number: int, reason: str) -> None:
        link = self.by_number.get(number)
        if link is not None:
            link.close(reason)

    def flush(self) -> None:
        """Send the messages of a turn."""
        for link in self._dirty:
            link.flush()
        self._dirty.clear()

    def close_all(self) -> None:
        """Close all connections at once."""
        for link in list(self.by_number.values()):
            link.abort()
