"""One connection over asyncio, driven by bytes instead of a server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import pytest

from qsync_client.errors import AccessDenied
from qsync_client.link import Link
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_client.requests import begin, call

GREETING = encode_greeting("0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11", b"s" * 32)


class LinkWire(asyncio.Transport):
    """A transport that keeps the output and reports a lost connection later, as asyncio does."""

    def __init__(self) -> None:
        super().__init__()
        self.link = Link("127.0.0.1:1", "app", "secret", 1.0)
        self.output = b""
        self.is_aborted = False
        self.link.connection_made(self)

    def write(self, data: Any) -> None:
        self.output += data

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    def is_closing(self) -> bool:
        return self.is_aborted

    def sent(self) -> list[tuple[int, int]]:
        """Return type and number of each packet since the last call."""
        frames = FrameDecoder().feed(self.output)
        self.output = b""
        return [(kind, sync) for kind, sync, _, _ in frames]

    def answer(self, kind: int, sync: int, body: object = None) -> None:
        packed = msgpack.packb({0: kind, 1: sync}) + msgpack.packb(body or {})
        self.link.data_received(msgpack.packb(len(packed)) + packed)

    def log_in(self) -> None:
        self.link.data_received(GREETING)
        self.answer(0, 1)
        self.sent()


def run(body: Callable[[LinkWire], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await body(LinkWire())

    asyncio.run(main())


def test_retired_connection_stays_open_for_a_transaction_that_begins() -> None:
    async def body(wire: LinkWire) -> None:
        wire.log_in()
        wire.link.hold_stream()
        asking = asyncio.create_task(wire.link.ask(begin(0), stream=1))
        await asyncio.sleep(0)
        ((kind, sync),) = wire.sent()
        assert kind == Type.BEGIN
        wire.link.retire()
        wire.answer(0, sync)
        await asking
        assert not wire.link.is_over
        wire.link.release_stream()
        assert wire.link.is_over

    run(body)


def test_retired_connection_closes_after_its_last_answer() -> None:
    async def body(wire: LinkWire) -> None:
        wire.log_in()
        asking = asyncio.create_task(wire.link.ask(call("qsync.mark", ())))
        await asyncio.sleep(0)
        wire.link.retire()
        assert not wire.link.is_over
        wire.answer(0, wire.sent()[0][1], {Key.DATA: [7]})
        assert (await asking).kind == 0
        assert wire.link.is_over

    run(body)


def test_late_notification_does_not_watch_the_key_again() -> None:
    async def body(wire: LinkWire) -> None:
        wire.log_in()
        watcher = wire.link.watch("box.status")
        wire.answer(int(Type.EVENT), 3, {Key.EVENT_KEY: "box.status", Key.EVENT_DATA: 1})
        assert await watcher.get() == 1
        wire.link.unwatch("box.status", watcher)
        wire.sent()
        wire.answer(int(Type.EVENT), 3, {Key.EVENT_KEY: "box.status", Key.EVENT_DATA: 2})
        assert wire.sent() == []

    run(body)


def test_end_of_one_watcher_leaves_another_one_of_its_key() -> None:
    """The pool watches the leader; a caller may watch the same key for a while."""

    async def body(wire: LinkWire) -> None:
        wire.log_in()
        first, second = wire.link.watch("box.election"), wire.link.watch("box.election")
        wire.sent()
        wire.link.unwatch("box.election", second)
        assert wire.sent() == []
        wire.answer(int(Type.EVENT), 3, {Key.EVENT_KEY: "box.election", Key.EVENT_DATA: 1})
        assert await first.get() == 1
        wire.link.unwatch("box.election", first)
        assert [kind for kind, _ in wire.sent()] == [Type.WATCH, Type.UNWATCH]

    run(body)


def test_lost_connection_ends_requests_and_watches() -> None:
    async def body(wire: LinkWire) -> None:
        wire.log_in()
        watcher = wire.link.watch("box.status")
        asking = asyncio.create_task(wire.link.ask(call("qsync.mark", ())))
        await asyncio.sleep(0)
        wire.link.connection_lost(None)
        with pytest.raises(ConnectionError):
            await asking
        with pytest.raises(ConnectionError):
            await watcher.get()
        with pytest.raises(ConnectionError):
            await wire.link.ask(call("qsync.mark", ()))
        with pytest.raises(ConnectionError):
            wire.link.watch("box.status")

    run(body)


def test_refused_log_in_names_user_and_member() -> None:
    async def body(wire: LinkWire) -> None:
        wire.link.data_received(GREETING)
        wire.answer(0x8000 + 47, 1, {Key.ERROR_24: "wrong"})
        with pytest.raises(AccessDenied, match=r"log-in as app at 127\.0\.0\.1:1 failed: wrong"):
            await wire.link.log_in()

    run(body)


def test_lost_connection_is_not_aborted_again() -> None:
    """asyncio logs a traceback for an abort in `connection_lost`."""

    async def body(wire: LinkWire) -> None:
        wire.log_in()
        wire.link.connection_lost(ConnectionResetError())
        assert not wire.is_aborted
        wire.link.close()
        assert not wire.is_aborted

    run(body)


@pytest.mark.parametrize("body", [b"\x05", b"\xc0", b"\x81\x57\xc0", b"\x91\x01", b"\x81\x90\x00"])
def test_invalid_notification_ends_the_connection(body: bytes) -> None:
    async def main(wire: LinkWire) -> None:
        wire.log_in()
        watcher = wire.link.watch("box.status")
        packed = msgpack.packb({0: int(Type.EVENT), 1: 3}) + body
        wire.link.data_received(msgpack.packb(len(packed)) + packed)
        with pytest.raises(ConnectionError, match="invalid bytes"):
            await watcher.get()

    run(main)


def test_too_large_answer_ends_the_connection_before_its_body() -> None:
    async def body(wire: LinkWire) -> None:
        wire.log_in()
        asking = asyncio.create_task(wire.link.ask(call("qsync.mark", ())))
        await asyncio.sleep(0)
        wire.link.data_received(b"\xce" + (2**31 - 16).to_bytes(4, "big") + b"\0")
        with pytest.raises(ConnectionError, match="too big"):
            await asking

    run(body)
