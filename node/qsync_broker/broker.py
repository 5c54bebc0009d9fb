"""The core of a broker: it decides, and a shell acts.

`step` handles inputs and returns effects. The core reads no clock and does no I/O, so that the
simulator runs the same code (`qsync_broker.events` lists inputs and effects).

Every append of a journal is advanced when something changed that it may wait for: its journal's row
or route, an acknowledgement, a transaction, or content. Work per input is therefore in proportion
to the waiting appends of one journal, except that a new revision wakes the appends that wait for
one.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from qsync_broker import events as ev
from qsync_broker.allocator import Allocator, wanted_replicas
from qsync_broker.append import (
    TERMINAL,
    Append,
    AppendMachine,
    Break,
    Finish,
    Piece,
    State,
    Suspend,
)
from qsync_broker.flow import MIN_RATE, PATIENCE_NS, Limit
from qsync_broker.index import LocalFragment
from qsync_broker.keyspace import Absent, Change, KeySpace
from qsync_broker.links import IncomingLinks, OutgoingLinks
from qsync_broker.messages import Message
from qsync_broker.operations import Content, Drop, Operation, Roll, SpoolKey
from qsync_broker.persister import Persister
from qsync_broker.replica import Replica, Settings
from qsync_broker.spec import SECOND_NS, JournalSpec
from qsync_broker.spool import Spool
from qsync_node.format.journals import (
    BROKER_SPACE,
    BrokerId,
    BrokerRow,
    JournalRow,
    next_revision,
)

APPENDS_MAX = 4096
"""Maximum number of appends at a broker; one more is refused."""
UNSTORED_BYTES_MAX = 16 << 20
"""Bytes of content on the way to the disk, above which no more is read from clients and peers."""
TICK_NS = 20_000_000
"""Interval between two examinations of deadlines, lease, and allocation."""
PULSE_NS = 60_000_000_000
"""Interval between two synchronisations of a journal that no append causes."""
PULSE_AGAIN_NS = 500_000_000
CONTENT_NS = 30_000_000_000
"""Time that an append has after each part of its content, at least."""
PULSES_MIN = 64
PULSE_TICKS = 25
"""Number of ticks in which each journal has its turn, at least, unless there are few."""
PULSE_TIMEOUT_NS = 10_000_000_000

_WAITS_FOR_REVISION = (
    State.RESOLVE,
    State.RESERVE_EPOCH,
    State.UPDATE_ASSIGNMENTS,
    State.UPDATE_SUSPEND,
)


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
    """

    id: BrokerId
    endpoint: str
    peer_address: str
    process: str
    journal_limit: int = 1024
    lease_ms: int = 2_000
    replication_max: int = 9


class Recovered(NamedTuple):
    """A journal as the storage found it: the open spool, and completed ones."""

    spool: Spool
    completed: tuple[LocalFragment, ...]


class Broker:
    """The core of a broker.

    Attributes:
        me: zone and name of this broker.
        keys: its copy of the key space.
        is_exiting: whether it hands its assignments over.
    """

    def __init__(self, config: BrokerConfig, recovered: Iterable[Recovered] = ()) -> None:
        self.me = config.id
        self.config = config
        self.keys = KeySpace()
        self.is_exiting = False
        self._recovered = {found.spool.journal: found for found in recovered}
        # A member that restarted may serve a state from before a revision that was seen already. A
        # journal that is missing in it was not deleted: it must not cost the bytes on this disk.
        self._least_revision = max((one.spool.epoch for one in self._recovered.values()), default=0)
        self._is_current = False
        self._now_ns = 0
        self._unix_s = 0
        self._effects: list[ev.Effect] = []
        self._replicas: dict[str, Replica] = {}
        self._appends: dict[int, AppendMachine] = {}
        self._pulses = 0  # numbers of pulses are negative
        self._woken: dict[int, AppendMachine] = {}
        self._tokens = 0
        self._transactions: dict[int, Callable[[bool], None]] = {}
        self._stores: dict[int, tuple[int, Callable[[], None]]] = {}
        self._unstored_bytes = 0
        self._is_blocked = False
        self._asked: list[AppendMachine] = []  # their next content waits for room
        # Journals whose peers do not know the confirmed end yet. Sets of names are dictionaries: a
        # set's order depends on the process, and a schedule of the simulator must not.
        self._confirmed: dict[str, None] = {}
        self._tick_at_ns = 0
        self._outgoing = OutgoingLinks(self, self._emit)
        self._incoming = IncomingLinks(self, self._replicas.get, self._emit)
        self._peers: dict[int, None] = {}
        self._departed: dict[str, Replica] = {}  # not assigned, with fragments to persist
        self._persister = Persister(self, self.shelf, self._emit)
        self._pulsed_ns: dict[str, int] = {}
        self._pulsing: dict[str, None] = {}  # replicas, in the order in which ticks look at them
        self._allocator = Allocator()
        self._is_allocating = False
        # Lease: the last sent renewal, and the time until which a confirmed one counts.
        self._renewals = 0
        self._sent_ns: dict[int, int] = {}
        self._renew_at_ns = 0
        self._is_renewing = False
        self._lease_until_ns = 0

    # --- running ------------------------------------------------------------------------------

    def step(self, now_ns: int, unix_s: int, inputs: Iterable[ev.Event]) -> list[ev.Effect]:
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
            replica = self._replicas.get(journal)
            if replica is not None and replica.pipeline is not None:
                replica.pipeline.tell_confirmed()
        self._confirmed.clear()
        effects, self._effects = self._effects, []
        return effects

    def _emit(self, effect: ev.Effect) -> None:
        self._effects.append(effect)

    def _advance(self) -> None:
        while self._woken:
            woken, self._woken = self._woken, {}
            for append in woken.values():
                append.advance()

    def _handle(self, event: ev.Event) -> None:  # one branch per input
        if isinstance(event, ev.AppendReceived):
            self._on_content(event)
        elif isinstance(event, ev.AppendBegun):
            self._on_append(event)
        elif isinstance(event, ev.Stored):
            self._on_stored(event.token)
        elif isinstance(event, ev.LinkReceived | ev.LinkUp | ev.LinkDown | ev.LinkBlocked):
            self._outgoing.handle(event)
            self._let_content()
        elif isinstance(event, ev.PeerReceived | ev.PeerUp | ev.PeerDown):
            if isinstance(event, ev.PeerUp):
                self._peers[event.number] = None
            elif isinstance(event, ev.PeerDown):
                self._peers.pop(event.number, None)
            self._incoming.handle(event)
        elif isinstance(event, ev.Watched):
            self._on_watched(event)
        elif isinstance(event, ev.Transacted):
            done = self._transactions.pop(event.token, None)
            if done is not None:
                done(event.is_committed)
        elif isinstance(event, ev.Listed):
            self._persister.on_listed(event, self._now_ns)
        elif isinstance(event, ev.Uploaded):
            self._persister.on_uploaded(event, self._now_ns)
        else:
            self._emit(ev.Halt(event.reason))

    def _tick(self) -> None:
        if self._now_ns < self._tick_at_ns:
            return
        self._tick_at_ns = self._now_ns + TICK_NS
        self._renew()
        self._allocate()
        self._persister.tick(self._now_ns)
        self._let_content()
        for append in list(self._appends.values()):
            if append.pace.is_over(self._now_ns):
                append.fail(
                    f"the client has sent less than {MIN_RATE >> 10} KiB/s of content for"
                    f" {PATIENCE_NS / 1e9:g} s while the broker waited for it"
                )
            elif self._now_ns >= append.deadline_ns:
                append.fail(f"the append had no result in state {append.state.value} in time")
        for _ in range(min(len(self._pulsing), PULSES_MIN + len(self._pulsing) // PULSE_TICKS)):
            journal = next(iter(self._pulsing))
            del self._pulsing[journal]
            replica = self._replicas.get(journal)
            if replica is not None:
                self._pulsing[journal] = None
                self._pulse(journal, replica)

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
        former = dict(keys.brokers)
        if event.is_whole:
            touched.update(dict.fromkeys((*keys.journals, *keys.assigned_journals())))
            touched.update(dict.fromkeys((*self._recovered, *self._departed)))
            keys.clear()
            former = {}
        for change in event.changes:
            key = keys.apply(change)
            if change.space != BROKER_SPACE:
                touched[key[0]] = None
            elif not _is_renewal(former.get(BrokerId(*key)), keys.brokers.get(BrokerId(*key))):
                touched.update(dict.fromkeys(keys.journals_of(BrokerId(*key))))
                self._allocator.note_all(keys)
        keys.advance(event.revision)
        self._note_lease()
        for journal in touched:
            self._allocator.note(journal)
            self._update_replica(journal)
        self._incoming.retry()
        for append in self._appends.values():
            if append.state in _WAITS_FOR_REVISION:
                self.wake(append)

    def _update_replica(self, journal: str) -> None:
        """Create, update or stop the replica of a journal after its rows have changed."""
        row = self.keys.journals.get(journal)
        is_mine = row is not None and self.me in self.keys.assignments(journal)
        replica = self._replicas.get(journal)
        if replica is not None and (
            not is_mine or row is None or row.create_revision != replica.spool.journal_id
        ):
            replica.stop("the journal is no longer assigned to this broker")
            replica.depart()
            del self._replicas[journal]
            self._departed[journal] = replica
            replica = None
            self._emit(ev.Readable(journal))  # its readers go to another broker
        if row is not None and is_mine:
            settings = settings_of(row)
            if replica is None:
                replica = self._replicas[journal] = self._new_replica(row, settings)
            replica.settings = settings
            if replica.limit.rate != settings.max_rate:
                replica.limit = Limit(settings.max_rate)
            replica.leave_route(self.keys.route(journal))
        else:
            if journal in self._recovered:
                self._depart_recovered(journal, row)
            self._forget_deleted(journal, row)
        self.wake_journal(journal)

    def _forget_deleted(self, journal: str, row: JournalRow | None) -> None:
        """Delete the spools of a journal that is not assigned and no longer exists."""
        departed = self._departed.get(journal)
        if departed is not None and (
            row is None or row.create_revision != departed.spool.journal_id
        ):
            del self._departed[journal]
            self._persister.stop(journal)
            self._drop(Recovered(departed.spool, tuple(departed.completed.values())))

    def _depart_recovered(self, journal: str, row: JournalRow | None) -> None:
        """Persist the fragments of a journal that is not assigned to this broker any more."""
        found = self._recovered.pop(journal)
        if row is None or row.create_revision != found.spool.journal_id:
            self._drop(found)  # the journal was deleted
            return
        replica = Replica(self, found.spool, settings_of(row))
        replica.completed = {fragment.begin: fragment for fragment in found.completed}
        self._departed[journal] = replica
        self._persister.start(replica, self._now_ns)
        replica.depart()

    def shelf(self, journal: str) -> Replica | None:
        """Return the replica of a journal, assigned or not, for its persistence."""
        return self._replicas.get(journal) or self._departed.get(journal)

    def _new_replica(self, row: JournalRow, settings: Settings) -> Replica:
        departed = self._departed.pop(row.name, None)
        if departed is not None:
            completed = tuple(departed.completed.values())
            self._recovered[row.name] = Recovered(departed.spool, completed)
        found = self._recovered.pop(row.name, None)
        if found is not None and found.spool.journal_id != row.create_revision:
            self._drop(found)  # a deleted journal had the same name
            found = None
        spool = found.spool if found is not None else None
        if spool is None:
            spool = Spool(row.name, row.create_revision, settings.codec)
        replica = Replica(self, spool, settings)
        if found is not None:
            replica.completed = {fragment.begin: fragment for fragment in found.completed}
        self._pulsed_ns.pop(row.name, None)
        self._pulsing[row.name] = None
        self._persister.start(replica, self._now_ns)
        return replica

    def _drop(self, found: Recovered) -> None:
        spool = found.spool
        keys = [spool.key]
        keys += [
            SpoolKey(spool.journal, spool.journal_id, fragment.begin)
            for fragment in found.completed
        ]
        self.store([Drop(key) for key in keys], _nothing)

    # --- lease --------------------------------------------------------------------------------

    @property
    def is_fenced(self) -> bool:
        """Return whether this broker's lease may have ended."""
        return self._now_ns >= self._lease_until_ns

    def _renew(self) -> None:
        if not self.keys.revision or self._is_renewing or self._now_ns < self._renew_at_ns:
            return
        config, row = self.config, self.keys.brokers.get(self.me)
        is_mine = row is not None and row.process == config.process
        self._renewals += 1
        # The numbers rise over all renewals of the process, so that each differs from the others.
        revision = row.create_revision if is_mine and row else next_revision(self.keys.revision)
        modified = revision
        if is_mine and row is not None:
            modified = row.mod_revision
            if row.is_exiting != self.is_exiting:
                modified = next_revision(self.keys.revision, row)
        renewed = BrokerRow(
            self.me,
            config.endpoint,
            config.peer_address,
            config.journal_limit,
            self.is_exiting,
            config.lease_ms,
            config.process,
            self._renewals,
            revision,
            modified,
        )
        expected = row if row is not None else Absent(BROKER_SPACE, tuple(self.me))
        self._is_renewing = True
        self._sent_ns[self._renewals] = self._now_ns
        self._renew_at_ns = self._now_ns + config.lease_ms * 1_000_000 // 3
        self.transact(Change((expected,), (renewed,)), self._on_renewed)

    def _on_renewed(self, is_committed: bool) -> None:
        self._is_renewing = False
        if not is_committed:
            self._renew_at_ns = self._now_ns + self.config.lease_ms * 1_000_000 // 20

    def _note_lease(self) -> None:
        """Extend the lease by the renewal that the key space confirms."""
        row = self.keys.brokers.get(self.me)
        if row is None or row.process != self.config.process:
            return
        sent_ns = self._sent_ns.get(row.renewals)
        if sent_ns is not None:
            self._lease_until_ns = sent_ns + self.config.lease_ms * 1_000_000
            for number in [number for number in self._sent_ns if number <= row.renewals]:
                del self._sent_ns[number]

    # --- allocation ---------------------------------------------------------------------------

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
            append.fail("this broker has no lease; retry at another broker")
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
        self._extend(append)
        if append.replica is not None:
            append.replica.limit.take(size)
        if isinstance(event.received, Break) and append.state is not State.STREAM_CONTENT:
            append.fail(event.received.reason)
            return
        append.inputs.append(event.received)
        self.wake(append)

    def _pulse(self, journal: str, replica: Replica) -> None:
        """Synchronise a journal without an append: at first, after a change, and every minute."""
        row = self.keys.journals.get(journal)
        route = self.keys.route(journal)
        if row is None or route.primary < 0 or route.members[route.primary] != self.me:
            return
        if self.is_fenced or replica.sender is not None or replica.in_flight:
            return
        last_ns = self._pulsed_ns.get(journal)
        is_news = last_ns is None or (
            not self.keys.is_consistent(row) and self._now_ns - last_ns > PULSE_AGAIN_NS
        )
        if not is_news and last_ns is not None and self._now_ns - last_ns < PULSE_NS:
            return
        self._pulsed_ns[journal] = self._now_ns
        self._pulses -= 1
        request = Append(journal, suspend=Suspend.NO_RESUME, may_proxy=False)
        pulse = AppendMachine(self, self._pulses, request, self._now_ns + PULSE_TIMEOUT_NS)
        pulse.inputs.append(Finish())
        self._appends[self._pulses] = pulse
        self.wake(pulse)

    def exit(self) -> None:
        """Hand all assignments over; the broker may stop once it has none."""
        self.is_exiting = True
        self._renew_at_ns = 0

    def stop(self) -> list[ev.Effect]:
        """Fail all appends, and end all streams."""
        for replica in list(self._replicas.values()):
            replica.stop("the broker stops")
        for append in list(self._appends.values()):
            append.fail("the broker stops")
        effects, self._effects = self._effects, []
        return effects

    # --- services for journals (Host) ---------------------------------------------------------

    @property
    def unix_s(self) -> int:
        return self._unix_s

    def replica(self, journal: str) -> Replica | None:
        return self._replicas.get(journal.partition(";")[0])

    def desired_replicas(self, journal: JournalRow) -> int:
        return wanted_replicas(journal, self.config.replication_max)

    def transact(self, change: Change, done: Callable[[bool], None]) -> None:
        self._tokens += 1
        self._transactions[self._tokens] = done
        self._emit(ev.Transact(self._tokens, change))

    def store(self, operations: list[Operation], done: Callable[[], None]) -> None:
        self._tokens += 1
        size = sum(len(item.data) for item in operations if isinstance(item, Content))
        self._unstored_bytes += size
        self._stores[self._tokens] = size, done
        for operation in operations:
            if isinstance(operation, Roll):
                replica = self.shelf(operation.completed.journal)
                if replica is not None:
                    replica.rolled(operation)
        self._emit(ev.Store(self._tokens, operations))
        self._set_blocked()

    def _on_stored(self, token: int) -> None:
        """Note that all operations up to a token are durable."""
        for number in list(self._stores):
            if number > token:
                break
            size, done = self._stores.pop(number)
            self._unstored_bytes -= size
            done()
        self._set_blocked()
        self._let_content()

    def _set_blocked(self) -> None:
        is_blocked = self._unstored_bytes > UNSTORED_BYTES_MAX
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            for number in self._peers:
                self._emit(ev.BlockPeer(number, is_blocked))

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
        replica = self._replicas.get(journal)
        if replica is not None:
            for append in replica.woken:
                self.wake(append)

    def ask_content(self, append: AppendMachine) -> None:
        self._asked.append(append)
        self._let_content()

    def content_sent(self, append: AppendMachine) -> None:
        self.ask_content(append)

    def _let_content(self) -> None:
        """Ask for more content, unless the disk or a peer does not keep up."""
        if self._is_blocked or self._outgoing.is_blocked:
            return
        asked, self._asked = self._asked, []
        for append in asked:
            if append.number < 0 or append.state in TERMINAL:
                continue
            if append.replica is not None and not append.replica.limit.may_take(self._now_ns):
                self._asked.append(append)  # asked again in a later tick
                self._extend(append)
                continue
            append.pace.ask(self._now_ns)
            self._emit(ev.AskContent(append.number))

    def _extend(self, append: AppendMachine) -> None:
        """Give an append more time: its content arrives, or waits for the journal's limit."""
        append.deadline_ns = max(append.deadline_ns, self._now_ns + CONTENT_NS)

    def finish(self, append: AppendMachine) -> None:
        self._appends.pop(append.number, None)
        if append.number > 0 and append.result is not None:
            is_proxied = append.state is State.PROXY
            self._emit(ev.Answer(append.number, append.result, is_proxied))

    def completed(self, replica: Replica, fragment: LocalFragment) -> None:
        self._persister.completed(replica, fragment, self._now_ns)

    def readable(self, journal: str) -> None:
        self._confirmed[journal] = None
        self._emit(ev.Readable(journal))


def _is_renewal(former: BrokerRow | None, row: BrokerRow | None) -> bool:
    """Return whether a change of a broker's row only renews its lease."""
    return (
        former is not None and row is not None and row._replace(renewals=former.renewals) == former
    )


def settings_of(row: JournalRow) -> Settings:
    """Return the settings of a journal's replication."""
    spec = JournalSpec.from_row(row.name, row.spec)
    fragment = spec.fragment
    return Settings(
        fragment.compression_codec,
        fragment.length,
        fragment.flush_ns // SECOND_NS,
        spec.is_writable,
        fragment.stores,
        fragment.refresh_ns,
        fragment.path_postfix_template,
        spec.max_append_rate,
    )


def _nothing() -> None:
    """Ignore the end of a write that no answer depends on."""
