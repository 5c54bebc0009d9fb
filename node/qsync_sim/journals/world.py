"""A simulated cluster of brokers: virtual time, a key space, connections, disks and clients.

Only the cluster's log is a model here: a key space whose transactions are serializable, whose
changes reach each broker late, and whose leases end as the leader's do. The brokers run their
production core (`qsync_broker.broker`).
"""

import itertools
from collections.abc import Callable
from random import Random

from qsync_broker import events as ev
from qsync_broker.reader import find
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, Appended, Break, Finish, Piece
from qsync_broker.resolver import broker_for_read
from qsync_node.format.journals import BrokerId
from qsync_sim.journals.clock import MS, SECOND, Clock
from qsync_sim.journals.cluster import BrokerCluster
from qsync_sim.journals.disk import SimBrokerDisk
from qsync_sim.journals.keys import SimKeySpace
from qsync_sim.journals.observer import Observer
from qsync_sim.journals.process import SimBroker, SimBrokerLink
from qsync_sim.journals.stores import Stores

CALLS = (ev.ReadPublications, ev.RemovePublications, ev.DiscardPublications)


class BrokerWorld(Clock):
    """The simulated world.

    Attributes:
        rng: the only source of chance.
        keys: the key space.
        zones: the zone of each broker.
        disks: the disk of each broker.
        processes: the last process of each broker.
        links: the connections between processes.
        cuts: pairs of machines that cannot reach each other; "cluster" is the cluster's name.
        observer: sees all visible bytes.
        stores: the stores of fragments.
        cluster: serves the key space to brokers.
        stale_snapshots: number of snapshots that were older than the state of a broker.
        on_step: gets a process and the number of its step's effects. It returns the number of
            effects after which the process is killed, or None.
    """

    def __init__(self, seed: int, names: list[str], zones: dict[str, str] | None = None) -> None:
        super().__init__()
        self.rng = Random(seed)
        self.seed = seed
        self._numbers = itertools.count(1)
        self.keys = SimKeySpace()
        self.zones = zones or dict.fromkeys(names, "zone")
        self.disks = {name: SimBrokerDisk(self.rng, self.after) for name in names}
        self.processes: dict[str, SimBroker] = {}
        self.runs = 0
        self.stale_snapshots = 0
        self.links: list[SimBrokerLink] = []
        self.cuts: set[frozenset[str]] = set()
        self.on_step: Callable[[SimBroker, int], int | None] = lambda process, count: None
        self.observer = Observer(self.disks)
        self.stores = Stores(self.rng, self, self.disks, self.observer, self.keys)
        self.cluster = BrokerCluster(self.keys, self.rng, self, self.is_cut)
        for name in names:
            self.start(name)
        self.cluster.expire()

    # --- processes and network ----------------------------------------------------------------

    def start(self, name: str) -> SimBroker:
        """Start a broker."""
        self.runs += 1
        process = self.processes[name] = SimBroker(self, name, self.runs)
        return process

    def kill(self, name: str, is_power: bool = False) -> None:
        """Kill a broker; with `is_power`, its machine loses power, and all that is not flushed."""
        process = self.processes[name]
        if not process.is_alive:
            return
        process.is_alive = False
        self.disks[name].crash(is_power)
        for link in self.links:
            if process in (link.primary, link.peer):
                link.close()
        self.links = [link for link in self.links if link.is_open]

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether two machines cannot reach each other."""
        return frozenset((one, other)) in self.cuts

    def connect(self, primary: SimBroker, peer: BrokerId) -> None:
        """Connect a primary to a peer."""

        attempt = primary.dialled[peer] = object()

        def arrive() -> None:
            target = self.processes.get(peer.suffix)
            if not primary.is_alive or primary.dialled.get(peer) is not attempt:
                return
            cut = self.is_cut(primary.name, peer.suffix)
            if target is None or not target.is_alive or target.is_paused or cut:
                primary.feed(ev.BrokerLinkDown(peer, "connection refused"))
                return
            link = SimBrokerLink(self, primary, target, next(self._numbers))
            self.links.append(link)
            target.feed(ev.PeerUp(link.number, primary.me))
            primary.feed(ev.BrokerLinkUp(peer))

        self.after(self.rng.randrange(MS // 4, 2 * MS), arrive)

    def read_spool(self, process: SimBroker, effect: ev.ReadSpool) -> None:
        """Read a part of a completed spool for another broker; sometimes, the disk flips a bit."""

        def answer() -> None:
            key, begin, size = effect[1:]
            data: bytes | None = self.disks[process.name].read(key, begin, begin + size)
            if data and self.rng.random() < 0.02:
                data = bytes([data[0] ^ 1]) + data[1:]
            process.feed(ev.SpoolRead(effect.token, data or None))

        self.after(self.rng.randrange(MS // 10, 20 * MS), answer)

    # --- effects ------------------------------------------------------------------------------

    def kill_after(self, process: SimBroker, effects: int) -> int | None:
        """Return the number of effects of a step after which its process is killed, or None."""
        return self.on_step(process, effects)

    def on_effect(self, process: SimBroker, effect: ev.BrokerEffect) -> None:
        """Carry out an effect that concerns others than the process, its disk and its peers."""
        if isinstance(effect, ev.Transact):
            self.cluster.transact(process, effect)
        elif isinstance(effect, CALLS):
            self.cluster.call(process, effect)
        elif isinstance(effect, ev.OpenLink):
            self.connect(process, effect.peer)
        elif isinstance(effect, ev.Readable):
            self.observer.observe(process, effect.journal)
        elif isinstance(effect, ev.Halt):
            self.kill(process.name)
        else:
            self._persist(process, effect)

    def _persist(self, process: SimBroker, effect: ev.BrokerEffect) -> None:
        if isinstance(effect, ev.ListStores):
            self.stores.list(process, effect)
        elif isinstance(effect, ev.UploadFragment):
            self.stores.upload(process, effect)
        elif isinstance(effect, ev.CheckStore):
            self.stores.check(process, effect)
        elif isinstance(effect, ev.ReadSpool):
            self.read_spool(process, effect)
        else:
            assert isinstance(effect, ev.BlockPeer), effect

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

    # --- checks -------------------------------------------------------------------------------

    def check_commits(self) -> None:
        """Check that every acknowledged append is visible as it was appended."""
        self.observer.check_commits(self.processes.values(), self.stores.spans)

    def unreadable(self) -> str:
        """Return where a read at some broker of a journal waits for bytes, "" for nowhere.

        A read that lacks a fragment causes a listing of the stores, as in `JournalReader.next`.
        """
        found = ""
        for process in self.processes.values():
            for journal, known in self.observer.known.items():
                replica = process.core.replica(journal) if process.is_alive else None
                if replica is None:
                    continue
                offset = _readable_end(process, replica, len(known))
                if offset < len(known):
                    if replica.lacks(offset):
                        process.feed(ev.GapRead(journal))
                    found = f"{journal} cannot be read at {process.name} after {offset}"
        return found

    def check_publications(self) -> None:
        """Check that each journal contains exactly its publications."""
        self.observer.check_publications(self.keys.published)

    def is_published(self) -> bool:
        """Return whether no publication waits."""
        return not any(row.pending for row in self.keys.publishers.values())


def _readable_end(process: SimBroker, replica: JournalReplica, end: int) -> int:
    """Return the offset up to which a broker serves reads, at most `end`.

    A broker without the bytes forwards the read to a whole one, which is examined itself.
    """
    if not replica.is_index_known:
        return 0
    row = process.core.keys.journals[replica.journal]
    offset = 0
    while offset < end:
        found = find(replica, offset, process.core.unix_s)
        if found is None or found.offset > offset:
            route = process.core.keys.route(replica.journal)
            whole = broker_for_read(row, route, replica, process.me, offset)
            return offset if whole is None else end
        offset = found.part.end
    return end
