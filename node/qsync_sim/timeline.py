"""Virtual time: a queue of events, the randomness that orders them, and a count of each kind."""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from qsync_sim.violation import InvariantViolation


class Timeline:
    """The clock of a schedule. Time passes from one event to the next, and not between them.

    Attributes:
        seed: of the schedule.
        rng: the source of everything random that has no source of its own.
        now_ns: the time.
        counters: how often each thing has happened, by name.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_ns = 0
        self.counters: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        """Perform `action` at a time, or now if that has passed."""
        self._sequence += 1
        heapq.heappush(self._events, (max(when_ns, self.now_ns), self._sequence, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Perform `action` after a delay."""
        self.at(self.now_ns + delay_ns, action)

    def run_until(self, deadline_ns: int, done: Callable[[], bool] | None = None) -> bool:
        """Run events; True when `done` became true, False at the deadline."""
        while self._events and self._events[0][0] <= deadline_ns:
            when, _, action = heapq.heappop(self._events)
            self.now_ns = when
            action()
            if done is not None and done():
                return True
        self.now_ns = deadline_ns
        return done is not None and done()

    def run_for(self, duration_ns: int, done: Callable[[], bool] | None = None) -> bool:
        """Run the events of a duration, as `run_until` does."""
        return self.run_until(self.now_ns + duration_ns, done)

    def count(self, what: str) -> None:
        """Count something that happened."""
        self.counters[what] += 1

    def fail(self, reason: str) -> None:
        """End the schedule because of a violation.

        Raises:
            Violation: always.
        """
        raise InvariantViolation(reason)
