"""A member of a cluster whose answers a test chooses. It speaks IPROTO and stores nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from qsync_client import Client
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import Frame, FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_client.protocol.packing import unpack
from qsync_client.schema import VINDEX, VSPACE

FIRST = "11111111-1111-4111-8111-111111111111"
SPACE = 512
SECOND = "22222222-2222-4222-8222-222222222222"
ERROR = 0x8000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a client sent."""

    kind: int
    stream: int
    key: Any
    body: dict[int, Any]
    schema_version: int = 0


MemberAnswer = tuple[int, Any] | None
"""Type and body of an answer; bytes are sent as they are. None sends no answer."""


@dataclass
class FakeMember:
    """A member; `answer` returns the answer to a request, `asked` lists all requests.

    It refuses log-ins with `denied` unless that is 0.
    """

    answer: Callable[[Asked], MemberAnswer]
    uuid: str = FIRST
    leader: str = FIRST
    is_silent: bool = False
    answers_marks: bool = True
    denied: int = 0
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def kinds(self) -> list[int]:
        """Return the types of the requests, without PINGs and requests for a mark."""
        return [
            one.kind
            for one in self.asked
            if one.kind != Type.PING and one.body.get(Key.FUNCTION_NAME) != "qsync.mark"
        ]

    def drop(self) -> None:
        """Break all connections."""
        for writer in self.writers:
            writer.transport.abort()

    def report_leader(self, uuid: str) -> None:
        """Report another leader to all watchers."""
        self.leader = uuid
        body = {Key.EVENT_KEY: "box.election", Key.EVENT_DATA: {"leader_uuid": uuid}}
        packed = msgpack.packb({0: int(Type.EVENT), 1: 0}) + msgpack.packb(body)
        for writer in self.writers:
            if not writer.transport.is_closing():
                writer.write(b"\xce" + len(packed).to_bytes(4, "big") + packed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            if not self.is_silent:
                writer.write(encode_greeting(self.uuid, b"s" * 32))
            decoder = FrameDecoder()
            while data := await reader.read(1 << 16):
                if not self.is_silent:
                    for frame in decoder.feed(data):
                        self._take(frame, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def _take(self, frame: Frame, to: asyncio.StreamWriter) -> None:
        kind, sync, header, body = frame
        fields = unpack(body) if body else {}
        answer: MemberAnswer
        if kind == Type.AUTH and self.denied:
            answer = refused(self.denied)
        elif kind in (Type.AUTH, Type.PING):
            answer = (0, {})
        elif kind == Type.WATCH:
            answer = (
                int(Type.EVENT),
                {
                    Key.EVENT_KEY: fields[Key.EVENT_KEY],
                    Key.EVENT_DATA: {"leader_uuid": self.leader},
                },
            )
        elif kind == Type.UNWATCH:
            return
        else:
            stream, key = header.get(Key.STREAM_ID, 0), header.get(Key.IDEMPOTENCY)
            asked = Asked(kind, stream, key, fields, header.get(Key.SCHEMA_VERSION, 0))
            self.asked.append(asked)
            answer = self.answer(asked)
            is_mark = self.answers_marks and fields.get(Key.FUNCTION_NAME) == "qsync.mark"
            if answer is None and is_mark:
                answer = (0, {Key.DATA: [5]})
        if answer is None:
            return
        packed = msgpack.packb({0: answer[0], 1: sync, 5: 1})
        packed += answer[1] if isinstance(answer[1], bytes) else msgpack.packb(answer[1])
        to.write(b"\xce" + len(packed).to_bytes(4, "big") + packed)


@contextlib.asynccontextmanager
async def serving(*members: FakeMember) -> AsyncIterator[list[str]]:
    """Run members and return their addresses."""
    servers = []
    for member in members:
        server = await asyncio.start_server(member.serve, "127.0.0.1", 0)
        member.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        servers.append(server)
    try:
        yield [member.address for member in members]
    finally:
        for server in servers:
            server.close()
        for member in members:
            member.drop()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client_of_two(
    first: FakeMember, second: FakeMember, *, deadline_s: float = 5.0, pool_size: int = 1
) -> AsyncIterator[Client]:
    """Run two members, the second with uuid `SECOND`, and return a client of both.

    The members are in the order in which the client asks them.
    """
    second.uuid = SECOND
    async with (
        serving(first, second) as addresses,
        Client(addresses, "app", "secret", deadline_s=deadline_s, pool_size=pool_size) as client,
    ):
        yield client


def committed(asked: Asked) -> MemberAnswer:
    """Answer as a cluster that commits each request."""
    if asked.body.get(Key.FUNCTION_NAME) == "qsync.mark":
        return None
    return 0, {Key.DATA: [], Key.INDEX: 7} if asked.key else {Key.DATA: []}


def refused(code: int, reason: str = "reason") -> MemberAnswer:
    """Return the answer of a refusal."""
    return ERROR + code, {Key.ERROR_24: reason}


def is_mark(asked: Asked) -> bool:
    return bool(asked.body.get(Key.FUNCTION_NAME) == "qsync.mark")


def answering(*answers: MemberAnswer) -> Callable[[Asked], MemberAnswer]:
    """Return a function that answers requests in turn, and repeats the last answer."""
    left = list(answers)

    def answer(asked: Asked) -> MemberAnswer:
        if is_mark(asked):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, and return in the step of the event loop after the one that met it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def with_names(answer: Callable[[Asked], MemberAnswer]) -> Callable[[Asked], MemberAnswer]:
    """Return a function that answers as a cluster with the space `accounts`."""
    tables = {
        VSPACE: [SPACE, 1, "accounts", "memtx", 0, {}, []],
        VINDEX: [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
    }

    def named(asked: Asked) -> MemberAnswer:
        space = asked.body.get(Key.SPACE_ID)
        return (0, {Key.DATA: [tables[space]]}) if space in tables else answer(asked)

    return named


def changed_schema(asked: Asked) -> MemberAnswer:
    """Answer as a cluster whose schema changed after the client had read it."""
    return refused(109) if asked.schema_version else committed(asked)
