"""Orders and the status of a server within its process."""

import asyncio
import gc
import io
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from qsync_node.server.config import NodeConfig
from qsync_node.server.logs import Log
from qsync_node.server.loop import NodeServer

UUID = "11111111-0000-4000-8000-000000000001"


def with_server(
    directory: Path,
    use: Callable[[NodeServer], Awaitable[None]],
    listen: str = "127.0.0.1:0",
) -> None:
    """Run a function with a server that listens."""
    config = NodeConfig(
        directory=directory,
        name="one",
        replicaset_uuid=UUID,
        secret="not very secret",
        listen=listen,
    )

    async def run() -> None:
        server = NodeServer(config, Log("one", stream=io.StringIO()))
        await server.listen()
        try:
            async with asyncio.timeout(30):
                await use(server)
        finally:
            server.close(is_clean=False)

    thresholds = gc.get_threshold()
    try:
        asyncio.run(run())
    finally:
        gc.set_threshold(*thresholds)


def test_answer_to_an_order_that_is_awaited_no_more_harms_nothing(tmp_path: Path) -> None:
    """The admin port has stopped waiting, and the core answers later."""

    async def use(server: NodeServer) -> None:
        order = asyncio.create_task(server.command("status"))
        await asyncio.sleep(0)  # the order waits for the next turn
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        answer = await server.command("status")
        assert answer.code == 0
        assert not server.ended.done()
        assert not server._commands

    with_server(tmp_path / "data", use)


def test_status_reports_a_ballot_that_waits_for_space(tmp_path: Path) -> None:
    async def use(server: NodeServer) -> None:
        assert not server.status()["is_disk_full"]
        server.disk.scheduler.ballots.is_full = True
        assert server.status()["is_disk_full"]

    with_server(tmp_path / "data", use)


@pytest.mark.parametrize(("listen", "is_told"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
def test_address_for_others_is_none_that_only_this_host_can_use(
    tmp_path: Path, listen: str, is_told: bool
) -> None:
    """Others would dial themselves."""

    async def use(server: NodeServer) -> None:
        assert bool(server.peers._own_address()) == is_told

    with_server(tmp_path / "data", use, listen)


def test_link_to_a_removed_address_ends(tmp_path: Path) -> None:
    async def use(server: NodeServer) -> None:
        accepted: list[asyncio.StreamReader] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(reader)
            await reader.read()

        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        server.peers.set_addresses({"two": f"127.0.0.1:{port}"})
        while not accepted:
            await asyncio.sleep(0.01)  # a real connection
        server.peers.set_addresses({})
        async with asyncio.timeout(2):  # much less than the time of a handshake
            while not accepted[0].at_eof():
                await asyncio.sleep(0.01)  # the same
        listening.close()

    with_server(tmp_path / "data", use)
