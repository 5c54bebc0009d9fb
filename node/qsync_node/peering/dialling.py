"""The addresses that a process dials, and when: one connection to each.

state      event                                  next
---------  -------------------------------------  ----------------------------------------------
waiting    its time comes: `due` returns it       dialling
dialling   the attempt fails (`on_failed`)        waiting, or forgotten (`Redial`)
dialling   the handshake succeeds                 dialling: the connection is open
dialling   the open connection is lost            waiting
           (`on_lost`)
any        the address is changed or removed      none: later events of the attempt are ignored
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from qsync_node.peering.addresses import AddressBook, Redial
from qsync_node.peering.handshake import Established

HANDSHAKE_TIMEOUT_S = 5.0
"""Time after which an attempt has failed, from the first packet to the end of the handshake."""


class _LinkOfProcess(Protocol):
    """An open connection to a process of a member."""

    @property
    def uuid(self) -> str:
        """Instance uuid of the other end."""

    @property
    def incarnation(self) -> bytes:
        """Random bytes of its process."""


_LinkT = TypeVar("_LinkT", bound=_LinkOfProcess)


class Attempt:
    """A connection to one address, and the attempts to open it.

    Attributes:
        name: name of the other member.
        address: its HOST:PORT.
    """

    __slots__ = ("address", "due_s", "name", "redial")

    def __init__(self, name: str, address: str, now_s: float) -> None:
        self.name = name
        self.address = address
        self.redial = Redial(now_s)
        self.due_s: float | None = now_s  # None while it is dialled or open


class Dialling:
    """The attempts of one process. Times are seconds of a monotonic clock."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book
        self._attempts: dict[str, Attempt] = {}

    def set_configured(self, addresses: dict[str, str], now_s: float) -> list[Attempt]:
        """Replace the configured addresses, and return the attempts that must be dropped."""
        self._book.set_configured(addresses)
        targets = self._book.targets
        dropped = [one for one in self._attempts.values() if targets.get(one.name) != one.address]
        for attempt in dropped:
            del self._attempts[attempt.name]
        self._begin(targets, now_s)
        return dropped

    def discover(self, reported: object, own: dict[str, str], now_s: float) -> dict[str, str]:
        """Note the addresses that another member reports, and return the new ones.

        Args:
            reported: the report, unchecked. Invalid entries are ignored.
            own: name and address of this member.
            now_s: the time.
        """
        fresh = self._book.discover(reported, own)
        self._begin(fresh, now_s)
        return fresh

    def _begin(self, addresses: dict[str, str], now_s: float) -> None:
        for name, address in addresses.items():
            if name not in self._attempts:
                self._attempts[name] = Attempt(name, address, now_s)

    def due(self, now_s: float) -> list[Attempt]:
        """Return the attempts that must be dialled now; `on_failed` or `on_lost` ends each."""
        due = [
            one for one in self._attempts.values() if one.due_s is not None and one.due_s <= now_s
        ]
        for attempt in due:
            attempt.due_s = None
        return due

    @property
    def next_s(self) -> float | None:
        """Return the time at which the next attempt is due, or None while none waits."""
        return min(
            (one.due_s for one in self._attempts.values() if one.due_s is not None), default=None
        )

    def on_failed(self, attempt: Attempt, now_s: float) -> None:
        """Note that no connection was opened."""
        if self._attempts.get(attempt.name) is not attempt:
            return
        is_discovered = self._book.is_discovered(attempt.name)
        pause_s = attempt.redial.on_failed(now_s, is_discovered=is_discovered)
        if pause_s is None:
            self._book.forget(attempt.name)
            del self._attempts[attempt.name]
        else:
            attempt.due_s = now_s + pause_s

    def on_lost(self, attempt: Attempt, now_s: float) -> None:
        """Note that an open connection was lost."""
        if self._attempts.get(attempt.name) is attempt:
            attempt.due_s = now_s + attempt.redial.on_lost(now_s)


def superseded(links: Iterable[_LinkT], found: Established) -> list[_LinkT]:
    """Return the links to earlier processes of an instance whose present one has connected.

    They must be closed: that process has ended, although TCP has not reported it yet.
    """
    return [one for one in links if one.uuid == found.uuid and one.incarnation != found.incarnation]
