"""One run of a broker's core, and its connections to others."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from qsync_broker import events as ev
from qsync_broker.broker import Broker
from qsync_broker.keyspace import Written
from qsync_broker.lease import BrokerConfig
from qsync_broker.messages import Decoder, encode
from qsync_broker.requests import Appended
from qsync_node.format.journals import BROKER_SPACE, BrokerId, BrokerRow, decode_row
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.disk import SimBrokerDisk
from qsync_sim.journals.keys import SimKeySpace

LEASE_MS = 1_000
TICK_NS = 20 * MS


class BrokerSurroundings(Protocol):
    """Everything around a process: the world of a schedule (world.py)."""

    now_ns: int
    rng: Random
    keys: SimKeySpace
    zones: dict[str, str]
    disks: dict[str, SimBrokerDisk]
    stale_snapshots: int

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...
    def is_cut(self, one: str, other: str) -> bool: ...
    def kill(self, name: str, is_power: bool = False) -> None: ...
    def kill_after(self, process: "SimBroker", effects: int) -> int | None: ...
    def on_effect(self, process: "SimBroker", effect: ev.BrokerEffect) -> None: ...


class SimBroker:
    """One run of a broker."""

    def __init__(self, world: BrokerSurroundings, name: str, run: int) -> None:
        self.world = world
        self.me = BrokerId(world.zones[name], name)
        self.name = name
        disk = world.disks[name]
        disk.on_stored = lambda token: self.feed(ev.OperationsStored(token))
        disk.on_failed = lambda reason: self.feed(ev.StoreFailed(reason))
        config = BrokerConfig(self.me, f"http://{name}", name, f"{name}-{run}", lease_ms=LEASE_MS)
        self.core = Broker(config, disk.open())
        self.is_alive = True
        self.is_paused = False
        self.inbox: list[ev.BrokerEvent] = []
        self.watched = -1  # position in the log of the key space, -1 before the snapshot
        self.watches_ns = 0  # when its watch is connected again
        self.outgoing: dict[BrokerId, SimBrokerLink] = {}
        self.dialled: dict[BrokerId, object] = {}  # the newest attempt to connect to each peer
        self.incoming: dict[int, SimBrokerLink] = {}
        self.answers: dict[int, Callable[[Appended, bool], None]] = {}
        self.wants: dict[int, Callable[[], None]] = {}
        self._depth = 0  # of steps: an answer can begin another append at once
        self._tick()
        self._watch()

    def _tick(self) -> None:
        if self.is_alive:
            problem = self.world.disks[self.name].space_problem
            if problem != self.core.space_problem and not self.is_paused:
                self.feed(ev.SpaceChanged(problem))
            self.step()
            self.world.after(TICK_NS, self._tick)

    def _watch(self) -> None:
        """Deliver changes of the key space, some time after they were committed."""
        if not self.is_alive:
            return
        world, keys = self.world, self.world.keys
        is_away = world.is_cut(self.name, "cluster") or world.now_ns < self.watches_ns
        if not is_away and not self.is_paused:
            if self.watched < 0:
                self._snapshot()
            else:
                end = world.rng.randrange(self.watched, len(keys.log) + 1)
                for revision, changes in keys.log[self.watched : end]:
                    self.feed(ev.Watched(revision, changes))
                self.watched = end
        world.after(world.rng.randrange(MS // 2, 20 * MS), self._watch)

    def lose_watch(self, duration_ns: int) -> None:
        """Break the watch: the next snapshot omits all that exists only meanwhile."""
        self.watched, self.watches_ns = -1, self.world.now_ns + duration_ns

    def _snapshot(self) -> None:
        """Deliver all rows, sometimes as a member that restarted knows them: some time ago."""
        keys, rng = self.world.keys, self.world.rng
        count = len(keys.log)
        self.watched = rng.randrange(count + 1) if rng.random() < 0.3 else count
        revision, rows = keys.as_of(self.watched)
        changes = [Written(space, list(fields)) for (space, _), fields in rows.items()]
        self.feed(ev.Watched(revision, list(changes), True))

    def feed(self, event: ev.BrokerEvent) -> None:
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
        count = None if self._depth else self.world.kill_after(self, len(effects))
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

    def _act(self, effect: ev.BrokerEffect) -> None:
        world = self.world
        if isinstance(effect, ev.StoreOperations):
            world.disks[self.name].submit(effect.token, effect.operations)
        elif isinstance(effect, ev.SendLink):
            link = self.outgoing.get(effect.peer)
            if link is not None:
                link.to_peer(effect.stream, effect.message)
        elif isinstance(effect, ev.CloseBrokerLink):
            self.dialled.pop(effect.peer, None)
            if (closed := self.outgoing.pop(effect.peer, None)) is not None:
                closed.drop()
        elif isinstance(effect, ev.SendPeer):
            back = self.incoming.get(effect.number)
            if back is not None:
                back.to_primary(effect.stream, effect.message)
        elif isinstance(effect, ev.AskContent):
            if effect.number in self.wants:
                self.wants[effect.number]()
        elif isinstance(effect, ev.FinishAppend):
            self.wants.pop(effect.number, None)
            self.answers.pop(effect.number)(effect.result, effect.is_proxied)
        elif isinstance(effect, ev.Rewatch):
            self.watched = -1
            world.stale_snapshots += 1
        else:
            world.on_effect(self, effect)


class SimBrokerLink:
    """A connection from a primary to a peer."""

    def __init__(
        self, world: BrokerSurroundings, primary: SimBroker, peer: SimBroker, number: int
    ) -> None:
        self.world = world
        self.primary = primary
        self.peer = peer
        self.number = number
        self.is_open = True
        self._decoders = Decoder(), Decoder()
        self._last_ns = [0, 0]
        primary.outgoing[peer.me] = self
        peer.incoming[number] = self

    def to_peer(self, stream: int, message: object) -> None:
        """Send a message of the primary."""
        self._carry(0, stream, message)

    def to_primary(self, stream: int, message: object) -> None:
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

    def drop(self) -> None:
        """Break the connection at the primary; the peer notices it later."""
        self.is_open = False
        self.world.after(MS, self._end_at_peer)

    def _end_at_peer(self) -> None:
        if self.peer.incoming.pop(self.number, None) is not None:
            self.peer.feed(ev.PeerDown(self.number))

    def close(self) -> None:
        """Break the connection; both ends notice it."""
        if not self.is_open:
            return
        self.is_open = False
        if self.primary.outgoing.get(self.peer.me) is self:
            del self.primary.outgoing[self.peer.me]
        self.peer.incoming.pop(self.number, None)
        self.primary.feed(ev.BrokerLinkDown(self.peer.me, "the connection broke"))
        self.peer.feed(ev.PeerDown(self.number))
