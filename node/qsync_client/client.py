"""The asynchronous client: it reports the known outcome of a write and retries only safe requests.

    async with Client(addresses, "app", password) as client:
        match await client.insert("accounts", [1, 100]):
            case Committed(rows, at=index):
                print("a quorum holds it:", rows)
            case RolledBack(reason):
                print("it has no effect and never will:", reason)
            case Unknown(reason):
                print("it may or may not take effect:", reason)
            case Refused(code, reason):
                print("nothing was logged, repeating is safe:", code, reason)

        await client.update("accounts", 1, [("+", "balance", 5)])
        row = await client.get("accounts", 1)
        print(row.as_dict())

        async with client.transaction() as transaction:
            await transaction.update("accounts", 1, [("-", "balance", 5)])
            await transaction.upsert("accounts", [2, 5], [("+", "balance", 5)])
        print(transaction.outcome)

The client sends requests to the leader and follows it: every member knows the leader and can
forward requests. If a connection returns no answer, even to a PING, the client considers the
machine unavailable and connects to another member.

With `retry=True` (the default for writes) each write carries an idempotency key. If the outcome is
*unknown*, the client retries under the same key until the outcome is known or `deadline_s` has
passed. The cluster executes the write at most once (T9). The key carries a mark, a recent index of
the log, that the client renews as it writes.

Errors that no retry can heal raise at once: `AccessDenied` for wrong credentials and missing
privileges, `SchemaError` for unknown spaces, indexes and fields.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any

from qsync_client.errors import RequestFailed
from qsync_client.keys import GivenKey, Keys, RequestKey
from qsync_client.outcomes import Committed, Outcome, is_page_too_large
from qsync_client.pool import Member, Pool, check_options, members_of
from qsync_client.protocol.constants import Iterator
from qsync_client.requests import (
    ClientRequest,
    FieldValues,
    IteratorName,
    Operations,
    SpaceTarget,
    call,
    check_whole_key,
)
from qsync_client.schema import Row, Schema
from qsync_client.session import MAX_REQUEST_BYTES, RETRY_WAIT_S, Make, Session
from qsync_client.transaction import Transaction

PAGE_ROWS = 1000
"""Rows that `scan` and `count` read at once."""


class Client:
    """A client of one cluster. Many tasks may use it concurrently.

    Requests raise, at once and without a retry:

    - `AccessDenied` if no member accepts the credentials, or the user lacks a privilege.
    - `SchemaError` if a space, an index or a field does not exist.

    - `InvalidArgument` if an argument cannot be sent.

    They raise `ClientClosed` if no member could be reached by the deadline. Any other result is an
    outcome.

    A client belongs to the event loop of its first request; create one client per loop. A client
    that has sent no request may be used in several processes after a fork.

    The outcome of a cancelled write is unknown. To repeat it, draw a key with `new_key` first, and
    pass it as `request_key` in each attempt.
    """

    def __init__(
        self,
        addresses: str | Sequence[str | Member],
        user: str,
        password: str,
        *,
        deadline_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
        pool_size: int = 1,
        zone: str = "",
        client_id: str = "",
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """Create a client, which connects at its first request.

        Args:
            addresses: HOST:PORT of members, or `Member` with a zone. The client connects to no
                other addresses.
            user: name of the user.
            password: password of the user.
            deadline_s: time limit of a request with all its attempts, in seconds.
            tls: context of the connections; None for plain ones.
            pool_size: maximum number of connections for writes. With one, requests of this client
                arrive in the order in which they were sent.
            zone: zone of this client. Default reads go to a member of this zone if one is
                reachable; they may lag behind the leader and lack this client's own writes.
            client_id: first part of the name in idempotency keys, at most 47 characters. A random
                suffix follows, which differs in each client and in each process after a fork.
            max_request_bytes: maximum size of a request; set it if the server's `max_request`
                differs from 16 MiB. The server closes the connection of a larger request.

        Raises:
            InvalidArgument: an argument is invalid.
        """
        members = members_of(addresses)
        check_options(members, deadline_s, tls, pool_size, zone, max_request_bytes)
        pool = Pool(
            members, user, password, tls=tls, size=pool_size, zone=zone, deadline_s=deadline_s
        )
        self._session = Session(pool, Keys(client_id), deadline_s, max_request_bytes)

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of members, in the order in which the client tries them."""
        return list(self._session.pool.addresses)

    @property
    def client_id(self) -> str:
        """Return the name of this client in idempotency keys."""
        return self._session.keys.client

    async def __aenter__(self) -> "Client":
        await self._session.pool.writer(self._session.deadline())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests in flight end with unknown outcomes."""
        await self._session.close()

    # --- writes ---------------------------------------------------------------------------------

    async def insert(
        self,
        space: int | str,
        fields: FieldValues,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple. A tuple with the same key in a unique index is `Refused` (3).

        Args:
            space: name or id of the space.
            fields: the tuple, or a mapping from names of fields to values.
            retry: True to send the write with an idempotency key, and to retry under this key
                while its outcome is unknown. False for one attempt without a key.
            request_key: a key of `new_key`, to repeat a write of this or another process. None
                draws a new key. The client assumes that an earlier attempt may have been logged:
                a refusal before the lookup of the key is `Unknown`, and an exception reports
                nothing about earlier attempts. `FirstUse(key)` states that there is none.

        Returns:
            `Committed` with the new tuple, or another outcome.
        """
        return await self._write(space, lambda to: to.insert(fields), retry, request_key)

    async def replace(
        self,
        space: int | str,
        fields: FieldValues,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple, or replace the one with the same primary key.

        Args:
            space: name or id of the space.
            fields: the tuple, or a mapping from names of fields to values.
            retry: as for `insert`.
            request_key: as for `insert`.

        Returns:
            `Committed` with the new tuple, or another outcome.
        """
        return await self._write(space, lambda to: to.replace(fields), retry, request_key)

    async def update(
        self,
        space: int | str,
        key: object,
        operations: Operations,
        *,
        index: int | str = 0,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Change fields of one tuple.

        Args:
            space: name or id of the space.
            key: the key, or its only part.
            operations: such as `[("+", "balance", 5), ("=", 2, "x")]`. A field is a name, a path
                or a position from 0. Operators are `=`, `+`, `-`, `&`, `|`, `^`, `!`, `#`, `:`.
            index: name or id of a unique index.
            retry: as for `insert`.
            request_key: as for `insert`.

        Returns:
            `Committed` with the new tuple, without rows if no tuple has the key, or another
            outcome.
        """
        return await self._write(
            space, lambda to: to.update(key, operations, index), retry, request_key
        )

    async def upsert(
        self,
        space: int | str,
        fields: FieldValues,
        operations: Operations,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple, or apply operations to the one with the same primary key.

        Args:
            space: name or id of the space.
            fields: the tuple to insert.
            operations: as for `update`.
            retry: as for `insert`.
            request_key: as for `insert`.

        Returns:
            `Committed` without rows, or another outcome.
        """
        return await self._write(
            space, lambda to: to.upsert(fields, operations), retry, request_key
        )

    async def delete(
        self,
        space: int | str,
        key: Any,
        *,
        index: int | str = 0,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Delete one tuple.

        Args:
            space: name or id of the space.
            key: the key, or its only part.
            index: name or id of a unique index.
            retry: as for `insert`.
            request_key: as for `insert`.

        Returns:
            `Committed` with the deleted tuple, without rows if no tuple has the key, or another
            outcome.
        """
        return await self._write(space, lambda to: to.delete(key, index), retry, request_key)

    async def publish(
        self,
        journal: str,
        content: bytes,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Publish to a journal in a transaction of its own.

        Returns:
            `Committed` with the sequence of the publication, or without tuples if only a retry
            was answered.
        """
        request = call("qsync.publish", (journal, content))
        return await self._write(0, lambda to: request, retry, request_key)

    async def call(self, name: str, *arguments: object) -> Outcome:
        """Call a procedure once, without a key.

        Args:
            name: name of the procedure; docs/compatibility.md lists them.
            arguments: its arguments.

        Returns:
            `Committed` with the results, `Unknown` without an answer, or another outcome.
        """
        request = call(name, arguments)
        return await self._write(0, lambda to: request, False, None)

    async def publication(self, journal: str, sequence: int, wait_s: float = 0.0) -> Outcome:
        """Return the state of a publication: `pending`, `published` with offsets, or `unknown`.

        Args:
            journal: name of the journal.
            sequence: the sequence of the publication.
            wait_s: time to wait until the journal contains it, less than the client's deadline.
        """
        return await self.call("qsync.publication", journal, sequence, wait_s)

    async def new_key(self) -> RequestKey:
        """Return an idempotency key for one write.

        A write makes its own key. A caller that keeps the key can repeat the same write later, also
        in another process, and gets the outcome of the first attempt.

        Raises:
            AccessDenied: no member accepts the credentials.
            ClientClosed: no member was reachable by the deadline.
        """
        return await self._session.new_key(self._session.deadline())

    # --- reads ----------------------------------------------------------------------------------

    async def get(
        self, space: int | str, key: Any, *, index: int | str = 0, linearizable: bool = False
    ) -> Row | None:
        """Return the confirmed tuple with a key of a unique index, or None.

        Args:
            space: name or id of the space.
            key: the key, or its only part.
            index: name or id of the index.
            linearizable: True for a state that is no older than any earlier answer.

        Raises:
            InvalidArgument: the key is empty.
            RequestFailed: the read failed; `outcome` is its outcome.
        """
        check_whole_key(key)
        found = await self.select(space, key, index=index, limit=1, linearizable=linearizable)
        if not isinstance(found, Committed):
            raise RequestFailed(found)
        return found.tuples[0] if found.tuples else None

    async def select(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = Iterator.EQ,
        limit: int = 1000,
        linearizable: bool = False,
        after: bytes | Sequence[Any] = b"",
        fetch_position: bool = False,
    ) -> Outcome:
        """Read confirmed rows.

        Args:
            space: name or id of the space.
            key: the key, its first parts, or its only part; () for all rows.
            index: name or id of the index.
            iterator: an `Iterator`, its number or its name, such as "GE".
            limit: maximum number of rows.
            linearizable: True for a state that is no older than any earlier answer.
            after: `Committed.position` of the page before, or its last row; b"" begins with the
                first row.
            fetch_position: True to return where the next page begins.

        Returns:
            `Committed` with the rows, or another outcome. A read is never rolled back, and an
            `Unknown` read had no answer by the deadline.
        """

        def make(to: SpaceTarget) -> ClientRequest:
            return to.select(
                key, index, iterator, limit,
                after=after, fetch_position=fetch_position, linearizable=linearizable,
            )  # fmt: skip

        return await self._session.until_known(space, make, is_read=not linearizable)

    async def scan(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = Iterator.EQ,
        linearizable: bool = False,
    ) -> AsyncGenerator[Row, None]:
        """Yield all rows of a selection, in pages. Writes between two pages are visible.

        A page becomes smaller if its rows are too large for one answer.

        Args:
            space: name or id of the space.
            key: as for `select`.
            index: name or id of the index.
            iterator: as for `select`.
            linearizable: as for `select`, for each page.

        Raises:
            RequestFailed: a read failed; `outcome` is its outcome.
        """
        after, limit = b"", PAGE_ROWS
        while True:
            page = await self.select(
                space, key, index=index, iterator=iterator, limit=limit,
                linearizable=linearizable, after=after, fetch_position=True,
            )  # fmt: skip
            if is_page_too_large(page) and limit > 1:
                limit //= 2
                continue
            if not isinstance(page, Committed):
                raise RequestFailed(page)
            for row in page.tuples:
                yield row
            if len(page.tuples) < limit or not page.position:
                return
            after = page.position

    async def count(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = Iterator.EQ,
        linearizable: bool = False,
    ) -> int:
        """Return the number of rows of a selection.

        The protocol has no request for it: the client reads the rows, in pages.

        Args:
            space: name or id of the space.
            key: as for `select`.
            index: name or id of the index.
            iterator: as for `select`.
            linearizable: as for `select`, for each page.

        Raises:
            RequestFailed: a read failed; `outcome` is its outcome.
        """
        rows = self.scan(space, key, index=index, iterator=iterator, linearizable=linearizable)
        count = 0
        async for _ in rows:
            count += 1
        return count

    async def watch(self, key: str) -> AsyncGenerator[Any, None]:
        """Yield the value of a key, and its newest value after each change.

        Values that follow each other quickly may be skipped. After a failover the watch continues
        on another member.

        Args:
            key: `box.election`, `box.status` or `box.id`. Other keys have the value None.

        Raises:
            AccessDenied: no member accepts the credentials.
            ClientClosed: no member was reachable for `deadline_s`.
        """
        nothing = last = object()
        while True:
            link = await self._session.pool.writer(self._session.deadline())
            try:
                watcher = link.watch(key)
            except ConnectionError:
                await asyncio.sleep(RETRY_WAIT_S)
                continue
            try:
                while True:
                    value = await link.next_value(watcher)
                    if last is nothing or value != last:
                        last = value
                        yield value
            except ConnectionError:
                await asyncio.sleep(RETRY_WAIT_S)
            finally:
                link.unwatch(key, watcher)

    # --- transactions ---------------------------------------------------------------------------

    def transaction(self, isolation: int = 0, *, retry: bool = True) -> Transaction:
        """Return a serializable transaction. `async with` commits it, or rolls it back on an error.

        Args:
            isolation: 0 for the default of the member, 1 for read-committed, 2 for read-confirmed,
                3 for best-effort, 4 for linearizable.
            retry: True to commit with an idempotency key, so that `Committed` has the index and
                an unknown COMMIT is resolved. False for one attempt without a key.
        """
        return Transaction(self._session, isolation, retry)

    # --- schema ---------------------------------------------------------------------------------

    async def schema(self) -> Schema:
        """Return the spaces that the user may access, with their fields and indexes.

        Raises:
            ClientClosed: no member was reachable by the deadline.
        """
        return await self._session.read_schema(self._session.deadline())

    async def _write(
        self, space: int | str, make: Make, retry: bool, key: GivenKey | None
    ) -> Outcome:
        return await self._session.until_known(
            space, make, is_keyed=retry, given=key, is_repeated=retry
        )
