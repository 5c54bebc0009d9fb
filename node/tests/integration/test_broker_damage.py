"""Bytes that a disk has changed while its broker was stopped: no broker loses or serves them."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from qsync_broker.operations import Batch
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.servers import BrokerNode, brokers, create, start_broker
from qsync_testing.ports import free_ports

JOURNAL = "a/journal"
LARGE = 100_000  # more than a record of the commit log includes


async def append(url: str, content: bytes) -> int:
    """Append to the journal, and return the status once the brokers are ready."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.put(f"{url}/{JOURNAL}", data=content) as answer:
                if answer.status != 503:
                    return answer.status
            await asyncio.sleep(0.05)
    raise AssertionError("the brokers are not ready")


async def read(url: str, size: int) -> bytes:
    """Return the journal at a broker, once it has at least `size` bytes."""
    content = b""
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while len(content) < size:
            async with session.get(f"{url}/{JOURNAL}") as answer:
                content = await answer.read() if answer.status == 206 else b""
            await asyncio.sleep(0.05)
    return content


def damage(folder: Path) -> None:
    """Change a byte of the last append."""
    spools = (folder / "data" / "spools").glob("*.spool")
    spool = max(spools, key=lambda path: path.name.partition("-")[2])
    data = bytearray(spool.read_bytes())
    data[-7] ^= 1
    spool.write_bytes(data)


@pytest.mark.asyncio
@pytest.mark.parametrize("damaged", [0, 1, 2])
async def test_acknowledged_bytes_survive_damage_of_the_last_append_at_one_broker(
    tmp_path: Path, damaged: int
) -> None:
    """Brokers learn that an append is confirmed from the next one, which does not come here."""
    keys = SimKeySpace()
    ports = free_ports(6)
    create(keys, JOURNAL, 3)
    first, second = b"1" * LARGE, b"2" * LARGE

    async def start(number: int) -> None:
        pair = ports[2 * number : 2 * number + 2]
        nodes[number] = await start_broker(tmp_path, f"broker-{number}", pair, keys)

    nodes: dict[int, BrokerNode] = {}
    try:
        for number in range(3):
            await start(number)
        assert await append(nodes[0].url, first) == 204
        assert await append(nodes[0].url, second) == 204
        for number in range(3):
            await nodes.pop(number).stop()
        damage(tmp_path / f"broker-{damaged}")
        for number in range(3):
            await start(number)
        assert await append(nodes[1].url, b"3") == 204
        for node in nodes.values():
            assert await read(node.url, 2 * LARGE + 1) == first + second + b"3"
    finally:
        for node in nodes.values():
            await node.stop()


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.asyncio
@pytest.mark.parametrize("how", [changed, shortened, Path.unlink])
async def test_damaged_completed_fragment_is_never_served_and_copied_after_a_restart(
    tmp_path: Path, how: Callable[[Path], None]
) -> None:
    keys = SimKeySpace()
    ports = free_ports(4)
    create(keys, JOURNAL, 2)
    first, second = b"1" * LARGE, b"2" * LARGE
    nodes: dict[int, BrokerNode] = {}

    async def start(number: int) -> None:
        pair = ports[2 * number : 2 * number + 2]
        nodes[number] = await start_broker(tmp_path, f"broker-{number}", pair, keys)

    try:
        for number in range(2):
            await start(number)
        assert await append(nodes[0].url, first) == 204
        assert await append(nodes[0].url, second) == 204  # completes the first fragment
        await nodes.pop(1).stop()
        spools = tmp_path / "broker-1" / "data" / "spools"
        how(min(spools.glob("*.spool"), key=lambda path: path.name.partition("-")[2]))
        await start(1)
        assert await append(nodes[0].url, b"3") == 204
        if how is changed:  # its size is right: the first read finds the damage
            async with aiohttp.ClientSession() as session:
                for _ in range(2):
                    answer = await session.get(f"{nodes[1].url}/{JOURNAL}")
                    text = await answer.text()
                    assert answer.status == 503
                    assert "does not match its checksum; restart this broker" in text
            await nodes.pop(1).stop()
            await start(1)
            assert await append(nodes[0].url, b"") == 204
        for node in nodes.values():
            assert await read(node.url, 2 * LARGE + 1) == first + second + b"3"
        replica = nodes[1].server.core.replica(JOURNAL)
        assert replica is not None
        assert replica.hole(0, 2 * LARGE) is None
    finally:
        for node in nodes.values():
            await node.stop()


@pytest.mark.asyncio
async def test_read_of_bytes_that_have_left_the_disk_fails_and_names_the_file(
    tmp_path: Path,
) -> None:
    """The file has lost its content since the broker started."""
    async with brokers(tmp_path, 1) as (node,):
        first, second = b"1" * LARGE, b"2" * LARGE
        assert await append(node.url, first) == 204
        assert await append(node.url, second) == 204  # completes the first fragment
        assert await read(node.url, 2 * LARGE) == first + second
        spools = Path(tmp_path).glob("**/spools/*.spool")
        path = min(spools, key=lambda path: path.name.partition("-")[2])
        os.truncate(path, 0)
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            answer = await session.get(f"{node.url}/{JOURNAL}")
            text = await answer.text()
        assert answer.status == 503
        assert f"{path} lacks the bytes at 0; restart this broker to copy them" in text


@pytest.mark.asyncio
async def test_append_that_waits_for_a_full_disk_names_its_broker_and_later_ones_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.http.appends.APPEND_S", 1.0)
    monkeypatch.setattr("qsync_broker.disk.RETRY_S", 0.1)
    async with brokers(tmp_path, 3) as nodes:
        assert await append(nodes[0].url, b"1") == 204
        storage = nodes[1].server.storage
        with monkeypatch.context() as full:
            full.setattr(storage, "apply", refuse)
            async with (
                aiohttp.ClientSession() as session,
                session.put(f"{nodes[0].url}/{JOURNAL}", data=b"2" * LARGE) as answer,
            ):
                assert answer.status == 500
                assert (
                    "no answer of broker broker-1; see its log, then retry" in await answer.text()
                )
            for node in nodes:
                assert await read(node.url, 1) == b"1"
        assert await append(nodes[2].url, b"3") == 204
        assert (await read(nodes[1].url, 2))[-1:] == b"3"


def refuse(batch: Batch) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
