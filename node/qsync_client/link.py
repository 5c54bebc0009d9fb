"""One connection to one member over asyncio: drives a `ClientConnection`, and wakes tasks."""

import asyncio
import contextlib
from typing import Any

from qsync_client.errors import DENIED, AccessDenied, QsyncError
from qsync_client.protocol.connection import (
    Answered,
    ClientConnection,
    ClientConnectionState,
    ConnectionEvent,
    Credentials,
    Ended,
    Notified,
    Opened,
)
from qsync_client.requests import PING, ClientRequest


class Watcher:
    """The newest value of a watched key, for one task.

    Values that arrive while the task is busy replace each other: only the newest one matters.
    """

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._value: Any = None
        self._error = ""

    def put(self, value: Any) -> None:
        self._value = value
        self._arrived.set()

    def fail(self, reason: str) -> None:
        self._error = reason
        self._arrived.set()

    async def get(self) -> Any:
        """Return the next value.

        Raises:
            ConnectionError: the connection ended.
        """
        await self._arrived.wait()
        if self._error:
            raise ConnectionError(self._error)
        self._arrived.clear()
        return self._value


class Link(asyncio.Protocol):
    """A connection of a pool."""

    def __init__(self, address: str, user: str, password: str, silence_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.address = address
        self.uuid = ""
        self._streams = 0  # transactions that use this connection
        self._user = user
        self._connection = ClientConnection(
            Credentials(user, password), self._loop.time(), silence_s
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._logged_in: asyncio.Future[None] = self._loop.create_future()
        self._watchers: dict[str, set[Watcher]] = {}
        self._is_retired = False
        self.refused_s: dict[bool, float] = {}
        """Time since which the member has refused each read (True), or each other request (False).
        Without an entry, it executes them."""

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not asyncio's
        self._loop.call_later(self._connection.silence_s / 2, self._tick)

    def data_received(self, data: bytes) -> None:
        self._handle(self._connection.receive(data, self._loop.time()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # it has closed: `_end` must not abort it
        self._handle(
            self._connection.close(
                f"the connection broke: {exc}" if exc else "the connection broke"
            )
        )

    def _tick(self) -> None:
        if self._connection.state is ClientConnectionState.CLOSED:
            return
        self._handle(self._connection.tick(self._loop.time()))
        self._loop.call_later(self._connection.silence_s / 2, self._tick)

    def _handle(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            if type(event) is Answered:
                waiting = self._waiting.pop(event.sync, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(event)
            elif isinstance(event, Notified):
                self._notify(event)
            elif isinstance(event, Opened):
                self.uuid = event.greeting.instance_uuid
                if not self._logged_in.done():
                    self._logged_in.set_result(None)
            elif isinstance(event, Ended):
                self._end(event)
        self._flush()
        self._close_if_unused()

    def _flush(self) -> None:
        output = self._connection.take_output()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)

    def _notify(self, event: Notified) -> None:
        watchers = self._watchers.get(event.key)
        if not watchers:
            return  # it was sent before UNWATCH arrived; WATCH would subscribe again
        for watcher in watchers:
            watcher.put(event.value)
        self._connection.acknowledge(event.key)

    def _end(self, event: Ended) -> None:
        if not self._logged_in.done():
            self._logged_in.set_exception(self._login_error(event))
            self._logged_in.exception()  # marks the failure as handled if no task waits
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError(event.reason))
        self._waiting.clear()
        self._end_watches(event.reason)
        if self._transport is not None:
            self._transport.abort()

    def _login_error(self, event: Ended) -> Exception:
        if event.code in DENIED:
            return AccessDenied(
                event.code, f"log-in as {self._user} at {self.address} failed: {event.reason}"
            )
        return QsyncError(event.reason) if event.code else ConnectionError(event.reason)

    def _end_watches(self, reason: str) -> None:
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.fail(reason)
        self._watchers.clear()

    # --- requests -------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return (
            self._connection.state is ClientConnectionState.CLOSED
            or self._transport is None
            or self._transport.is_closing()
        )

    @property
    def pending(self) -> int:
        """Return the number of requests without an answer."""
        return len(self._waiting)

    async def log_in(self) -> None:
        """Wait until the server has accepted the user.

        Raises:
            AccessDenied: it refused the user.
            ConnectionError: the connection broke, or the peer does not speak IPROTO.
            QsyncError: the server refused the log-in for another reason.
        """
        await self._logged_in

    async def ask(
        self, request: ClientRequest, *, stream: int = 0, key: Any = None, is_checked: bool = True
    ) -> Answered:
        """Send a request and return the answer.

        Args:
            request: the request.
            stream: stream of a transaction, or 0.
            key: idempotency key, or None.
            is_checked: False to let the server ignore the version of the schema.

        Raises:
            ConnectionError: no answer came; the outcome of a write is unknown.
        """
        if self.is_over:
            raise ConnectionError("not connected")
        sync = self._connection.request(
            request.kind,
            request.body,
            self._loop.time(),
            stream=stream,
            key=key,
            schema_version=request.schema_version if is_checked else 0,
        )
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._waiting[sync] = future
        self._flush()
        return await future

    def send_unanswered(self, request: ClientRequest, *, stream: int) -> None:
        """Send a request whose answer does not matter, if the connection is open."""
        if not self.is_over:
            self._connection.request(request.kind, request.body, self._loop.time(), stream=stream)
            self._flush()

    # --- watches --------------------------------------------------------------------------------

    def watch(self, key: str) -> Watcher:
        """Return a watcher of a key; its first value is the current one.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self.is_over or self._is_retired:
            raise ConnectionError("not connected")
        watcher = Watcher()
        self._watchers.setdefault(key, set()).add(watcher)
        # A second WATCH of a key returns no value, so begin again.
        self._connection.unwatch(key)
        self._connection.watch(key)
        self._flush()
        return watcher

    async def next_value(self, watcher: Watcher) -> object:
        """Return the next value of a watcher.

        Raises:
            ConnectionError: the connection ended, or the member does not answer a PING. A machine
                that disappears closes no connection.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connection.silence_s):
                    return await watcher.get()
            await self.ask(PING)

    def unwatch(self, key: str, watcher: Watcher) -> None:
        """Remove a watcher."""
        watchers = self._watchers.get(key, set())
        watchers.discard(watcher)
        if not watchers and self._watchers.pop(key, None) is not None:
            self._connection.unwatch(key)
            self._flush()

    # --- end ------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Close the connection as soon as no request and no transaction uses it."""
        self._is_retired = True
        self._end_watches("the client uses another member now")
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._waiting and not self._streams:
            self.close()

    def hold_stream(self) -> None:
        """Keep the connection open for a transaction, also if it retires. Call this before BEGIN:
        between its answer and the first statement, no request is pending."""
        self._streams += 1

    def release_stream(self) -> None:
        """Report that a transaction of this connection has ended."""
        self._streams -= 1
        self._close_if_unused()

    def close(self) -> None:
        """Close the connection at once."""
        self._handle_end(self._connection.close())

    def _handle_end(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            assert isinstance(event, Ended)
            self._end(event)
        if self._transport is not None:
            self._transport.abort()
