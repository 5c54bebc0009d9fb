"""One node: its files, listeners, connections and turns (turns.py), from opening to closing."""

import asyncio
import gc
import ssl
import time
from itertools import count
from random import SystemRandom
from traceback import format_exception
from typing import Any
from uuid import uuid4

from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.filtering import refusal_to_start
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack
from qsync_node.histogram import Histogram
from qsync_node.server.admission import HANDSHAKES_MAX
from qsync_node.server.archiver import POLL_EVERY_S, Archiver
from qsync_node.server.bootstrapping import StartError, first_state, write_first_state
from qsync_node.server.config import ConfigError, NodeConfig, split_address
from qsync_node.server.connection import LOGIN_S
from qsync_node.server.disk import Disk
from qsync_node.server.links import Links
from qsync_node.server.listener import BACKLOG, Listener, ListenerBounds
from qsync_node.server.logs import Log
from qsync_node.server.peers import Peers
from qsync_node.server.services import Services
from qsync_node.server.session import ServerSession
from qsync_node.server.sessions import Sessions
from qsync_node.server.timings import Timings
from qsync_node.server.tls import RELOAD_CHECK_S, Certificates
from qsync_node.server.trace import Birth, Trace
from qsync_node.server.turns import Turns
from qsync_node.server.watchers import Watchers
from qsync_node.storage.errors import CorruptionError, DiskError
from qsync_node.storage.files import OsFileSystem, lock_directory
from qsync_node.storage.scheduler import ArchiveFloor
from qsync_node.storage.storage import SegmentLimits, Storage

COMMAND_SESSION = -1
SPACE_CHECK_S = 1.0
LOG_IN_REPORT_S = 1.0


class NodeServer:
    """One incarnation of a node, from the opening of its directory to the closing."""

    def __init__(self, config: NodeConfig, log: Log, *, is_restart: bool = False) -> None:
        """Open the directory.

        Args:
            config: the settings.
            log: the log of the process.
            is_restart: whether this process has opened the directory before. Then the directory
                must still have its files: an instance that lost them must not return as a new,
                empty one before the controller has decided so.

        Raises:
            StartError: the directory is in use, of another cluster, or gone.
            CorruptionError: the directory is damaged.
        """
        self._is_restart = is_restart
        self.config = config
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop, self._prepare, self._step, self._on_bug)
        numbers = count(1)
        self.sessions = Sessions(
            numbers, config.max_connections, self.turns.feed, self.turns.schedule, log
        )
        self.links = Links(self.loop, numbers)
        self._commands: dict[int, asyncio.Future[fx.Answer]] = {}
        self._next_command = 1
        self.ended: asyncio.Future[str] = self.loop.create_future()
        self.certificates: Certificates | None = None
        self.reports: dict[str, int] = {}
        self.timings = Timings()
        self.free_bytes: int | None = None  # on the disk, None while it is unknown
        self._is_space_unknown = False
        self.started_at = time.monotonic()
        self.server: asyncio.Server | Listener | None = None
        self.tls_server: asyncio.Server | Listener | None = None
        self._open()
        self.watchers = Watchers(self.node, self.status, self.sessions)
        self.peers = Peers(
            config, self.uuid, self.links, self.sessions, self.feed, log, self.peer_address
        )

    # --- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Lock the directory, and recover its contents or create an empty instance."""
        directory = str(self.config.directory)
        if self._is_restart and not Storage.exists(OsFileSystem(), directory):
            raise StartError(
                f"cannot use {directory}: its files were deleted while the node was running; put "
                "them back, or start the node with an empty directory, as a new instance"
            )
        self.config.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = lock_directory(directory)
        except DiskError as error:
            raise StartError(f"{error}: stop that process or use another directory") from error
        try:
            self._recover(directory)
        except BaseException:
            self._lock.release()
            raise

    def _recover(self, directory: str) -> None:
        fs = OsFileSystem()
        limits = SegmentLimits(self.config.segment_size, self.config.wal_mode == "fsync")
        if not Storage.exists(fs, directory):
            empty = Ballot(replicaset_uuid=self.config.replicaset_uuid)
            Storage.create(fs, directory, str(uuid4()), limits, empty.encode()).close()
        storage, recovered = Storage.open(fs, directory, limits)
        self.uuid = recovered.instance_uuid
        ballot = Ballot.decode(recovered.ballot)
        if ballot.replicaset_uuid != self.config.replicaset_uuid:
            raise StartError(
                f"{directory} belongs to replica set {ballot.replicaset_uuid}, but the "
                f"configuration names {self.config.replicaset_uuid}: use the directory of "
                "this cluster or an empty one"
            )
        snapshot = recovered.snapshot
        if snapshot is None and recovered.last_index:
            raise CorruptionError(directory, 0, "its log has rows, but their snapshot is missing")
        birth = Birth(
            self.uuid,
            self.config.settings(),
            SystemRandom().getrandbits(64),
            ballot.encode(),
            time.monotonic_ns(),
            dict(snapshot.vclock) if snapshot is not None else None,
            list(snapshot.bodies()) if snapshot is not None else [],
            recovered.batches,
            recovered.first_available_index + 1,
        )
        self.node = birth.make()
        if snapshot is not None:
            reason = refusal_to_start(ballot, birth.settings, self.node.database.id_of_space)
            if reason:
                raise StartError(f"cannot use {directory}: {reason}")
        self.trace = Trace(self.config.trace, birth) if self.config.trace is not None else None
        self.disk = Disk(storage, self.turns.deliver, self._on_broken, self.timings.flushes)
        self.archiver: Archiver | None = None
        if self.config.archive is not None:
            self.disk.allow(ArchiveFloor(0, 0, 0))  # until the manifest lists the archived files
            self.archiver = Archiver(self.config, self.uuid, storage, self.disk, self.log)
        self.log(
            "started",
            uuid=self.uuid,
            directory=directory,
            term=self.node.context.term,
            last_index=recovered.last_index,
            torn_bytes=recovered.torn_bytes,
        )
        # Objects from recovery stay until the end: the collector need not traverse them again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)

    async def listen(self) -> None:
        tls = self.config.tls
        context: ssl.SSLContext | None = None
        if tls is not None:
            certificates = self.certificates = Certificates(tls)
            context = certificates.listening
            self.peers.use_certificates(certificates)
            if tls.listen is not None:
                self.tls_server = await self._listen_on(tls.listen, context)
                context = context if tls.is_required else None
            self._watch_certificates(certificates)
        self.server = await self._listen_on(self.config.listen, context)
        self.address = self.server.sockets[0].getsockname()[:2]
        self.peers.set_addresses(self.config.peers)
        self._watch_space()
        self._watch_archive()
        self.timings.watch_loop(self.loop)
        self.turns.schedule()

    def peer_address(self) -> tuple[str, int] | None:
        """Return (host, port) for other members, or None while the node does not listen.

        If the TLS port is separate, it is the one for members.
        """
        server = self.tls_server or self.server
        if server is None or not server.sockets:
            return None  # not listening yet, or no longer
        host, port = server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def _listen_on(
        self, address: str, context: ssl.SSLContext | None
    ) -> asyncio.Server | Listener:
        host, port = split_address(address)
        services = Services(
            self.config,
            self.uuid,
            self.loop,
            self.node,
            self.turns.feed,
            self.sessions,
            self.watchers,
            self.certificates,
            self.ended.done,
            self.peers.accept,
            timings=self.timings,
        )
        try:
            if context is not None:
                listener = Listener(
                    lambda: ServerSession(services),
                    context,
                    ListenerBounds(HANDSHAKES_MAX, LOGIN_S),
                    takes_plain=False,
                )
                await listener.listen(host, port)
                return listener
            return await self.loop.create_server(
                lambda: ServerSession(services),
                host,
                port,
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise StartError(
                f"cannot listen on {address}: {error.strerror}; free the port or "
                "configure another one"
            ) from error

    # --- turns ----------------------------------------------------------------------------------

    def feed(self, item: fx.Input) -> None:
        """Append one input for the next step."""
        self.turns.feed(item)

    def _prepare(self) -> None:
        self.sessions.work()

    def _step(self, inputs: list[fx.Input]) -> int:
        """Perform one step of the node and all of its effects; return its next deadline."""
        now_ns, wall_s = time.monotonic_ns(), time.time()
        effects = self.node.step(now_ns, wall_s, inputs)
        if self.trace is not None:
            self.trace.record(now_ns, wall_s, inputs, effects)
        for effect in effects:
            self._perform(effect)
        self.timings.end_turn()
        self.sessions.flush()
        self.links.flush()
        self.watchers.notify(self.turns.count, self.reports.get("leader", 0))
        return self.node.next_deadline_ns()

    def _on_bug(self, error: Exception) -> None:
        """End this process run after an unforeseen error.

        It must not continue: the node might count rows that never reach the disk. As after a failed
        write, only the disk is trusted (D4).
        """
        text = "".join(format_exception(error))
        self.log("bug", reason=f"{type(error).__name__}: {error}", traceback=text)
        self.end("restart")

    def _perform(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Answer):  # the most frequent ones first
            self._answer(effect)
        elif isinstance(effect, fx.Send):
            self.links.send(effect.link, effect.message)
        elif isinstance(effect, fx.WriteLog):
            self.disk.take(effect)
        elif isinstance(effect, fx.Deferred):
            client = self.sessions.by_number.get(effect.session)
            if client is not None:
                client.defer(effect.sync)
        elif isinstance(effect, fx.TarantoolPackets):
            replica = self.sessions.by_number.get(effect.session)
            if replica is not None:
                replica.send_to_tarantool(effect)
        elif isinstance(effect, fx.Report):
            self.reports[effect.event] = self.reports.get(effect.event, 0) + 1
            self.log(effect.event, **effect.fields)
        elif isinstance(effect, fx.CloseLink):
            self.links.close(effect.link, effect.reason)
        elif isinstance(effect, fx.RestartNode):
            self.log("restart", reason=effect.reason)
            self.end("restart")
        else:
            self.disk.take(effect)

    def _answer(self, answer: fx.Answer) -> None:
        if not self.sessions.answer(answer) and answer.session == COMMAND_SESSION:
            waiting = self._commands.pop(answer.sync, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _on_broken(self, reason: str) -> None:
        """End this incarnation on behalf of a disk thread: memory is no longer trusted (D4)."""

        def restart() -> None:
            self.log("restart", reason=reason)
            self.end("restart")

        self.loop.call_soon_threadsafe(restart)

    def status(self) -> dict[str, Any]:
        """Return the status of the core and of the disk threads."""
        said = self.node.status.report()
        said["is_disk_full"] = said["is_disk_full"] or self.disk.is_full
        return said

    @property
    def quorum_waits(self) -> Histogram:
        """Time from the local flush of own synchronous batches to their confirmation."""
        return self.node.context.quorum_waits

    def figures(self) -> dict[str, Any]:
        """Return counters for live views: lists are counts by the buckets of `histogram.py`."""
        timings = self.timings
        return {
            "writes": timings.writes.counts,
            "flushes": timings.flushes.counts,
            "quorum_waits": self.quorum_waits.counts,
            "requests": sum(histogram.count for _, histogram in timings.requests()),
            "errors": sum(timings.errors.values()),
            "stalls": timings.stalls,
            "connections": len(self.sessions),
            "disk_free_bytes": self.free_bytes,
            "uptime_s": round(time.monotonic() - self.started_at, 3),
        }

    # --- admin ----------------------------------------------------------------------------------

    async def command(self, verb: str, timeout_s: float = 30.0, **arguments: object) -> fx.Answer:
        """Execute one admin verb in the core and return its answer.

        Raises:
            TimeoutError: no answer within `timeout_s` seconds. The verb may still take effect.
        """
        number, future = self._expect_answer()
        self.feed(fx.Command(COMMAND_SESSION, number, verb, arguments))
        async with asyncio.timeout(timeout_s):
            return await future

    async def call(self, name: str, *arguments: object, timeout_s: float = 30.0) -> fx.Answer:
        """Call a procedure as admin, like a client, and return the answer.

        Raises:
            TimeoutError: no answer within `timeout_s` seconds. The call may still take effect.
        """
        number, future = self._expect_answer()
        body = pack({int(Key.FUNCTION_NAME): name, int(Key.TUPLE): list(arguments)})
        self.feed(fx.Request(COMMAND_SESSION, number, int(Type.CALL), body, 0, "admin", None))
        async with asyncio.timeout(timeout_s):
            return await future

    def _expect_answer(self) -> "tuple[int, asyncio.Future[fx.Answer]]":
        """Return the number of the next command, and the future of its answer."""
        number = self._next_command
        self._next_command += 1
        future: asyncio.Future[fx.Answer] = self.loop.create_future()
        self._commands[number] = future
        return number, future

    def bootstrap(self, uuid: str, voters: int, users: dict[str, str]) -> None:
        """Bootstrap the replica set. The order names one instance, which obeys it once (M1).

        Args:
            uuid: the instance that the order is for.
            voters: the planned number of voters.
            users: name -> password.

        Raises:
            StartError: the order is for another instance, or the restored snapshot is missing.
        """
        if uuid != self.uuid:
            raise StartError(f"the order is for instance {uuid}, not for this one, {self.uuid}")
        if self.node.context.has_origin:
            return
        config = self.config
        vclock, bodies = first_state(
            config.bootstrap_from, self.uuid, config.name, config.replicaset_uuid, voters
        )
        self.disk.stop()
        ballot = self.node.context.ballot
        write_first_state(self.disk.storage, ballot, vclock, bodies, users, config.secret)
        self.log("bootstrap", uuid=uuid, voters=voters, index=sum(vclock.values()))
        self.end("restart")

    def end(self, how: str) -> None:
        """End this incarnation. `how` is `restart`, or the reason why a person must act."""
        if not self.ended.done():
            self.ended.set_result(how)
            self.turns.stop()

    def close(self, is_clean: bool) -> None:
        """Release all resources. A clean stop writes the clean mark (D3)."""
        self.turns.stop()
        self.timings.stop()
        self.peers.stop()
        for listener in (self.server, self.tls_server):
            if listener is not None:
                listener.close()
        self.sessions.close()
        self.links.close_all()
        if self.archiver is not None:
            self.archiver.stop()
        self.disk.stop()
        if is_clean and not self.disk.storage.failed:
            self.disk.storage.clean_stop()
        else:
            self.disk.storage.close()
        if self.trace is not None:
            self.trace.close()
        self._lock.release()
        gc.unfreeze()

    def _watch_certificates(self, certificates: Certificates) -> None:
        if self.ended.done():
            return
        try:
            if certificates.reload():
                self.log("certificates_changed")
        except ConfigError as error:
            self.log("certificates_refused", reason=str(error))
        self.loop.call_later(RELOAD_CHECK_S, self._watch_certificates, certificates)

    def _watch_archive(self) -> None:
        if self.archiver is not None and not self.ended.done():
            self.observe_archive()
            self.loop.call_later(POLL_EVERY_S, self._watch_archive)

    def observe_archive(self, seal_up_to: int = 0) -> None:
        """Pass the state to the archiver. Rows up to `seal_up_to` are sealed immediately."""
        context = self.node.context
        if self.archiver is not None and context.has_origin:
            starts = list(context.tail.history.starts)
            self.archiver.observe(context.limbo.confirmed_index, starts, seal_up_to)

    def _watch_space(self) -> None:
        """Refuse writes before the disk is full, and resume once space is available (D5).

        Notice deleted files, too.
        """
        if self.ended.done():
            return
        self.loop.call_later(SPACE_CHECK_S, self._watch_space)
        self.disk.check_files()
        try:
            free = self.free_bytes = self.disk.storage.free_bytes()
        except (DiskError, OSError) as error:
            # The free space is unknown: keep the present state until it is known.
            self.free_bytes = None
            if not self._is_space_unknown:
                self._is_space_unknown = True
                self.log("disk_space_unknown", reason=str(error))
            return
        self._is_space_unknown = False
        is_low = free < self.config.disk_reserve
        was_low = self.node.context.is_disk_full or self.node.context.is_space_low
        if is_low or was_low:
            self.feed(fx.SpaceLow(is_low))
