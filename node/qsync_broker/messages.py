"""Messages between brokers, and their frames.

A primary opens a stream to each peer, and sends on it; a peer answers on the same stream. Streams
of all journals of two brokers share one connection per direction of replication.

    primary -> peer                             peer -> primary
    -------------------------------------       ------------------------------------------------
    Prepare   asks for a promise (J2)           Promised   the state of its spool
                                                Refused    another route, or a greater promise
    Adopt     the chosen state (J4)             Acked(0)
    Content   bytes of an append
    Propose   commits them (J6)                 Acked(sequence), cumulative
    Abort     discards them (J7)
    Confirm   bytes are on all brokers (J8)
    Begin     begins a new fragment (J9)
    Close     ends the stream                   Failed     ends the stream, with the reason

A broker that lacks completed fragments opens a stream to another one of the journal (J11):

    Fetch     asks for a part of a fragment     Fetched    the part

A frame is its length (4 bytes, without these), a kind (1 byte), a stream (4 bytes), and the fields:
raw for `Content`, as an array in MessagePack for all others. The bytes of a content are passed on
as a view of the received buffer.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import msgpack

from qsync_broker.operations import Buffer
from qsync_node.format.journals import ChosenEnds

FRAME_MAX = 1 << 20
"""Maximum length of a frame in bytes; a longer one ends the connection."""
_HEAD = Struct(">IBI")
_DELTA = Struct(">Q")


class MessageError(Exception):
    """The peer sent bytes that are no frame; the connection must end."""


class Prepare(NamedTuple):
    journal: str
    journal_id: int
    members: tuple[tuple[str, str], ...]
    primary: int
    revision: int
    epoch: int


class Adopt(NamedTuple):
    epoch: int
    source: int
    end: int
    registers: bytes
    codec: int
    is_continued: bool
    ends: ChosenEnds = ()


class Content(NamedTuple):
    delta: int
    data: Buffer


class Propose(NamedTuple):
    sequence: int
    end: int
    sum: bytes
    registers: bytes
    confirmed: int


class Abort(NamedTuple):
    pass


class Confirm(NamedTuple):
    end: int


class Begin(NamedTuple):
    begin: int
    codec: int


class Close(NamedTuple):
    pass


class Promised(NamedTuple):
    epoch: int  # of the spool
    begin: int
    end: int
    sum: bytes
    registers: bytes
    codec: int
    missing: int = 0  # bytes before `end` that the broker lacks


class PeerRefused(NamedTuple):
    """`revision` of another route, or 0; `epoch` is the greatest promised one."""

    revision: int
    epoch: int


class Acked(NamedTuple):
    sequence: int


class Failed(NamedTuple):
    reason: str


class Fetch(NamedTuple):
    """Asks for the first completed fragment that ends after `after` and begins before `until`.

    Attributes:
        journal: the journal.
        journal_id: its create revision.
        epoch: the last recorded synchronisation. A broker that lacks the byte at `after` answers
            only if this was its last synchronisation, too.
        after: least end of the fragment, minus 1.
        until: offset before which it begins.
        at: the offset of the wanted part, or 0 for the begin of the fragment.
    """

    journal: str
    journal_id: int
    epoch: int
    after: int
    until: int
    at: int


class Fetched(NamedTuple):
    """A fragment, and its bytes from `at` on; without such a fragment, `end` is 0."""

    begin: int
    end: int
    sum: bytes
    codec: int
    first_append: int
    at: int
    data: bytes


Message: TypeAlias = (
    Prepare
    | Adopt
    | Content
    | Propose
    | Abort
    | Confirm
    | Begin
    | Close
    | Promised
    | PeerRefused
    | Acked
    | Failed
    | Fetch
    | Fetched
)

_KINDS: tuple[type[Any], ...] = (
    Prepare,
    Adopt,
    Content,
    Propose,
    Abort,
    Confirm,
    Begin,
    Close,
    Promised,
    PeerRefused,
    Acked,
    Failed,
    Fetch,
    Fetched,
)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_CONTENT = _NUMBERS[Content]
_INTEGERS = {int: "an integer", str: "a string", bytes: "bytes", bool: "a boolean"}


def encode(stream: int, message: Message) -> list[Buffer]:
    """Return the frame of a message in parts, so that content is not copied."""
    if isinstance(message, Content):
        length = 5 + _DELTA.size + len(message.data)
        head = _HEAD.pack(length, _CONTENT, stream) + _DELTA.pack(message.delta)
        return [head, message.data]
    body = msgpack.packb(list(message), use_bin_type=True)
    return [_HEAD.pack(5 + len(body), _NUMBERS[type(message)], stream) + body]


def _decode(kind: int, body: memoryview) -> Message:
    if kind == _CONTENT:
        if len(body) < _DELTA.size:
            raise MessageError(f"a content frame has {len(body)} bytes")
        return Content(_DELTA.unpack_from(body)[0], body[_DELTA.size :])
    if kind >= len(_KINDS):
        raise MessageError(f"a frame has the unknown kind {kind}")
    form = _KINDS[kind]
    try:
        fields = msgpack.unpackb(body, use_list=False, strict_map_key=True)
        message: Message = form(*fields)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageError(f"a {form.__name__} frame cannot be decoded: {error}") from None
    for name, annotation in form.__annotations__.items():
        value = getattr(message, name)
        if annotation in _INTEGERS and (
            not isinstance(value, annotation) or (annotation is int and not 0 <= value < 1 << 63)
        ):
            raise MessageError(f"field {name} of a {form.__name__} frame is not {annotation}")
    if isinstance(message, Adopt) and not _are_ends(message.ends):
        raise MessageError("field ends of an Adopt frame does not consist of epochs and ends")
    return message


def _are_ends(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, tuple) and len(one) == 2 and all(type(number) is int for number in one)
        for one in value
    )


class Decoder:
    """Splits the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> Iterator[tuple[int, Message]]:
        """Return the completed messages with their streams.

        Raises:
            FrameError: the bytes are no frames. The decoder must not be used again.
        """
        whole: Buffer = data
        if self._buffer:
            self._buffer += data
            whole = bytes(self._buffer) if self._is_complete() else b""
            if not whole:
                return
            self._buffer = bytearray()
        view, position = memoryview(bytes(whole)), 0
        while len(view) - position >= _HEAD.size:
            length, kind, stream = _HEAD.unpack_from(view, position)
            if not 5 <= length <= FRAME_MAX:
                raise MessageError(f"a frame has the length {length}")
            end = position + 4 + length
            if end > len(view):
                break
            yield stream, _decode(kind, view[position + _HEAD.size : end])
            position = end
        self._buffer += view[position:]

    def _is_complete(self) -> bool:
        if len(self._buffer) < _HEAD.size:
            return False
        return len(self._buffer) >= 4 + int.from_bytes(self._buffer[:4], "big")
