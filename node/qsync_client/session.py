"""Connections, keys and the schema of one client, and the repeated attempts of its requests."""

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

from qsync_client.errors import (
    AccessDenied,
    ClientClosed,
    InvalidArgument,
    QsyncError,
    RequestFailed,
    SchemaError,
    hopeless_error,
    text_of,
)
from qsync_client.keys import MARK_AGE_S, FirstUse, GivenKey, Keys, RequestKey, checked_key
from qsync_client.link import Link
from qsync_client.outcomes import Committed, Outcome, Refused, Unknown, outcome_of
from qsync_client.pool import Pool
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.constants import Iterator
from qsync_client.protocol.packing import INVALID
from qsync_client.requests import PING, ClientRequest, SpaceTarget, call
from qsync_client.retry import Retry, RetryStep
from qsync_client.schema import VINDEX, VSPACE, Schema, decode_schema

RETRY_WAIT_S = 0.02
"""First pause between attempts, which grows by `_WAIT_GROWTH` up to `RETRY_WAIT_MAX_S`."""
RETRY_WAIT_MAX_S = 1.0
_WAIT_GROWTH = 1.5
MAX_REQUEST_BYTES = 16 << 20
"""Maximum size of a request unless the server's `max_request` differs."""
_HEADER_BYTES = 512  # more than a header with a key of the maximum size
_SCHEMA_ROWS_MAX = 1_000_000

Make = Callable[[SpaceTarget], ClientRequest]
"""Builds a request for a space."""


class Waits:
    """The growing pauses between the attempts of one request, with jitter."""

    def __init__(self) -> None:
        self._next_s = RETRY_WAIT_S

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        wait_s = self._next_s
        self._next_s = min(wait_s * _WAIT_GROWTH, RETRY_WAIT_MAX_S)
        return wait_s * random.uniform(0.5, 1.0)


class Session:
    """The state of one client."""

    def __init__(
        self,
        pool: Pool,
        keys: Keys,
        deadline_s: float,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.pool = pool
        self.keys = keys
        self.deadline_s = deadline_s
        self._streams = itertools.count(1)
        self._marking = asyncio.Lock()
        self._schema: Schema | None = None
        self._schema_met = 0  # `Pool.met` at the time of the schema
        self._marked_met = 0  # the same of the newest mark
        self._reading_schema = asyncio.Lock()
        self._max_request_bytes = max_request_bytes
        self._owner: tuple[asyncio.AbstractEventLoop, int] | None = None

    def deadline(self) -> float:
        """Return the time of the event loop at which a request of now ends.

        Raises:
            QsyncError: the client belongs to another event loop or process.
        """
        loop = asyncio.get_running_loop()
        owner = (loop, os.getpid())
        if self._owner is None:
            self._owner = owner
        if self._owner[0] is not loop:
            raise QsyncError(
                "the request was not sent: the client belongs to another event loop; "
                "create one client per loop"
            )
        if self._owner != owner:
            raise QsyncError(
                "the request was not sent: the client belongs to the parent process; "
                "create a client after the fork"
            )
        return loop.time() + self.deadline_s

    async def close(self) -> None:
        """Close all connections.

        Raises:
            QsyncError: the client belongs to another event loop or process.
        """
        if self._owner is not None and self._owner[0].is_closed():
            return  # the loop has closed its connections
        self.deadline()
        await self.pool.close()

    def next_stream(self) -> int:
        """Return the number of a new stream."""
        return next(self._streams)

    # --- schema ---------------------------------------------------------------------------------

    async def read_schema(self, deadline: float) -> Schema:
        """Read the schema from a member. Tasks that wait for it share the result."""
        before = self._schema
        reason = "it changed during each read"
        waits = Waits()
        async with self._reading_schema:
            if self._schema is not None and self._schema is not before:
                return self._schema
            while True:
                try:
                    found = await self._read_schema_once(deadline)
                    if found is not None:
                        self._schema = found
                        return found
                except (ConnectionError, TimeoutError) as error:
                    reason = text_of(error)
                if asyncio.get_running_loop().time() + RETRY_WAIT_S >= deadline:
                    raise ClientClosed(
                        f"no member returned the schema within {self.deadline_s:g} s: {reason}; "
                        "check that the members are available"
                    )
                await self.pool.pause(waits.next_s(), deadline)

    async def _read_schema_once(self, deadline: float) -> Schema | None:
        """Return the schema, or None if it changed during the reads.

        The version comes first and the reads carry it. A later change makes the version too old,
        never the names: then the next request is refused, and the schema is read again.
        """
        link = await self.pool.writer(deadline)
        met = self.pool.met
        tables: list[list[Any]] = []
        async with asyncio.timeout_at(deadline):
            version = (await link.ask(PING)).schema_version
            for space in (VSPACE, VINDEX):
                plain = SpaceTarget(space, None).select((), 0, Iterator.ALL, _SCHEMA_ROWS_MAX)
                request = ClientRequest(plain.kind, plain.body, None, version)
                answer = await link.ask(request)
                outcome = outcome_of(answer.kind, answer.body)
                self.pool.observe(link, outcome, is_read=True)
                error = hopeless_error(outcome)
                if error is not None:
                    raise error
                if not isinstance(outcome, Committed):
                    return None
                tables.append(outcome.tuples)
        try:
            found = decode_schema(version, tables[0], tables[1])
        except INVALID as error:
            raise ConnectionError(f"the server sent an invalid schema: {text_of(error)}") from error
        self._schema_met = met  # if the client has met another member meanwhile, names are not used
        return found

    async def request(self, space: int | str, make: Make, deadline: float) -> ClientRequest:
        """Return a request with its names replaced by ids.

        Raises:
            InvalidArgument: a value has no msgpack, or the request is too large.
            SchemaError: a name does not exist, also in the newest schema.
        """
        if not isinstance(space, str):
            return self._checked(make(SpaceTarget(space, None)))
        # Another cluster may have the same version of the schema, and other names.
        if self._schema is not None and self._schema_met == self.pool.met:
            with contextlib.suppress(SchemaError):
                return self._checked(make(SpaceTarget(space, self._schema)))
        return self._checked(make(SpaceTarget(space, await self.read_schema(deadline))))

    def _checked(self, request: ClientRequest) -> ClientRequest:
        """Return a request that the server can receive.

        Raises:
            InvalidArgument: it is too large. The server would close the connection.
        """
        size = len(request.body) + _HEADER_BYTES
        if size > self._max_request_bytes:
            raise InvalidArgument(
                f"the request cannot be sent: it has {size} bytes, and the server receives "
                f"{self._max_request_bytes}; divide it, or set max_request of the server and "
                "max_request_bytes of the client"
            )
        return request

    # --- attempts -------------------------------------------------------------------------------

    async def until_known(
        self,
        space: int | str,
        make: Make,
        *,
        is_keyed: bool = False,
        given: GivenKey | None = None,
        is_read: bool = False,
        is_repeated: bool = True,
    ) -> Outcome:
        """Send a request, and retry it under the same key until the outcome is known.

        Args:
            space: the space.
            make: builds the request; called again after the schema changed.
            is_keyed: True to draw an idempotency key.
            given: key of the caller; a `FirstUse` begins FRESH (`qsync_client.retry`).
            is_read: True if a member of the client's zone may answer.
            is_repeated: False to return the outcome of the first attempt that was executed.
        """
        loop = asyncio.get_running_loop()
        deadline = self.deadline()
        is_first = given is None or isinstance(given, FirstUse)
        key = given.key if isinstance(given, FirstUse) else given
        if key is not None:
            key = checked_key(key)
        request = await self.request(space, make, deadline)
        if key is None and is_keyed:
            key = await self.new_key(deadline)
        retry = Retry(is_keyed=key is not None, is_key_given=given is not None, is_first=is_first)
        waits = Waits()
        while True:
            outcome = await self._attempt(request, key, deadline, retry.unknown, is_read)
            step = retry.after(outcome)
            if step is RetryStep.RETURN:
                return retry.outcome
            if step is RetryStep.RAISE:
                error = hopeless_error(outcome)
                assert error is not None, outcome
                raise error
            if loop.time() + RETRY_WAIT_S >= deadline or self.pool.is_closed:
                return retry.outcome
            if step is RetryStep.READ_SCHEMA:
                await self.read_schema(deadline)
                request = await self.request(space, make, deadline)
            elif not is_repeated:
                return retry.outcome
            elif step is RetryStep.RENEW_KEY:
                self.keys.expire()
                key = await self.new_key(deadline)
            await self.pool.pause(waits.next_s(), deadline)

    async def _attempt(
        self,
        request: ClientRequest,
        key: RequestKey | None,
        deadline: float,
        unknown: Unknown | None,
        is_read: bool,
    ) -> Outcome:
        """Make one attempt.

        Args:
            request: the request.
            key: idempotency key, or None.
            deadline: time of the event loop.
            unknown: outcome of an earlier attempt that may have been logged, or None.
            is_read: True if a member of the client's zone may answer.

        Raises:
            AccessDenied: no member accepts the credentials, and `unknown` is None.
            ClientClosed: no member is reachable, and `unknown` is None.
        """
        try:
            pool = self.pool
            link = await (pool.reader(deadline) if is_read else pool.writer(deadline))
        except (AccessDenied, ClientClosed):
            if unknown is None:
                raise
            return unknown
        # A repeated write must have the same body, so its names are not looked up again.
        is_checked = key is None or unknown is None
        if is_checked and request.schema_version and self._schema_met != self.pool.met:
            return Refused(ErrorCode.WRONG_SCHEMA_VERSION, "the client has met another member")
        asked_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline):
                answer = await link.ask(request, key=key, is_checked=is_checked)
        except (ConnectionError, TimeoutError) as error:
            return Unknown(str(error) or "no answer before the deadline")
        outcome = outcome_of(answer.kind, answer.body, request.as_row)
        self.pool.observe(link, outcome, is_read=is_read)
        if isinstance(outcome, Committed) and outcome.at:
            self.renew(outcome.at, asked_s)
        return outcome

    # --- keys -----------------------------------------------------------------------------------

    async def new_key(self, deadline: float) -> RequestKey:
        """Return a key with a recent mark, or with the old mark if no member returns a new one.

        Raises:
            AccessDenied: the credentials are wrong.
            ClientClosed: no member was reachable by the deadline.
        """
        loop = asyncio.get_running_loop()
        waits = Waits()
        await self.pool.writer(deadline)  # it may be another cluster, whose log is shorter
        self._distrust_mark_of_others()
        if self.keys.is_stale(loop.time()):
            async with self._marking:
                while self.keys.is_stale(loop.time()):
                    try:
                        limit = min(deadline, loop.time() + MARK_AGE_S)
                        await self._take_mark(await self.pool.writer(deadline), limit)
                    except (ConnectionError, TimeoutError, RequestFailed) as error:
                        if self.keys.mark:
                            break  # an old mark is better than none: only the window is shorter
                        if loop.time() + RETRY_WAIT_S >= deadline:
                            raise ClientClosed(
                                f"no member returned a mark for the key: {text_of(error)}; "
                                "check that the cluster has a leader"
                            ) from None
                        await self.pool.pause(waits.next_s(), deadline)
                    else:
                        break
        return self.keys.next()

    def renew(self, mark: int, asked_s: float) -> None:
        """Record a mark that a member returned, see `Keys.renew`."""
        self._distrust_mark_of_others()
        self.keys.renew(mark, asked_s)

    def _distrust_mark_of_others(self) -> None:
        """Replace the mark if the client has met a new member, perhaps of another cluster.

        With too high a mark, a cluster would take a key that it has forgotten for a new one.
        """
        if self._marked_met != self.pool.met:
            self._marked_met = self.pool.met
            self.keys.distrust()

    async def _take_mark(self, link: Link, deadline: float) -> None:
        asked_s = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(deadline):
            answer = await link.ask(call("qsync.mark", ()))
        outcome = outcome_of(answer.kind, answer.body)
        self.pool.observe(link, outcome)
        if isinstance(outcome, Committed):
            mark = outcome.tuples[0] if outcome.tuples else None
            if not isinstance(mark, int):
                raise ConnectionError("the server returned no mark")
            self.renew(mark, asked_s)
            return
        raise RequestFailed(outcome)
