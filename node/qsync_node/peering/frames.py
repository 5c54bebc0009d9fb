"""The frames of a connection between two members: messages with their lengths, and keep-alive.

TCP may take minutes to detect a failed machine, and data sent to it until then is lost. Each end
therefore sends at least an empty frame per `KEEPALIVE_S`, and closes a connection on which no byte
arrived for `SILENT_TICKS` ticks. It counts its own ticks, not seconds: a process that was paused
has not ticked, and does not consider its peers failed.
"""

from enum import Enum, auto

from qsync_node.errors import QsyncError

FRAME_BYTES_MAX = 64 << 20
KEEPALIVE_S = 0.5
SILENT_TICKS = 4
EMPTY_FRAME = bytes(4)


class FrameTooLong(QsyncError):  # noqa: N818  # the other end has violated the protocol
    """The length of a frame exceeds `FRAME_BYTES_MAX`."""


def encode_frames(messages: list[bytes]) -> bytes:
    """Return messages as they are sent, each with its length in four bytes before it."""
    parts: list[bytes] = []
    for message in messages:
        parts += len(message).to_bytes(4, "big"), message
    return b"".join(parts)


class Frames:
    """Splits received bytes into messages.

    The cost is proportional to the bytes: those of an unfinished message are joined once.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 4

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes, and return the messages that are whole now.

        Raises:
            FrameTooLong: the connection must be closed.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        buffer = b"".join(self._parts) if len(self._parts) > 1 else data
        messages: list[bytes] = []
        position, end = 0, len(buffer)
        self._wanted = 4
        while end - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if length > FRAME_BYTES_MAX:
                raise FrameTooLong("a frame is too long")
            if end - position - 4 < length:
                self._wanted = 4 + length
                break
            position += 4
            if length:
                messages.append(buffer[position : position + length])
            position += length
        rest = buffer[position:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return messages


class Beat(Enum):
    """The action of a tick."""

    NOTHING = auto()
    SEND = auto()
    """Send an empty frame."""
    SILENT = auto()
    """Close the connection: the other end was silent."""


class KeepAlive:
    """Notices that the other end of a connection is silent, and keeps this one from being so."""

    def __init__(self) -> None:
        self._was_heard = True
        self._has_sent = False
        self._silent_ticks = 0

    def on_received(self) -> None:
        self._was_heard = True

    def on_sent(self) -> None:
        self._has_sent = True

    def tick(self) -> Beat:
        """Return the action that is due, once per `KEEPALIVE_S`."""
        self._silent_ticks = 0 if self._was_heard else self._silent_ticks + 1
        self._was_heard = False
        if self._silent_ticks >= SILENT_TICKS:
            return Beat.SILENT
        has_sent, self._has_sent = self._has_sent, False
        return Beat.NOTHING if has_sent else Beat.SEND
