"""Requests of HTTP that fail or end early: one line in the log at most, and no traceback.

A client that goes away is no failure of the broker. Its handler is usually cancelled. It can also
notice the end of the connection first, when it reads or writes.
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from qsync_broker.problems import refused
from qsync_broker.reader import ReadError

log = logging.getLogger("qsync.broker")

BROKEN_OFF = (
    ConnectionError, aiohttp.ClientPayloadError, HttpProcessingError, web.RequestPayloadError
)  # fmt: skip
"""Errors of a body that does not arrive as a whole."""
CLOSE = {"Connection": "close"}
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_gone(request: web.Request) -> bool:
    """Return whether the client of a request has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def cut(request: web.Request) -> web.Response:
    """Break the connection of a request whose answer has begun; return an answer that is not sent.

    A client takes an answer that ends regularly for a complete one.
    """
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _is_of_broker(record: logging.LogRecord) -> bool:
    """Return whether a line of aiohttp is about a failure of the broker, and not of a client."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


def http_logger() -> logging.Logger:
    """Return the logger of the HTTP server: invalid requests are answered and not logged."""
    logger = logging.getLogger("qsync.broker.http")
    logger.addFilter(_is_of_broker)  # does nothing if it was added before
    return logger


@web.middleware
async def quiet(request: web.Request, handler: RequestHandler) -> web.StreamResponse:
    """Serve a request; answer failures that the reader has logged, and pass over absent clients."""
    try:
        return await handler(request)
    except ReadError as error:
        if request.writer.output_size:
            return cut(request)
        return refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    except (HttpProcessingError, web.RequestPayloadError) as error:  # an invalid Content-Encoding
        text = f"the body is invalid: {str(error).strip().splitlines()[-1]}; send another one"
        return refused(HTTPStatus.BAD_REQUEST, text, CLOSE)
    except web.HTTPException as error:  # no route has this method or path
        kept = {name: value for name, value in error.headers.items() if name == "Allow"}
        text = (
            f"{request.method} {request.path} failed: there is no such request; use PUT, POST, GET"
            " or HEAD, with the name of a journal as the path"
        )
        return refused(error.status, text, kept)
    except (ConnectionError, aiohttp.ClientPayloadError):
        log.debug("%s %s: the client has gone", request.method, request.path)
        return cut(request)
