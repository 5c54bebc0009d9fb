"""The connection of a broker to its member: silence, and publications of other journals."""

import asyncio

import pytest

from qsync_broker.coordination import Coordination
from qsync_broker.operations import Publication
from qsync_client import Committed

pytestmark = pytest.mark.asyncio


async def test_member_that_sends_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that disappears closes no connection, and the key space would stay as it was."""
    monkeypatch.setattr("qsync_broker.coordination.SILENCE_S", 0.1)
    connections: list[asyncio.StreamWriter] = []
    is_repeated = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if len(connections) == 2:
            is_repeated.set()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    coordination = Coordination(f"{host}:{port}", "user", "")
    watching = asyncio.ensure_future(coordination.watch(lambda _: None))
    try:
        async with asyncio.timeout(10):
            await is_repeated.wait()
    finally:
        watching.cancel()
        listener.close()
        for writer in connections:
            writer.close()
        await coordination.close()


async def test_publications_of_other_journals_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows after those of a journal are of the next one of its name, or of another one."""
    rows = [["a/journal", 2, 7, b"x"], ["a/journal", 5, 8, b"y"], ["b/journal", 2, 9, b"z"]]
    coordination = Coordination("127.0.0.1:1", "", "")

    async def select(*_: object, **__: object) -> Committed:
        return Committed(tuples=rows)

    monkeypatch.setattr(coordination._client, "select", select)
    found = await coordination.publications("a/journal", 2, 6, 10)
    assert found == [Publication(7, b"x")]
    await coordination.close()
