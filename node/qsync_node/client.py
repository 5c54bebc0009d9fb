"""An asynchronous client that reports the known outcome of a write and retries only safe requests.

    async with Client(addresses, "app", password) as client:
        outcome = await client.insert(512, [1, "first"])
        match outcome:
            case Committed(tuples):
                print("a quorum holds it:", tuples)
            case RolledBack(reason):
                print("it has no effect and never will:", reason)
            case Unknown(reason):
                print("it may or may not take effect:", reason)
            case Refused(code, reason):
                print("nothing was logged, repeating is safe:", code, reason)

        async with client.transaction() as transaction:
            await transaction.update(512, [1], [["=", 1, "changed"]])
            await transaction.insert(512, [2, "second"])
        print(transaction.outcome)

The client sends requests to the leader, and finds it again after a failover: every member knows the
leader and can forward requests. If a connection returns no answer, even to a PING, the client
considers the machine unavailable and connects to another member.

With `retry=True` (the default for writes) each write carries an idempotency key. If the outcome is
*unknown*, the client retries under the same key until the outcome is known or `deadline_s` has
passed. The cluster executes the write at most once (T9). The key carries a mark, a recent index of
the log, that the client renews as it writes. Wrong credentials end the first request with
`AccessDenied`.
"""

import asyncio
import contextlib
import itertools
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgpack

from qsync_node.errors import ErrorCode, QsyncError
from qsync_node.format.auth import scramble
from qsync_node.format.frame import FrameDecoder, FrameError
from qsync_node.format.greeting import GreetingError, decode_greeting
from qsync_node.format.keys import Type
from qsync_node.format.row import encode_uint

_ROLLED_BACK = (int(ErrorCode.SYNC_QUORUM_TIMEOUT), int(ErrorCode.SYNC_ROLLBACK))
_UNKNOWN = (int(ErrorCode.OUTCOME_UNKNOWN), int(ErrorCode.KEY_EXPIRED))
_TRY_AGAIN = (int(ErrorCode.NOT_LEADER), int(ErrorCode.LOADING), int(ErrorCode.READONLY))
# A member may return these before it searches for the key: an earlier attempt may have succeeded.
_UNHEARD = (
    *_TRY_AGAIN,
    int(ErrorCode.DISK_FULL),
    int(ErrorCode.MEMORY_ISSUE),
    int(ErrorCode.SYNC_QUEUE_FULL),
    int(ErrorCode.TOO_MANY),
)
_DENIED = (
    int(ErrorCode.PASSWORD_MISMATCH),
    int(ErrorCode.NO_SUCH_USER),
    int(ErrorCode.ACCESS_DENIED),
)
_IDEMPOTENCY = 0x70
MARK_AGE_S = 1.0
"""Maximum age of a mark in a key. The window of keys is counted in rows of the log, by default
100,000: seconds under full load."""
RETRY_WAIT_S = 0.02
CONNECT_S = 1.0
"""Initial time limit per address, doubled each round up to `CONNECT_MAX_S`: an unavailable machine
must not delay the connection to another one, and a busy one needs time."""
CONNECT_MAX_S = 8.0
DOUBT_S = 5.0
"""Time after the loss of a connection in which hints that its member leads are ignored."""
SILENCE_S = 1.0
"""Time without a byte, while answers are pending, after which the client sends a PING. After twice
that time it closes the connection. A write may wait longer for its quorum, because the member still
answers PINGs."""


class ClientClosed(QsyncError):  # noqa: N818  # a state, not a failure
    """The client was closed, or never connected."""


class StatementFailed(QsyncError):  # noqa: N818  # named like its outcomes
    """A request in a transaction failed; `outcome` is its outcome."""

    def __init__(self, outcome: "RolledBack | Unknown | Refused") -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class AccessDenied(QsyncError):  # noqa: N818  # named like Python's PermissionError
    """No member accepts the user and password; `code` is an ErrorCode."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Committed:
    """An executed request, with the tuples of its answer.

    A quorum has a write to a synchronous space, and every later leader will have it. A failover may
    lose a write to an asynchronous space.
    """

    tuples: list[Any]
    index: int = 0
    """Log index of a write with an idempotency key: a member that has confirmed it has the write.
    0 for reads and for requests that logged nothing."""
    position: bytes = b""
    """Where the next page of a `select` begins, if `fetch_position` was given."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The write has no effect and never will."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may or may not take effect: read before a retry. `code` is 0 without an answer."""

    reason: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was logged; `code` is an ErrorCode."""

    code: int
    reason: str


Outcome = Committed | RolledBack | Unknown | Refused
RequestKey = tuple[str, int, int]
"""An idempotency key: client, number of the request, and mark."""


class _Connection(asyncio.Protocol):
    """One connection to one member."""

    def __init__(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self._loop = loop
        self._heard_at_s = loop.time()
        self._has_pinged = False
        self.greeting: asyncio.Future[bytes] = loop.create_future()
        self.waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self.lost = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._buffer = b""
        self._decoder: FrameDecoder | None = None
        self._sync = itertools.count(1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's class is not asyncio's
        self._loop.call_later(SILENCE_S / 2, self._watch)

    def _watch(self) -> None:
        """Check the connection twice per `SILENCE_S`."""
        if self.transport is None or self.transport.is_closing():
            return
        silent_s = self._loop.time() - self._heard_at_s if self.waiting else 0.0
        if silent_s > 2 * SILENCE_S:
            self.close()
            return
        if silent_s > SILENCE_S and not self._has_pinged:
            self._has_pinged = True
            self._send(int(Type.PING), next(self._sync), b"", {})
        self._loop.call_later(SILENCE_S / 2, self._watch)

    def data_received(self, data: bytes) -> None:
        self._heard_at_s = self._loop.time()
        self._has_pinged = False
        if self._decoder is None:
            self._buffer += data
            if len(self._buffer) < 128:
                return
            data, self._decoder = self._buffer[128:], FrameDecoder()
            if not self.greeting.done():
                self.greeting.set_result(self._buffer[:128])
        try:
            frames = self._decoder.feed(data) if data else []
        except FrameError:
            self.close()
            return
        for kind, sync, _, body in frames:
            waiting = self.waiting.pop(sync, None)
            if waiting is not None and not waiting.done():
                waiting.set_result((kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        if not self.greeting.done():
            self.greeting.set_exception(ConnectionError("the connection broke"))
            self.greeting.exception()  # marks the failure as handled if no task waits
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection broke"))
        self.waiting.clear()

    @property
    def is_over(self) -> bool:
        return self.lost.done() or self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, kind: int, body: bytes, stream: int = 0, key: Any = None) -> Any:
        """Return (type, body) of the answer. Raises ConnectionError without one."""
        if self.is_over:
            raise ConnectionError("not connected")
        sync = next(self._sync)
        more: dict[int, Any] = {0x0A: stream} if stream else {}
        if key is not None:
            more[_IDEMPOTENCY] = key
        if not self.waiting:
            self._heard_at_s = self._loop.time()
        future = self._loop.create_future()
        self.waiting[sync] = future
        self._send(kind, sync, body, more)
        return await future

    def _send(self, kind: int, sync: int, body: bytes, more: dict[int, Any]) -> None:
        assert self.transport is not None
        packed = msgpack.packb({0x00: kind, 0x01: sync, **more}) + body
        self.transport.write(b"\xce" + len(packed).to_bytes(4, "big") + packed)


class _ProcedureDenied(QsyncError):  # noqa: N818  # named like AccessDenied
    """The user cannot execute procedures."""


class Client:
    """A client of one cluster. Many tasks may use it concurrently."""

    def __init__(
        self,
        addresses: Sequence[str],
        user: str,
        password: str,
        *,
        deadline_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a client, which connects at its first request.

        Args:
            addresses: HOST:PORT of members. The client connects to no other addresses.
            user: name of the user.
            password: password of the user.
            deadline_s: time limit of a request with all its attempts, in seconds.
            tls: context of the connections; None for plain ones.

        Requests raise ClientClosed if no member could be reached by the deadline. They raise
        AccessDenied as soon as a member refuses the credentials and no other one accepts them.
        """
        self.addresses = list(addresses)
        self.tls = tls
        self.user = user
        self.password = password
        self.deadline_s = deadline_s
        self.client_id = os.urandom(12).hex()
        self._numbers = itertools.count(1)
        self._streams = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._uuids: dict[str, str] = {}  # instance uuid -> address
        self._mark = 0
        self._mark_s = 0.0  # time of the request for the mark
        self._marking: asyncio.Lock = asyncio.Lock()
        self._lost = ("", 0.0)  # address of the last lost connection, and its time

    async def __aenter__(self) -> "Client":
        await self._connected(self._deadline())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- connecting -----------------------------------------------------------------------------

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.deadline_s

    async def _connected(self, deadline: float) -> _Connection:
        """Return a connection to the leader if it is known, else to the first reachable member.

        Raises:
            AccessDenied: a member refused the credentials, and no other one accepted them.
            ClientClosed: no member was reachable by the deadline.
        """
        reason = "the list of addresses is empty"
        patience_s = CONNECT_S
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                while True:
                    connection = self._connection
                    if connection is not None and not connection.is_over:
                        return connection
                    if connection is not None:
                        self._ask_last(connection.address)
                        self._lost = (connection.address, asyncio.get_running_loop().time())
                        self._connection = None
                    denied: AccessDenied | None = None
                    for address in list(self.addresses):
                        try:
                            self._connection = await self._connect_through(address, patience_s)
                            return self._connection
                        except AccessDenied as error:
                            denied = error  # a lagging member may not know a new user yet
                            self._ask_last(address)
                        except (OSError, TimeoutError, GreetingError, QsyncError) as error:
                            reason = f"{address}: {error or type(error).__name__}"
                            self._ask_last(address)
                    if denied is not None:
                        raise denied
                    patience_s = min(patience_s * 2, CONNECT_MAX_S)
                    await asyncio.sleep(RETRY_WAIT_S * 5)
        except TimeoutError:
            raise ClientClosed(
                f"no member answered within {self.deadline_s:.0f} s: {reason}"
            ) from None

    def _ask_last(self, address: str) -> None:
        """Move `address` to the end of the list."""
        if address in self.addresses:
            self.addresses.remove(address)
            self.addresses.append(address)

    async def _connect_through(self, address: str, patience_s: float) -> _Connection:
        connection = await self._connect(address, patience_s)
        try:
            leader = await self._leader_of(connection)
        except _ProcedureDenied:
            # The user's requests are forwarded to the leader. It lacks the mark that keys need, so
            # it changes rows in transactions.
            return connection
        target = self._uuids.get(leader, "") if leader else ""
        lost, lost_s = self._lost
        is_doubtful = target == lost and asyncio.get_running_loop().time() - lost_s < DOUBT_S
        if target and target != address and not is_doubtful:
            try:
                direct = await self._connect(target, patience_s)
            except (OSError, TimeoutError):
                return connection
            connection.close()
            connection = direct
        await self._take_mark(connection)
        return connection

    async def _take_mark(self, connection: _Connection) -> None:
        asked_s = asyncio.get_running_loop().time()
        self._mark = int((await self._call(connection, "qsync.mark"))[0])
        self._mark_s = asked_s

    async def _new_key(self, deadline: float) -> RequestKey:
        """Return a key with a recent mark, or with the old mark if no member returns a new one."""
        loop = asyncio.get_running_loop()
        async with self._marking:
            if loop.time() - self._mark_s > MARK_AGE_S:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout_at(min(deadline, loop.time() + MARK_AGE_S)):
                        await self._take_mark(await self._connected(deadline))
        return self.client_id, next(self._numbers), self._mark

    async def _connect(self, address: str, patience_s: float) -> _Connection:
        host, _, port = address.rpartition(":")
        connection = _Connection(address)
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, host.strip("[]"), int(port), ssl=self.tls
                )
                await self._log_in(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _log_in(self, connection: _Connection) -> None:
        greeting = decode_greeting(await connection.greeting)
        self._uuids[greeting.instance_uuid] = connection.address
        proof = scramble(self.password, greeting.salt)
        body = msgpack.packb({0x23: self.user, 0x21: ["chap-sha1", proof]})
        kind, answer = await connection.ask(int(Type.AUTH), body)
        if kind:
            code = kind & 0x7FFF
            reason = str(msgpack.unpackb(answer, strict_map_key=False).get(0x31))
            if code in _DENIED:
                raise AccessDenied(
                    code, f"log-in as {self.user} at {connection.address} failed: {reason}"
                )
            raise QsyncError(reason)

    async def _leader_of(self, connection: _Connection) -> str:
        found = await self._call(connection, "qsync.status")
        return str(found[0].get("leader_uuid", ""))

    async def _call(self, connection: _Connection, name: str) -> list[Any]:
        body = msgpack.packb({0x22: name, 0x21: []})
        kind, answer = await connection.ask(int(Type.CALL), body)
        fields = msgpack.unpackb(answer, strict_map_key=False)
        if kind & 0x7FFF == ErrorCode.ACCESS_DENIED:
            raise _ProcedureDenied(str(fields.get(0x31)))
        if kind:
            raise QsyncError(str(fields.get(0x31)))
        data: list[Any] = fields[0x30]
        return data

    # --- requests -------------------------------------------------------------------------------

    async def new_key(self) -> RequestKey:
        """Return an idempotency key for one write.

        A write makes its own key. A caller that keeps the key can repeat the same write later, also
        in another process, and gets the outcome of the first attempt.

        Raises:
            AccessDenied: no member accepts the credentials.
            ClientClosed: no member was reachable by the deadline.
        """
        return await self._new_key(self._deadline())

    async def insert(
        self,
        space: int,
        fields: Sequence[Any],
        *,
        retry: bool = True,
        request_key: RequestKey | None = None,
    ) -> Outcome:
        body = _body(space, {0x21: list(fields)})
        return await self._write(int(Type.INSERT), body, retry, request_key)

    async def replace(
        self,
        space: int,
        fields: Sequence[Any],
        *,
        retry: bool = True,
        request_key: RequestKey | None = None,
    ) -> Outcome:
        body = _body(space, {0x21: list(fields)})
        return await self._write(int(Type.REPLACE), body, retry, request_key)

    async def update(
        self,
        space: int,
        key: Sequence[Any],
        ops: Sequence[Any],
        *,
        retry: bool = True,
        request_key: RequestKey | None = None,
    ) -> Outcome:
        body = _body(space, {0x11: 0, 0x20: list(key), 0x21: [list(op) for op in ops]})
        return await self._write(int(Type.UPDATE), body, retry, request_key)

    async def delete(
        self,
        space: int,
        key: Sequence[Any],
        *,
        retry: bool = True,
        request_key: RequestKey | None = None,
    ) -> Outcome:
        body = _body(space, {0x11: 0, 0x20: list(key)})
        return await self._write(int(Type.DELETE), body, retry, request_key)

    async def upsert(
        self, space: int, fields: Sequence[Any], ops: Sequence[Any], *, retry: bool = True
    ) -> Outcome:
        body = _body(space, {0x21: list(fields), 0x28: [list(op) for op in ops]})
        return await self._write(int(Type.UPSERT), body, retry)

    async def select(
        self,
        space: int,
        key: Sequence[Any] = (),
        *,
        index: int = 0,
        iterator: int = 0,
        limit: int = 1000,
        linearizable: bool = False,
        after: bytes = b"",
        fetch_position: bool = False,
    ) -> Outcome:
        """Read confirmed rows.

        Args:
            space: id of the space.
            key: parts of the key; () for all rows.
            index: id of the index.
            iterator: a value of `format.keys.Iterator`.
            limit: maximum number of rows.
            linearizable: True for a state that is no older than any earlier answer.
            after: `Committed.position` of the page before; b"" begins with the first row.
            fetch_position: True to return where the next page begins.
        """
        more = _selection(key, index, iterator, limit, after, fetch_position)
        if linearizable:
            more[0x59] = 4
        return await self._until_known(int(Type.SELECT), _body(space, more))

    async def publish(
        self,
        journal: str,
        content: bytes,
        *,
        retry: bool = True,
        request_key: RequestKey | None = None,
    ) -> Outcome:
        """Publish to a journal in a transaction of its own.

        Returns:
            `Committed` with the sequence of the publication, or without tuples if only a retry
            was answered.
        """
        body = _call("qsync.publish", journal, content)
        return await self._write(int(Type.CALL), body, retry, request_key)

    async def publication(self, journal: str, sequence: int, wait_s: float = 0.0) -> Outcome:
        """Return the state of a publication: `pending`, `published` with offsets, or `unknown`.

        Args:
            journal: name of the journal.
            sequence: the sequence of the publication.
            wait_s: time to wait until the journal contains it, less than the client's deadline.
        """
        return await self.call("qsync.publication", journal, sequence, wait_s)

    async def call(self, name: str, *arguments: Any) -> Outcome:
        """Call a procedure once."""
        return await self._write(int(Type.CALL), _call(name, *arguments), False)

    async def _write(
        self, kind: int, body: bytes, retry: bool, key: RequestKey | None = None
    ) -> Outcome:
        if not retry:
            deadline = self._deadline()
            connection = await self._connected(deadline)
            try:
                async with asyncio.timeout_at(deadline):
                    return _outcome(*await connection.ask(kind, body))
            except (ConnectionError, TimeoutError) as error:
                return Unknown(str(error) or "no answer before the deadline")
        return await self._until_known(kind, body, is_keyed=True, given=key)

    async def _until_known(
        self, kind: int, body: bytes, *, is_keyed: bool = False, given: RequestKey | None = None
    ) -> Outcome:
        """Send a request, and retry it under the same key until the outcome is known."""
        deadline = self._deadline()
        unknown: Unknown | None = None  # an attempt may have been logged
        key = given or (await self._new_key(deadline) if is_keyed else None)
        while True:
            outcome = await self._attempt(kind, body, key, deadline, unknown)
            if isinstance(outcome, Unknown):
                # The key expired, and no earlier attempt can have used it: renew it.
                is_unused = outcome.code == ErrorCode.KEY_EXPIRED and unknown is None
                if (
                    given is None
                    and is_unused
                    and asyncio.get_running_loop().time() + RETRY_WAIT_S < deadline
                ):
                    self._mark_s = 0.0
                    key = await self._new_key(deadline)
                    continue
                unknown = outcome
                is_known = outcome.code == ErrorCode.KEY_EXPIRED
            elif isinstance(outcome, Refused):
                is_known = outcome.code not in (_TRY_AGAIN if unknown is None else _UNHEARD)
            else:
                is_known = True
            if is_known:
                return outcome
            if asyncio.get_running_loop().time() + RETRY_WAIT_S >= deadline:
                return unknown or outcome
            await asyncio.sleep(RETRY_WAIT_S)

    async def _attempt(
        self, kind: int, body: bytes, key: Any, deadline: float, unknown: Unknown | None
    ) -> Outcome:
        """Make one attempt.

        Args:
            kind: type of the request.
            body: body of the request.
            key: idempotency key, or None.
            deadline: time of the event loop.
            unknown: outcome of an earlier attempt that may have been logged, or None.

        Raises:
            ClientClosed: no member is reachable, and `unknown` is None.
        """
        try:
            connection = await self._connected(deadline)
        except ClientClosed:
            if unknown is None:
                raise
            return unknown
        try:
            async with asyncio.timeout_at(deadline):
                return _outcome(*await connection.ask(kind, body, 0, key))
        except (ConnectionError, TimeoutError) as error:
            return Unknown(str(error) or "no answer before the deadline")

    def transaction(self, isolation: int = 0, *, has_key: bool = False) -> "ClientTransaction":
        """Return a transaction. `async with` commits it, or rolls it back on an error.

        Args:
            isolation: 0 for the default of the member, 1 for read-committed, 2 for read-confirmed,
                3 for best-effort, 4 for linearizable.
            has_key: True to commit with an idempotency key, so that `Committed` has the index.
        """
        return ClientTransaction(self, next(self._streams), isolation, has_key)


class ClientTransaction:
    """One interactive transaction. After the block, `outcome` contains its outcome."""

    def __init__(
        self, client: Client, stream: int, isolation: int = 0, has_key: bool = False
    ) -> None:
        self._client = client
        self._stream = stream
        self._isolation = isolation
        self._has_key = has_key
        self._key: RequestKey | None = None
        self._connection: _Connection | None = None
        self.outcome: Outcome | None = None

    async def __aenter__(self) -> "ClientTransaction":
        self._connection = await self._client._connected(self._client._deadline())
        if self._has_key:
            with contextlib.suppress(_ProcedureDenied):
                self._key = await self._client.new_key()
        await self._ask(int(Type.BEGIN), msgpack.packb({0x59: self._isolation}))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # If the connection ends, the member rolls the transaction back.
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._ask(int(Type.ROLLBACK), b"\x80", must_succeed=False)
            return
        assert self._connection is not None
        try:
            async with asyncio.timeout(self._client.deadline_s):
                answer = await self._connection.ask(
                    int(Type.COMMIT), b"\x80", self._stream, self._key
                )
            self.outcome = _outcome(*answer)
            if isinstance(self.outcome, Unknown) and self.outcome.code == ErrorCode.KEY_EXPIRED:
                self.outcome = RolledBack(self.outcome.reason)  # the only attempt did not run
        except (ConnectionError, TimeoutError) as broken:
            self.outcome = Unknown(str(broken) or "no answer before the deadline")

    async def _ask(self, kind: int, body: bytes, must_succeed: bool = True) -> list[Any]:
        assert self._connection is not None
        async with asyncio.timeout(self._client.deadline_s):
            outcome = _outcome(*await self._connection.ask(kind, body, self._stream))
        if isinstance(outcome, Committed):
            return outcome.tuples
        if must_succeed:
            raise StatementFailed(outcome)
        return []

    async def select(
        self,
        space: int,
        key: Sequence[Any] = (),
        *,
        index: int = 0,
        iterator: int = 0,
        limit: int = 1000,
    ) -> list[Any]:
        more = _selection(key, index, iterator, limit, b"", False)
        return await self._ask(int(Type.SELECT), _body(space, more))

    async def replace(self, space: int, fields: Sequence[Any]) -> list[Any]:
        return await self._ask(int(Type.REPLACE), _body(space, {0x21: list(fields)}))

    async def insert(self, space: int, fields: Sequence[Any]) -> list[Any]:
        return await self._ask(int(Type.INSERT), _body(space, {0x21: list(fields)}))

    async def update(self, space: int, key: Sequence[Any], ops: Sequence[Any]) -> list[Any]:
        body = _body(space, {0x11: 0, 0x20: list(key), 0x21: [list(op) for op in ops]})
        return await self._ask(int(Type.UPDATE), body)

    async def delete(self, space: int, key: Sequence[Any]) -> list[Any]:
        return await self._ask(int(Type.DELETE), _body(space, {0x11: 0, 0x20: list(key)}))

    async def upsert(self, space: int, fields: Sequence[Any], ops: Sequence[Any]) -> list[Any]:
        body = _body(space, {0x21: list(fields), 0x28: [list(op) for op in ops]})
        return await self._ask(int(Type.UPSERT), body)

    async def publish(self, journal: str, content: bytes) -> None:
        """Publish to a journal; `outcome` contains journal and sequence after the block."""
        await self._ask(int(Type.CALL), _call("qsync.publish", journal, content))


def _call(name: str, *arguments: Any) -> bytes:
    packed: bytes = msgpack.packb({0x22: name, 0x21: list(arguments)})
    return packed


def _body(space: int, more: dict[int, Any]) -> bytes:
    """Encode the body of a request. The space comes first, for the fast path of the server."""
    parts = [bytes((0x81 + len(more),)), b"\x10", encode_uint(space)]
    for key, value in more.items():
        parts += [encode_uint(key), msgpack.packb(value)]
    return b"".join(parts)


def _selection(
    key: Sequence[Any], index: int, iterator: int, limit: int, after: bytes, wants_position: bool
) -> dict[int, Any]:
    """Return the fields of a SELECT."""
    more: dict[int, Any] = {0x11: index, 0x12: limit, 0x13: 0, 0x14: iterator, 0x20: list(key)}
    if after:
        more[0x2E] = after
    if wants_position:
        more[0x1F] = True
    return more


def _outcome(kind: int, body: bytes) -> Outcome:
    fields = msgpack.unpackb(body, strict_map_key=False) if body else {}
    if kind == 0:
        position = fields.get(0x35, b"")
        return Committed(
            fields.get(0x30, []),
            int(fields.get(0x71, 0)),
            position.encode() if isinstance(position, str) else position,
        )
    code, reason = kind & 0x7FFF, str(fields.get(0x31, ""))
    if code in _ROLLED_BACK:
        return RolledBack(reason)
    if code in _UNKNOWN:
        return Unknown(reason, code)
    return Refused(code, reason)
