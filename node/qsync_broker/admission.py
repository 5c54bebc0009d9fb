"""Admission of content: clients and peers send no more than disk and connections keep up with."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qsync_broker import events as ev
from qsync_broker.states import TERMINAL

if TYPE_CHECKING:
    from qsync_broker.append import AppendMachine

UNSTORED_BYTES_MAX = 16 << 20
"""Bytes of content on the way to the disk, above which no more is read from clients and peers."""
CONTENT_NS = 30_000_000_000
"""Time that an append has after each part of its content, at least."""


class BrokerAdmission:
    """Content on its way to the disk, and the appends that wait until they may send more.

    Attributes:
        peers: numbers of the connections of primaries.
        unstored_bytes: bytes of content on the way to the disk.
    """

    def __init__(
        self, are_links_blocked: Callable[[], bool], emit: Callable[[ev.BrokerEffect], None]
    ) -> None:
        self.peers: dict[int, None] = {}
        self.unstored_bytes = 0
        self._are_links_blocked = are_links_blocked
        self._emit = emit
        self._is_blocked = False
        self._asked: list[AppendMachine] = []  # their next content waits for room

    def connected(self, number: int) -> None:
        """Note a connection of a primary."""
        self.peers[number] = None
        if self._is_blocked:
            self._emit(ev.BlockPeer(number, True))

    def submitted(self, size: int) -> None:
        """Note content that is on its way to the disk."""
        self.unstored_bytes += size
        self._set_blocked()

    def stored(self, now_ns: int) -> None:
        """Accept more content, if enough has become durable."""
        self._set_blocked()
        self.let(now_ns)

    def _set_blocked(self) -> None:
        is_blocked = self.unstored_bytes > UNSTORED_BYTES_MAX
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            for number in self.peers:
                self._emit(ev.BlockPeer(number, is_blocked))

    def ask(self, append: "AppendMachine", now_ns: int) -> None:
        """Ask for more content of an append as soon as there is room."""
        self._asked.append(append)
        self.let(now_ns)

    @property
    def is_blocked(self) -> bool:
        """Return whether the disk or a peer does not keep up."""
        return self._is_blocked or self._are_links_blocked()

    def let(self, now_ns: int) -> None:
        """Ask for more content, unless the disk or a peer does not keep up."""
        if self.is_blocked:
            return
        asked, self._asked = self._asked, []
        for append in asked:
            if append.number < 0 or append.state in TERMINAL or append.content.sequence:
                continue  # it has all its content
            if append.replica is not None and not append.replica.limit.may_take(now_ns):
                self._asked.append(append)  # asked again in a later tick
                extend(append, now_ns)
                continue
            append.pace.ask(now_ns)
            self._emit(ev.AskContent(append.number))


def extend(append: "AppendMachine", now_ns: int) -> None:
    """Give an append more time: its content arrives, or waits for the journal's limit."""
    append.deadline_ns = max(append.deadline_ns, now_ns + CONTENT_NS)
