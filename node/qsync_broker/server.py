"""The event loop of a broker: all inputs of one turn are one step of its core.

Connections, the disk thread and the watch append inputs to a list. One scheduled callback takes the
list, steps the core, and carries out the effects.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from qsync_broker import events as ev
from qsync_broker.allocator import can_hand_over
from qsync_broker.broker import Broker
from qsync_broker.calls import AppendCall, CallHost, CallT
from qsync_broker.config import ServerConfig, split_address
from qsync_broker.coordinating import Coordinating
from qsync_broker.disk import BrokerDisk
from qsync_broker.grouping import Groups
from qsync_broker.handshake import Handshake
from qsync_broker.keyspace import KeyChange
from qsync_broker.lease import BrokerConfig
from qsync_broker.listeners import IncomingListener, OutgoingListener
from qsync_broker.messages import Message
from qsync_broker.metrics import BrokerMetrics
from qsync_broker.operations import SpoolKey
from qsync_broker.peers import HANDSHAKE_S, PeerConnection
from qsync_broker.recovered import recovered_journals
from qsync_broker.requests import Append
from qsync_broker.space import watch_space
from qsync_broker.spec import stores_of
from qsync_broker.storage.storage import SpoolStorage
from qsync_broker.stores import FragmentStoreError, FragmentStores
from qsync_node.format.journals import BrokerId
from qsync_node.server.listener import Listener, ListenerBounds

if TYPE_CHECKING:
    from qsync_broker.tls import BrokerTls

log = logging.getLogger("qsync.broker")

TICK_S = 0.02
EXIT_S = 30.0
REFUSALS_S = 1.0
"""Time between two log lines about refused connections."""
GREETING_MAX = 64
"""Connections of other brokers whose handshake has not ended; a new one replaces the oldest."""


class BrokerServer:
    """One process of a broker.

    Attributes:
        core: the broker's core.
        storage: its spools.
        halted: set with the reason if the broker cannot continue.
        groups: small appends that are committed together.
        is_stopping: whether endless reads end, because the broker is about to stop.
        tls: contexts of its connections, or None for plain ones.
        metrics: its metrics.
    """

    def __init__(
        self, config: ServerConfig, coordination: Coordinating, tls: "BrokerTls | None" = None
    ) -> None:
        """Open the broker's directory; `start` opens its connections.

        Args:
            config: the configuration.
            coordination: the connection to the cluster.
            tls: contexts of its connections, or None for plain ones.

        Raises:
            OSError: the directory cannot be used.
            StorageDamaged: the commit log in it is damaged.
        """
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.tls = tls
        self.halted: asyncio.Future[str] = self.loop.create_future()
        self.storage = SpoolStorage.open(str(config.data_dir))
        for journal, reason in self.storage.recovered.lost:
            log.error("journal %s takes part without its local bytes: %s", journal, reason)
        me = BrokerId(config.zone, config.name)
        described = BrokerConfig(
            me,
            config.endpoint,
            config.peer_address,
            str(uuid4()),
            config.journal_limit,
            config.lease_ms,
            config.replication_max,
            config.auto_suspend,
        )
        self.core = Broker(described, recovered_journals(self.storage))
        self.metrics = BrokerMetrics(self.core)
        self.stores = FragmentStores(self._named_stores)
        self._secret = config.secret_file.read_bytes().strip()
        self._coordination = coordination
        self._disk = BrokerDisk(self.storage, self._stored, self._store_failed)
        # Its own thread: a large fragment must not delay the reads of others.
        self._verifier = ThreadPoolExecutor(1, "verifier")
        self.is_stopping = False
        self._inputs: list[ev.BrokerEvent] = []
        self._is_scheduled = False
        self._numbers = 0
        self.groups = Groups(self)
        self._calls: dict[int, AppendCall] = {}
        self._links: dict[BrokerId, PeerConnection] = {}
        self._peers: dict[int, PeerConnection] = {}
        self._readers: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._greeting: dict[PeerConnection, None] = {}  # other brokers' connections, oldest first
        self._refused_s = -REFUSALS_S
        self._timer: asyncio.TimerHandle | None = None
        self._revisions: list[tuple[int, asyncio.Future[None]]] = []
        self._used: dict[int, PeerConnection] = {}  # connections with queued messages
        self._acts: dict[type[Any], Callable[[Any], object]] = {
            ev.SendLink: lambda it: self._send(self._links.get(it.peer), it.stream, it.message),
            ev.SendPeer: lambda it: self._send(self._peers.get(it.number), it.stream, it.message),
            ev.StoreOperations: lambda it: self._disk.submit(it.token, it.operations),
            ev.AskContent: self._ask_content,
            ev.FinishAppend: self._answer,
            ev.ListStores: lambda it: self._spawn(self._list_stores(it)),
            ev.UploadFragment: lambda it: self._spawn(self._upload(it)),
            ev.Readable: lambda it: self._wake_readers(it.journal),
            ev.Transact: lambda it: self._spawn(self._transact(it)),
            ev.ReadPublications: lambda it: self._spawn(self._read_publications(it)),
            ev.CheckStore: lambda it: self._spawn(self._check_store(it)),
            ev.ReadSpool: lambda it: self._spawn(self._read_spool(it)),
            ev.RemovePublications: lambda it: self._spawn(
                self._call(it.token, "qsync.published", *it[1:])
            ),
            ev.DiscardPublications: lambda it: self._spawn(
                self._call(it.token, "qsync.discard", *it[1:])
            ),
            ev.OpenLink: self._open_link,
            ev.CloseBrokerLink: self._close_link,
            ev.BlockPeer: self._block_peer,
            ev.Rewatch: lambda _: self._coordination.rewatch(),
            ev.Halt: self._halt,
        }

    @property
    def cluster(self) -> str:
        """Return the UUID of the cluster, "" before it is known."""
        return self._coordination.cluster

    def _named_stores(self) -> set[str]:
        """Return the URLs of all stores that specifications name."""
        keys = self.core.keys
        return {url for row in keys.journals.values() for url in stores_of(row.spec)}

    # --- life cycle ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for other brokers, and watch the key space."""
        host, port = split_address(self.config.peer_listen)
        context = self.tls.accepting if self.tls is not None else None
        bounds = ListenerBounds(GREETING_MAX, HANDSHAKE_S)
        self._listener = Listener(self._accept, context, bounds, takes_plain=False)
        await self._listener.listen(host, port)
        if self.tls is not None:
            self._spawn(self.tls.keep_current())
        self._spawn(self._coordination.watch(self.feed))
        self._spawn(watch_space(self.config, self.feed))
        self._tick()

    def _accept(self) -> PeerConnection:
        handshake = Handshake(self.core.me, self._secret, None)
        return PeerConnection(handshake, IncomingListener(self), self.tls)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        self._schedule()
        self._timer = self.loop.call_later(TICK_S, self._tick)

    async def exit(self) -> None:
        """Hand all assignments over, for at most `EXIT_S`, if another broker can take them.

        Afterwards, reads that wait end, so that their clients go to another broker.
        """
        self.core.exit()
        deadline = self.loop.time() + EXIT_S
        keys = self.core.keys
        most = self.config.replication_max
        while can_hand_over(keys, self.core.me, most) and self.loop.time() < deadline:
            await asyncio.sleep(TICK_S)
        self.end_reads()

    def end_reads(self) -> None:
        """End all reads that wait for more bytes."""
        self.is_stopping = True
        for journal in list(self._readers):
            self._wake_readers(journal)

    async def stop(self) -> None:
        """Stop everything; spools stay on disk."""
        self._perform(self.core.stop())
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in (*self._links.values(), *self._peers.values(), *self._greeting):
            connection.flush()
            connection.close("the broker stops")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._coordination.close()
        await self.loop.run_in_executor(None, self._disk.stop)
        await self.loop.run_in_executor(None, self._verifier.shutdown)
        self.storage.close()

    # --- steps --------------------------------------------------------------------------------

    def feed(self, event: ev.BrokerEvent) -> None:
        """Queue an input for the next step."""
        self._inputs.append(event)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        inputs, self._inputs = self._inputs, []
        self._perform(self.core.step(time.monotonic_ns(), int(time.time()), inputs))
        self._wake_revisions()

    def _perform(self, effects: list[ev.BrokerEffect]) -> None:
        for effect in effects:
            self._acts[type(effect)](effect)
        used, self._used = self._used, {}
        for connection in used.values():
            connection.flush()

    def _send(self, connection: PeerConnection | None, stream: int, message: Message) -> None:
        if connection is not None:
            connection.send(stream, message)
            self._used[id(connection)] = connection

    def _ask_content(self, effect: ev.AskContent) -> None:
        call = self._calls.get(effect.number)
        if call is not None:
            call.want()

    def _answer(self, effect: ev.FinishAppend) -> None:
        call = self._calls.pop(effect.number, None)
        if call is None:
            return
        self.metrics.on_appended(
            effect.result,
            is_proxied=effect.is_proxied,
            count=call.count,
            seconds=self.loop.time() - call.begun_s,
        )
        call.finish(effect.result, effect.is_proxied)

    def _block_peer(self, effect: ev.BlockPeer) -> None:
        connection = self._peers.get(effect.number)
        if connection is not None:
            connection.set_reading(not effect.is_blocked)

    def _halt(self, effect: ev.Halt) -> None:
        if not self.halted.done():
            self.halted.set_result(effect.reason)

    async def _transact(self, effect: ev.Transact) -> None:
        is_committed = await self._coordination.transact(effect.change)
        self.feed(ev.Transacted(effect.token, is_committed))

    async def _read_spool(self, effect: ev.ReadSpool) -> None:
        data: bytes | None = None
        with contextlib.suppress(OSError):
            read = self.storage.read
            data = await self.loop.run_in_executor(None, read, *effect[1:])
        self.feed(ev.SpoolRead(effect.token, data))

    async def _read_publications(self, effect: ev.ReadPublications) -> None:
        found = await self._coordination.publications(*effect[1:])
        self.feed(ev.PublicationsRead(effect.token, found))

    async def _call(self, token: int, name: str, *arguments: object) -> None:
        self.feed(ev.Transacted(token, await self._coordination.call(name, *arguments)))

    async def _list_stores(self, effect: ev.ListStores) -> None:
        try:
            found = [
                fragment
                for url in effect.stores
                for fragment in await self.stores.list(url, effect.journal)
            ]
            self.metrics.on_store_request("list", is_ok=True)
            self.feed(ev.StoreListed(effect.token, found))
        except FragmentStoreError as error:
            log.warning("%s", error)
            self.metrics.on_store_request("list", is_ok=False)
            self.feed(ev.StoreListed(effect.token, [], str(error)))

    async def _check_store(self, effect: ev.CheckStore) -> None:
        try:
            await self.stores.check(effect.store)
            self.feed(ev.StoreChecked(effect.store))
        except FragmentStoreError as error:
            log.warning("%s", error)
            self.feed(ev.StoreChecked(effect.store, str(error)))

    async def _upload(self, effect: ev.UploadFragment) -> None:
        key = effect.key

        def read(offset: int, size: int) -> bytes:
            return self.storage.read(key, offset, size)

        try:
            persisted = await self.stores.upload(
                effect.store, effect.path, effect.fragment, read, self.config.data_dir
            )
            self.metrics.on_store_request("upload", is_ok=True)
            self.feed(ev.Uploaded(effect.token, persisted))
        except FragmentStoreError as error:
            log.warning("%s", error)
            self.metrics.on_store_request("upload", is_ok=False)
            self.feed(ev.Uploaded(effect.token, None, str(error)))

    def _stored(self, token: int) -> None:
        """Note in the disk thread that operations are durable."""
        self.metrics.on_flushed()
        self.loop.call_soon_threadsafe(self.feed, ev.OperationsStored(token))

    def _store_failed(self, reason: str) -> None:
        self.loop.call_soon_threadsafe(self.feed, ev.StoreFailed(reason))

    # --- connections --------------------------------------------------------------------------

    def _open_link(self, effect: ev.OpenLink) -> None:
        handshake = Handshake(self.core.me, self._secret, effect.peer)
        connection = PeerConnection(handshake, OutgoingListener(self, effect.peer), self.tls)
        self._links[effect.peer] = connection  # at once: the next effect may close it
        self._spawn(self._connect(effect, connection))

    async def _connect(self, effect: ev.OpenLink, connection: PeerConnection) -> None:
        try:
            await connection.connect(effect.address)
        except (OSError, ValueError) as error:
            self.link_lost(effect.peer, connection, str(error))

    def _close_link(self, effect: ev.CloseBrokerLink) -> None:
        connection = self._links.pop(effect.peer, None)
        if connection is not None:
            connection.close("the lease of the peer has ended")

    def link_lost(self, peer: BrokerId, connection: PeerConnection, reason: str) -> None:
        """Note the end of a connection to a peer."""
        if self._links.get(peer) is connection:
            del self._links[peer]
            self.feed(ev.BrokerLinkDown(peer, reason))

    def peer_begun(self, connection: PeerConnection) -> None:
        """Note a connection whose handshake begins; the oldest one makes room for it."""
        if len(self._greeting) >= GREETING_MAX:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.close("too many connections have not ended their handshake")
        self._greeting[connection] = None

    def peer_opened(self, connection: PeerConnection, peer: BrokerId) -> int:
        """Note the connection of a primary, and return its number."""
        self._numbers += 1
        self._greeting.pop(connection, None)
        self._peers[self._numbers] = connection
        self.feed(ev.PeerUp(self._numbers, peer))
        return self._numbers

    def peer_refused(self, connection: PeerConnection, reason: str) -> None:
        """Note the end of a connection whose handshake has not ended."""
        self._greeting.pop(connection, None)
        if self.loop.time() > self._refused_s + REFUSALS_S:
            self._refused_s = self.loop.time()
            log.warning("a broker's connection was refused: %s", reason)

    def peer_lost(self, number: int) -> None:
        """Note the end of a primary's connection."""
        self._peers.pop(number, None)
        self.feed(ev.PeerDown(number))

    # --- requests -----------------------------------------------------------------------------

    def append(self, request: Append, timeout_s: float) -> AppendCall:
        """Begin an append."""
        self.groups.close(request.journal)
        return self.begin(request, timeout_s, AppendCall)

    def begin(
        self, request: Append, timeout_s: float, make: Callable[[CallHost, int, Append], CallT]
    ) -> CallT:
        """Begin an append whose call `make` returns, given its number."""
        self._numbers += 1
        call = make(self, self._numbers, request)
        self._calls[self._numbers] = call
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1_000_000_000)
        self.feed(ev.AppendBegun(self._numbers, request, deadline_ns))
        return call

    def readable(self, journal: str) -> "asyncio.Future[None]":
        """Return a future that ends when more bytes of a journal become visible here."""
        future = self.loop.create_future()
        readers = self._readers.setdefault(journal, [])
        readers.append(future)
        future.add_done_callback(lambda _: self._forget_reader(journal, future))
        return future

    def _forget_reader(self, journal: str, future: "asyncio.Future[None]") -> None:
        """Forget a reader that was woken, or whose client has gone."""
        readers = self._readers.get(journal, [])
        if future in readers:
            readers.remove(future)
            if not readers:
                del self._readers[journal]

    async def verify(self, key: SpoolKey) -> str | None:
        """Return why the bytes of a local fragment are damaged, or None. Raises OSError."""
        if not self.storage.is_suspect(key):
            return None
        return await self.loop.run_in_executor(self._verifier, self.storage.problem_of, key)

    def _wake_readers(self, journal: str) -> None:
        for future in self._readers.pop(journal, ()):
            if not future.done():
                future.set_result(None)

    async def revision(self, wanted: int) -> None:
        """Wait until the key space has reached a revision."""
        if self.core.keys.revision >= wanted:
            return
        waiting = wanted, self.loop.create_future()
        self._revisions.append(waiting)
        try:
            await waiting[1]
        finally:
            if waiting in self._revisions:  # the client has gone
                self._revisions.remove(waiting)

    def _wake_revisions(self) -> None:
        if not self._revisions:
            return
        now = self.core.keys.revision
        ready = [future for wanted, future in self._revisions if wanted <= now]
        self._revisions = [item for item in self._revisions if item[0] > now]
        for future in ready:
            if not future.done():
                future.set_result(None)

    async def transact(self, change: KeyChange) -> bool:
        """Carry out a change of the key space for a client."""
        return await self._coordination.transact(change)
