"""The node's event loop: all inputs of one turn are one step of the core.

Sockets and disk threads append inputs to a list. One scheduled callback takes the list, steps the
core and performs the effects. A request needs no task, future, lock or queue (architecture.md).
"""

import asyncio
import gc
import ssl
import time
from random import SystemRandom
from traceback import format_exc
from typing import Any
from uuid import uuid4

from qsync_node.archive.restore.origin import restored_bodies, with_users
from qsync_node.consensus import effects as fx
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.filtering import refusal_to_start
from qsync_node.errors import QsyncError
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack
from qsync_node.log.checkpoint import open_snapshot
from qsync_node.log.errors import CorruptionError, DiskError
from qsync_node.log.files import OsFileSystem, lock_directory
from qsync_node.log.scheduler import ArchiveFloor
from qsync_node.log.storage import Limits, Storage
from qsync_node.node import Node
from qsync_node.server.admission import HANDSHAKES_MAX, Admission, RequestBytes
from qsync_node.server.archiver import LOOK_EVERY_S, Archiver
from qsync_node.server.config import ConfigError, NodeConfig, split_address
from qsync_node.server.disk import Disk
from qsync_node.server.listener import BACKLOG, Bounds, Listener
from qsync_node.server.logs import Log
from qsync_node.server.peerlink import PeerLink
from qsync_node.server.peers import Peers
from qsync_node.server.session import LOGIN_S, Session
from qsync_node.server.tls import RELOAD_CHECK_S, Certificates
from qsync_node.server.trace import Birth, Trace
from qsync_node.transactions.own_rows import read_term_body

COMMAND_SESSION = -1
SPACE_CHECK_S = 1.0
LOG_IN_REPORT_S = 1.0


class StartError(QsyncError):
    """The node cannot start; the message states the cause and the remedy."""


class NodeServer:
    """One incarnation of a node, from the opening of its directory to the closing."""

    def __init__(self, config: NodeConfig, log: Log) -> None:
        self.config = config
        self.log = log
        self.sessions: dict[int, Session] = {}
        self.links: dict[int, PeerLink] = {}
        self._lost: dict[int, asyncio.Future[None]] = {}
        self._next_number = 1
        self._inputs: list[Any] = []
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._commands: dict[int, asyncio.Future[fx.Answer]] = {}
        self._next_command = 1
        self._dirty_sessions: list[Session] = []
        self._dirty_links: list[PeerLink] = []
        self._event_state: dict[str, bytes] = {}
        self._ready: dict[Session, None] = {}  # sessions with deferred reads for the next turn
        self._starved: dict[Session, None] = {}  # sessions that wait for the budget of requests
        self.admission = Admission(config.max_connections)
        self.requests = RequestBytes()
        self.failed_log_ins = 0
        self._unreported_log_ins = 0
        self._log_in_reported_s = 0.0
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.peers = Peers(self)
        self.certificates: Certificates | None = None
        self.peer_tls: ssl.SSLContext | None = None
        self.reports: dict[str, int] = {}
        self._is_space_unknown = False
        self.started_at = time.monotonic()
        self.turns = 0
        self.loop = asyncio.get_running_loop()
        self.server: asyncio.Server | Listener | None = None
        self.tls_server: asyncio.Server | Listener | None = None
        self._open()

    # --- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Lock the directory, and recover its contents or create an empty instance."""
        directory = str(self.config.directory)
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
        limits = Limits(self.config.segment_size, self.config.wal_mode == "fsync")
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
        self.disk = Disk(storage, self._deliver, self._on_broken)
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
            context, self.peer_tls = certificates.listening, certificates.dialling
            if tls.listen is not None:
                self.tls_server = await self._listen_on(tls.listen, context)
                context = context if tls.is_required else None
            self._watch_certificates(certificates)
        self.server = await self._listen_on(self.config.listen, context)
        self.address = self.server.sockets[0].getsockname()[:2]
        self.peers.set_addresses(self.config.peers)
        self._watch_space()
        self._watch_archive()
        self._schedule()

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
        try:
            if context is not None:
                listener = Listener(
                    lambda: Session(self),
                    context,
                    Bounds(HANDSHAKES_MAX, LOGIN_S),
                    takes_plain=False,
                )
                await listener.listen(host, port)
                return listener
            return await self.loop.create_server(
                lambda: Session(self),
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

    def feed(self, item: Any) -> None:
        """Append one input for the next step."""
        self._inputs.append(item)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.loop.call_soon(self._turn)

    def _deliver(self, inputs: list[Any]) -> None:
        """Pass inputs from a disk thread."""
        self.loop.call_soon_threadsafe(self._feed_all, inputs)

    def _feed_all(self, inputs: list[Any]) -> None:
        self._inputs += inputs
        if not self._is_scheduled:
            self._turn()

    def _turn(self) -> None:
        """Perform one step of the core and all of its effects, or end this process run.

        After an unforeseen error the run must not continue: the core might count rows that never
        reach the disk. As after a failed write, only the disk is trusted (D4).
        """
        if self.ended.done():
            self._is_scheduled = False
            return
        try:
            ready, self._ready = self._ready, {}
            for session in ready:
                session.work()
            self._is_scheduled = False
            self._step()
        except Exception as error:  # noqa: BLE001  # any failure ends this process run
            self.log("bug", reason=f"{type(error).__name__}: {error}", traceback=format_exc())
            self.end("restart")

    def _step(self) -> None:
        inputs, self._inputs = self._inputs, []
        self.turns += 1
        now_ns, wall_s = time.monotonic_ns(), time.time()
        effects = self.node.step(now_ns, wall_s, inputs)
        if self.trace is not None:
            self.trace.record(now_ns, wall_s, inputs, effects)
        for effect in effects:
            self._perform(effect)
        dirty, self._dirty_sessions = self._dirty_sessions, []
        for session in dirty:
            session.flush()
        if self.admission.is_over_unread_budget():
            self._close_slowest_readers()
        if self._starved and self.requests.has_room():
            starved, self._starved = self._starved, {}
            for session in starved:
                session.work()
        for link in self._dirty_links:
            link.flush()
        self._dirty_links.clear()
        if self._event_state:
            self._notify_watchers()
        self._set_timer()

    def _set_timer(self) -> None:
        wait = max(self.node.next_deadline_ns() - time.monotonic_ns(), 0) / 1e9
        at = self.loop.time() + wait
        if self._timer is not None:
            if self._timer_at <= at + 0.0005:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_scheduled:
            self._turn()

    def _perform(self, effect: Any) -> None:
        kind = type(effect)
        if kind is fx.Answer:
            self._answer(effect)
        elif kind is fx.Deferred:
            client = self.sessions.get(effect.session)
            if client is not None:
                client.defer(effect.sync)
        elif kind is fx.Send:
            link = self.links.get(effect.link)
            if link is not None:
                if not link.out:
                    self._dirty_links.append(link)
                link.send(effect.message)
        elif kind is fx.StockPackets:
            replica = self.sessions.get(effect.session)
            if replica is not None:
                replica.send_stock(effect)
        elif kind is fx.Report:
            self.reports[effect.event] = self.reports.get(effect.event, 0) + 1
            self.log(effect.event, **effect.fields)
        elif kind is fx.CloseLink:
            closing = self.links.get(effect.link)
            if closing is not None:
                closing.close(effect.reason)
        elif kind is fx.Restart:
            self.log("restart", reason=effect.reason)
            self.end("restart")
        else:
            self.disk.take(effect)

    def _answer(self, answer: fx.Answer) -> None:
        session = self.sessions.get(answer.session)
        if session is not None:
            if not session.out:
                self._dirty_sessions.append(session)
            session.answer(answer)
        elif answer.session == COMMAND_SESSION:
            waiting = self._commands.pop(answer.sync, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _on_broken(self, reason: str) -> None:
        """End this incarnation on behalf of a disk thread: memory is no longer trusted (D4)."""

        def restart() -> None:
            self.log("restart", reason=reason)
            self.end("restart")

        self.loop.call_soon_threadsafe(restart)

    # --- sessions and links -----------------------------------------------------------------------

    def add_session(self, session: Session) -> int:
        number = self._next_number
        self._next_number += 1
        self.sessions[number] = session
        evicted = self.admission.connect(number)
        if evicted is not None:
            self.sessions[evicted].evict()
        return number

    def remove_session(self, session: Session) -> None:
        if self.sessions.pop(session.number, None) is not None:
            self.admission.close(session.number)
            self._ready.pop(session, None)
            self._starved.pop(session, None)
            self.feed(fx.SessionClosed(session.number))

    def note_ready(self, session: Session) -> None:
        """Include the session in the next turn."""
        self._ready[session] = None
        if not self._is_scheduled:
            self._schedule()

    def may_read(self, session: Session) -> bool:
        """Return whether the budget permits more requests. If not, resume the session later."""
        if self.requests.is_full():
            self._starved[session] = None
            return False
        return True

    def _close_slowest_readers(self) -> None:
        """Close the connections with most unread bytes until the others fit the budget."""
        for number in self.admission.unread_sessions():
            session = self.sessions.get(number)
            size = session.unread_bytes() if session is not None else 0
            self.admission.set_unread(number, size)
        for number in self.admission.unread_sessions():
            if not self.admission.is_over_unread_budget():
                return
            session = self.sessions[number]
            self.log("client_closed", reason="unread answers", user=session.user,
                     bytes=session.unread_bytes())  # fmt: skip
            self.admission.set_unread(number, 0)
            session.evict()

    def note_failed_log_in(self, session: Session, user: str) -> None:
        """Count a failed log-in. Report the count at most once per `LOG_IN_REPORT_S`."""
        self.failed_log_ins += 1
        self._unreported_log_ins += 1
        now_s = time.monotonic()
        if now_s - self._log_in_reported_s >= LOG_IN_REPORT_S:
            self._log_in_reported_s = now_s
            self.log("log_in_failed", user=user[:64], address=session.peer_name(),
                     count=self._unreported_log_ins)  # fmt: skip
            self._unreported_log_ins = 0

    def add_link(self, link: PeerLink) -> int:
        number = self._next_number
        self._next_number += 1
        self.links[number] = link
        return number

    def remove_link(self, link: PeerLink) -> None:
        self.links.pop(link.number, None)
        waiting = self._lost.pop(link.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def until_lost(self, link: PeerLink) -> None:
        if link.number in self.links:
            future = self._lost.setdefault(link.number, self.loop.create_future())
            await future

    def status(self) -> dict[str, Any]:
        """Return the status of the core and of the disk threads."""
        said = self.node.status.report()
        said["is_disk_full"] = said["is_disk_full"] or self.disk.is_full
        return said

    # --- watchers -------------------------------------------------------------------------------

    def event_value(self, key: str) -> bytes | None:
        """Return the value of `key` as msgpack, or None for an unknown key."""
        now = self.status()
        values: dict[str, Any] = {
            "box.id": {
                "id": now["replica_id"],
                "instance_uuid": self.uuid,
                "replicaset_uuid": now["replicaset_uuid"],
            },
            "box.status": {
                "is_ro": not now["is_writable"],
                "is_ro_cfg": False,
                "status": "running" if self.node.context.has_origin else "loading",
            },
            "box.election": {
                "term": now["term"],
                "role": self.node.replica.election.role.value,
                "is_ro": not now["is_writable"],
                "leader": now["leader_id"],
                "leader_uuid": now["leader_uuid"],
                "leader_name": now["leader_name"],
            },
        }
        if key not in values:
            return None
        packed: bytes = pack(values[key])
        return packed

    def watch(self, session: Session, key: str, is_first: bool) -> None:
        value = self.event_value(key)
        known = self._event_state.get(key)
        if value is not None:
            self._event_state[key] = value
        session.unacknowledged.discard(key)
        if is_first or (value is not None and value != known):
            session.unacknowledged.add(key)
            session.notify(key, value)

    def _notify_watchers(self) -> None:
        """Notify watchers of changed keys: when this member becomes leader, and every 16th turn."""
        if self.turns % 16 and self.reports.get("leader", 0) == self._reports_seen:
            return
        self._reports_seen = self.reports.get("leader", 0)
        for key in list(self._event_state):
            value = self.event_value(key)
            if value is None or value == self._event_state[key]:
                continue
            self._event_state[key] = value
            for session in list(self.sessions.values()):
                if key in session.watched and key not in session.unacknowledged:
                    session.unacknowledged.add(key)
                    session.notify(key, value)

    _reports_seen = 0

    # --- admin ----------------------------------------------------------------------------------

    async def command(self, verb: str, timeout_s: float = 30.0, **arguments: Any) -> fx.Answer:
        """Execute one admin verb in the core and return its answer.

        Raises:
            TimeoutError: no answer within `timeout_s` seconds. The verb may still take effect.
        """
        number, future = self._expect_answer()
        self.feed(fx.Command(COMMAND_SESSION, number, verb, arguments))
        async with asyncio.timeout(timeout_s):
            return await future

    async def call(self, name: str, *arguments: Any, timeout_s: float = 30.0) -> fx.Answer:
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
        vclock, bodies = self._first_state(voters)
        bodies = with_users(bodies, users, self.config.secret)
        self.disk.stop()
        storage = self.disk.storage
        # A log is never ahead of the ballot (D2), so the ballot gets the restored terms first.
        last_term = max((s.term for b in bodies if (s := read_term_body(b))), default=0)
        ballot = self.node.context.ballot
        if last_term > ballot.term:
            storage.store_ballot(ballot.in_term(last_term).encode())
        storage.install_snapshot(vclock, bodies)
        self.log("bootstrap", uuid=uuid, voters=voters, index=sum(vclock.values()))
        self.end("restart")

    def _first_state(self, voters: int) -> tuple[dict[int, int], list[bytes]]:
        """Return clock and rows of the first state: an empty database, or the restored snapshot."""
        config = self.config
        names = (self.uuid, config.name, config.replicaset_uuid)
        if config.bootstrap_from is None:
            return {}, Node.bootstrap_bodies(*names, voters)
        found = sorted(config.bootstrap_from.glob("*.snap"))
        if len(found) != 1:
            raise StartError(
                f"cannot bootstrap from {config.bootstrap_from}: it contains {len(found)} "
                "snapshots instead of one; restore the archive into an empty folder first"
            )
        snapshot = open_snapshot(OsFileSystem(), str(found[0]))
        bodies = restored_bodies(list(snapshot.bodies()), snapshot.index, *names, voters)
        return dict(snapshot.vclock), bodies

    def end(self, how: str) -> None:
        """End this incarnation. `how` is `restart`, or the reason why a person must act."""
        if not self.ended.done():
            self.ended.set_result(how)

    def close(self, is_clean: bool) -> None:
        """Release all resources. A clean stop writes the clean mark (D3)."""
        if self._timer is not None:
            self._timer.cancel()
        self.peers.stop()
        for listener in (self.server, self.tls_server):
            if listener is not None:
                listener.close()
        for session in list(self.sessions.values()):
            if session.transport is not None:
                session.transport.abort()
        for link in list(self.links.values()):
            link.transport.abort()
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
            self.look_at_archive()
            self.loop.call_later(LOOK_EVERY_S, self._watch_archive)

    def look_at_archive(self, seal_up_to: int = 0) -> None:
        """Pass the state to the archiver. Rows up to `seal_up_to` are sealed immediately."""
        context = self.node.context
        if self.archiver is not None and context.has_origin:
            starts = list(context.tail.history.starts)
            self.archiver.look(context.limbo.confirmed_index, starts, seal_up_to)

    def _watch_space(self) -> None:
        """Refuse writes before the disk is full, and resume once space is available (D5)."""
        if self.ended.done():
            return
        self.loop.call_later(SPACE_CHECK_S, self._watch_space)
        try:
            free = self.disk.storage.free_bytes()
        except (DiskError, OSError) as error:
            # The free space is unknown: keep the present state until it is known.
            if not self._is_space_unknown:
                self._is_space_unknown = True
                self.log("disk_space_unknown", reason=str(error))
            return
        self._is_space_unknown = False
        is_low = free < self.config.disk_reserve
        was_low = self.node.context.is_disk_full or self.node.context.is_space_low
        if is_low or was_low:
            self.feed(fx.SpaceLow(is_low))
