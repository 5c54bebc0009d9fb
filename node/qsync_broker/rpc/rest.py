"""List and Read as JSON over HTTP, in the form of Gazette's grpc-gateway.

    POST /v1/journals/list    body: ListRequest    answer: lines of {"result": ListResponse}
    POST /v1/journals/read    body: ReadRequest    answer: lines of {"result": ReadResponse}

Requests have the JSON of Protocol Buffers. Answers contain default values, and content in Base64.
An error before the first line has an HTTP status; each error is a line {"error": ...}.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, NoReturn

import grpc
from aiohttp import web
from google.protobuf import json_format

from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc.service import JournalService

BODY_MAX = 256 << 10
"""Maximum size of a request in bytes."""
BODY_S = 15.0
"""Time in which a request must arrive."""

_HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.ABORTED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


class _AbortError(Exception):
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Context:
    """The part of a gRPC context that the service uses."""

    def __init__(self, request: web.Request) -> None:
        self._token = request.headers.get("Authorization", "")

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._token),) if self._token else ()

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise _AbortError(code, text)


class JsonGateway:
    """The handlers of one broker."""

    def __init__(self, service: JournalService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/v1/journals/list", self.list),
            web.post("/v1/journals/read", self.read),
        ]

    async def list(self, request: web.Request) -> web.StreamResponse:
        """List journals; with `watch`, again after each change."""
        return await _serve(request, pb.ListRequest, self._service.List)

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Read a journal."""
        return await _serve(request, pb.ReadRequest, self._service.Read)


async def _serve(
    request: web.Request, kind: object, method: Callable[[Any, Any], AsyncIterator[Any]]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    messages = None
    try:
        messages = method(await _message(request, kind), _Context(request))
        async for message in messages:
            if not response.prepared:
                await response.prepare(request)
            await response.write(_line({"result": _json_of(message)}))
    except _AbortError as error:
        if not response.prepared:
            response.set_status(_HTTP.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR))
            await response.prepare(request)
        await response.write(_line({"error": _error(error)}))
    finally:
        if messages is not None:
            with contextlib.suppress(RuntimeError):  # the client has gone while it was running
                await messages.aclose()  # type: ignore[attr-defined]  # it is a generator
    if not response.prepared:
        await response.prepare(request)
    await response.write_eof()
    return response


async def _message(request: web.Request, kind: Any) -> Any:
    """Return the request's message.

    Raises:
        _AbortError: it is invalid, too long or late.
    """
    length = request.content_length
    if length is None or length > BODY_MAX:
        text = f"the request needs a Content-Length of at most {BODY_MAX}"
        raise _AbortError(grpc.StatusCode.INVALID_ARGUMENT, text)
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
        return json_format.Parse(body or b"{}", kind())
    except TimeoutError:
        text = f"the request did not arrive within {BODY_S:g} s"
        raise _AbortError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        text = f"the request is no {kind.DESCRIPTOR.name} as JSON: {error}"
        raise _AbortError(grpc.StatusCode.INVALID_ARGUMENT, text) from None


def _json_of(message: object) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(
        message, always_print_fields_with_no_presence=True
    )
    return found


def _error(error: _AbortError) -> dict[str, Any]:
    status = _HTTP.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return {
        "grpcCode": error.code.value[0],
        "httpCode": int(status),
        "message": str(error),
        "httpStatus": status.phrase,
        "details": [],
    }


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
