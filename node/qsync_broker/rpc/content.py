"""The content of an append: the messages of a client after the first one, up to the commit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from qsync_broker.calls import AppendCall
from qsync_broker.flow import PATIENCE_NS
from qsync_broker.grouping import SMALL
from qsync_broker.reader import CHUNK
from qsync_broker.requests import Break, Finish, Piece
from qsync_broker.rpc import journal_pb2 as pb

EARLY_READS = 64
"""Appends from which content is received before they have their turn."""
EARLY_BYTES = 64 << 20
"""Size of such content in bytes above which no more is received."""
EARLY_S = 0.1
"""Time that an append waits until its content may be received early."""


class EarlyContent:
    """The memory of content that is received before its append has its turn, at one broker.

    An append of small content is grouped with others, so its content is received at once. gRPC
    returns whole messages, and the size of the next one is not known. Above the bounds, content
    waits at its client until the append has its turn.

    Attributes:
        held: content in bytes that was received too early.
    """

    def __init__(self) -> None:
        self.held = 0
        self._reads = asyncio.Semaphore(EARLY_READS)

    async def may_read(self) -> bool:
        """Return whether content may be received now; `end` must follow if so."""
        if self.held > EARLY_BYTES:
            return False
        try:
            async with asyncio.timeout(EARLY_S if self._reads.locked() else None):
                await self._reads.acquire()
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        """Note that no content is received any more."""
        self._reads.release()

    @contextlib.contextmanager
    def holding(self, messages: list[Any]) -> Iterator[None]:
        """Count messages that an append keeps until it has its turn."""
        size = sum(len(message.content) for message in messages)
        self.held += size
        try:
            yield
        finally:
            self.held -= size


async def small_content(stream: AsyncIterator[Any], early: list[Any]) -> bytes | None:
    """Return the content of a small append once it is complete.

    Args:
        stream: messages of the client.
        early: receives all messages that were read.

    Returns:
        The content; None if the append is empty, not small, or invalid.

    Raises:
        TimeoutError: the client has sent no commit in time. The stream must not be used again.
    """
    size = 0
    async with asyncio.timeout(PATIENCE_NS / 1e9):
        async for message in stream:
            early.append(message)
            if content_problem(message):
                return None
            if not message.content:
                break
            size += len(message.content)
            if size > SMALL:
                return None
        else:
            return None
        async for message in stream:
            early.append(message)
            return None
    return b"".join(message.content for message in early) or None


async def replayed(early: list[Any], stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Return messages that were read early, then those of the stream."""
    for message in early:
        yield message
    async for message in stream:
        yield message


async def pump(stream: AsyncIterator[Any], call: AppendCall) -> int:
    """Pass the client's content on as fast as it is wanted; return the number of its messages."""
    chunks = 0
    while await call.wanted():
        message = await anext(stream, None)
        if message is None:
            call.give(Break("unexpected EOF: the append was not committed by an empty message"))
            return chunks
        chunks += 1
        problem = content_problem(message)
        if problem:
            call.give(Break(problem))
            return chunks
        if message.content:
            for begin in range(0, len(message.content), CHUNK):
                call.give(Piece(message.content[begin : begin + CHUNK]))
            continue
        more = await anext(stream, None)
        call.give(Finish() if more is None else Break("content follows the commit of the append"))
        return chunks
    return chunks


def content_problem(message: pb.AppendRequest) -> str:
    """Return the sentence about a message of content that is invalid, or an empty string."""
    fields = [field.name for field, _ in message.ListFields() if field.name != "content"]
    return f"{fields[0]}: only the first message may have it" if fields else ""
