"""The connections of a client: it finds the leader, follows it, and reads in the client's zone.

Every member forwards requests to the leader, so any connection works. One to the leader is faster.
A new connection watches `box.election`, which names the leader. If another member becomes the
leader, the pool connects to it in the background. Requests in flight finish on the old connection.

If a connection ends, hints that its member leads are ignored for `DOUBT_S`: a member that stopped
still accepts connections, and others name it as the leader until they elect another one.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from qsync_client.errors import AccessDenied, ClientClosed, InvalidArgument, QsyncError, text_of
from qsync_client.link import Link, Watcher
from qsync_client.outcomes import Outcome, Refused
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import SILENCE_S

CONNECT_S = 1.0
"""Initial time limit per address, doubled each round up to `CONNECT_MAX_S`: an unavailable machine
must not delay the connection to another one, and a busy one needs time."""
CONNECT_MAX_S = 8.0
DOUBT_S = 5.0
"""Time after the loss of a connection in which hints that its member leads are ignored."""
KNOWN_S = 30.0
"""Time after a log-in for which the uuid of an address is known. A member that lost its disk
returns with another one."""
AGAIN_S = 0.1
"""Pause after no address accepted a connection."""
LEADER_S = 0.25
"""Time for which a new connection waits for a faster one to the leader. The search then continues
in the background."""
REFUSED_S = 1.0
"""Time after which the client leaves a member that refuses each request. It may be isolated."""
_REFUSED = frozenset(
    {int(ErrorCode.NOT_LEADER), int(ErrorCode.LOADING), int(ErrorCode.UNKNOWN_REPLICA)}
)
_ELECTION = "box.election"
_FAILURES = (OSError, TimeoutError, QsyncError)


@dataclass(frozen=True, slots=True)
class Member:
    """An address of a member, HOST:PORT, and the zone that it is in; "" for an unknown zone."""

    address: str
    zone: str = ""


def members_of(addresses: str | Sequence[str | Member]) -> list[Member]:
    """Return the members that a caller names.

    Raises:
        InvalidArgument: there is none, or an address is invalid.
    """
    given = [addresses] if isinstance(addresses, str | Member) else list(addresses)
    members = [one if isinstance(one, Member) else Member(one) for one in given]
    if not members:
        raise InvalidArgument("the list of addresses is empty: name the HOST:PORT of each member")
    for member in members:
        _check_address(member.address)
    return members


def _check_address(address: str) -> None:
    if not isinstance(address, str) or "@" in address or "/" in address:
        # The address is not in the text: it may contain a password.
        raise InvalidArgument(
            "an address is invalid: use HOST:PORT without user and password, not a URI"
        )
    host, _, port = address.rpartition(":")
    if not host.strip("[]") or not (port.isascii() and port.isdecimal()):
        raise InvalidArgument(f"the address {address!r} is invalid: use HOST:PORT")
    if not 1 <= int(port) <= 65535:
        raise InvalidArgument(f"the address {address!r} is invalid: use a port from 1 to 65535")


def check_options(
    members: Sequence[Member],
    deadline_s: float,
    tls: ssl.SSLContext | None,
    pool_size: int,
    zone: str,
    max_request_bytes: int,
) -> None:
    """Check the options of a client.

    Raises:
        InvalidArgument: one is invalid.
    """
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise InvalidArgument(
            "tls is invalid: use an ssl.SSLContext, such as ssl.create_default_context(cafile=...)"
        )
    for name, value in (
        ("deadline_s", deadline_s),
        ("pool_size", pool_size),
        ("max_request_bytes", max_request_bytes),
    ):
        if not value > 0:
            raise InvalidArgument(f"{name} is {value}: use a number above 0")
    zones = sorted({one.zone for one in members if one.zone})
    if zone and zone not in zones:
        raise InvalidArgument(
            f"no member is in the zone {zone!r}: name zones with Member(address, zone); "
            f"the addresses have {', '.join(zones) or 'none'}"
        )


class Pool:
    """Connections to the members of one cluster."""

    def __init__(
        self,
        members: Sequence[Member],
        user: str,
        password: str,
        *,
        tls: ssl.SSLContext | None,
        size: int,
        zone: str,
        deadline_s: float,
    ) -> None:
        """Prepare a pool, which connects when a connection is needed.

        Args:
            members: addresses; the pool connects to no others.
            user: name of the user.
            password: password of the user.
            tls: context of the connections; None for plain ones.
            size: maximum number of connections for writes, all to one member.
            zone: zone of this client, for reads; "" reads from the member that takes writes.
            deadline_s: time limit of requests, for the text of errors.
        """
        self.addresses = [member.address for member in members]
        self.connect_s = CONNECT_S
        self.silence_s = SILENCE_S
        self._user = user
        self._password = password
        self._tls = tls
        self._size = size
        self._deadline_s = deadline_s
        self._near = [one.address for one in members if zone and one.zone == zone]
        random.shuffle(self._near)  # clients of a zone spread over its members
        self._writers: list[Link] = []
        self._reader: Link | None = None
        self._reader_failed_s = -DOUBT_S
        self._near_refused_s: dict[str, float] = {}  # times at which readers were left
        self._grow_failed_s = -DOUBT_S  # time at which the member accepted no further connection
        self._retired: set[Link] = set()
        self._uuids: dict[str, str] = {}  # instance uuid -> address
        self._known_s: dict[str, float] = {}  # address -> time of the newest log-in
        self.met = 0
        """Number of connections to an unknown member, perhaps of another cluster."""
        self._lost = ("", 0.0)  # address of the last lost connection, and its time
        self._lock = asyncio.Lock()
        self._reader_lock = asyncio.Lock()
        self._followers: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Timeout] = set()  # of tasks that `close` must wake
        self.is_closed = False

    async def close(self) -> None:
        """Close all connections. Requests from now on raise `ClientClosed`."""
        self.is_closed = True
        for waiting in self._waiting:
            if not waiting.expired():
                waiting.reschedule(0)
        for task in self._followers:
            task.cancel()
        for link in [*self._writers, *self._retired, *([self._reader] if self._reader else [])]:
            link.close()
        self._writers.clear()
        self._reader = None

    async def pause(self, wait_s: float, deadline: float) -> None:
        """Wait, but at most half of the time until the deadline, and not when the client closes."""
        if self.is_closed:
            return
        now_s = asyncio.get_running_loop().time()
        until = now_s + min(wait_s, (deadline - now_s) / 2)
        with contextlib.suppress(TimeoutError):
            async with self._wait(until):
                await asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def _wait(self, deadline: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` at the deadline, or when the client closes."""
        async with asyncio.timeout_at(deadline) as waiting:
            self._waiting.add(waiting)
            try:
                yield
            finally:
                self._waiting.discard(waiting)

    def observe(self, link: Link, outcome: Outcome, *, is_read: bool = False) -> None:
        """Leave a member that has refused each request, or each read, for `REFUSED_S`.

        Reads are counted apart: an isolated member may answer them, and refuse all else.
        """
        if not (isinstance(outcome, Refused) and outcome.code in _REFUSED):
            link.refused_s.pop(is_read, None)
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - link.refused_s.setdefault(is_read, now_s) <= REFUSED_S:
            return
        if link in self._writers:
            self._lose(link.address)
            self._retire_writers()
        elif link is self._reader:
            self._near_refused_s[link.address] = now_s
            self._reader = None
            self._retire(link)

    # --- connections for requests ---------------------------------------------------------------

    async def writer(self, deadline: float) -> Link:
        """Return a connection to the leader if it is known, else to the first reachable member.

        Args:
            deadline: time of the event loop.

        Raises:
            AccessDenied: a member refused the credentials, and no other one accepted them.
            ClientClosed: no member was reachable by the deadline.
        """
        if self.is_closed:
            raise ClientClosed("the client is closed")
        link = self._least_busy()
        if link is not None and (not self._can_grow(link) or self._lock.locked()):
            return link
        reason = ["another task connects"]
        try:
            async with self._wait(deadline), self._lock:
                link = self._least_busy()
                if link is not None:
                    return await self._grow(link) if self._can_grow(link) else link
                return await self._find(reason)
        except TimeoutError:
            if self.is_closed:
                raise ClientClosed("the client is closed") from None
            raise ClientClosed(
                f"no member answered within {self._deadline_s:g} s: {reason[0]}; "
                "check the addresses and that the members are available"
            ) from None

    async def reader(self, deadline: float) -> Link:
        """Return a connection to a member in the client's zone, or else `writer`.

        Raises:
            AccessDenied: as `writer`.
            ClientClosed: as `writer`.
        """
        if not self._near or self.is_closed:
            return await self.writer(deadline)
        if self._reader is not None and not self._reader.is_over:
            return self._reader
        with contextlib.suppress(TimeoutError):
            async with self._wait(deadline), self._reader_lock:
                if self._reader is None or self._reader.is_over:
                    self._reader = await self._find_near(deadline)
        return self._reader or await self.writer(deadline)

    def _least_busy(self) -> Link | None:
        alive = [link for link in self._writers if not link.is_over]
        if len(alive) < len(self._writers):
            lost = next(link for link in self._writers if link.is_over)
            self._lose(lost.address)
            self._writers = alive
        return min(alive, key=lambda link: link.pending, default=None)

    def _can_grow(self, link: Link) -> bool:
        if link.pending == 0 or len(self._writers) >= self._size:
            return False
        # Otherwise, each request would wait for one more attempt.
        return asyncio.get_running_loop().time() - self._grow_failed_s >= DOUBT_S

    async def _grow(self, link: Link) -> Link:
        """Return one more connection to the member of `link`, or `link` if it accepts no more."""
        try:
            more = await self._connect(link.address, self.connect_s)
            watcher = more.watch(_ELECTION)  # the first connection may end before this one
        except _FAILURES:
            self._grow_failed_s = asyncio.get_running_loop().time()
            return link
        self._writers.append(more)
        self._begin_following(more, watcher, "")
        return more

    # --- finding members ------------------------------------------------------------------------

    async def _find(self, reason: list[str]) -> Link:
        """Connect to one of the addresses, and retry until one accepts.

        Args:
            reason: receives the newest failure.

        Raises:
            AccessDenied: a member refused the credentials, and no other one accepted them.
        """
        # Each address must have its turn before the deadline.
        patience_s = min(self.connect_s, self._deadline_s / (len(self.addresses) + 1))
        known = ""  # the newest failure
        while True:
            denied: AccessDenied | None = None
            for address in list(self.addresses):
                if self.is_closed:
                    raise ClientClosed("the client is closed")
                # A known cause, such as a wrong certificate, helps more than the attempt under way.
                reason[0] = known or f"{address}: no answer yet"
                try:
                    return await self._connect_through(address, patience_s)
                except AccessDenied as error:
                    denied = error  # a lagging member may not know a new user yet
                    self._ask_last(address)
                except _FAILURES as error:
                    is_late = isinstance(error, TimeoutError) and not str(error)
                    text = f"no answer within {patience_s:g} s" if is_late else text_of(error)
                    known = reason[0] = f"{address}: {text}"
                    self._ask_last(address)
            if denied is not None:
                raise denied
            patience_s = min(patience_s * 2, CONNECT_MAX_S)
            await asyncio.sleep(AGAIN_S)

    def _lose(self, address: str) -> None:
        """Record the end of the connection to `address`: its member may return with any uuid."""
        self._ask_last(address)
        self._lost = (address, asyncio.get_running_loop().time())
        self._known_s.pop(address, None)

    def _ask_last(self, address: str) -> None:
        """Move `address` to the end of the list."""
        if address in self.addresses:
            self.addresses.remove(address)
            self.addresses.append(address)

    async def _connect_through(self, address: str, patience_s: float) -> Link:
        """Connect to the leader that the member at `address` names, or to that member."""
        link = await self._connect(address, patience_s)
        watcher, leader = await self._watch_leader(link, patience_s)
        if leader and leader != link.uuid:
            direct: Link | None = None
            try:
                async with asyncio.timeout(min(LEADER_S, patience_s)):
                    direct = await self._connect_to_leader(leader, patience_s)
                    if direct is not None:
                        watcher, leader = await self._watch_leader(direct, patience_s)
            except _FAILURES:
                direct = None  # `link` works, and the search continues in the background
            except BaseException:
                link.close()
                raise
            if direct is not None:
                link.close()
                link = direct
        self._use(link, watcher, leader)
        return link

    async def _watch_leader(self, link: Link, patience_s: float) -> tuple[Watcher, str]:
        """Return a watcher of the leader, and the uuid that the member knows for it, or ""."""
        try:
            watcher = link.watch(_ELECTION)
            async with asyncio.timeout(patience_s):
                return watcher, _leader_in(await watcher.get())
        except BaseException:
            link.close()
            raise

    async def _connect_to_leader(self, uuid: str, patience_s: float) -> Link | None:
        """Return a connection to the member `uuid`, or None if it cannot be reached."""
        address = self._uuids.get(uuid)
        now_s = asyncio.get_running_loop().time()
        lost, lost_s = self._lost
        doubtful = lost if now_s - lost_s < DOUBT_S else ""
        if address is not None:
            if address == doubtful:
                return None
            with contextlib.suppress(*_FAILURES):
                direct = await self._connect(address, patience_s)
                if direct.uuid == uuid:
                    return direct
                direct.close()
                self._uuids.pop(uuid, None)  # the address now belongs to another member
            return None
        known = {one for one, known_s in self._known_s.items() if now_s - known_s < KNOWN_S}
        known |= {link.address for link in self._writers if not link.is_over}
        unknown = [one for one in self.addresses if one not in known and one != doubtful]
        found: Link | None = None
        attempts = [asyncio.ensure_future(self._connect(one, patience_s)) for one in unknown]
        try:
            for attempt in asyncio.as_completed(attempts):
                with contextlib.suppress(*_FAILURES):
                    link = await attempt
                    if link.uuid == uuid:
                        found = link
                        return found
        finally:
            for one in attempts:
                one.add_done_callback(lambda done: _close_unless(done, found))
                one.cancel()
        return None

    async def _find_near(self, deadline: float) -> Link | None:
        """Return a connection to a member in the client's zone, or None if none is reachable."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._reader_failed_s < DOUBT_S:
            return None
        for address in list(self._near):
            if loop.time() - self._near_refused_s.get(address, -DOUBT_S) < DOUBT_S:
                continue
            patience_s = min(self.connect_s, deadline - loop.time())
            with contextlib.suppress(*_FAILURES):
                return await self._connect(address, patience_s)
            self._near.remove(address)
            self._near.append(address)
        self._reader_failed_s = loop.time()
        return None

    async def _connect(self, address: str, patience_s: float) -> Link:
        """Return a connection that is logged in.

        Raises:
            AccessDenied: the member refused the credentials.
            OSError: the member cannot be reached.
            QsyncError: the member refused the log-in for another reason.
            TimeoutError: the member did not answer within `patience_s`.
        """
        host, _, port = address.rpartition(":")
        link = Link(address, self._user, self._password, self.silence_s)
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, host.strip("[]"), int(port), ssl=self._tls
                )
                await link.log_in()
            if self.is_closed:
                raise ClientClosed("the client is closed")
        except BaseException:
            link.close()
            raise
        if link.uuid not in self._uuids:
            self.met += 1
        # A member that lost its disk has another uuid at the same address.
        self._uuids = {uuid: one for uuid, one in self._uuids.items() if one != address}
        self._uuids[link.uuid] = address
        self._known_s[address] = asyncio.get_running_loop().time()
        return link

    # --- following the leader -------------------------------------------------------------------

    def _use(self, link: Link, watcher: Watcher, leader: str) -> None:
        """Send requests through `link` from now on; its member names `leader`.

        Raises:
            ClientClosed: the client was closed meanwhile.
        """
        if self.is_closed:
            link.close()
            raise ClientClosed("the client is closed")
        self._retire_writers()
        self._writers = [link]
        self._grow_failed_s = -DOUBT_S
        self._begin_following(link, watcher, leader)

    def _begin_following(self, link: Link, watcher: Watcher, leader: str) -> None:
        task = asyncio.get_running_loop().create_task(self._follow(link, watcher, leader))
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    def _retire_writers(self) -> None:
        """Close the connections for writes as soon as their requests have ended."""
        for old in self._writers:
            self._retire(old)
        self._writers = []

    def _retire(self, old: Link) -> None:
        """Close a connection as soon as its requests have ended."""
        old.retire()
        self._retired.add(old)
        self._retired = {one for one in self._retired if not one.is_over}

    async def _follow(self, link: Link, watcher: Watcher, leader: str) -> None:
        """Move to another leader when `link` reports one, and end with `link`."""
        with contextlib.suppress(ConnectionError, ClientClosed):
            while not link.is_over:
                if leader and leader != link.uuid and await self._move(link, leader):
                    return
                # A leader that cannot be reached now may be reachable later.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DOUBT_S):
                        leader = _leader_in(await watcher.get())

    async def _move(self, link: Link, leader: str) -> bool:
        """Replace `link` by a connection to the leader, and return whether this succeeded."""
        async with self._lock:
            if link not in self._writers:
                return True
            direct = await self._connect_to_leader(leader, self.connect_s)
            if direct is None:
                return False
            try:
                watcher, leader = await self._watch_leader(direct, self.connect_s)
            except _FAILURES:
                return False
            self._use(direct, watcher, leader)
            return True


def _close_unless(done: "asyncio.Future[Link]", found: Link | None) -> None:
    """Close a connection that an attempt made, if it is not `found`."""
    if not done.cancelled() and done.exception() is None and done.result() is not found:
        done.result().close()


def _leader_in(election: object) -> str:
    """Return the uuid of the leader in a value of `box.election`, or ""."""
    return str(election.get("leader_uuid") or "") if isinstance(election, dict) else ""
