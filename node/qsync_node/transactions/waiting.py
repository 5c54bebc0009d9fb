"""Calls that wait beside the queue, in the order of their arrival and by their owner."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from qsync_node.transactions.calls import Call

T = TypeVar("T")


class WaitingCalls(Generic[T]):
    """Calls that wait, each with its entry; the first has waited longest.

    The end of a session costs the work of its own calls only, however many others wait (G1).
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Call, T] = OrderedDict()
        self._calls_of: dict[tuple[int, int], dict[Call, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def append(self, call: Call, entry: T) -> None:
        """Let a call wait after all others.

        Args:
            call: the call, which does not wait yet.
            entry: the value that `popleft` and `remove_owner` return for it.
        """
        assert call not in self._entries, "K1: a call waits once"
        self._entries[call] = entry
        self._calls_of.setdefault(call.owner, {})[call] = None

    def popleft(self) -> T:
        """Remove the first call, and return its entry."""
        call, entry = self._entries.popitem(last=False)
        calls = self._calls_of[call.owner]
        del calls[call]
        if not calls:
            del self._calls_of[call.owner]
        return entry

    def remove_owner(self, owner: tuple[int, int]) -> list[T]:
        """Remove the calls of a closed session, and return their entries.

        Args:
            owner: (link, session): each member numbers its own sessions.
        """
        return [self._entries.pop(call) for call in self._calls_of.pop(owner, ())]

    def remove_link(self, link: int) -> list[T]:
        """Remove the calls that a member has forwarded by a link, and return their entries."""
        owners = [owner for owner in self._calls_of if owner[0] == link]
        return [entry for owner in owners for entry in self.remove_owner(owner)]

    def clear(self) -> list[T]:
        """Remove all calls, and return their entries in order."""
        entries = list(self._entries.values())
        self._entries.clear()
        self._calls_of.clear()
        return entries
