"""Requests that another broker serves: forwarded there, and the answer returned to the client."""

import logging
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus

import aiohttp
from aiohttp import web

from qsync_broker.http.requests import PROXIED, journal_of, target_of
from qsync_broker.problems import refused
from qsync_broker.quiet import cut, is_gone
from qsync_broker.reader import CHUNK
from qsync_broker.server import BrokerServer
from qsync_node.format.journals import BrokerId

CONNECT_S = 5.0
_OF_ONE_REQUEST = ("host", "content-length", "transfer-encoding", "connection")
_OF_ONE_ANSWER = ("transfer-encoding", "connection", "date", "server")
log = logging.getLogger("qsync.broker")


class JournalMovedError(Exception):
    """The broker of a forwarded append is not the primary any more, and has appended nothing."""


class Forwarder:
    """The connections of a broker's HTTP interface to other brokers."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            # The connections of clients bound their number. By default, aiohttp opens 100, and
            # reads that wait for bytes would hold all appends back.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False
            )
        return self._session

    async def forward(
        self,
        request: web.Request,
        broker: BrokerId,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        may_repeat: bool = False,
    ) -> web.StreamResponse:
        """Forward a request to another broker, and its answer to the client.

        Args:
            request: the request of the client.
            broker: the broker that serves it.
            body: the body of the request (`arriving` for one that has not arrived yet).
            may_repeat: an append can be forwarded again after a JournalMovedError.

        Returns:
            The answer, which was sent, or one that states why there is none.

        Raises:
            JournalMovedError: the journal has moved to a third broker, and `may_repeat` is set.
        """
        keys, tls = self._server.core.keys, self._server.tls
        row = keys.brokers.get(broker)
        if row is None:
            text = f"a request to {journal_of(request)} failed: its broker has left; retry"
            return refused(503, text)
        headers = _without(request.headers.items(), _OF_ONE_REQUEST)
        headers[PROXIED] = str(keys.revision)
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
            body = _once(body)
        try:
            async with self._connected().request(
                request.method,
                row.endpoint.rstrip("/") + target_of(request),
                headers=headers,
                data=body,
                ssl=tls.calling if tls is not None else True,
            ) as answer:
                if may_repeat and answer.status == HTTPStatus.MISDIRECTED_REQUEST:
                    raise JournalMovedError
                return await _pass_on(answer, request)
        except aiohttp.ClientError as error:
            if is_gone(request):
                raise
            text = f"forwarding {request.method} to broker {broker.suffix} failed: {error}; retry"
            log.warning("%s", text)
            if request.writer.output_size:
                return cut(request)
            return refused(502, text)


async def arriving(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives."""
    async for data in request.content.iter_chunked(CHUNK):
        yield data


async def _once(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body that aiohttp cannot send again.

    It sends a PUT of bytes a second time if the connection breaks before the answer, and the other
    broker would append them twice.
    """
    yield body


async def _pass_on(answer: aiohttp.ClientResponse, request: web.Request) -> web.StreamResponse:
    headers = _without(answer.headers.items(), _OF_ONE_ANSWER)
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for chunk in answer.content.iter_any():
        await response.write(chunk)
    await response.write_eof()
    return response


def _without(headers: Iterable[tuple[str, str]], left_out: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in left_out}
