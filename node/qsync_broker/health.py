"""Health of the stores to which a broker's journals are persisted (as in Gazette).

    state       event                                    next
    ---------   --------------------------------------   -----------------------------------------
    UNKNOWN     the first check succeeds                 HEALTHY
    any         a check fails                            FAILING; checked again, ever later
    FAILING     a check succeeds                         HEALTHY; checked again after half an hour
    HEALTHY     a check fails                            FAILING

Appends to a journal wait while the state of its first store is UNKNOWN, and for the next checks
while it is FAILING. After `FAILURES_MAX` failures in succession, they are refused until a check
succeeds.
"""

from collections.abc import Callable
from typing import NamedTuple

from qsync_broker import events as ev

FAILURES_MAX = 5
HEALTHY_NS = 1_800_000_000_000
FAILING_NS = tuple(int(1e9 * seconds) for seconds in (0, 0.1, 1, 1, 2, 4, 8, 16, 32, 60))
"""Pauses after the first failures; the last one is repeated."""
UNUSED_NS = 3_600_000_000_000


class StoreState(NamedTuple):
    """The health of a store.

    Attributes:
        is_healthy: whether the last check succeeded.
        failures: number of failures since the last success.
        error: sentence of the last failure, or "".
    """

    is_healthy: bool = False
    failures: int = 0
    error: str = ""

    @property
    def is_refused(self) -> bool:
        """Return whether appends to journals of the store are refused."""
        return self.failures > FAILURES_MAX


class _Store:
    def __init__(self, now_ns: int) -> None:
        self.state = StoreState()
        self.at_ns = now_ns
        self.used_ns = now_ns
        self.is_under_way = False


class StoreHealth:
    """Checks of all stores that a broker uses."""

    def __init__(
        self,
        emit: Callable[[ev.BrokerEffect], None],
        now_ns: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """Begin without stores.

        Args:
            emit: carries an effect out.
            now_ns: returns the monotonic time in nanoseconds.
            changed: called after each check.
        """
        self._emit = emit
        self._now_ns = now_ns
        self._changed = changed
        self._stores: dict[str, _Store] = {}

    @property
    def refused(self) -> int:
        """Return the number of stores for which appends are refused."""
        return sum(store.state.is_refused for store in self._stores.values())

    def state(self, url: str) -> StoreState:
        """Return the health of a store, which is checked from now on."""
        store = self._stores.get(url)
        if store is None:
            store = self._stores[url] = _Store(self._now_ns())
            self._check(url, store)
        store.used_ns = self._now_ns()
        return store.state

    def tick(self) -> None:
        """Begin due checks, and forget stores that no append has used for an hour."""
        now_ns = self._now_ns()
        for url, store in list(self._stores.items()):
            if store.is_under_way:
                continue
            if now_ns - store.used_ns > UNUSED_NS:
                del self._stores[url]
            elif now_ns >= store.at_ns:
                self._check(url, store)

    def _check(self, url: str, store: _Store) -> None:
        store.is_under_way = True
        self._emit(ev.CheckStore(url))

    def on_checked(self, event: ev.StoreChecked) -> None:
        """Note the result of a check."""
        store = self._stores.get(event.store)
        if store is None:
            return
        store.is_under_way = False
        failures = store.state.failures + 1 if event.error else 0
        pause_ns = FAILING_NS[min(failures, len(FAILING_NS)) - 1] if failures else HEALTHY_NS
        store.at_ns = self._now_ns() + pause_ns
        store.state = StoreState(not event.error, failures, event.error)
        self._changed()
