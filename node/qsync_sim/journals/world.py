"""A simulated cluster of brokers: virtual time, a key space, connections, disks and clients.

Only the cluster's log is a model here: a key space whose transactions are serializable, whose
changes reach each broker late, and whose leases end as the leader's do. The brokers run their
production core (`qsync_broker.broker`).
"""

import hashlib
import heapq
import itertools
import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from qsync_broker import events as ev
from qsync_broker.broker import Broker
from qsync_broker.index import RemoteFragment
from qsync_broker.keyspace import Absent, Change, Deleted, KeySpace, RowChange, Written
from qsync_broker.lease import BrokerConfig
from qsync_broker.messages import Decoder, encode
from qsync_broker.operations import Publication, SpoolKey
from qsync_broker.requests import Append, Appended, Break, Finish, Piece
from qsync_broker.status import Status
from qsync_node.format.journals import (
    BROKER_SPACE,
    JOURNAL_SPACE,
    NO_ROUTE,
    PUBLISHER_SPACE,
    BrokerId,
    BrokerRow,
    JournalRow,
    PublisherRow,
    decode_row,
    encode_row,
    next_revision,
    space_of,
)
from qsync_sim.journals.disk import Disk

MS = 1_000_000
SECOND = 1_000_000_000
LEASE_MS = 1_000
TICK_NS = 20 * MS
STORE = "file:///store/"
CALLS = (ev.ReadPublications, ev.RemovePublications, ev.DiscardPublications)
PUBLICATION = re.compile(rb"\(P[0-9]+:-*\)")


class Keys:
    """The key space as the cluster holds it."""

    def __init__(self) -> None:
        self.revision = 1
        self.rows: dict[tuple[int, tuple[str, ...]], list[Any]] = {}
        self.log: list[tuple[int, list[RowChange]]] = []
        self.publishers: dict[tuple[str, int], PublisherRow] = {}
        self.contents: dict[tuple[str, int], dict[int, bytes]] = {}
        self.published: dict[tuple[str, int], list[bytes]] = {}  # all that was ever committed

    def transact(self, change: Change) -> bool:
        """Carry out a transaction, and return whether it committed."""
        for row in change.expected:
            if isinstance(row, Absent):
                if (row.space, row.key) in self.rows:
                    return False
            elif self.rows.get((space_of(row), tuple(row.key))) != encode_row(row):
                return False
        changes: list[RowChange] = []
        for written in change.written:
            fields = encode_row(written)
            self.rows[space_of(written), tuple(written.key)] = fields
            changes.append(Written(space_of(written), fields))
        for deleted in change.deleted:
            self.rows.pop((deleted.space, deleted.key), None)
            changes.append(Deleted(deleted.space, list(deleted.key)))
        self.note(changes)
        return True

    def publish(self, journal: str, content: bytes) -> int:
        """Publish to a journal, and return the sequence; 0 if the journal does not exist."""
        fields = self.rows.get((JOURNAL_SPACE, (journal,)))
        if fields is None:
            return 0
        row = decode_row(JOURNAL_SPACE, fields)
        assert isinstance(row, JournalRow)
        key = journal, row.create_revision
        found = self.publishers.get(key, PublisherRow(*key, 0, 0, 0, []))
        sequence = found.last + 1
        self.contents.setdefault(key, {})[sequence] = content
        self.published.setdefault(key, []).append(content)
        size = found.pending_bytes + len(content)
        self._put_publisher(found._replace(last=sequence, pending_bytes=size))
        return sequence

    def call(self, name: str, journal: str, journal_id: int, *more: Any) -> bool:
        """Run `qsync.published` or `qsync.discard`, as the members do."""
        key = journal, journal_id
        row = self.publishers.get(key)
        if row is None:
            return True
        contents = self.contents[key]
        if name == "qsync.discard":
            del self.publishers[key], self.contents[key]
            self.rows.pop((PUBLISHER_SPACE, key), None)  # type: ignore[arg-type]
            self.note([Deleted(PUBLISHER_SPACE, list(key))])
            return True
        through, places = more
        assert through <= row.last, "a broker has published more than there is"
        for sequence in range(row.published + 1, through + 1):
            del contents[sequence]
        places = [*row.places, *(list(place) for place in places if place[0] > row.published)]
        published = max(through, row.published)
        size = sum(map(len, contents.values()))
        self._put_publisher(
            row._replace(published=published, pending_bytes=size, places=places[-64:])
        )
        return True

    def _put_publisher(self, row: PublisherRow) -> None:
        self.publishers[row.journal, row.journal_id] = row
        self.rows[PUBLISHER_SPACE, (row.journal, row.journal_id)] = list(row)  # type: ignore[index]
        self.note([Written(PUBLISHER_SPACE, list(row))])

    def publications(
        self, journal: str, journal_id: int, after: int, limit: int
    ) -> list[Publication]:
        """Return publications after a sequence."""
        contents = self.contents.get((journal, journal_id), {})
        return [Publication(*one) for one in sorted(contents.items()) if one[0] > after][:limit]

    def as_of(self, count: int) -> tuple[int, dict[tuple[int, tuple[str, ...]], list[Any]]]:
        """Return revision and rows after a number of transactions."""
        copy = KeySpace()
        rows: dict[tuple[int, tuple[str, ...]], list[Any]] = {}
        for _, changes in self.log[:count]:
            for change in changes:
                key = copy.apply(change)
                if isinstance(change, Written):
                    rows[change.space, key] = change.fields
                else:
                    rows.pop((change.space, key), None)
        return self.log[count - 1][0] if count else 1, rows

    def note(self, changes: list[RowChange]) -> None:
        """Add a transaction to the log."""
        self.revision += max(1, len(changes))
        self.log.append((self.revision, changes))


class Process:
    """One run of a broker."""

    def __init__(self, world: "World", name: str, run: int) -> None:
        self.world = world
        self.me = BrokerId(world.zones[name], name)
        self.name = name
        config = BrokerConfig(self.me, f"http://{name}", name, f"{name}-{run}", lease_ms=LEASE_MS)
        self.core = Broker(config, world.disks[name].recovered())
        self.is_alive = True
        self.is_paused = False
        self.inbox: list[ev.Event] = []
        self.watched = -1  # position in the log of the key space, -1 before the snapshot
        self.outgoing: dict[BrokerId, Link] = {}
        self.incoming: dict[int, Link] = {}
        self.answers: dict[int, Callable[[Appended, bool], None]] = {}
        self.wants: dict[int, Callable[[], None]] = {}
        self._depth = 0  # of steps: an answer can begin another append at once
        world.disks[name].on_failed = lambda reason: self.feed(ev.StoreFailed(reason))
        self._tick()
        self._watch()

    def _tick(self) -> None:
        if self.is_alive:
            self.step()
            self.world.after(TICK_NS, self._tick)

    def _watch(self) -> None:
        """Deliver changes of the key space, some time after they were committed."""
        if not self.is_alive:
            return
        world, keys = self.world, self.world.keys
        if not world.is_cut(self.name, "cluster") and not self.is_paused:
            if self.watched < 0:
                self._snapshot()
            else:
                end = world.rng.randrange(self.watched, len(keys.log) + 1)
                for revision, changes in keys.log[self.watched : end]:
                    self.feed(ev.Watched(revision, changes))
                self.watched = end
        world.after(world.rng.randrange(MS // 2, 20 * MS), self._watch)

    def _snapshot(self) -> None:
        """Deliver all rows, sometimes as a member that restarted knows them: some time ago."""
        keys, rng = self.world.keys, self.world.rng
        count = len(keys.log)
        self.watched = rng.randrange(count + 1) if rng.random() < 0.3 else count
        revision, rows = keys.as_of(self.watched)
        changes = [Written(space, list(fields)) for (space, _), fields in rows.items()]
        self.feed(ev.Watched(revision, list(changes), True))

    def feed(self, event: ev.Event) -> None:
        """Queue an input, and step unless the process is paused."""
        self.inbox.append(event)
        self.step()

    def step(self) -> None:
        """Step the core, and carry out its effects."""
        if not self.is_alive or self.is_paused:
            return
        inputs, self.inbox = self.inbox, []
        now = self.world.now_ns
        effects = self.core.step(now, 1_700_000_000 + now // SECOND, inputs)
        self._check_lease()
        count = None if self._depth else self.world.on_step(self, len(effects))
        self._depth += 1
        for effect in effects[:count]:
            if self.is_alive:
                self._act(effect)
        self._depth -= 1
        if count is not None:
            self.world.kill(self.name)

    def _check_lease(self) -> None:
        """Check that the leader has not ended the lease of a broker that serves."""
        fields = self.world.keys.rows.get((BROKER_SPACE, tuple(self.me)))
        row = decode_row(BROKER_SPACE, fields) if fields is not None else None
        is_current = isinstance(row, BrokerRow) and row.process == self.core.config.process
        assert self.core.is_fenced or is_current, f"{self.name} serves without a lease"

    def _act(self, effect: ev.Effect) -> None:
        world = self.world
        if isinstance(effect, ev.Store):
            world.disks[self.name].submit(
                effect.token, effect.operations, lambda token: self.feed(ev.Stored(token))
            )
        elif isinstance(effect, ev.SendLink):
            link = self.outgoing.get(effect.peer)
            if link is not None:
                link.to_peer(effect.stream, effect.message)
        elif isinstance(effect, ev.SendPeer):
            back = self.incoming.get(effect.number)
            if back is not None:
                back.to_primary(effect.stream, effect.message)
        elif isinstance(effect, ev.Transact):
            world.transact(self, effect)
        elif isinstance(effect, CALLS):
            world.call(self, effect)
        elif isinstance(effect, ev.OpenLink):
            world.connect(self, effect.peer)
        elif isinstance(effect, ev.AskContent):
            if effect.number in self.wants:
                self.wants[effect.number]()
        elif isinstance(effect, ev.Answer):
            self.wants.pop(effect.number, None)
            self.answers.pop(effect.number)(effect.result, effect.is_proxied)
        elif isinstance(effect, ev.Rewatch):
            self.watched = -1
            world.stale_snapshots += 1
        elif isinstance(effect, ev.Readable):
            world.observe(self, effect.journal)
        else:
            self._persist(effect)

    def _persist(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.ListStores):
            self.world.list_stores(self, effect)
        elif isinstance(effect, ev.Upload):
            self.world.upload(self, effect)
        elif isinstance(effect, ev.CheckStore):
            self.world.check_store(self, effect)
        elif isinstance(effect, ev.ReadSpool):
            self.world.read_spool(self, effect)
        elif isinstance(effect, ev.Halt):
            self.world.kill(self.name)
        else:
            assert isinstance(effect, ev.BlockPeer), effect


class Link:
    """A connection from a primary to a peer."""

    def __init__(self, world: "World", primary: Process, peer: Process, number: int) -> None:
        self.world = world
        self.primary = primary
        self.peer = peer
        self.number = number
        self.is_open = True
        self._decoders = Decoder(), Decoder()
        self._last_ns = [0, 0]
        primary.outgoing[peer.me] = self
        peer.incoming[number] = self

    def to_peer(self, stream: int, message: Any) -> None:
        """Send a message of the primary."""
        self._carry(0, stream, message)

    def to_primary(self, stream: int, message: Any) -> None:
        """Send a message of the peer."""
        self._carry(1, stream, message)

    def _carry(self, way: int, stream: int, message: Any) -> None:
        data = b"".join(encode(stream, message))
        world = self.world
        at_ns = max(self._last_ns[way], world.now_ns + world.rng.randrange(20_000, 2 * MS))
        self._last_ns[way] = at_ns
        world.after(at_ns - world.now_ns, partial(self._arrive, way, data))

    def _arrive(self, way: int, data: bytes) -> None:
        if not self.is_open:
            return
        if self.world.is_cut(self.primary.name, self.peer.name):
            self.world.after(50 * MS, partial(self._arrive, way, data))  # retransmitted in order
            return
        messages = list(self._decoders[way].feed(data))
        if way == 0:
            self.peer.feed(ev.PeerReceived(self.number, messages))
        else:
            self.primary.feed(ev.LinkReceived(self.peer.me, messages))

    def close(self) -> None:
        """Break the connection; both ends notice it."""
        if not self.is_open:
            return
        self.is_open = False
        if self.primary.outgoing.get(self.peer.me) is self:
            del self.primary.outgoing[self.peer.me]
        self.peer.incoming.pop(self.number, None)
        self.primary.feed(ev.LinkDown(self.peer.me, "the connection broke"))
        self.peer.feed(ev.PeerDown(self.number))


class Commit(NamedTuple):
    """An acknowledged append."""

    journal: str
    begin: int
    end: int
    data: bytes


class World:
    """The simulated world."""

    def __init__(self, seed: int, names: list[str], zones: dict[str, str] | None = None) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self.keys = Keys()
        self.zones = zones or dict.fromkeys(names, "zone")
        self.disks = {name: Disk(self.rng, self.after) for name in names}
        self.processes: dict[str, Process] = {}
        self.runs = 0
        self.stale_snapshots = 0
        self.links: list[Link] = []
        self.stores: dict[str, dict[tuple[int, int], tuple[RemoteFragment, bytes]]] = {}
        self.are_stores_down = False
        self.store_delay_ns = 0
        self.on_step: Callable[[Process, int], int | None] = lambda process, count: None
        self.are_removals_lost = False  # whether calls of `qsync.published` do not arrive
        self.cuts: set[frozenset[str]] = set()
        self.commits: list[Commit] = []
        self.failures: dict[str, int] = {}
        self.seen: dict[str, bytearray] = {}  # visible bytes of each journal
        self.known: dict[str, bytearray] = {}
        for name in names:
            self.start(name)
        self._renewed: dict[BrokerId, tuple[tuple[str, int], int]] = {}
        self._expire()

    # --- time ---------------------------------------------------------------------------------

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        """Call something later."""
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._order), call))

    def run(self, duration_ns: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for some time, or until a condition holds; return whether it does."""
        end_ns = self.now_ns + duration_ns
        while self._events and self._events[0][0] <= end_ns:
            if until():
                return True
            self.now_ns, _, call = heapq.heappop(self._events)
            call()
        self.now_ns = end_ns
        return until()

    # --- key space ----------------------------------------------------------------------------

    def transact(self, process: Process, effect: ev.Transact) -> None:
        """Carry out a transaction of a broker."""

        def commit() -> None:
            if not process.is_alive:
                return
            if self.is_cut(process.name, "cluster"):
                self.after(SECOND, lambda: process.feed(ev.Transacted(effect.token, False)))
                return
            is_committed = self.keys.transact(effect.change)
            is_known = is_committed and self.rng.random() > 0.02
            delay_ns = self.rng.randrange(MS // 2, 4 * MS)
            self.after(delay_ns, lambda: process.feed(ev.Transacted(effect.token, is_known)))

        self.after(self.rng.randrange(MS // 2, 4 * MS), commit)

    def call(
        self,
        process: Process,
        effect: ev.ReadPublications | ev.RemovePublications | ev.DiscardPublications,
    ) -> None:
        """Read publications, or call a procedure for a broker; the answer may be lost."""
        rng, keys = self.rng, self.keys

        def answer(event: ev.Event, delay_ns: int) -> None:
            self.after(delay_ns, lambda: process.feed(event))

        def act() -> None:
            if not process.is_alive:
                return
            is_cut = self.is_cut(process.name, "cluster")
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

        self.after(rng.randrange(MS // 2, 4 * MS), act)

    def _expire(self) -> None:
        """Remove brokers whose lease was not renewed."""
        rows = [item for item in self.keys.rows.items() if item[0][0] == BROKER_SPACE]
        for (space, key), fields in rows:
            row = decode_row(space, fields)
            assert isinstance(row, BrokerRow)
            known, renewal = self._renewed.get(row.id), (row.process, row.renewals)
            if known is None or known[0] != renewal:
                self._renewed[row.id] = renewal, self.now_ns
            elif self.now_ns - known[1] > row.lease_ms * MS:
                del self.keys.rows[space, key]
                del self._renewed[row.id]
                self.keys.note([Deleted(space, list(key))])
        self.after(50 * MS, self._expire)

    def create(self, journal: str, replication: int = 3, stores: bool = False, **spec: Any) -> None:
        """Create a journal."""
        revision = self.keys.revision + 1
        fields = {"replication": replication, **SPEC, **spec}
        if stores:
            fields["fragment"] = {**SPEC["fragment"], "stores": [STORE]}
        row = JournalRow(journal, fields, 0, 0, 0, 0, NO_ROUTE, revision, revision)
        assert self.keys.transact(Change((Absent(JOURNAL_SPACE, (journal,)),), (row,)))

    def scale(self, journal: str, replication: int) -> None:
        """Change the replication of a journal, if it exists."""
        fields = self.keys.rows.get((JOURNAL_SPACE, (journal,)))
        if fields is not None:
            row = decode_row(JOURNAL_SPACE, fields)
            assert isinstance(row, JournalRow)
            spec = {**row.spec, "replication": replication}
            revision = next_revision(self.keys.revision, row)
            changed = row._replace(spec=spec, mod_revision=revision)
            assert self.keys.transact(Change((row,), (changed,)))

    # --- processes and network ----------------------------------------------------------------

    def start(self, name: str) -> Process:
        """Start a broker."""
        self.runs += 1
        process = self.processes[name] = Process(self, name, self.runs)
        return process

    def kill(self, name: str, is_torn: bool = False) -> None:
        """Kill a broker; everything that is not durable is lost, or a part of it with `is_torn`."""
        process = self.processes[name]
        if not process.is_alive:
            return
        process.is_alive = False
        self.disks[name].crash(is_torn)
        for link in self.links:
            if process in (link.primary, link.peer):
                link.close()
        self.links = [link for link in self.links if link.is_open]

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether two machines cannot reach each other."""
        return frozenset((one, other)) in self.cuts

    def connect(self, primary: Process, peer: BrokerId) -> None:
        """Connect a primary to a peer."""

        def arrive() -> None:
            target = self.processes.get(peer.suffix)
            if not primary.is_alive:
                return
            cut = self.is_cut(primary.name, peer.suffix)
            if target is None or not target.is_alive or target.is_paused or cut:
                primary.feed(ev.LinkDown(peer, "connection refused"))
                return
            link = Link(self, primary, target, next(self._numbers))
            self.links.append(link)
            target.feed(ev.PeerUp(link.number, primary.me))
            primary.feed(ev.LinkUp(peer))

        self.after(self.rng.randrange(MS // 4, 2 * MS), arrive)

    def read_spool(self, process: Process, effect: ev.ReadSpool) -> None:
        """Read a part of a completed spool for another broker; sometimes, the disk flips a bit."""

        def answer() -> None:
            key, begin, size = effect[1:]
            data: bytes | None = self.disks[process.name].read(key, begin, begin + size)
            if data and self.rng.random() < 0.02:
                data = bytes([data[0] ^ 1]) + data[1:]
            process.feed(ev.SpoolRead(effect.token, data or None))

        self.after(self.rng.randrange(MS // 10, 20 * MS), answer)

    # --- stores -------------------------------------------------------------------------------

    def list_stores(self, process: Process, effect: ev.ListStores) -> None:
        """List the fragments of a journal."""

        def answer() -> None:
            if self.are_stores_down:
                process.feed(ev.Listed(effect.token, [], "the store is unavailable"))
                return
            found = [one for one, _ in self.stores.get(effect.journal, {}).values()]
            process.feed(ev.Listed(effect.token, found))

        self.after(self.rng.randrange(MS, 50 * MS) + self.store_delay_ns, answer)

    def check_store(self, process: Process, effect: ev.CheckStore) -> None:
        """Check whether the store is available."""

        def answer() -> None:
            error = "the store is unavailable" if self.are_stores_down else ""
            process.feed(ev.StoreChecked(effect.store, error))

        self.after(self.rng.randrange(MS, 50 * MS), answer)

    def upload(self, process: Process, effect: ev.Upload) -> None:
        """Persist a fragment, whose bytes must be visible ones."""
        key, fragment = effect.key, effect.fragment

        def finish() -> None:
            if not process.is_alive:
                return
            if self.are_stores_down:
                error = "the store is unavailable"
                process.feed(ev.Uploaded(effect.token, None, error))
                return
            data = self.disks[process.name].read(key, fragment.begin, fragment.end)
            if not data:
                process.feed(ev.Uploaded(effect.token, None, "the spool was dropped"))
                return
            assert hashlib.sha1(data).digest() == fragment.sum, "an upload has another sum"
            self.note_visible(key.journal, fragment.begin, data)
            remote = RemoteFragment(
                fragment.begin,
                fragment.end,
                fragment.sum,
                fragment.codec,
                effect.store,
                f"{fragment.begin}-{fragment.end}",
                1_700_000_000 + self.now_ns // SECOND,
            )
            self.stores.setdefault(key.journal, {})[fragment.begin, fragment.end] = remote, data
            if self.rng.random() > 0.05:  # otherwise the answer is lost, and the upload repeated
                process.feed(ev.Uploaded(effect.token, remote))
            else:
                process.feed(ev.Uploaded(effect.token, None, "the answer was lost"))

        self.after(self.rng.randrange(5 * MS, 200 * MS) + self.store_delay_ns, finish)

    # --- clients ------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        request: Append,
        pieces: list[bytes],
        done: Callable[[Appended, bool], None],
        *,
        breaks: bool = False,
        pause_ns: int = 3 * MS,
        timeout_ns: int = 8 * SECOND,
    ) -> None:
        """Append at a broker; `done` gets the result.

        Args:
            name: the broker.
            request: the append.
            pieces: its content.
            done: gets the result, and whether another broker must serve the append.
            breaks: whether the client breaks off instead of finishing.
            pause_ns: greatest time before each piece.
            timeout_ns: time after which the broker ends the append.
        """
        process = self.processes[name]
        number = next(self._numbers)
        left = list(pieces)

        def give() -> None:
            def arrive() -> None:
                if not process.is_alive:
                    return
                if left:
                    process.feed(ev.AppendReceived(number, Piece(left.pop(0))))
                elif number in process.wants:
                    del process.wants[number]
                    end = Break("the client broke off") if breaks else Finish()
                    process.feed(ev.AppendReceived(number, end))

            self.after(self.rng.randrange(10_000, pause_ns), arrive)

        process.answers[number] = done
        process.wants[number] = give
        process.feed(ev.AppendBegun(number, request, self.now_ns + timeout_ns))

    # --- observation --------------------------------------------------------------------------

    def observe(self, process: Process, journal: str) -> None:
        """Compare the visible bytes at a broker with all that was ever visible."""
        replica = process.core.replica(journal)
        if replica is None:
            return
        disk = self.disks[process.name]
        spans = [(begin, one.end) for begin, one in replica.completed.items()]
        spans.append((replica.spool.begin, replica.spool.confirmed))
        for begin, end in spans:
            data = disk.read(SpoolKey(journal, replica.spool.journal_id, begin), begin, end)
            assert len(data) == end - begin, f"{process.name} lacks visible bytes of {journal}"
            self.note_visible(journal, begin, data)

    def note_visible(self, journal: str, begin: int, data: bytes) -> None:
        """Compare visible bytes with all that was ever visible at these offsets."""
        seen = self.seen.setdefault(journal, bytearray())
        known = self.known.setdefault(journal, bytearray())
        end = begin + len(data)
        seen.extend(bytes(max(0, end - len(seen))))
        known.extend(bytes(max(0, end - len(known))))
        if known[begin:end] == b"\1" * len(data) and seen[begin:end] == data:
            return
        for offset, byte in enumerate(data, begin):
            assert not known[offset] or seen[offset] == byte, (
                f"offset {offset} of {journal} has two values"
            )
            seen[offset], known[offset] = byte, 1

    def commit(self, journal: str, result: Appended, data: bytes) -> None:
        """Record an acknowledged append."""
        assert result.resolution.status is Status.OK
        assert result.end - result.begin == len(data), "an append has another length"
        for other in self.commits:
            if other.journal == journal and data:
                assert result.end <= other.begin or result.begin >= other.end, (
                    f"two appends of {journal} share offsets: {other.begin}..{other.end} and"
                    f" {result.begin}..{result.end}"
                )
        self.commits.append(Commit(journal, result.begin, result.end, data))

    def check_commits(self) -> None:
        """Check that every acknowledged append is visible as it was appended."""
        for process in self.processes.values():
            if process.is_alive:
                for journal in {commit.journal for commit in self.commits}:
                    self.observe(process, journal)
        for commit in self.commits:
            known = self.known.get(commit.journal, b"")[commit.begin : commit.end]
            assert known == b"\1" * len(commit.data), f"acknowledged bytes are lost: {commit}"
            found = self.seen[commit.journal][commit.begin : commit.end]
            assert found == commit.data, f"acknowledged bytes have changed: {commit}"
        for journal in self.stores:
            self._check_readable(journal)
        for journal, known in self.known.items():
            gap = known.find(0)
            assert gap < 0, f"{journal} has a gap at offset {gap}"

    def check_publications(self) -> None:
        """Check that each journal contains exactly its publications, whole and in order (X1)."""
        for (journal, _), expected in self.keys.published.items():
            data = bytes(self.seen.get(journal, b""))
            found = PUBLICATION.findall(data)
            assert found == expected, f"{journal} contains the publications {found}, not {expected}"
            assert data.count(b"(P") == len(found), f"{journal} contains a part of a publication"

    def is_published(self) -> bool:
        """Return whether no publication waits."""
        return not any(row.pending for row in self.keys.publishers.values())

    def _check_readable(self, journal: str) -> None:
        """Check that all visible bytes of a persisted journal can still be read."""
        spans = [(one.begin, one.end) for one, _ in self.stores[journal].values()]
        for process in self.processes.values():
            replica = process.core.shelf(journal) if process.is_alive else None
            if replica is not None:
                spans += [(begin, one.end) for begin, one in replica.completed.items()]
                spans.append((replica.spool.begin, replica.spool.confirmed))
        end = 0
        for begin, span_end in sorted(spans):
            assert begin <= end, f"{journal} cannot be read between {end} and {begin}"
            end = max(end, span_end)
        assert end == len(self.known[journal]), f"{journal} cannot be read after {end}"


SPEC: dict[str, Any] = {
    "labels": {"labels": []},
    "fragment": {
        "length": 4096,
        "compression_codec": "NONE",
        "stores": [],
        "refresh_interval": "5m",
        "retention": "0s",
        "flush_interval": "0s",
        "path_postfix_template": "",
    },
    "flags": "O_RDWR",
    "max_append_rate": 0,
}
