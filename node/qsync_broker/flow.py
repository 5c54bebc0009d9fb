"""Rates of appends: a maximum for each journal, and a minimum for each client.

An append occupies its journal while its content arrives. A client that sends almost nothing would
therefore hold back all others (Gazette's flow control).
"""

SECOND_NS = 1_000_000_000
MIN_RATE = 64 << 10
"""Rate in bytes per second that a client must reach while the broker waits for its content."""
PATIENCE_NS = 5 * SECOND_NS
"""Time that a client may wait with its first content, or after a while of a sufficient rate."""
BANK_S = 10
"""Time of silence, in seconds, of which a journal's appends may use the unused rate later."""


class FlowLimit:
    """The maximum rate of the content of a journal, as a bucket of tokens."""

    __slots__ = ("_at_ns", "_balance", "rate")

    def __init__(self, rate: int) -> None:
        """Begin with the balance of one second.

        Args:
            rate: bytes per second, 0 for no limit.
        """
        self.rate = rate
        self._balance = float(rate)
        self._at_ns = 0

    def may_take(self, now_ns: int) -> bool:
        """Return whether more content may be accepted at this time."""
        if not self.rate:
            return True
        if self._at_ns:
            earned = self.rate * (now_ns - self._at_ns) / SECOND_NS
            self._balance = min(self._balance + earned, float(self.rate * BANK_S))
        self._at_ns = now_ns
        return self._balance > 0

    def take(self, size: int) -> None:
        """Account for accepted content; a large part may overdraw the balance."""
        if self.rate:
            self._balance -= size


class Pace:
    """The minimum rate of one client."""

    __slots__ = ("_asked_ns", "_left_ns")

    def __init__(self) -> None:
        self._left_ns = PATIENCE_NS
        self._asked_ns: int | None = None

    def ask(self, now_ns: int) -> None:
        """Note that the broker waits for content."""
        if self._asked_ns is None:
            self._asked_ns = now_ns

    def receive(self, size: int, now_ns: int) -> None:
        """Note received content."""
        if self._asked_ns is None:
            return
        spent_ns = now_ns - self._asked_ns
        earned_ns = size * SECOND_NS // MIN_RATE
        self._left_ns = min(self._left_ns - spent_ns + earned_ns, PATIENCE_NS)
        self._asked_ns = None

    def is_over(self, now_ns: int) -> bool:
        """Return whether the client was too slow."""
        return self._asked_ns is not None and now_ns - self._asked_ns >= self._left_ns
