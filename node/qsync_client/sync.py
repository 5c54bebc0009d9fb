"""The synchronous client: the verbs of `Client` for code without an event loop.

    with SyncClient(addresses, "app", password) as client:
        outcome = client.update("accounts", 1, [("+", "balance", 5)])
        with client.transaction() as transaction:
            transaction.insert("accounts", [2, 0])

A thread runs the asynchronous client, so that retries, PINGs and the search for the leader exist
once and proceed while the program computes. Many threads may share one client. After a fork, create
a new client in the child.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from qsync_client import client as asynchronous
from qsync_client.errors import ClientClosed, QsyncError
from qsync_client.keys import GivenKey, RequestKey
from qsync_client.outcomes import Outcome, RolledBack
from qsync_client.pool import Member
from qsync_client.protocol.constants import Iterator as IndexIterator
from qsync_client.requests import FieldValues, IteratorName, Operations
from qsync_client.schema import Row, Schema
from qsync_client.session import MAX_REQUEST_BYTES
from qsync_client.transaction import Transaction

T = TypeVar("T")
_END = object()
FINISH_S = 0.5
"""Time in which requests end with their outcomes after the client has closed."""


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="qsync-client", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and return its result.

        Raises:
            ClientClosed: `stop` was called.
        """
        if self.is_of_parent:
            coroutine.close()
            raise QsyncError(
                "the request was not sent: the client belongs to the parent process; "
                "create a client after the fork"
            )
        with self._lock:  # `stop` finds each task, or the loop is closed here
            if self._is_stopped:
                coroutine.close()
                raise ClientClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._is_stopped:
                raise ClientClosed("the client was closed during the request") from None
            raise
        finally:
            # A handler of a signal may raise any exception, for example that of a time limit.
            future.cancel()  # without effect on a request that has ended

    @property
    def is_of_parent(self) -> bool:
        """Return whether this process is a child of the one that runs the loop."""
        return self._process != os.getpid()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous iterator."""

        async def following() -> Any:
            return await anext(items, _END)

        try:
            while (item := self.run(following())) is not _END:
                yield item
        finally:
            self._finish(items.aclose())

    def _finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, without waiting for it in the thread itself.

        The garbage collector may end an iterator in any thread.
        """
        if threading.current_thread() is self._thread:
            self._loop.create_task(coroutine)
            return
        with contextlib.suppress(QsyncError):
            self.run(coroutine)

    def stop(self) -> None:
        """Cancel all tasks, and end the thread. In another process, do nothing."""
        if self.is_of_parent:
            return
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        """Cancel the tasks that do not end soon after the client has closed."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=FINISH_S)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0)  # results reach the threads


class SyncClient:
    """A client of one cluster. Many threads may use it concurrently.

    Requests raise what those of `Client` raise.
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
        """Create a client, which connects at its first request. See `Client` for the arguments."""
        self._client = asynchronous.Client(
            addresses, user, password, deadline_s=deadline_s, tls=tls, pool_size=pool_size,
            zone=zone, client_id=client_id, max_request_bytes=max_request_bytes,
        )  # fmt: skip
        self._loop = _Loop()

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of members, in the order in which the client tries them."""
        return self._client.addresses

    @property
    def client_id(self) -> str:
        """Return the name of this client in idempotency keys."""
        return self._client.client_id

    def __enter__(self) -> "SyncClient":
        try:
            self._loop.run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread.

        Writes in flight in other threads return `Unknown`. Other requests raise `ClientClosed`. In
        a child process, this does nothing.
        """
        if not self._loop.is_of_parent:
            with contextlib.suppress(ClientClosed):
                self._loop.run(self._client.close())
            self._loop.stop()

    # --- writes ---------------------------------------------------------------------------------

    def insert(
        self,
        space: int | str,
        fields: FieldValues,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple. See `Client.insert`."""
        return self._loop.run(
            self._client.insert(space, fields, retry=retry, request_key=request_key)
        )

    def replace(
        self,
        space: int | str,
        fields: FieldValues,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple, or replace the one with the same primary key. See `Client.replace`."""
        return self._loop.run(
            self._client.replace(space, fields, retry=retry, request_key=request_key)
        )

    def update(
        self,
        space: int | str,
        key: object,
        operations: Operations,
        *,
        index: int | str = 0,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Change fields of one tuple. See `Client.update`."""
        return self._loop.run(
            self._client.update(
                space, key, operations, index=index, retry=retry, request_key=request_key
            )
        )

    def upsert(
        self,
        space: int | str,
        fields: FieldValues,
        operations: Operations,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Insert a tuple, or update the one with the same primary key. See `Client.upsert`."""
        return self._loop.run(
            self._client.upsert(space, fields, operations, retry=retry, request_key=request_key)
        )

    def delete(
        self,
        space: int | str,
        key: Any,
        *,
        index: int | str = 0,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Delete one tuple. See `Client.delete`."""
        return self._loop.run(
            self._client.delete(space, key, index=index, retry=retry, request_key=request_key)
        )

    def publish(
        self,
        journal: str,
        content: bytes,
        *,
        retry: bool = True,
        request_key: GivenKey | None = None,
    ) -> Outcome:
        """Publish to a journal in a transaction of its own. See `Client.publish`."""
        return self._loop.run(
            self._client.publish(journal, content, retry=retry, request_key=request_key)
        )

    def call(self, name: str, *arguments: object) -> Outcome:
        """Call a procedure once, without a key. See `Client.call`."""
        return self._loop.run(self._client.call(name, *arguments))

    def publication(self, journal: str, sequence: int, wait_s: float = 0.0) -> Outcome:
        """Return the state of a publication. See `Client.publication`."""
        return self._loop.run(self._client.publication(journal, sequence, wait_s))

    def new_key(self) -> RequestKey:
        """Return an idempotency key for one write. See `Client.new_key`."""
        return self._loop.run(self._client.new_key())

    # --- reads ----------------------------------------------------------------------------------

    def get(
        self, space: int | str, key: Any, *, index: int | str = 0, linearizable: bool = False
    ) -> Row | None:
        """Return the tuple with a key of a unique index, or None. See `Client.get`."""
        return self._loop.run(self._client.get(space, key, index=index, linearizable=linearizable))

    def select(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = IndexIterator.EQ,
        limit: int = 1000,
        linearizable: bool = False,
        after: bytes | Sequence[Any] = b"",
        fetch_position: bool = False,
    ) -> Outcome:
        """Read confirmed rows. See `Client.select`."""
        return self._loop.run(
            self._client.select(
                space,
                key,
                index=index,
                iterator=iterator,
                limit=limit,
                linearizable=linearizable,
                after=after,
                fetch_position=fetch_position,
            )
        )

    def scan(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = IndexIterator.EQ,
        linearizable: bool = False,
    ) -> Iterator[Row]:
        """Yield all rows of a selection, in pages. See `Client.scan`."""
        return self._loop.iterate(
            self._client.scan(space, key, index=index, iterator=iterator, linearizable=linearizable)
        )

    def count(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = IndexIterator.EQ,
        linearizable: bool = False,
    ) -> int:
        """Return the number of rows of a selection. See `Client.count`."""
        return self._loop.run(
            self._client.count(
                space, key, index=index, iterator=iterator, linearizable=linearizable
            )
        )

    def watch(self, key: str) -> Iterator[Any]:
        """Yield the value of a key, and its newest value after each change. See `Client.watch`."""
        return self._loop.iterate(self._client.watch(key))

    def schema(self) -> Schema:
        """Return the spaces that the user may access. See `Client.schema`."""
        return self._loop.run(self._client.schema())

    # --- transactions ---------------------------------------------------------------------------

    def transaction(self, isolation: int = 0, *, retry: bool = True) -> "SyncTransaction":
        """Return a transaction. `with` commits it, or rolls it back. See `Client.transaction`."""
        return SyncTransaction(self._client.transaction(isolation, retry=retry), self._loop)


class SyncTransaction:
    """One interactive transaction. After the block, `outcome` contains its outcome.

    Statements raise what those of `Transaction` raise.
    """

    def __init__(self, transaction: Transaction, loop: _Loop) -> None:
        self._transaction = transaction
        self._loop = loop

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome of the transaction, or None before COMMIT."""
        return self._transaction.outcome

    def __enter__(self) -> "SyncTransaction":
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._loop.run(self._transaction.__aexit__(kind, error, trace))
        except ClientClosed as closed:
            if self._transaction.outcome is None:
                self._transaction.outcome = RolledBack(f"COMMIT was not sent: {closed}")

    def get(self, space: int | str, key: Any, *, index: int | str = 0) -> Row | None:
        """Return the tuple with a key of a unique index, or None."""
        return self._loop.run(self._transaction.get(space, key, index=index))

    def select(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = IndexIterator.EQ,
        limit: int = 1000,
        after: bytes | Sequence[Any] = b"",
    ) -> list[Row]:
        """Return rows, those that this transaction wrote included."""
        return self._loop.run(
            self._transaction.select(
                space, key, index=index, iterator=iterator, limit=limit, after=after
            )
        )

    def count(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = IndexIterator.EQ,
    ) -> int:
        """Return the number of rows of a selection."""
        return self._loop.run(self._transaction.count(space, key, index=index, iterator=iterator))

    def insert(self, space: int | str, fields: FieldValues) -> list[Row]:
        """Insert a tuple and return it."""
        return self._loop.run(self._transaction.insert(space, fields))

    def replace(self, space: int | str, fields: FieldValues) -> list[Row]:
        """Insert or replace a tuple and return it."""
        return self._loop.run(self._transaction.replace(space, fields))

    def update(
        self, space: int | str, key: object, operations: Operations, *, index: int | str = 0
    ) -> list[Row]:
        """Change fields of one tuple; return it, or nothing."""
        return self._loop.run(self._transaction.update(space, key, operations, index=index))

    def upsert(self, space: int | str, fields: FieldValues, operations: Operations) -> list[Row]:
        """Insert a tuple or update the existing one; return nothing."""
        return self._loop.run(self._transaction.upsert(space, fields, operations))

    def delete(self, space: int | str, key: Any, *, index: int | str = 0) -> list[Row]:
        """Delete one tuple; return it, or nothing."""
        return self._loop.run(self._transaction.delete(space, key, index=index))

    def publish(self, journal: str, content: bytes) -> None:
        """Publish to a journal; `outcome` contains journal and sequence after the block."""
        self._loop.run(self._transaction.publish(journal, content))
