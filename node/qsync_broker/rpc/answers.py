"""Errors of gRPC, and answers that another broker gives."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from qsync_broker.auth import EXPIRED, Claims

CallContext = Any  # grpc.aio.ServicerContext: the package has no annotations


async def abort(context: CallContext, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")


async def check(context: CallContext, problem: str) -> None:
    if problem:
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)


async def while_valid(
    context: CallContext, claims: Claims, messages: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """Yield messages as long as the token of the request is valid."""
    while True:
        try:
            async with asyncio.timeout(claims.remaining_s()):
                message = await anext(messages, None)
        except TimeoutError:
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, EXPIRED)
        if message is None:
            return
        yield message


def forwarded_metadata(context: CallContext) -> list[tuple[str, Any]]:
    """Return the metadata of a forwarded request: the client's token."""
    metadata = context.invocation_metadata() or ()
    return [(name, value) for name, value in metadata if name == "authorization"]


async def forward_stream(
    context: CallContext, upstream: Any, first: Any, stream: AsyncIterator[Any]
) -> Any:
    """Forward an append message by message, and return its answer."""

    async def copy() -> None:
        await upstream.write(first)
        async for message in stream:
            await upstream.write(message)
        await upstream.done_writing()

    copying = asyncio.ensure_future(copy())
    try:
        return await forwarded_answer(context, upstream)
    except asyncio.CancelledError:
        upstream.cancel()
        raise
    finally:
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)


async def forwarded_answer(context: CallContext, upstream: Any) -> Any:
    try:
        return await upstream
    except grpc.aio.AioRpcError as error:
        await abort(context, error.code(), error.details() or "")


async def forwarded_answers(context: CallContext, upstream: Any) -> AsyncIterator[Any]:
    try:
        async for message in upstream:
            yield message
    except grpc.aio.AioRpcError as error:
        await abort(context, error.code(), error.details() or "")
    finally:
        upstream.cancel()
