"""Clients of `make bench-journals`: each appends to one journal or stream, many appends at a time.

All of them run in one process of Python. Those of JetStream and Redis write the protocol without
a library and keep all appends in flight on one connection, so that they need little CPU.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

import aiohttp
import grpc
import hiredis

from qsync_broker.pipelining import AppendPipeline
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc

JOURNAL = "bench/journal"
CHUNK = 256 << 10


class BenchClient(Protocol):
    """A client of one system."""

    async def append(self, content: bytes) -> None:
        """Append content, and return when it is acknowledged."""

    async def close(self) -> None:
        """Close the connections."""


def channel(url: str) -> Any:
    return grpc.aio.insecure_channel(
        url.removeprefix("http://"), options=[("grpc.max_receive_message_length", 16 << 20)]
    )


async def append_by_grpc(stub: Any, content: bytes) -> Any:
    """Append by Gazette's protocol, and return the answer."""

    async def requests() -> AsyncIterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=JOURNAL)
        for begin in range(0, len(content), CHUNK):
            yield pb.AppendRequest(content=content[begin : begin + CHUNK])
        yield pb.AppendRequest()

    return await stub.Append(requests())


class Grpc:
    """Gazette's protocol, for its brokers and for those of Qsync."""

    def __init__(self, url: str) -> None:
        self._channel = channel(url)
        self._stub: Any = pb_grpc.JournalStub(self._channel)

    async def append(self, content: bytes) -> None:
        answer = await append_by_grpc(self._stub, content)
        assert answer.status == pb.OK, answer

    async def close(self) -> None:
        await self._channel.close()


class Http:
    """One PUT for each append."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/{JOURNAL}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def append(self, content: bytes) -> None:
        async with self._session.put(self._url, data=content) as answer:
            assert answer.status == 204, await answer.text()

    async def close(self) -> None:
        await self._session.close()


class JournalBatches:
    """Batches of small appends, see `qsync_broker.pipelining`."""

    def __init__(self, url: str) -> None:
        self._pipeline = AppendPipeline(url, JOURNAL)

    async def append(self, content: bytes) -> None:
        await self._pipeline.append(content)

    async def close(self) -> None:
        await self._pipeline.close()


class _Pipelined(asyncio.Protocol):
    """A connection on which requests do not wait for answers."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._output: list[bytes] = []
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: object) -> None:
        self.transport = transport

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    async def send(self, *parts: bytes) -> None:
        """Send parts together with those of other requests of this turn."""
        if not self._can_write.is_set():
            await self._can_write.wait()
        if not self._output:
            asyncio.get_running_loop().call_soon(self._flush)
        self._output += parts

    def _flush(self) -> None:
        output, self._output = self._output, []
        self.transport.writelines(output)

    async def close(self) -> None:
        self.transport.close()


class RedisClient(_Pipelined):
    """XADD of Redis Streams: acknowledged by the first server, once it has flushed its AOF."""

    wait = b""

    def __init__(self) -> None:
        super().__init__()
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        self._flushed: list[asyncio.Future[Any]] = []

    @classmethod
    async def connect(cls, port: int) -> "RedisClient":
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port))[1]

    async def append(self, content: bytes) -> None:
        head = b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n" % len(content)
        await self.send(head, content, b"\r\n")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            assert not isinstance(answer, Exception), answer
            future = self._waiting.popleft()
            if future is not None:
                self._flushed.append(future)
            if future is None or not self.wait:
                for one in self._flushed:
                    one.set_result(None)
                self._flushed.clear()

    def _flush(self) -> None:
        if self.wait:
            self._output.append(self.wait)
            self._waiting.append(None)
        super()._flush()


class WaitingRedis(RedisClient):
    """The same, also acknowledged by both replicas, which need not have flushed it."""

    wait = b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n0\r\n"


class JetStream(_Pipelined):
    """Publications into a stream of NATS, each with its acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[Any]] = {}
        self._buffer = b""

    @classmethod
    async def connect(cls, port: int) -> "JetStream":
        loop = asyncio.get_running_loop()
        client = (await loop.create_connection(cls, "127.0.0.1", port))[1]
        await client.send(b'CONNECT {"verbose":false}\r\nSUB _INBOX.bench.* 1\r\n')
        return client

    async def request(self, subject: str, content: bytes) -> Any:
        """Send a request, and return its answer."""
        number = b"%d" % next(self._numbers)
        head = b"PUB %s _INBOX.bench.%s %d\r\n" % (subject.encode(), number, len(content))
        await self.send(head, content, b"\r\n")
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return json.loads(await future)

    async def append(self, content: bytes) -> None:
        answer = await self.request("bench", content)
        assert "seq" in answer, answer

    def data_received(self, data: bytes) -> None:
        buffer, position = self._buffer + data, 0
        while (end := buffer.find(b"\r\n", position)) >= 0:
            line = buffer[position:end]
            position = end + 2
            if line.startswith(b"MSG "):
                _, subject, *_, length = line.split()
                if len(buffer) < position + int(length) + 2:
                    position -= len(line) + 2
                    break
                content = buffer[position : position + int(length)]
                position += int(length) + 2
                self._waiting.pop(subject.rpartition(b".")[2]).set_result(content)
            elif line == b"PING":
                self.transport.write(b"PONG\r\n")
            else:
                assert line.startswith(b"INFO "), line
        self._buffer = buffer[position:]


async def client_of(kind: str, target: Any) -> BenchClient:
    """Return a client that is connected."""
    if kind.startswith("Redis"):
        return await (WaitingRedis if "WAIT" in kind else RedisClient).connect(target)
    if kind == "JetStream":
        return await JetStream.connect(target)
    made: dict[str, Any] = {"Qsync HTTP": Http, "Qsync batches": JournalBatches}
    client: BenchClient = made.get(kind, Grpc)(target)
    return client
