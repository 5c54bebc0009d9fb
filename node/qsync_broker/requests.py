"""Requests to append, their content, and their results."""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from qsync_broker.labels import LabelSelector, LabelSet
from qsync_broker.loss import Loss
from qsync_broker.operations import Buffer
from qsync_broker.resolver import Resolution


class Suspend(IntEnum):
    """An append's effect on the journal's suspension; the values are Gazette's."""

    RESUME = 0
    NO_RESUME = 1
    IF_FLUSHED = 2
    NOW = 3
    KEEP = 4


class Append(NamedTuple):
    """A request to append.

    Attributes:
        journal: name of the journal.
        offset: offset at which the bytes must begin, 0 for any.
        check: selector that the registers must match, or None.
        union: registers to add, or None.
        subtract: registers to remove, or None.
        suspend: what to do about the journal's suspension.
        may_proxy: whether another broker may serve the request.
        min_revision: least revision of the key space under which to resolve it.
        accepts_loss: whether the loss of acknowledged bytes is accepted (`qsync_broker.loss`). The
            offset is the one at which to resume, or 0 to learn it.
    """

    journal: str
    offset: int = 0
    check: LabelSelector | None = None
    union: LabelSet | None = None
    subtract: LabelSet | None = None
    suspend: Suspend = Suspend.RESUME
    may_proxy: bool = True
    min_revision: int = 0
    accepts_loss: bool = False


class Appended(NamedTuple):
    """The result of an append.

    Attributes:
        resolution: status, route and revision under which it was served.
        begin: first offset of the appended bytes.
        end: offset after them.
        sum: SHA-1 of the appended bytes.
        registers: registers after the append.
        error: sentence, if the append failed without a status; its outcome may be unknown.
        reason: sentence that explains the status, or "".
        loss: the loss that a request must name to accept it, or None.
        head: offset at which the next append begins, if the append was refused because of
            registers or offsets; otherwise None.
    """

    resolution: Resolution
    begin: int = 0
    end: int = 0
    sum: bytes = b""
    registers: LabelSet | None = None
    error: str = ""
    reason: str = ""
    loss: Loss | None = None
    head: int | None = None


class Piece(NamedTuple):
    """A part of the content."""

    data: Buffer


class Finish(NamedTuple):
    """The client has sent everything, and wants it committed."""


class Break(NamedTuple):
    """The client broke off, or violated the protocol."""

    reason: str


AppendInput: TypeAlias = Piece | Finish | Break
