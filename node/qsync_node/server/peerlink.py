"""One authenticated connection between two members: messages of the core with length prefixes.

Theory. TCP may take minutes to detect a failed machine, and data sent to it until then is lost.
Each end therefore sends at least an empty frame per `KEEPALIVE_S`, and closes a link on which no
byte arrived for `SILENT_TICKS` ticks. It counts its own ticks, not seconds: a process that was
paused has not ticked, and does not consider its peers failed.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from qsync_node.core import effects as fx
from qsync_node.core import messages as msg

if TYPE_CHECKING:
    from qsync_node.server.loop import NodeServer

FRAME_BYTES_MAX = 64 << 20
UNSENT_BYTES_MAX = 256 << 20
SILENT_TICKS = 4
_EMPTY_FRAME = bytes(4)


class PeerLink:
    """An authenticated connection that either end has opened."""

    def __init__(
        self,
        server: "NodeServer",
        transport: asyncio.Transport,
        uuid: str,
        is_mine: bool,
        level: int,
    ) -> None:
        self.server = server
        self.transport = transport
        self.uuid = uuid
        self.life = b""
        self.out: list[bytes] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 4
        self._is_lost = False
        self._was_heard = True
        self._has_said = False
        self._silent_ticks = 0
        self.number = server.add_link(self)
        server.feed(fx.LinkUp(self.number, uuid, is_mine, level))

    def send(self, message: Any) -> None:
        self.out.append(msg.encode(message))

    def flush(self) -> None:
        parts: list[bytes] = []
        for data in self.out:
            parts.append(len(data).to_bytes(4, "big"))
            parts.append(data)
        self.out = []
        self._has_said = True
        if not self.transport.is_closing():
            self.transport.write(b"".join(parts))
            if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self.close("the peer does not read its data")

    def keep_alive(self) -> None:
        """Send a keep-alive and check for silence, once per `KEEPALIVE_S`."""
        self._silent_ticks = 0 if self._was_heard else self._silent_ticks + 1
        self._was_heard = False
        if self._silent_ticks >= SILENT_TICKS:
            self.close("the peer was silent")
            return
        if not self._has_said and not self.transport.is_closing():
            self.transport.write(_EMPTY_FRAME)
        self._has_said = False

    def feed(self, data: bytes) -> None:
        """Decode bytes of the connection, and pass whole messages to the core."""
        self._was_heard = True
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return
        buffer = b"".join(self._parts) if len(self._parts) > 1 else data
        position = 0
        end = len(buffer)
        self._wanted = 4
        while end - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if length > FRAME_BYTES_MAX:
                self.close("a frame is too long")
                return
            if end - position - 4 < length:
                self._wanted = 4 + length
                break
            position += 4
            if length and not self._take(buffer[position : position + length]):
                return
            position += length
        rest = buffer[position:]
        self._parts = [rest] if rest else []
        self._size = len(rest)

    def _take(self, data: bytes) -> bool:
        try:
            message = msg.decode(data)
        except ValueError as error:
            self.close(str(error))
            return False
        self.server.feed(fx.Received(self.number, message))
        return True

    def close(self, reason: str) -> None:
        self.server.log("link_closed", peer=self.uuid, reason=reason)
        self.transport.abort()
        self.lost()

    def lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.server.remove_link(self)
            self.server.feed(fx.LinkDown(self.number))
