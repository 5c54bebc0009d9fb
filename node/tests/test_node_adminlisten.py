"""The listener of the admin port, where plain connections and TLS share one port."""

import asyncio
import ssl

import pytest

from qsync_node.server import adminlisten
from qsync_node.server.adminlisten import AdminListener


class Echo(asyncio.Protocol):
    """Sends back what it reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.mark.asyncio
async def test_silent_connections_do_not_keep_probes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminlisten, "UNDECIDED_MAX", 2)
    listener = AdminListener(Echo, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    host, port = await listener.listen("127.0.0.1", 0)
    ends = []
    try:
        async with asyncio.timeout(5):  # less than the patience with a silent connection
            for _ in range(2):
                ends.append(await asyncio.open_connection(host, port))
            reader, writer = await asyncio.open_connection(host, port)
            ends.append((reader, writer))
            writer.write(b"GET")
            assert await reader.readexactly(3) == b"GET"
            assert await ends[0][0].read() == b"", "the oldest one made room"
    finally:
        for _, writer in ends:
            writer.close()
        await listener.close()
