"""One client process for one system: closed loop, one write a worker at a time, 100-byte values.

    python load.py SYSTEM JSON-TARGET IN_FLIGHT SECONDS

Prints one JSON object: writes a second, and latency percentiles in milliseconds. Each worker has a
connection of its own, on every system alike; `qsync-pipelined` keeps all of them in flight on one.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvloop

VALUE = "v" * 100
KEYS = itertools.count(1)
WriteCall = Callable[[int], Awaitable[Any]]


async def connect_iproto(target: dict[str, Any]) -> WriteCall:
    import asynctnt  # each process loads one system's client

    connection = asynctnt.Connection(
        host="127.0.0.1",
        port=target["port"],
        username=target["user"],
        password=target["password"],
        fetch_schema=False,
        auto_refetch_schema=False,
    )
    await connection.connect()
    space = target["space"]

    async def write(key: int) -> None:
        await connection.replace(space, [key, VALUE])

    return write


async def connect_redis(target: dict[str, Any]) -> WriteCall:
    import redis.asyncio as redis

    client = redis.Redis(port=target["port"], single_connection_client=True)

    async def write(key: int) -> None:
        pipe = client.pipeline(transaction=False)
        pipe.set(f"key-{key}", VALUE)
        pipe.execute_command("WAIT", 1, 0)
        _, copies = await pipe.execute()
        assert copies >= 1

    return write


async def connect_postgres(target: dict[str, Any]) -> WriteCall:
    import asyncpg

    connection = await asyncpg.connect(
        host="127.0.0.1", port=target["port"], user="postgres", database="postgres"
    )
    statement = await connection.prepare(
        "INSERT INTO kv VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
    )

    async def write(key: int) -> None:
        await statement.fetch(key, VALUE)

    return write


async def connect_etcd(target: dict[str, Any]) -> WriteCall:
    import grpc

    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{target['port']}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    put = channel.unary_unary("/etcdserverpb.KV/Put")
    value = VALUE.encode()

    async def write(key: int) -> None:
        name = b"key-%d" % key
        await put(b"\x0a" + bytes((len(name),)) + name + b"\x12" + bytes((len(value),)) + value)

    return write


CONNECT = {
    "qsync": connect_iproto,
    "tarantool": connect_iproto,
    "redis": connect_redis,
    "postgresql": connect_postgres,
    "etcd": connect_etcd,
}


async def closed_loop(system: str, target: dict[str, Any], in_flight: int, seconds: float) -> None:
    writes = await asyncio.gather(*(CONNECT[system](target) for _ in range(in_flight)))
    latencies: list[float] = []
    started = time.perf_counter()
    deadline = started + seconds

    async def work(write: WriteCall) -> None:
        while (begin := time.perf_counter()) < deadline:
            await write(next(KEYS))
            latencies.append(time.perf_counter() - begin)

    await asyncio.gather(*(work(write) for write in writes))
    report(latencies, time.perf_counter() - started)


def report(latencies: list[float], took_s: float) -> None:
    ordered = sorted(latencies)
    print(
        json.dumps(
            {
                "rate": len(ordered) / took_s,
                "p50": ordered[len(ordered) // 2] * 1000,
                "p99": ordered[len(ordered) * 99 // 100] * 1000,
            }
        )
    )


class Pipelined(asyncio.Protocol):
    """All requests on one connection, as a batching application would send them.

    Requests and answers bypass `ClientConnection` after the log-in, so that the generator takes as
    little of the machine as possible.
    """

    def __init__(self, target: dict[str, Any], in_flight: int, seconds: float) -> None:
        import msgpack

        from qsync_client.protocol.connection import ClientConnection, Credentials
        from qsync_client.protocol.constants import Key, Type
        from qsync_client.protocol.frame import FrameDecoder, encode_request

        self.in_flight = in_flight
        self.seconds = seconds
        self.opening: Any = ClientConnection(Credentials(target["user"], target["password"]))
        self.decoder = FrameDecoder()
        self.head = msgpack.packb({int(Key.SPACE_ID): target["space"], int(Key.TUPLE): None})[:-1]
        self.pack, self.encode, self.kind = msgpack.Packer().pack, encode_request, int(Type.REPLACE)
        self.started: dict[int, float] = {}
        self.latencies: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self.begin = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.opening is not None:
            self._open(data, now)
            return
        frames = self.decoder.feed(data)
        for kind, sync, _, body in frames:
            assert kind == 0, body
            self.latencies.append(now - self.started.pop(sync))
        if now - self.begin < self.seconds:
            self._send(len(frames))
        elif not self.started and not self.done.done():
            self.done.set_result(now - self.begin)

    def _open(self, data: bytes, now: float) -> None:
        from qsync_client.protocol.connection import Opened

        for event in self.opening.receive(data):
            assert isinstance(event, Opened), event
            self.opening = None
            self.begin = now
            self._send(self.in_flight)
            return
        self.transport.write(self.opening.take_output())

    def _send(self, count: int) -> None:
        now = time.perf_counter()
        out = []
        for _ in range(count):
            key = next(KEYS)
            self.started[key] = now
            out.append(self.encode(self.kind, key, self.head + self.pack([key, VALUE])))
        self.transport.write(b"".join(out))


async def pipelined(target: dict[str, Any], in_flight: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: Pipelined(target, in_flight, seconds), "127.0.0.1", target["port"]
    )
    took_s = await protocol.done
    report(protocol.latencies, took_s)


def main() -> None:
    system, target, in_flight, seconds = sys.argv[1:]
    decoded = json.loads(target)
    if system == "qsync-pipelined":
        uvloop.run(pipelined(decoded, int(in_flight), float(seconds)))
    else:
        uvloop.run(closed_loop(system, decoded, int(in_flight), float(seconds)))


if __name__ == "__main__":
    main()
