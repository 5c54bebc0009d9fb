"""Live links report changes of members at once, and keep a connection while it is open."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from qsync_client.protocol.greeting import encode_greeting
from qsync_node.server.config import NodeConfig
from qsync_node.server.logs import Log
from qsync_node.server.loop import NodeServer
from qsync_operator.members.livelinks import LiveLinks

UUID = "0d4e6c2a-9d1f-4d0c-8a57-3f1f6a6f5a10"


class Greeter:
    """Server that sends a greeting and then nothing."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server | None = None

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(encode_greeting(UUID, b"s" * 32))
        await reader.read()

    def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self.writers:
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
async def test_the_end_of_a_process_is_noticed_at_once_and_forgotten_with_the_next() -> None:
    woken = asyncio.Event()
    links, first, second = LiveLinks(woken.set), Greeter(), Greeter()
    try:
        links.set_addresses({"a": await first.start()})
        await until(lambda: links.state("a").is_connected)
        woken.clear()
        first.stop()
        await asyncio.wait_for(woken.wait(), 30)
        assert links.state("a").has_ended
        links.set_addresses({"a": await second.start()})
        await until(lambda: links.state("a").is_connected)
        assert not links.state("a").has_ended
        assert links.state("a").number == 2
    finally:
        await links.close()
        second.stop()


@pytest.mark.asyncio
async def test_a_member_that_went_and_came_back_is_another_connection() -> None:
    """Orders to the earlier process must not count for the new one."""
    links, first, second = LiveLinks(lambda: None), Greeter(), Greeter()
    try:
        links.set_addresses({"a": await first.start()})
        await until(lambda: links.state("a").is_connected)
        before = links.state("a").number
        first.stop()
        await until(lambda: not links.state("a").is_connected)
        links.set_addresses({})
        assert links.state("a").number == 0
        links.set_addresses({"a": await second.start()})
        await until(lambda: links.state("a").is_connected)
        assert links.state("a").number not in (0, before)
    finally:
        await links.close()
        second.stop()


@pytest.mark.asyncio
async def test_an_open_connection_is_kept_although_the_pod_is_reported_deleted() -> None:
    links, old, new = LiveLinks(lambda: None), Greeter(), Greeter()
    old_address, new_address = await old.start(), await new.start()
    try:
        links.set_addresses({"a": old_address})
        await until(lambda: links.state("a").is_connected)
        links.set_addresses({})
        links.set_addresses({"a": new_address})
        await asyncio.sleep(0.05)
        assert links.state("a").address == old_address
        assert links.state("a").is_connected
        old.stop()
        await until(
            lambda: links.state("a").address == new_address and links.state("a").is_connected
        )
    finally:
        await links.close()
        new.stop()


@pytest.mark.asyncio
async def test_a_real_node_notifies_its_watchers(tmp_path: Path) -> None:
    config = NodeConfig(directory=tmp_path, name="a", replicaset_uuid=UUID, secret="secret-secret")
    server = NodeServer(config, Log("a", "error"))
    await server.listen()
    woken = asyncio.Event()
    links = LiveLinks(woken.set)
    try:
        host, port = server.address
        links.set_addresses({"a": f"{host}:{port}"})
        await until(lambda: links.state("a").is_connected)
        await asyncio.sleep(0.05)
        assert links.state("a").is_connected
    finally:
        await links.close()
        server.close(False)
