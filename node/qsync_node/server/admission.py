"""Budgets of client connections: their number, and the bytes held for them (pure).

Three budgets, each for the whole process:

  unauthenticated connections   a bounded number. A new connection replaces the oldest one. A client
                                or member that logs in immediately is therefore never blocked by
                                others, and a flood of idle connections cannot lock it out.
  authenticated connections     a bounded number, and a reserve above it for `admin`. Members are
                                not counted: the membership bounds their connections.
  unread answers                a bounded number of bytes. Above it, the connection with most
                                unread bytes is closed.

`RequestBytes` is a separate bound for requests in flight. `listener.py` bounds TLS handshakes,
which precede all of these.
"""

from collections import OrderedDict

UNAUTHENTICATED_MAX = 512
HANDSHAKES_MAX = 512
ADMIN_RESERVE = 16
UNREAD_TOTAL_BYTES_MAX = 64 << 20
REQUESTS_TOTAL_BYTES_MAX = 256 << 20


class Admission:
    """The connections of a member by their session number."""

    def __init__(
        self, connections_max: int, unauthenticated_max: int = UNAUTHENTICATED_MAX
    ) -> None:
        self._connections_max = connections_max
        self._unauthenticated_max = unauthenticated_max
        self._unauthenticated: OrderedDict[int, None] = OrderedDict()
        self._clients: set[int] = set()
        self._admins: set[int] = set()
        self._unread: dict[int, int] = {}
        self._unread_total = 0

    @property
    def unauthenticated(self) -> int:
        return len(self._unauthenticated)

    def connect(self, number: int) -> int | None:
        """Count a new connection, and return the number of the one that it replaces, or None."""
        self._unauthenticated[number] = None
        if len(self._unauthenticated) <= self._unauthenticated_max:
            return None
        evicted, _ = self._unauthenticated.popitem(last=False)
        return evicted

    def log_in(self, number: int, user: str) -> bool:
        """Count a connection as authenticated. Return False if the limit is reached."""
        if number not in self._clients and number not in self._admins:
            if user == "admin" and len(self._admins) < ADMIN_RESERVE:
                self._admins.add(number)
            elif len(self._clients) < self._connections_max:
                self._clients.add(number)
            else:
                return False
        self._unauthenticated.pop(number, None)
        return True

    def close(self, number: int) -> None:
        """Stop counting a connection that has ended, or that now belongs to a member."""
        self._unauthenticated.pop(number, None)
        self._clients.discard(number)
        self._admins.discard(number)
        self.set_unread(number, 0)

    def set_unread(self, number: int, size: int) -> None:
        """Record the size in bytes of the unread answers of a connection."""
        before = self._unread.pop(number, 0)
        if size:
            self._unread[number] = size
        self._unread_total += size - before

    def is_over_unread_budget(self) -> bool:
        return self._unread_total > UNREAD_TOTAL_BYTES_MAX

    def unread_sessions(self) -> list[int]:
        """Return the connections with unread answers, those with most bytes first."""
        return sorted(self._unread, key=lambda number: -self._unread[number])


class RequestBytes:
    """Bytes of the requests in flight on all connections, for back-pressure (T11)."""

    def __init__(self, limit: int = REQUESTS_TOTAL_BYTES_MAX) -> None:
        self._limit = limit
        self.total = 0

    def add(self, size: int) -> None:
        self.total += size

    def remove(self, size: int) -> None:
        self.total -= size

    def is_full(self) -> bool:
        return self.total >= self._limit

    def has_room(self) -> bool:
        """Return whether paused connections may resume: a quarter of the budget must be free."""
        return self.total < self._limit * 3 // 4
