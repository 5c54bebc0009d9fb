"""A broker's connection to the cluster: the watch of the key space, and transactions over it."""

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgpack

from qsync_broker.combining import next_group
from qsync_broker.events import Watched
from qsync_broker.keyspace import Absent, KeyChange
from qsync_broker.operations import Publication
from qsync_broker.watch import WatchError, WatchSession
from qsync_client import (
    Client,
    Committed,
    StatementFailed,
    Transaction,
    TransactionLost,
    Unknown,
)
from qsync_node.errors import QsyncError
from qsync_node.format.journals import (
    BROKER_SPACE,
    PUBLICATION_SPACE,
    KeySpaceRow,
    encode_row,
    space_of,
)
from qsync_node.format.keys import Iterator

log = logging.getLogger("qsync.broker")

T = TypeVar("T")

AGAIN_S = 0.1
SILENCE_S = 3.0
"""Time without a byte after which a watch is opened again: a member sends heartbeats."""
REQUESTS_MAX = 8
"""Maximum number of calls and reads under way at once."""
GROUPS_MAX = 2
"""Maximum number of groups of changes under way at once: one is carried out while the statements
of the next one arrive. A renewal of the lease waits for the statements before it."""


class Conflict(Exception):  # noqa: N818  # an outcome, not a failure
    """A row that a transaction depends on has changed."""


class Coordination:
    """The cluster, as a broker uses it."""

    def __init__(
        self,
        address: str,
        user: str,
        password: str,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare the connection; `watch` and `transact` open it.

        Args:
            address: HOST:PORT of the local member.
            user: user with read and write access to the key space.
            password: its password.
            tls: context of the connections; None for plain ones.
        """
        self.address = address
        self.cluster = ""
        self._user = user
        self._password = password
        self._tls = tls
        self._client = Client([address], user, password, tls=tls, deadline_s=5.0)
        self._watching: asyncio.StreamWriter | None = None
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._turn = asyncio.Semaphore(GROUPS_MAX)
        self._waiting: dict[int, tuple[KeyChange, asyncio.Future[bool]]] = {}
        self._numbers = itertools.count()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    # --- transactions -------------------------------------------------------------------------

    async def transact(self, change: KeyChange) -> bool:
        """Carry out a change, and return whether it is known to be committed.

        It is not if a row that it depends on has changed. Without an answer, the outcome is
        unknown. The watch shows the truth in each case. Changes that wait are carried out
        together. A renewal of the lease waits for no other transaction: with many journals, the
        lease would end.
        """
        spaces = {space_of(row) for row in change.written}
        if spaces == {BROKER_SPACE} and not change.deleted:
            return (await self._carry_out([change]))[0]
        result = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._waiting[number] = change, result
        try:
            while number in self._waiting:
                async with self._turn:
                    await self._carry_out_next()
            return bool(await result)
        finally:
            # A change that waits without its caller would be carried out at any time later.
            self._waiting.pop(number, None)

    async def _carry_out_next(self) -> None:
        """Carry out a group of the changes that wait, or nothing if none waits."""
        numbers = next_group((number, change) for number, (change, _) in self._waiting.items())
        if not numbers:
            return
        group = [self._waiting.pop(number) for number in numbers]
        results = [False] * len(group)
        try:
            results = await self._carry_out([change for change, _ in group])
        finally:
            for (_, result), is_committed in zip(group, results, strict=True):
                if not result.done():
                    result.set_result(is_committed)

    async def _carry_out(self, changes: list[KeyChange]) -> list[bool]:
        """Carry out changes of different rows; return which are known to be committed."""
        current: list[bool] = []
        try:
            async with self._client.transaction(retry=False) as transaction:
                current = await _together(_is_current(transaction, change) for change in changes)
                if not any(current):
                    raise Conflict
                chosen = [change for change, is_one in zip(changes, current, strict=True) if is_one]
                await _together(_write(transaction, change) for change in chosen)
            outcome = transaction.outcome
        except Conflict:
            return [False] * len(changes)
        except TransactionLost as lost:
            log.debug("a transaction of the key space failed: %s", lost)
            return [False] * len(changes)
        except StatementFailed as failed:
            outcome = failed.outcome
        except (QsyncError, OSError, TimeoutError) as error:
            log.debug("a transaction of the key space failed: %s", error)
            return [False] * len(changes)
        if isinstance(outcome, Committed):
            return current
        log.debug("a transaction of the key space failed: %s", outcome)
        if len(changes) > 1 and not isinstance(outcome, Unknown):
            # One of them may be the cause, and must not keep the others from being carried out.
            return [(await self._carry_out([change]))[0] for change in changes]
        return [False] * len(changes)

    # --- publications -------------------------------------------------------------------------

    async def call(self, name: str, *arguments: object) -> bool:
        """Call a procedure that writes, and return whether it is known to be committed."""
        async with self._room:
            try:
                outcome = await self._client.call(name, *arguments)
            except (QsyncError, OSError, TimeoutError) as error:
                log.debug("a call of %s failed: %s", name, error)
                return False
        if not isinstance(outcome, Committed):
            log.debug("a call of %s failed: %s", name, outcome)
        return isinstance(outcome, Committed)

    async def publications(
        self, journal: str, journal_id: int, after: int, limit: int
    ) -> list[Publication] | None:
        """Return confirmed publications after a sequence, or None if they cannot be read."""
        key = [journal, journal_id, after]
        async with self._room:
            try:
                outcome = await self._client.select(
                    PUBLICATION_SPACE, key, iterator=int(Iterator.GT), limit=limit
                )
            except (QsyncError, OSError, TimeoutError) as error:
                log.debug("publications of %s cannot be read: %s", journal, error)
                return None
        if not isinstance(outcome, Committed):
            log.debug("publications of %s cannot be read: %s", journal, outcome)
            return None
        return [
            Publication(fields[2], fields[3])
            for fields in outcome.tuples
            if fields[:2] == [journal, journal_id]
        ]

    # --- watch --------------------------------------------------------------------------------

    async def watch(self, deliver: Callable[[Watched], None]) -> None:
        """Deliver changes of the key space until the task is cancelled.

        Each connection begins with a whole snapshot.
        """
        while True:
            try:
                await self._watch_once(deliver)
            except (OSError, TimeoutError, WatchError) as error:
                log.info("the watch of the key space ended: %s; it starts again", error)
            await asyncio.sleep(AGAIN_S)

    def rewatch(self) -> None:
        """Open the watch again, after a pause."""
        if self._watching is not None:
            self._watching.transport.abort()

    async def _watch_once(self, deliver: Callable[[Watched], None]) -> None:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=self._tls)
        session = WatchSession(self._user, self._password, self.cluster)
        self._watching = writer
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    data = await reader.read(1 << 18)
                if not data:
                    raise ConnectionError("the member closed the connection")
                changes, output = session.feed(data)
                self.cluster = session.replicaset
                for change in changes:
                    deliver(change)
                if output:
                    writer.write(output)
                    await writer.drain()
        finally:
            self._watching = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _is_current(transaction: Transaction, change: KeyChange) -> bool:
    """Return whether all rows that a change expects are so."""

    async def is_so(row: KeySpaceRow | Absent) -> bool:
        space = row.space if isinstance(row, Absent) else space_of(row)
        wanted = [] if isinstance(row, Absent) else [_plain(encode_row(row))]
        return await transaction.select(space, list(row.key)) == wanted

    return all(await _together(is_so(row) for row in change.expected))


async def _write(transaction: Transaction, change: KeyChange) -> None:
    """Write and delete the rows of a change."""
    written = [transaction.replace(space_of(row), encode_row(row)) for row in change.written]
    deleted = [transaction.delete(row.space, list(row.key)) for row in change.deleted]
    await _together([*written, *deleted])


async def _together(requests: Iterable[Awaitable[T]]) -> list[T]:
    """Send requests without waiting for the answer to each, and return all answers.

    Raises:
        Exception: the first that a request raised, once all have ended.
    """
    answers = await asyncio.gather(*requests, return_exceptions=True)
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found


def _plain(fields: list[Any]) -> Any:
    """Return fields as a client reads them: tuples become lists."""
    return msgpack.unpackb(msgpack.packb(fields), strict_map_key=False)
