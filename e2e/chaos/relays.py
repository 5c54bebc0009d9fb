"""TCP relays that a campaign cuts and opens: between brokers, and between a broker and its node."""

import asyncio
import contextlib

CHUNK = 1 << 16


class TcpRelay:
    """Carries connections of one port to another one, as long as it is not held.

    Attributes:
        port: port that accepts connections.
        target: port to which they are carried.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def hold(self) -> None:
        """Carry nothing, as a partition does: connections stay, and their bytes wait."""
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def cut(self) -> None:
        """Break all connections."""
        for task in self._connections:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        back: asyncio.StreamWriter | None = None
        try:
            await self._is_open.wait()
            other, back = await asyncio.open_connection("127.0.0.1", self.target)
            ways = [self._carry(reader, back), self._carry(other, writer)]
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in tasks:
                    one.cancel()
        except OSError:
            pass  # the target does not run: the connection ends
        except asyncio.CancelledError:
            pass  # a cut
        finally:
            self._connections.discard(task)
            writer.close()
            if back is not None:
                back.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
