"""A broker's connection to the cluster: the watch of the key space, and transactions over it."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

import msgpack

from qsync_broker.events import Watched
from qsync_broker.keyspace import Absent, Change
from qsync_broker.operations import Publication
from qsync_broker.watch import WatchError, WatchSession
from qsync_node.client import Client, Committed
from qsync_node.errors import QsyncError
from qsync_node.format.journals import BROKER_SPACE, PUBLICATION_SPACE, encode_row, space_of
from qsync_node.format.keys import Iterator

log = logging.getLogger("qsync.broker")

AGAIN_S = 0.1
SILENCE_S = 3.0
"""Time without a byte after which a watch is opened again: a member sends heartbeats."""
TRANSACTIONS_MAX = 8
"""Maximum number of transactions under way at once, without renewals of the lease."""


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
        self._room = asyncio.Semaphore(TRANSACTIONS_MAX)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    # --- transactions -------------------------------------------------------------------------

    async def transact(self, change: Change) -> bool:
        """Carry out a change, and return whether it is known to be committed.

        It is not if a row that it depends on has changed. Without an answer, the outcome is
        unknown. The watch shows the truth in each case. A renewal of the lease waits for no other
        transaction: with many journals, the lease would end.
        """
        spaces = {space_of(row) for row in change.written}
        is_renewal = spaces == {BROKER_SPACE} and not change.deleted
        async with contextlib.nullcontext() if is_renewal else self._room:
            try:
                async with self._client.transaction() as transaction:
                    for row in change.expected:
                        space = row.space if isinstance(row, Absent) else space_of(row)
                        found = await transaction.select(space, list(row.key))
                        wanted = [] if isinstance(row, Absent) else [_plain(encode_row(row))]
                        if found != wanted:
                            raise Conflict
                    for written in change.written:
                        await transaction.replace(space_of(written), encode_row(written))
                    for deleted in change.deleted:
                        await transaction.delete(deleted.space, list(deleted.key))
                return isinstance(transaction.outcome, Committed)
            except Conflict:
                return False
            except (QsyncError, OSError, TimeoutError) as error:
                log.debug("a transaction of the key space failed: %s", error)
                return False

    # --- publications -------------------------------------------------------------------------

    async def call(self, name: str, *arguments: Any) -> bool:
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


def _plain(fields: list[Any]) -> Any:
    """Return fields as a client reads them: tuples become lists."""
    return msgpack.unpackb(msgpack.packb(fields), strict_map_key=False)
