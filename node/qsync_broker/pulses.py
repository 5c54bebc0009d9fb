"""Pulses: synchronisations of journals that no append causes.

The primary pulses a journal soon after a change of its route, and then every minute. Pulses
find peers that are lost, complete fragments whose interval has ended, and suspend idle journals.

A pulse that fails shows that appends would fail, although no client appends. The replica keeps its
cause for the reports of this broker. Such a journal is pulsed more often, until a pulse or an
append succeeds.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from qsync_broker.keyspace import KeySpace
from qsync_broker.lease import BrokerConfig
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, Suspend
from qsync_broker.states import AppendState
from qsync_node.format.journals import NO_ROUTE, BrokerId, Route

if TYPE_CHECKING:
    from qsync_broker.append import AppendMachine

PULSE_NS = 60_000_000_000
"""Interval between two pulses of a journal."""
PULSE_AGAIN_NS = 500_000_000
PULSE_FAILED_NS = 5_000_000_000
"""Interval between two pulses of a journal after one that failed, if few journals fail."""
FAILING_FEW = 64
"""Number of failing journals for which this interval is lengthened: each pulse is a transaction."""
PULSES_MIN = 64
PULSE_TICKS = 25
"""Number of ticks in which each journal has its turn, at least, unless there are few."""
PULSES_MAX = 64
"""Pulses under way. Each may need two transactions, which `combining` puts together with others;
appends of clients wait for them, too."""
STABLE_PULSES = 15
"""Pulses with one route after which an idle journal may be suspended, as in Gazette."""


class PulseHost(Protocol):
    """The broker, as its pulses use it."""

    me: BrokerId
    config: BrokerConfig
    keys: KeySpace

    @property
    def is_fenced(self) -> bool:
        """Return whether this broker's lease may have ended."""

    def replica(self, journal: str) -> JournalReplica | None:
        """Return the journal's replica at this broker."""


class _PulsedJournal:
    __slots__ = ("last_ns", "route", "stable")

    def __init__(self) -> None:
        self.last_ns: int | None = None
        self.route: Route = NO_ROUTE
        self.stable = 0


class Pulses:
    """Pulses of all journals of a broker."""

    def __init__(self, host: PulseHost, begin: Callable[[Append], int]) -> None:
        """Begin without journals.

        Args:
            host: the broker.
            begin: begins an append without content, and returns its number.
        """
        self._host = host
        self._begin = begin
        self._journals: dict[str, _PulsedJournal] = {}  # in the order in which ticks examine them
        self._under_way: dict[int, None] = {}
        self._failing: set[str] = set()

    def add(self, journal: str) -> None:
        """Pulse a journal that was assigned to this broker."""
        self._journals[journal] = _PulsedJournal()

    def tick(self, now_ns: int) -> None:
        """Begin due pulses of some journals."""
        count = len(self._journals)
        for _ in range(min(count, PULSES_MIN + count // PULSE_TICKS)):
            if len(self._under_way) >= PULSES_MAX:
                return
            name = next(iter(self._journals))
            journal = self._journals.pop(name)
            replica = self._host.replica(name)
            if replica is None:
                self._failing.discard(name)
            else:
                self._journals[name] = journal
                self._pulse(name, journal, replica, now_ns)

    def _pulse(
        self, name: str, journal: _PulsedJournal, replica: JournalReplica, now_ns: int
    ) -> None:
        host = self._host
        row, route = host.keys.journals.get(name), host.keys.route(name)
        if row is None or route.primary < 0 or route.members[route.primary] != host.me:
            return
        if host.is_fenced or replica.sender is not None or replica.in_flight:
            return
        last_ns = journal.last_ns
        # Brokers that return change the route, although they find it as it was recorded.
        is_changed = journal.route != route or not host.keys.is_consistent(row)
        is_news = last_ns is None or (is_changed and now_ns - last_ns > PULSE_AGAIN_NS)
        interval_ns = self._interval_ns(name)
        if not is_news and last_ns is not None and now_ns - last_ns < interval_ns:
            return
        journal.last_ns = now_ns
        journal.stable = 0 if is_news else journal.stable + 1
        journal.route = route
        # Soon after a change, its clients may be about to append, and listings may be old.
        is_idle = host.config.auto_suspend and journal.stable >= STABLE_PULSES
        suspend = Suspend.IF_FLUSHED if is_idle else Suspend.NO_RESUME
        self._under_way[self._begin(Append(name, suspend=suspend, may_proxy=False))] = None

    def _interval_ns(self, journal: str) -> int:
        if journal not in self._failing:
            return PULSE_NS
        return min(PULSE_NS, PULSE_FAILED_NS * (1 + len(self._failing) // FAILING_FEW))

    def ended(self, append: "AppendMachine") -> None:
        """Note the end of an append, which may be a pulse."""
        is_pulse = append.number in self._under_way
        self._under_way.pop(append.number, None)
        replica, result = append.replica, append.result
        if replica is None or result is None:
            return
        if is_pulse:
            replica.append_error = result.error or result.reason
        elif append.state is AppendState.FINISHED:
            replica.append_error = ""
        if replica.append_error:
            self._failing.add(replica.journal)
        else:
            self._failing.discard(replica.journal)
