"""Connections, keys and the schema of one client, and the repeated attempts of its requests."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from qsync_client.errors import (
    AccessDenied,
    ClientClosed,
    RequestFailed,
    SchemaError,
    hopeless_error,
)
from qsync_client.keys import MARK_AGE_S, Keys, RequestKey
from qsync_client.link import Link
from qsync_client.outcomes import Committed, Outcome, Unknown, outcome_of
from qsync_client.pool import Pool
from qsync_client.protocol.constants import Iterator, Type
from qsync_client.requests import Request, Target, call
from qsync_client.retry import Retry, Step
from qsync_client.schema import VINDEX, VSPACE, Schema, decode_schema

RETRY_WAIT_S = 0.02
"""Pause between attempts."""
_SCHEMA_ROWS_MAX = 1_000_000
_PING = Request(int(Type.PING), b"\x80")

Make = Callable[[Target], Request]
"""Builds a request for a space."""


class Session:
    """The state of one client."""

    def __init__(self, pool: Pool, keys: Keys, deadline_s: float) -> None:
        self.pool = pool
        self.keys = keys
        self.deadline_s = deadline_s
        self._streams = itertools.count(1)
        self._marking = asyncio.Lock()
        self._schema: Schema | None = None
        self._reading_schema = asyncio.Lock()

    def deadline(self) -> float:
        """Return the time of the event loop at which a request of now ends."""
        return asyncio.get_running_loop().time() + self.deadline_s

    def next_stream(self) -> int:
        """Return the number of a new stream."""
        return next(self._streams)

    # --- schema ---------------------------------------------------------------------------------

    async def read_schema(self, deadline: float) -> Schema:
        """Read the schema from a member. Tasks that wait for it share the result."""
        before = self._schema
        async with self._reading_schema:
            if self._schema is not None and self._schema is not before:
                return self._schema
            while True:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    found = await self._read_schema_once(deadline)
                    if found is not None:
                        self._schema = found
                        return found
                if asyncio.get_running_loop().time() + RETRY_WAIT_S >= deadline:
                    raise ClientClosed(f"no member returned the schema in {self.deadline_s:.0f} s")
                await asyncio.sleep(RETRY_WAIT_S)

    async def _read_schema_once(self, deadline: float) -> Schema | None:
        """Return the schema, or None if it changed during the reads.

        The version comes first and the reads carry it. A later change makes the version too old,
        never the names: then the next request is refused, and the schema is read again.
        """
        link = await self.pool.writer(deadline)
        tables: list[list[Any]] = []
        async with asyncio.timeout_at(deadline):
            version = (await link.ask(_PING)).schema_version
            for space in (VSPACE, VINDEX):
                plain = Target(space, None).select((), 0, Iterator.ALL, _SCHEMA_ROWS_MAX)
                request = Request(plain.kind, plain.body, None, version)
                answer = await link.ask(request)
                outcome = outcome_of(answer.kind, answer.body)
                error = hopeless_error(outcome)
                if error is not None:
                    raise error
                if not isinstance(outcome, Committed):
                    return None
                tables.append(outcome.tuples)
        return decode_schema(version, tables[0], tables[1])

    async def request(self, space: int | str, make: Make, deadline: float) -> Request:
        """Return a request with its names replaced by ids.

        Raises:
            SchemaError: a name does not exist, also in the newest schema.
        """
        if not isinstance(space, str):
            return make(Target(space, None))
        if self._schema is not None:
            with contextlib.suppress(SchemaError):
                return make(Target(space, self._schema))
        return make(Target(space, await self.read_schema(deadline)))

    # --- attempts -------------------------------------------------------------------------------

    async def until_known(
        self,
        space: int | str,
        make: Make,
        *,
        is_keyed: bool = False,
        given: RequestKey | None = None,
        is_read: bool = False,
        is_repeated: bool = True,
    ) -> Outcome:
        """Send a request, and retry it under the same key until the outcome is known.

        Args:
            space: the space.
            make: builds the request; called again after the schema changed.
            is_keyed: True to draw an idempotency key.
            given: key of the caller.
            is_read: True if a member of the client's zone may answer.
            is_repeated: False to return the outcome of the first attempt that was executed.
        """
        loop = asyncio.get_running_loop()
        deadline = self.deadline()
        request = await self.request(space, make, deadline)
        key = given if given or not is_keyed else await self.new_key(deadline)
        retry = Retry(is_key_given=given is not None or not is_keyed)
        while True:
            outcome = await self._attempt(request, key, deadline, retry.unknown, is_read)
            step = retry.after(outcome)
            if step is Step.RETURN:
                return retry.outcome
            if step is Step.RAISE:
                error = hopeless_error(outcome)
                assert error is not None, outcome
                raise error
            if loop.time() + RETRY_WAIT_S >= deadline:
                return retry.outcome
            if step is Step.READ_SCHEMA:
                await self.read_schema(deadline)
                request = await self.request(space, make, deadline)
            elif not is_repeated:
                return retry.outcome
            elif step is Step.RENEW_KEY:
                self.keys.expire()
                key = await self.new_key(deadline)
            await asyncio.sleep(RETRY_WAIT_S)

    async def _attempt(
        self,
        request: Request,
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
        asked_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline):
                # A repeated write must have the same body, so its names are not looked up again.
                answer = await link.ask(request, key=key, is_checked=unknown is None)
        except (ConnectionError, TimeoutError) as error:
            return Unknown(str(error) or "no answer before the deadline")
        outcome = outcome_of(answer.kind, answer.body, request.as_row)
        if isinstance(outcome, Committed) and outcome.at:
            self.keys.renew(outcome.at, asked_s)
        return outcome

    # --- keys -----------------------------------------------------------------------------------

    async def new_key(self, deadline: float) -> RequestKey:
        """Return a key with a recent mark, or with the old mark if no member returns a new one.

        Raises:
            AccessDenied: the credentials are wrong.
            ClientClosed: no member was reachable by the deadline.
        """
        loop = asyncio.get_running_loop()
        if self.keys.is_stale(loop.time()):
            async with self._marking:
                while self.keys.is_stale(loop.time()):
                    try:
                        limit = min(deadline, loop.time() + MARK_AGE_S)
                        await self._take_mark(await self.pool.writer(deadline), limit)
                    except (ConnectionError, TimeoutError, RequestFailed):
                        if self.keys.mark:
                            break  # an old mark is better than none: only the window is shorter
                        if loop.time() + RETRY_WAIT_S >= deadline:
                            raise ClientClosed("no member returned a mark") from None
                        await asyncio.sleep(RETRY_WAIT_S)
        return self.keys.next()

    async def _take_mark(self, link: Link, deadline: float) -> None:
        asked_s = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(deadline):
            answer = await link.ask(call("qsync.mark", ()))
        outcome = outcome_of(answer.kind, answer.body)
        if isinstance(outcome, Committed):
            self.keys.renew(int(outcome.tuples[0]), asked_s)
            return
        raise RequestFailed(outcome)
