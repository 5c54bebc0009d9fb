"""The lease of a broker: its renewals, and the time until which it may serve."""

from collections.abc import Callable
from typing import NamedTuple

from qsync_broker.keyspace import Absent, KeyChange, KeySpace
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, next_revision


class BrokerConfig(NamedTuple):
    """Settings of a broker.

    Attributes:
        id: zone and name.
        endpoint: URL for clients.
        peer_address: HOST:PORT for other brokers.
        process: UUID of the process.
        journal_limit: number of assignments that it accepts.
        lease_ms: duration of its lease in milliseconds.
        replication_max: upper limit of the replication of all journals.
        auto_suspend: whether journals are suspended once they are idle and persisted.
    """

    id: BrokerId
    endpoint: str
    peer_address: str
    process: str
    journal_limit: int = 1024
    lease_ms: int = 2_000
    replication_max: int = 9
    auto_suspend: bool = False


class BrokerLease:
    """The row of this broker in the key space.

    Attributes:
        is_exiting: whether the row asks other brokers to take its assignments over.
    """

    def __init__(
        self,
        config: BrokerConfig,
        keys: KeySpace,
        transact: Callable[[KeyChange, Callable[[bool], None]], None],
        now_ns: Callable[[], int],
        is_drained: Callable[[], bool],
    ) -> None:
        """Begin without a lease.

        Args:
            config: settings of the broker.
            keys: its copy of the key space.
            transact: carries a change of the key space out.
            now_ns: monotonic time in nanoseconds.
            is_drained: whether a broker that exits needs its disk no more.
        """
        self.is_exiting = False
        self._config = config
        self._keys = keys
        self._transact = transact
        self._now_ns = now_ns
        self._is_drained = is_drained
        self._renewals = 0
        self._sent_ns: dict[int, int] = {}
        self._renew_at_ns = 0
        self._is_renewing = False
        self._until_ns = 0

    @property
    def is_over(self) -> bool:
        """Return whether the lease may have ended."""
        return self._now_ns() >= self._until_ns

    @property
    def remaining_ns(self) -> int:
        """Return the remaining time in nanoseconds, 0 if the lease may have ended."""
        return max(0, self._until_ns - self._now_ns())

    def exit(self) -> None:
        """Announce at once that this broker hands its assignments over."""
        self.is_exiting = True
        self._renew_at_ns = 0

    def renew(self) -> None:
        """Renew the lease if it is time."""
        keys, config, now_ns = self._keys, self._config, self._now_ns()
        if not keys.revision or self._is_renewing or now_ns < self._renew_at_ns:
            return
        row = keys.brokers.get(config.id)
        is_mine = row is not None and row.process == config.process
        is_drained = self.is_exiting and self._is_drained()
        self._renewals += 1
        # The numbers rise over all renewals of the process, so that each differs from the others.
        revision = row.create_revision if is_mine and row else next_revision(keys.revision)
        modified = revision
        if is_mine and row is not None:
            modified = row.mod_revision
            if (row.is_exiting, row.is_drained) != (self.is_exiting, is_drained):
                modified = next_revision(keys.revision, row)
        renewed = BrokerRow(
            config.id,
            config.endpoint,
            config.peer_address,
            config.journal_limit,
            self.is_exiting,
            config.lease_ms,
            config.process,
            self._renewals,
            revision,
            modified,
            is_drained,
        )
        expected = row if row is not None else Absent(BROKER_SPACE, tuple(config.id))
        self._is_renewing = True
        self._sent_ns[self._renewals] = now_ns
        self._renew_at_ns = now_ns + config.lease_ms * 1_000_000 // 3
        self._transact(KeyChange((expected,), (renewed,)), self._on_renewed)

    def _on_renewed(self, is_committed: bool) -> None:
        """Note the result of a renewal; one that failed is repeated soon."""
        self._is_renewing = False
        if not is_committed:
            now_ns, lease_ns = self._now_ns(), self._config.lease_ms * 1_000_000
            self._renew_at_ns = now_ns + lease_ns // 20
            # A renewal without a known result may be committed later, but a lease that counts from
            # an old one would have ended.
            for number in [one for one, at in self._sent_ns.items() if now_ns - at > lease_ns]:
                del self._sent_ns[number]

    def note(self) -> None:
        """Extend the lease by the renewal that the key space confirms.

        An operator that removes the broker sets `is_exiting` of its row, which the broker keeps.
        """
        config, row = self._config, self._keys.brokers.get(self._config.id)
        if row is None or row.process != config.process:
            return
        self.is_exiting |= row.is_exiting
        sent_ns = self._sent_ns.get(row.renewals)
        if sent_ns is not None:
            self._until_ns = sent_ns + config.lease_ms * 1_000_000
            for number in [number for number in self._sent_ns if number <= row.renewals]:
                del self._sent_ns[number]
