"""The core of a broker: it decides, and a shell acts.

`step` handles inputs and returns effects. The core reads no clock and does no I/O, so that the
simulator runs the same code (`qsync_broker.events` lists inputs and effects).

Every append of a journal is advanced when something changed that it may wait for: its journal's row
or route, an acknowledgement, a transaction, or content. Work per input is therefore in proportion
to the waiting appends of one journal, except that a new revision wakes the appends that wait for
one.
"""

from collections.abc import Callable, Iterable

from qsync_broker import events as ev
from qsync_broker.admission import BrokerAdmission, extend
from qsync_broker.allocator import Allocator, wanted_replicas
from qsync_broker.append import AppendMachine
from qsync_broker.census import Census
from qsync_broker.copier import Copier
from qsync_broker.draining import Draining
from qsync_broker.flow import MIN_RATE, PATIENCE_NS
from qsync_broker.health import StoreHealth, StoreState
from qsync_broker.holdings import Holdings, RecoveredHoldings
from qsync_broker.index import LocalFragment
from qsync_broker.keyspace import KeyChange, KeySpace
from qsync_broker.lease import BrokerConfig, BrokerLease
from qsync_broker.links import IncomingLinks, OutgoingLinks
from qsync_broker.messages import Message
from qsync_broker.operations import Publication, Roll, SpoolOperation, WriteContent
from qsync_broker.provider import Provider
from qsync_broker.publisher import Publisher
from qsync_broker.pulses import Pulses
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, Break, Finish, Piece
from qsync_broker.states import TERMINAL, AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import (
    BROKER_SPACE,
    PUBLISHER_SPACE,
    BrokerId,
    BrokerRow,
    JournalRow,
)

APPENDS_MAX = 4096
"""Maximum number of appends at a broker; one more is refused."""
TICK_NS = 20_000_000
"""Interval between two examinations of deadlines, lease, and allocation."""
PULSE_TIMEOUT_NS = 10_000_000_000

_WAITS_FOR_REVISION = (
    AppendState.RESOLVE,
    AppendState.RESERVE_EPOCH,
    AppendState.RECALL,
    AppendState.ACCEPT_LOSS,
    AppendState.UPDATE_ASSIGNMENTS,
    AppendState.UPDATE_SUSPEND,
)


class Broker:
    """The core of a broker.

    Attributes:
        me: zone and name of this broker.
        keys: its copy of the key space.
        census: counts of journals, for metrics.
        space_problem: why the disk takes no further content of appends, or "". Members write to the
            same disk, and leases depend on them: journals must not take the last space.
    """

    def __init__(self, config: BrokerConfig, recovered: Iterable[RecoveredHoldings] = ()) -> None:
        self.me = config.id
        self.config = config
        self.keys = KeySpace()
        self.space_problem = ""
        self._holdings = Holdings(self, recovered, self._emit)
        # A member that restarted may serve a state from before a revision that was seen already. A
        # journal that is missing in it was not deleted: it must not cost the bytes on this disk.
        self._least_revision = self._holdings.newest_epoch
        self._is_current = False
        self._now_ns = 0
        self._unix_s = 0
        self._effects: list[ev.BrokerEffect] = []
        self._appends: dict[int, AppendMachine] = {}
        self._pulses = 0  # numbers of pulses are negative
        self._woken: dict[int, AppendMachine] = {}
        self._tokens = 0
        self._transactions: dict[int, Callable[[bool], None]] = {}
        self._stores: dict[int, tuple[int, Callable[[], None]]] = {}
        # Journals whose peers do not know the confirmed end yet. Sets of names are dictionaries: a
        # set's order depends on the process, and a schedule of the simulator must not.
        self._confirmed: dict[str, None] = {}
        self._tick_at_ns = 0
        self._outgoing = OutgoingLinks(self, self._emit)
        self._provider = Provider(self._holdings.find, self._emit)
        self._incoming = IncomingLinks(
            self, self._holdings.assigned.get, self._emit, self._provider.on_fetch
        )
        self._copier = Copier(self, lambda: self._now_ns)
        self._admission = BrokerAdmission(lambda: self._outgoing.is_blocked, self._emit)
        draining = Draining(
            self.me, self.keys, config.replication_max, self._holdings, lambda: self._now_ns
        )
        self._lease = BrokerLease(
            config, self.keys, self.transact, lambda: self._now_ns, draining.is_done
        )
        self.publisher = Publisher(self, self._emit)
        self._pulser = Pulses(self, self._pulse)
        self._health = StoreHealth(self._emit, lambda: self._now_ns, self._on_health)
        self._allocator = Allocator()
        self.census = Census(self.me, self.keys, config.replication_max, self._holdings.find)
        self._is_allocating = False

    # --- running ------------------------------------------------------------------------------

    def step(
        self, now_ns: int, unix_s: int, inputs: Iterable[ev.BrokerEvent]
    ) -> list[ev.BrokerEffect]:
        """Handle inputs, and return the effects in the order in which to carry them out.

        Args:
            now_ns: monotonic time in nanoseconds.
            unix_s: Unix time in seconds.
            inputs: events since the last step; none for a tick, at least every 100 ms.
        """
        self._now_ns, self._unix_s = now_ns, unix_s
        for event in inputs:
            self._handle(event)
            self._advance()
        self._tick()
        self._advance()
        for journal in self._confirmed:
            replica = self._holdings.assigned.get(journal)
            if replica is not None and replica.pipeline is not None:
                replica.pipeline.tell_confirmed()
        self._confirmed.clear()
        effects, self._effects = self._effects, []
        return effects

    def _emit(self, effect: ev.BrokerEffect) -> None:
        self._effects.append(effect)

    def _advance(self) -> None:
        while self._woken:
            woken, self._woken = self._woken, {}
            for append in woken.values():
                append.advance()

    def _handle(self, event: ev.BrokerEvent) -> None:  # one branch per input
        if isinstance(event, ev.AppendReceived):
            self._on_content(event)
        elif isinstance(event, ev.AppendBegun):
            self._on_append(event)
        elif isinstance(event, ev.OperationsStored):
            self._on_stored(event.token)
        elif isinstance(
            event, ev.LinkReceived | ev.BrokerLinkUp | ev.BrokerLinkDown | ev.LinkBlocked
        ):
            self._outgoing.handle(event)
            self._admission.let(self._now_ns)
        elif isinstance(event, ev.PeerReceived | ev.PeerUp | ev.PeerDown):
            if isinstance(event, ev.PeerUp):
                self._admission.connected(event.number)
            elif isinstance(event, ev.PeerDown):
                self._admission.peers.pop(event.number, None)
            self._incoming.handle(event)
        elif isinstance(event, ev.Watched):
            self._on_watched(event)
        elif isinstance(event, ev.Transacted):
            done = self._transactions.pop(event.token, None)
            if done is not None:
                done(event.is_committed)
        elif isinstance(event, ev.FragmentEvent):
            self._on_fragments(event)
        elif isinstance(event, ev.SpaceChanged):
            self.space_problem = event.problem
        elif isinstance(event, ev.PublicationsRead):
            self._transactions.pop(event.token, None)
            self.publisher.on_read(event)
        else:
            self._emit(ev.Halt(event.reason))

    def _on_fragments(self, event: ev.FragmentEvent) -> None:
        """Handle what concerns stores and completed fragments."""
        if isinstance(event, ev.StoreChecked):
            self._health.on_checked(event)
        elif isinstance(event, ev.SpoolRead):
            self._provider.on_read(event)
        elif isinstance(event, ev.GapRead):
            self._holdings.persister.seek(event.journal)
        elif isinstance(event, ev.StoreListed):
            self._holdings.on_listed(event, self._now_ns)
        else:
            self._holdings.on_uploaded(event, self._now_ns)

    def _tick(self) -> None:
        if self._now_ns < self._tick_at_ns:
            return
        self._tick_at_ns = self._now_ns + TICK_NS
        self._lease.renew()
        self._allocate()
        self._holdings.persister.tick(self._now_ns)
        self._copier.tick()
        self._health.tick()
        self.publisher.tick(self._now_ns)
        self._admission.let(self._now_ns)
        self.census.tick()
        for append in list(self._appends.values()):
            if append.pace.is_over(self._now_ns):
                append.fail(
                    f"the client has sent less than {MIN_RATE >> 10} KiB/s of content for"
                    f" {PATIENCE_NS / 1e9:g} s while the broker waited for it"
                )
            elif self._now_ns >= append.deadline_ns:
                append.fail(_late_reason(append))
        self._pulser.tick(self._now_ns)

    # --- key space ----------------------------------------------------------------------------

    def _on_watched(self, event: ev.Watched) -> None:
        keys = self.keys
        if event.is_whole:
            least = max(keys.revision, self._least_revision)
            self._is_current = event.revision >= least
            if not self._is_current:
                self._emit(ev.Rewatch())
        if not self._is_current:
            return
        touched: dict[str, None] = {}
        published: dict[str, None] = {}
        former = dict(keys.brokers)
        if event.is_whole:
            touched.update(dict.fromkeys((*keys.journals, *keys.assigned_journals())))
            touched.update(dict.fromkeys(self._holdings.unassigned()))
            keys.clear()
            former = {}
        for change in event.changes:
            key = keys.apply(change)
            if change.space == PUBLISHER_SPACE:
                published[key[0]] = None
            elif change.space != BROKER_SPACE:
                touched[key[0]] = None
            elif not _is_renewal(former.get(BrokerId(*key)), keys.brokers.get(BrokerId(*key))):
                touched.update(dict.fromkeys(keys.journals_of(BrokerId(*key))))
                self._allocator.note_all(keys)
        keys.advance(event.revision)
        self._lease.note()
        for journal in touched:
            self._allocator.note(journal)
            created = self._holdings.update(journal, self._now_ns)
            if created is not None:
                self._copier.stop(journal)
                self._pulser.add(journal)
            self._copier.note(journal)
            self.wake_journal(journal)
        self._outgoing.close_absent()  # the pipelines to them have ended
        self._admission.let(self._now_ns)
        for journal in {**published, **touched}:
            self.publisher.note(journal, self._now_ns)
        self._incoming.retry()
        for append in self._appends.values():
            if append.state in _WAITS_FOR_REVISION:
                self.wake(append)

    # --- lease and allocation -----------------------------------------------------------------

    @property
    def is_fenced(self) -> bool:
        """Return whether this broker's lease may have ended."""
        return self._lease.is_over

    @property
    def lease_s(self) -> float:
        """Return the remaining time of the lease in seconds, 0 if it may have ended."""
        return self._lease.remaining_ns / 1e9

    @property
    def appends_in_flight(self) -> int:
        """Return the number of appends that have no result yet."""
        return len(self._appends)

    @property
    def unstored_bytes(self) -> int:
        """Return the bytes of content on the way to the disk."""
        return self._admission.unstored_bytes

    @property
    def unpersisted_fragments(self) -> int:
        """Return the number of completed fragments that are not known to be in a store."""
        return self._holdings.persister.unpersisted

    @property
    def partial_journals(self) -> int:
        """Return the number of journals whose missing fragments this broker copies."""
        return len(self._copier)

    @property
    def unhealthy_stores(self) -> int:
        """Return the number of stores for which appends are refused."""
        return self._health.refused

    def _allocate(self) -> None:
        if self._is_allocating or self.is_fenced:
            return
        changes = self._allocator.step(
            self.keys, self.me, self.config.replication_max, self._now_ns
        )
        pending = len(changes)

        def done(_: bool) -> None:
            nonlocal pending
            pending -= 1
            self._is_allocating = pending > 0

        self._is_allocating = bool(changes)
        for change in changes:
            self.transact(change, done)

    # --- appends ------------------------------------------------------------------------------

    def _on_append(self, event: ev.AppendBegun) -> None:
        append = AppendMachine(self, event.number, event.request, event.deadline_ns)
        self._appends[event.number] = append
        if self.is_fenced:
            reason = f"broker {self.me.suffix} has no lease"
            append.refuse(Status.NO_JOURNAL_PRIMARY_BROKER, reason)
        elif len(self._appends) > APPENDS_MAX:
            append.fail(f"the broker has {APPENDS_MAX} appends under way; retry later")
        else:
            self.wake(append)

    def _on_content(self, event: ev.AppendReceived) -> None:
        append = self._appends.get(event.number)
        if append is None:
            return
        size = len(event.received.data) if isinstance(event.received, Piece) else 0
        append.pace.receive(size, self._now_ns)
        extend(append, self._now_ns)
        if append.replica is not None:
            append.replica.limit.take(size)
        if isinstance(event.received, Break) and append.state is not AppendState.STREAM_CONTENT:
            append.fail(event.received.reason)
            return
        append.content.inputs.append(event.received)
        self.wake(append)

    def _pulse(self, request: Append) -> int:
        """Begin an append without content, and return its number."""
        self._pulses -= 1
        pulse = AppendMachine(self, self._pulses, request, self._now_ns + PULSE_TIMEOUT_NS)
        pulse.content.inputs.append(Finish())
        self._appends[self._pulses] = pulse
        self.wake(pulse)
        return self._pulses

    def exit(self) -> None:
        """Hand all assignments over; the broker may stop once it has none."""
        self._lease.exit()

    def stop(self) -> list[ev.BrokerEffect]:
        """Fail all appends, and end all streams."""
        for replica in list(self._holdings.assigned.values()):
            replica.stop("the broker stops")
        for append in list(self._appends.values()):
            append.fail("the broker stops")
        effects, self._effects = self._effects, []
        return effects

    # --- services for journals and appends (Host, AppendHost) ---------------------------------

    @property
    def unix_s(self) -> int:
        return self._unix_s

    def replica(self, journal: str) -> JournalReplica | None:
        return self._holdings.assigned.get(journal.partition(";")[0])

    def shelf(self, journal: str) -> JournalReplica | None:
        """Return the replica of a journal, assigned or not."""
        return self._holdings.find(journal)

    def desired_replicas(self, journal: JournalRow) -> int:
        return wanted_replicas(journal, self.config.replication_max)

    def stated_replicas(self, journal: JournalRow) -> int:
        return wanted_replicas(journal._replace(suspend_level=0), self.config.replication_max)

    def store_state(self, url: str) -> StoreState:
        return self._health.state(url)

    def _on_health(self) -> None:
        """Advance the appends that wait for the check of a store."""
        for append in self._appends.values():
            if append.state is AppendState.VALIDATE_PRECONDITIONS:
                self.wake(append)

    def transact(self, change: KeyChange, done: Callable[[bool], None]) -> None:
        self._emit(ev.Transact(self.expect(done), change))

    def store(self, operations: list[SpoolOperation], done: Callable[[], None]) -> None:
        self._tokens += 1
        size = sum(len(item.data) for item in operations if isinstance(item, WriteContent))
        self._stores[self._tokens] = size, done
        for operation in operations:
            if isinstance(operation, Roll):
                replica = self._holdings.find(operation.completed.journal)
                if replica is not None:
                    replica.rolled(operation)
        self._emit(ev.StoreOperations(self._tokens, operations))
        self._admission.submitted(size)

    def _on_stored(self, token: int) -> None:
        """Note that all operations up to a token are durable."""
        for number in list(self._stores):
            if number > token:
                break
            size, done = self._stores.pop(number)
            self._admission.unstored_bytes -= size
            done()
        self._admission.stored(self._now_ns)

    def open(
        self,
        peer: BrokerId,
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
    ) -> int:
        return self._outgoing.open(peer, on_message, on_lost)

    def send(self, peer: BrokerId, stream: int, message: Message) -> None:
        self._outgoing.send(peer, stream, message)

    def close(self, peer: BrokerId, stream: int) -> None:
        self._outgoing.close(peer, stream)

    def wake(self, append: AppendMachine) -> None:
        if append.state not in TERMINAL:
            self._woken[append.number] = append

    def wake_journal(self, journal: str) -> None:
        replica = self._holdings.assigned.get(journal)
        if replica is not None:
            for append in replica.woken:
                append.wake()

    @property
    def append_states(self) -> list[AppendState]:
        """Return the states of all appends."""
        return [append.state for append in self._appends.values()]

    @property
    def is_congested(self) -> bool:
        return self._admission.is_blocked

    def expect(self, done: Callable[[bool], None]) -> int:
        self._tokens += 1
        self._transactions[self._tokens] = done
        return self._tokens

    def append_own(self, request: Append, publications: tuple[Publication, ...]) -> AppendMachine:
        self._pulses -= 1
        deadline_ns = self._now_ns + PULSE_TIMEOUT_NS
        append = AppendMachine(self, self._pulses, request, deadline_ns, publications)
        self._appends[append.number] = append
        self.wake(append)
        return append

    def ask_content(self, append: AppendMachine) -> None:
        self._admission.ask(append, self._now_ns)

    def content_sent(self, append: AppendMachine) -> None:
        self._admission.ask(append, self._now_ns)

    def finish(self, append: AppendMachine) -> None:
        self._appends.pop(append.number, None)
        self._pulser.ended(append)
        if append.content.publications:
            self.publisher.ended(append)
        if append.number > 0 and append.result is not None:
            is_proxied = append.state is AppendState.PROXY
            self._emit(ev.FinishAppend(append.number, append.result, is_proxied))

    def completed(self, replica: JournalReplica, fragment: LocalFragment) -> None:
        self._holdings.persister.completed(replica, fragment, self._now_ns)

    def readable(self, journal: str) -> None:
        self._confirmed[journal] = None
        self._emit(ev.Readable(journal))


def _late_reason(append: AppendMachine) -> str:
    """Return why an append has no result at its deadline."""
    reason = f"the append had no result in state {append.state.value} in time"
    pipeline = append.replica.pipeline if append.replica is not None else None
    if pipeline is None or not pipeline.lagging:
        return reason
    return f"{reason}: no answer of broker {', '.join(pipeline.lagging)}; see its log, then retry"


def _is_renewal(former: BrokerRow | None, row: BrokerRow | None) -> bool:
    """Return whether a change of a broker's row only renews its lease."""
    return (
        former is not None and row is not None and row._replace(renewals=former.renewals) == former
    )
