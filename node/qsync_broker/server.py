"""The event loop of a broker: all inputs of one turn are one step of its core.

Connections, the disk thread and the watch append inputs to a list. One scheduled callback takes the
list, steps the core, and carries out the effects.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol
from uuid import uuid4

from qsync_broker import events as ev
from qsync_broker.allocator import can_hand_over
from qsync_broker.append import Append, Appended, Input
from qsync_broker.broker import Broker, BrokerConfig, Recovered
from qsync_broker.config import ServerConfig, split_address
from qsync_broker.disk import Disk
from qsync_broker.handshake import Handshake
from qsync_broker.index import LocalFragment
from qsync_broker.keyspace import Change
from qsync_broker.messages import Message
from qsync_broker.peers import Connection
from qsync_broker.spool import Spool, Version
from qsync_broker.storage.storage import Storage
from qsync_broker.stores import FragmentStores, StoreError
from qsync_node.format.journals import BrokerId

log = logging.getLogger("qsync.broker")

TICK_S = 0.02
EXIT_S = 30.0


class Coordinating(Protocol):
    """The cluster that a broker belongs to, see `qsync_broker.coordination`.

    Attributes:
        cluster: UUID of the cluster, "" before it is known.
    """

    cluster: str

    async def watch(self, deliver: Callable[[ev.Watched], None]) -> None:
        """Deliver changes of the key space until the task is cancelled."""

    def rewatch(self) -> None:
        """Open the watch again, after a pause."""

    async def transact(self, change: Change) -> bool:
        """Carry out a change, and return whether it is known to be committed."""

    async def close(self) -> None:
        """Close the connections."""


class AppendCall:
    """A client's append under way: give content when it is wanted, and await the result."""

    def __init__(self, server: "BrokerServer", number: int) -> None:
        self.result: asyncio.Future[tuple[Appended, bool]] = server.loop.create_future()
        self._server = server
        self._number = number
        self._news = asyncio.Event()  # content is wanted, or there is a result

    def give(self, received: Input) -> None:
        """Pass on content, the end, or a break of the client."""
        if not self.result.done():
            self._news.clear()
        self._server.feed(ev.AppendReceived(self._number, received))

    def want(self) -> None:
        """Note that the broker accepts content."""
        self._news.set()

    def finish(self, result: Appended, is_proxied: bool) -> None:
        """Note the result."""
        if not self.result.done():
            self.result.set_result((result, is_proxied))
        self._news.set()

    async def wanted(self) -> bool:
        """Wait until content is wanted, or the append has its result; return whether it is."""
        await self._news.wait()
        return not self.result.done()


class _OutgoingListener:
    """Passes news of a connection to a peer on to the core."""

    def __init__(self, server: "BrokerServer", peer: BrokerId) -> None:
        self._server = server
        self._peer = peer

    def on_open(self, connection: Connection, peer: BrokerId) -> None:
        self._server.feed(ev.LinkUp(self._peer))

    def on_messages(self, connection: Connection, messages: list[tuple[int, Message]]) -> None:
        self._server.feed(ev.LinkReceived(self._peer, messages))

    def on_blocked(self, connection: Connection, is_blocked: bool) -> None:
        self._server.feed(ev.LinkBlocked(self._peer, is_blocked))

    def on_lost(self, connection: Connection, reason: str) -> None:
        self._server.link_lost(self._peer, connection, reason)


class _IncomingListener:
    """Passes news of a primary's connection on to the core."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._number = 0

    def on_open(self, connection: Connection, peer: BrokerId) -> None:
        self._number = self._server.peer_opened(connection, peer)

    def on_messages(self, connection: Connection, messages: list[tuple[int, Message]]) -> None:
        self._server.feed(ev.PeerReceived(self._number, messages))

    def on_blocked(self, connection: Connection, is_blocked: bool) -> None:
        """Ignore it: answers to a primary are small."""

    def on_lost(self, connection: Connection, reason: str) -> None:
        if self._number:
            self._server.peer_lost(self._number)
        else:
            log.warning("a broker's connection was refused: %s", reason)


class BrokerServer:
    """One process of a broker.

    Attributes:
        core: the broker's core.
        storage: its spools.
        halted: set with the reason if the broker cannot continue.
        is_stopping: whether endless reads end, because the broker is about to stop.
    """

    def __init__(self, config: ServerConfig, coordination: Coordinating) -> None:
        """Open the broker's directory; `start` opens its connections.

        Args:
            config: the configuration.
            coordination: the connection to the cluster.

        Raises:
            OSError: the directory cannot be used.
            StorageDamaged: the commit log in it is damaged.
        """
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.halted: asyncio.Future[str] = self.loop.create_future()
        self.storage = Storage.open(str(config.data_dir))
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
        )
        self.core = Broker(described, recovered_journals(self.storage))
        self.stores = FragmentStores()
        self._secret = config.secret_file.read_bytes().strip()
        self._coordination = coordination
        self._disk = Disk(self.storage, self._stored, self._store_failed)
        self.is_stopping = False
        self._inputs: list[ev.Event] = []
        self._is_scheduled = False
        self._numbers = 0
        self._calls: dict[int, AppendCall] = {}
        self._links: dict[BrokerId, Connection] = {}
        self._peers: dict[int, Connection] = {}
        self._readers: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._revisions: list[tuple[int, asyncio.Future[None]]] = []
        self._used: dict[int, Connection] = {}  # connections with queued messages
        self._acts: dict[type[Any], Callable[[Any], object]] = {
            ev.SendLink: lambda it: self._send(self._links.get(it.peer), it.stream, it.message),
            ev.SendPeer: lambda it: self._send(self._peers.get(it.number), it.stream, it.message),
            ev.Store: lambda it: self._disk.submit(it.token, it.operations),
            ev.AskContent: self._ask_content,
            ev.Answer: self._answer,
            ev.ListStores: lambda it: self._spawn(self._list_stores(it)),
            ev.Upload: lambda it: self._spawn(self._upload(it)),
            ev.Readable: lambda it: self._wake_readers(it.journal),
            ev.Transact: lambda it: self._spawn(self._transact(it)),
            ev.OpenLink: lambda it: self._spawn(self._connect(it)),
            ev.BlockPeer: self._block_peer,
            ev.Rewatch: lambda _: self._coordination.rewatch(),
            ev.Halt: self._halt,
        }

    @property
    def cluster(self) -> str:
        """Return the UUID of the cluster, "" before it is known."""
        return self._coordination.cluster

    # --- life cycle ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for other brokers, and watch the key space."""
        host, port = split_address(self.config.peer_listen)
        self._listener = await self.loop.create_server(self._accept, host, port)
        self._spawn(self._coordination.watch(self.feed))
        self._tick()

    def _accept(self) -> Connection:
        return Connection(Handshake(self.core.me, self._secret, None), _IncomingListener(self))

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
        while can_hand_over(keys, self.core.me) and self.loop.time() < deadline:
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
        for connection in (*self._links.values(), *self._peers.values()):
            connection.flush()
            connection.close("the broker stops")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._coordination.close()
        await self.loop.run_in_executor(None, self._disk.stop)
        self.storage.close()

    # --- steps --------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
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

    def _perform(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            self._acts[type(effect)](effect)
        used, self._used = self._used, {}
        for connection in used.values():
            connection.flush()

    def _send(self, connection: Connection | None, stream: int, message: Message) -> None:
        if connection is not None:
            connection.send(stream, message)
            self._used[id(connection)] = connection

    def _ask_content(self, effect: ev.AskContent) -> None:
        call = self._calls.get(effect.number)
        if call is not None:
            call.want()

    def _answer(self, effect: ev.Answer) -> None:
        call = self._calls.pop(effect.number, None)
        if call is not None:
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

    async def _list_stores(self, effect: ev.ListStores) -> None:
        try:
            found = [
                fragment
                for url in effect.stores
                for fragment in await self.stores.list(url, effect.journal)
            ]
            self.feed(ev.Listed(effect.token, found))
        except StoreError as error:
            log.warning("%s", error)
            self.feed(ev.Listed(effect.token, [], str(error)))

    async def _upload(self, effect: ev.Upload) -> None:
        key = effect.key

        def read(offset: int, size: int) -> bytes:
            return self.storage.read(key, offset, size)

        try:
            persisted = await self.stores.upload(
                effect.store, effect.path, effect.fragment, read, self.config.data_dir
            )
            self.feed(ev.Uploaded(effect.token, persisted))
        except StoreError as error:
            log.warning("%s", error)
            self.feed(ev.Uploaded(effect.token, None, str(error)))

    def _stored(self, token: int) -> None:
        """Note in the disk thread that operations are durable."""
        self.loop.call_soon_threadsafe(self.feed, ev.Stored(token))

    def _store_failed(self, reason: str) -> None:
        self.loop.call_soon_threadsafe(self.feed, ev.StoreFailed(reason))

    # --- connections --------------------------------------------------------------------------

    async def _connect(self, effect: ev.OpenLink) -> None:
        handshake = Handshake(self.core.me, self._secret, effect.peer)
        connection = Connection(handshake, _OutgoingListener(self, effect.peer))
        self._links[effect.peer] = connection
        try:
            host, port = split_address(effect.address)
            await self.loop.create_connection(lambda: connection, host, port)
        except (OSError, ValueError) as error:
            self.link_lost(effect.peer, connection, str(error))

    def link_lost(self, peer: BrokerId, connection: Connection, reason: str) -> None:
        """Note the end of a connection to a peer."""
        if self._links.get(peer) is connection:
            del self._links[peer]
            self.feed(ev.LinkDown(peer, reason))

    def peer_opened(self, connection: Connection, peer: BrokerId) -> int:
        """Note the connection of a primary, and return its number."""
        self._numbers += 1
        self._peers[self._numbers] = connection
        self.feed(ev.PeerUp(self._numbers, peer))
        return self._numbers

    def peer_lost(self, number: int) -> None:
        """Note the end of a primary's connection."""
        self._peers.pop(number, None)
        self.feed(ev.PeerDown(number))

    # --- requests -----------------------------------------------------------------------------

    def append(self, request: Append, timeout_s: float) -> AppendCall:
        """Begin an append."""
        self._numbers += 1
        call = self._calls[self._numbers] = AppendCall(self, self._numbers)
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

    async def transact(self, change: Change) -> bool:
        """Carry out a change of the key space for a client."""
        return await self._coordination.transact(change)


def recovered_journals(storage: Storage) -> list[Recovered]:
    """Return the journals that the storage found, for the core."""
    found: dict[str, Recovered] = {}
    for opened in storage.recovered.open:
        versions = [
            Version(version.end, version.registers, version.hash) for version in opened.history
        ]
        spool = Spool.recovered(opened.state, versions)
        found[spool.journal] = Recovered(spool, ())
    for completed in storage.recovered.completed:
        known = found.get(completed.key.journal)
        if known is not None and known.spool.journal_id == completed.key.journal_id:
            fragment = LocalFragment(
                completed.key.begin,
                completed.end,
                completed.sum,
                completed.codec,
                completed.first_append,
            )
            found[completed.key.journal] = known._replace(completed=(*known.completed, fragment))
    return list(found.values())
