"""The cluster as brokers use it: transactions, procedures, and leases that end."""

from collections.abc import Callable
from random import Random

from qsync_broker import events as ev
from qsync_broker.keyspace import Deleted
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, decode_row
from qsync_sim.journals.clock import MS, SECOND, Clock
from qsync_sim.journals.keys import SimKeySpace
from qsync_sim.journals.process import SimBroker


class BrokerCluster:
    """Serves brokers from a key space; an answer may be late or lost.

    Attributes:
        are_removals_lost: whether calls of `qsync.published` do not arrive.
    """

    def __init__(
        self, keys: SimKeySpace, rng: Random, clock: Clock, is_cut: Callable[[str, str], bool]
    ) -> None:
        self.are_removals_lost = False
        self._keys = keys
        self._rng = rng
        self._clock = clock
        self._is_cut = is_cut
        self._renewed: dict[BrokerId, tuple[tuple[str, int], int]] = {}

    def transact(self, process: SimBroker, effect: ev.Transact) -> None:
        """Carry out a transaction of a broker."""

        def commit() -> None:
            if not process.is_alive:
                return
            if self._is_cut(process.name, "cluster"):
                self._clock.after(SECOND, lambda: process.feed(ev.Transacted(effect.token, False)))
                return
            is_committed = self._keys.transact(effect.change)
            is_known = is_committed and self._rng.random() > 0.02
            delay_ns = self._rng.randrange(MS // 2, 4 * MS)
            self._clock.after(delay_ns, lambda: process.feed(ev.Transacted(effect.token, is_known)))

        self._clock.after(self._rng.randrange(MS // 2, 4 * MS), commit)

    def call(
        self,
        process: SimBroker,
        effect: ev.ReadPublications | ev.RemovePublications | ev.DiscardPublications,
    ) -> None:
        """Read publications, or call a procedure for a broker; the answer may be lost."""
        rng, keys = self._rng, self._keys

        def answer(event: ev.BrokerEvent, delay_ns: int) -> None:
            self._clock.after(delay_ns, lambda: process.feed(event))

        def act() -> None:
            if not process.is_alive:
                return
            is_cut = self._is_cut(process.name, "cluster")
            is_lost = is_cut or rng.random() < 0.02
            delay_ns = SECOND if is_cut else rng.randrange(MS // 2, 4 * MS)
            if isinstance(effect, ev.ReadPublications):
                found = keys.publications(*effect[1:])
                if rng.random() < 0.1:  # the member lags
                    found = found[: rng.randrange(len(found) + 1)]
                answer(ev.PublicationsRead(effect.token, None if is_lost else found), delay_ns)
                return
            is_removal = isinstance(effect, ev.RemovePublications)
            name = "qsync.published" if is_removal else "qsync.discard"
            is_missed = is_cut or (is_removal and self.are_removals_lost)
            is_committed = not is_missed and keys.call(name, *effect[1:])
            answer(ev.Transacted(effect.token, is_committed and not is_lost), delay_ns)

        self._clock.after(rng.randrange(MS // 2, 4 * MS), act)

    def expire(self) -> None:
        """Remove brokers whose lease was not renewed, now and every 50 ms."""
        rows = [item for item in self._keys.rows.items() if item[0][0] == BROKER_SPACE]
        for (space, key), fields in rows:
            row = decode_row(space, fields)
            assert isinstance(row, BrokerRow)
            known, renewal = self._renewed.get(row.id), (row.process, row.renewals)
            if known is None or known[0] != renewal:
                self._renewed[row.id] = renewal, self._clock.now_ns
            elif self._clock.now_ns - known[1] > row.lease_ms * MS:
                del self._keys.rows[space, key]
                del self._renewed[row.id]
                self._keys.note([Deleted(space, list(key))])
        self._clock.after(50 * MS, self.expire)
