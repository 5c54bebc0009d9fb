"""Appends under way, as the interfaces of a broker see them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from qsync_broker import events as ev
from qsync_broker.requests import Append, Appended, AppendInput


class CallHost(Protocol):
    """The server, as the appends under way use it."""

    loop: asyncio.AbstractEventLoop

    def feed(self, event: ev.BrokerEvent) -> None:
        """Queue an input for the next step of the core."""


class AppendCall:
    """A client's append under way: give content when it is wanted, and await the result.

    Attributes:
        request: the append.
        result: its result, and whether another broker must serve it.
        begun_s: monotonic time at which it began, in seconds.
    """

    def __init__(self, host: CallHost, number: int, request: Append) -> None:
        self.request = request
        self.result: asyncio.Future[tuple[Appended, bool]] = host.loop.create_future()
        self.begun_s = host.loop.time()
        self._host = host
        self._number = number
        self._news = asyncio.Event()  # content is wanted, or there is a result

    @property
    def count(self) -> int:
        """Return the number of clients' appends that this one consists of."""
        return 1

    def give(self, received: AppendInput) -> None:
        """Pass on content, the end, or a break of the client."""
        if not self.result.done():
            self._news.clear()
        self._host.feed(ev.AppendReceived(self._number, received))

    def want(self) -> None:
        """Note that the broker accepts content."""
        self._news.set()

    def finish(self, result: Appended, is_proxied: bool) -> None:
        """Note the result."""
        if not self.result.done():
            self.result.set_result((result, is_proxied))
        self._news.set()

    async def wanted(self) -> bool:
        """Wait until content is wanted, or the append has its result; return whether it is."""
        await self._news.wait()
        return not self.result.done()


CallT = TypeVar("CallT", bound=AppendCall)


async def until_result(reading: Coroutine[Any, Any, bytes], call: AppendCall) -> bytes | None:
    """Return the next content of a client, or None if its append has a result before."""
    task = asyncio.ensure_future(reading)
    either: set[asyncio.Future[Any]] = {task, call.result}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
