"""Group commit: small appends of a journal that are complete at the broker share one proposal.

An append is small if its content is at most `SMALL` bytes. It is grouped if it has no precondition
and changes neither registers nor suspension, so that it differs from others by its content only.

    state of a group   event                                    next
    ----------------   --------------------------------------   ---------
    OPEN               a small append arrives                   OPEN, or CLOSED if it is full
    OPEN, CLOSED       the core asks for its content            GIVEN
    OPEN               an append of the journal that is not     CLOSED
                       grouped begins
    any                the core has a result                    (end)

To the core, a group is one append, and the rules of appends hold for it. Each of its appends has
a span of offsets of its own. All of them are committed, or none is. A group accepts appends until
its turn comes, so that the number of appends in it rises with the load, and a lone append never
waits.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from qsync_broker.calls import AppendCall, CallHost, CallT
from qsync_broker.requests import Append, Appended, Finish, Piece
from qsync_broker.status import Status

SMALL = 64 << 10
"""Maximum size of an append that is grouped, in bytes."""
GROUP_BYTES = 256 << 10
"""Size in bytes at which a group is closed."""
HELD_MAX = 64 << 20
"""Content in bytes that waits in groups of a broker, above which appends are not grouped."""
APPEND_S = 60.0


class GroupHost(Protocol):
    """The server, as groups use it."""

    def begin(
        self, request: Append, timeout_s: float, make: Callable[[CallHost, int, Append], CallT]
    ) -> CallT:
        """Begin an append whose call `make` returns, given its number."""


class Group(AppendCall):
    """Appends of one journal that are proposed together.

    Attributes:
        request: what all of them request.
        size: size of their content in bytes.
    """

    def __init__(
        self, host: CallHost, number: int, request: Append, taken: Callable[["Group"], None]
    ) -> None:
        """Begin an empty group; `taken` is called when its content is taken."""
        super().__init__(host, number, request)
        self._on_taken = taken
        self.size = 0
        self._count = 0
        self._contents: list[bytes] = []

    @property
    def count(self) -> int:
        return self._count

    def join(self, content: bytes) -> int:
        """Add an append, and return its position in bytes."""
        position = self.size
        self._contents.append(content)
        self._count += 1
        self.size += len(content)
        return position

    def want(self) -> None:
        """Give the whole content to the core, which has asked for it."""
        super().want()
        contents = self._take()
        if contents:
            self.give(Piece(b"".join(contents)))
            self.give(Finish())

    def finish(self, result: Appended, is_proxied: bool) -> None:
        """Note the result."""
        self._take()
        super().finish(result, is_proxied)

    def _take(self) -> list[bytes]:
        contents, self._contents = self._contents, []
        if contents:
            self._on_taken(self)
        return contents


class Grouped(NamedTuple):
    """A small append in its group."""

    group: Group
    position: int
    content: bytes

    async def result(self) -> tuple[Appended, bool]:
        """Wait for the group, and return the result of this append, and whether it is proxied."""
        return self.part_of(*await asyncio.shield(self.group.result))

    def part_of(self, result: Appended, is_proxied: bool) -> tuple[Appended, bool]:
        """Return the result of this append, given that of its group."""
        if result.error or is_proxied or result.resolution.status is not Status.OK:
            return result, is_proxied
        begin = result.begin + self.position
        end = begin + len(self.content)
        checksum = hashlib.sha1(self.content).digest()
        return result._replace(begin=begin, end=end, sum=checksum), False


class Groups:
    """The open groups of a broker, by journal.

    Attributes:
        held: content in bytes that waits for the core.
    """

    def __init__(self, host: GroupHost) -> None:
        self._host = host
        self._open: dict[str, Group] = {}
        self.held = 0

    def may_join(self, request: Append, size: int) -> bool:
        """Return whether an append with complete content can be grouped."""
        return (
            0 < size <= SMALL
            and self.held < HELD_MAX
            and request._replace(may_proxy=True, min_revision=0) == Append(request.journal)
        )

    def append(self, request: Append, content: bytes) -> Grouped:
        """Append content as part of a group; `may_join` was asked."""
        name = _stem(request.journal)
        group = self._open.get(name)
        if group is None or request != group.request:
            group = self._host.begin(request, APPEND_S, self._new)
            self._open[name] = group
        self.held += len(content)
        joined = Grouped(group, group.join(content), content)
        if group.size >= GROUP_BYTES:
            self.close(request.journal)
        return joined

    def _new(self, host: CallHost, number: int, request: Append) -> Group:
        return Group(host, number, request, self.taken)

    def close(self, journal: str) -> None:
        """Close the open group of a journal, because another append begins after it."""
        self._open.pop(_stem(journal), None)

    def taken(self, group: Group) -> None:
        """Note that the content of a group was taken."""
        self.held -= group.size
        if self._open.get(_stem(group.request.journal)) is group:
            self.close(group.request.journal)


def _stem(journal: str) -> str:
    """Return the name of a journal without the annotation that a client may add."""
    return journal.partition(";")[0]
