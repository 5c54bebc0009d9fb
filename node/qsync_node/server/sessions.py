"""All client connections of a node, and the budgets that they share.

`admission.py` states the bounds. A session whose requests exceed the common budget is *starved*: it
stops reading its socket until others have their answers. A session with reads that the node
returned is *ready*: it repeats one of them in the next turn.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from qsync_node.consensus import effects as fx
from qsync_node.server.admission import Admission, RequestBytes
from qsync_node.server.logs import Log
from qsync_node.server.watches import Watches

LOG_IN_REPORT_S = 1.0


class ClientSocket(Protocol):
    """A client connection."""

    number: int
    out: list[bytes]
    watches: Watches

    @property
    def user(self) -> str: ...
    def work(self) -> None: ...
    def flush(self) -> None: ...
    def evict(self) -> None: ...
    def answer(self, answer: fx.Answer) -> None: ...
    def defer(self, number: int) -> None: ...
    def send_to_tarantool(self, effect: fx.TarantoolPackets) -> None: ...
    def notify(self, key: str, value: bytes | None) -> None: ...
    def unread_bytes(self) -> int: ...
    def peer_name(self) -> str: ...


class Sessions:
    """The sessions of a node by number.

    Attributes:
        by_number: open sessions.
        admission: bounds of their number and of unread answers.
        requests: bytes of the requests without an answer.
        failed_log_ins: failed log-ins since the start.
    """

    def __init__(
        self,
        numbers: Iterator[int],
        connections_max: int,
        feed: Callable[[Any], None],
        schedule: Callable[[], None],
        log: Log,
    ) -> None:
        """Begin without sessions.

        Args:
            numbers: numbers for sessions, which no link has.
            connections_max: bound of the number of connections.
            feed: takes an input of the node.
            schedule: lets a turn follow.
            log: the node's log.
        """
        self._numbers = numbers
        self._feed = feed
        self._schedule = schedule
        self._log = log
        self.by_number: dict[int, ClientSocket] = {}
        self.admission = Admission(connections_max)
        self.requests = RequestBytes()
        self.failed_log_ins = 0
        self._unreported_log_ins = 0
        self._log_in_reported_s = 0.0
        self._dirty: list[ClientSocket] = []
        self._ready: dict[ClientSocket, None] = {}
        self._starved: dict[ClientSocket, None] = {}

    @property
    def unauthenticated(self) -> int:
        """Number of connections before log-in."""
        return self.admission.unauthenticated

    def set_unread(self, number: int, size: int) -> None:
        """Note how many bytes of answers a client has not read."""
        self.admission.set_unread(number, size)

    def __len__(self) -> int:
        return len(self.by_number)

    def add(self, session: ClientSocket) -> int:
        """Return the number of a new session, after the eviction of another one if necessary."""
        number = next(self._numbers)
        self.by_number[number] = session
        evicted = self.admission.connect(number)
        if evicted is not None:
            self.by_number[evicted].evict()
        return number

    def remove(self, session: ClientSocket) -> None:
        if self.by_number.pop(session.number, None) is not None:
            self.admission.close(session.number)
            self._ready.pop(session, None)
            self._starved.pop(session, None)
            self._feed(fx.SessionClosed(session.number))

    def note_ready(self, session: ClientSocket) -> None:
        """Include the session in the next turn."""
        self._ready[session] = None
        self._schedule()

    def may_read(self, session: ClientSocket) -> bool:
        """Return whether the budget permits more requests. If not, resume the session later."""
        if self.requests.is_full():
            self._starved[session] = None
            return False
        return True

    def work(self) -> None:
        """Let sessions with returned reads repeat one each."""
        ready, self._ready = self._ready, {}
        for session in ready:
            session.work()

    def answer(self, answer: fx.Answer) -> bool:
        """Add an answer to those of its session; return whether the session exists."""
        session = self.by_number.get(answer.session)
        if session is None:
            return False
        if not session.out:
            self._dirty.append(session)
        session.answer(answer)
        return True

    def flush(self) -> None:
        """Write the answers of a turn, and let sessions continue that waited for them."""
        dirty, self._dirty = self._dirty, []
        for session in dirty:
            session.flush()
        if self.admission.is_over_unread_budget():
            self._close_slowest_readers()
        if self._starved and self.requests.has_room():
            starved, self._starved = self._starved, {}
            for session in starved:
                session.work()

    def _close_slowest_readers(self) -> None:
        """Close the connections with most unread bytes until the others fit the budget."""
        for number in self.admission.unread_sessions():
            session = self.by_number.get(number)
            size = session.unread_bytes() if session is not None else 0
            self.admission.set_unread(number, size)
        for number in self.admission.unread_sessions():
            if not self.admission.is_over_unread_budget():
                return
            session = self.by_number[number]
            self._log("client_closed", reason="unread answers", user=session.user,
                      bytes=session.unread_bytes())  # fmt: skip
            self.admission.set_unread(number, 0)
            session.evict()

    def note_failed_log_in(self, session: ClientSocket, user: str) -> None:
        """Count a failed log-in. Report the count at most once per `LOG_IN_REPORT_S`."""
        self.failed_log_ins += 1
        self._unreported_log_ins += 1
        now_s = time.monotonic()
        if now_s - self._log_in_reported_s >= LOG_IN_REPORT_S:
            self._log_in_reported_s = now_s
            self._log("log_in_failed", user=user[:64], address=session.peer_name(),
                      count=self._unreported_log_ins)  # fmt: skip
            self._unreported_log_ins = 0

    def close(self) -> None:
        """Close all connections at once."""
        for session in list(self.by_number.values()):
            session.evict()
