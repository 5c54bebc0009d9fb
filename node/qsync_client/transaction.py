"""Interactive transactions: BEGIN, statements, and COMMIT with an idempotency key.

    state      input                             next state
    NEW        BEGIN succeeds                    OPEN
    OPEN       a statement                       OPEN
    OPEN       a statement has no answer         LOST
    OPEN       a statement is cancelled          LOST
    OPEN       an error leaves the block         ENDING; ENDED after ROLLBACK
    OPEN       the connection ended              ENDED, rolled back
    LOST       the block ends                    ENDED, rolled back, after ROLLBACK
    OPEN       the block ends                    ENDING, COMMIT is sent
    ENDING     COMMIT is answered                ENDED, with its outcome
    ENDING     COMMIT is not answered            UNCERTAIN
    UNCERTAIN  `_resolve` finds the outcome      ENDED, with that outcome
    UNCERTAIN  the deadline passes               ENDED, with Unknown

Only an OPEN transaction sends statements: after COMMIT or ROLLBACK, the server would commit each
one on its own.

To resolve an unknown COMMIT, the client repeats the recorded requests in a new stream:

- If each statement has the same result as before, COMMIT with the same key is safe. Either the
  first attempt is found, or the transaction executes as if it had been sent now.
- If a result differs, the first attempt may be the reason, or another client. Then the statements
  must not execute again. The client lets the transaction time out before COMMIT: the server looks
  for the key first and reports the first attempt, or refuses the timed-out transaction.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator as Iterating
from collections.abc import Sequence
from enum import Enum, auto
from types import TracebackType
from typing import Any

from qsync_client.errors import (
    ClientClosed,
    QsyncError,
    StatementFailed,
    TransactionLost,
    hopeless_error,
)
from qsync_client.keys import RequestKey
from qsync_client.link import Link
from qsync_client.outcomes import (
    Committed,
    Outcome,
    Refused,
    RolledBack,
    Unknown,
    is_page_too_large,
    outcome_of,
)
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import Answered
from qsync_client.protocol.constants import Iterator
from qsync_client.requests import (
    COMMIT,
    ROLLBACK,
    ClientRequest,
    FieldValues,
    IteratorName,
    Operations,
    begin,
    call,
    check_whole_key,
)
from qsync_client.retry import TRY_AGAIN
from qsync_client.schema import Row
from qsync_client.session import RETRY_WAIT_S, Make, Session, Waits

QUERY_S = 0.3
"""Timeout of the transaction that only looks for the key of an unknown COMMIT."""
PAGE_ROWS = 1000
"""Rows that `count` reads at once."""


_AnswerDigest = tuple[int, bytes]
"""Type of an answer, and digest of its body: the rows that a transaction reads need no memory."""


def _digest_of(answer: Answered) -> _AnswerDigest:
    return answer.kind, hashlib.blake2b(answer.body, digest_size=32).digest()


class TransactionState(Enum):
    """States of a transaction."""

    NEW = auto()
    OPEN = auto()
    LOST = auto()
    ENDING = auto()
    UNCERTAIN = auto()
    ENDED = auto()


class Transaction:
    """One interactive transaction. After the block, `outcome` contains its outcome.

    Statements return rows. They raise `StatementFailed` with an outcome if the server refuses them,
    and `TransactionLost` if the connection ended or the deadline passed. A lost or cancelled
    statement ends the transaction: it is rolled back at the end of the block, even if the block
    catches the exception. If COMMIT is cancelled, `outcome` is `Unknown`.
    """

    def __init__(self, session: Session, isolation: int, has_key: bool) -> None:
        self.outcome: Outcome | None = None
        self._session = session
        self._isolation = isolation
        self._has_key = has_key
        self._state = TransactionState.NEW
        self._lost = RolledBack("")
        self._key: RequestKey | None = None
        self._stream = 0
        self._link: Link | None = None
        self._recorded: list[tuple[ClientRequest, _AnswerDigest | None] | None] = []

    # --- begin and end --------------------------------------------------------------------------

    async def __aenter__(self) -> "Transaction":
        if self._state is not TransactionState.NEW:
            raise QsyncError(
                "the transaction cannot begin: this object was used before; "
                "create another one with client.transaction()"
            )
        deadline = self._session.deadline()
        self._state = TransactionState.ENDED  # until BEGIN succeeds
        if self._has_key:
            self._key = await self._session.new_key(deadline)
        self._link, self._stream = await self._begin(deadline)
        self._state = TransactionState.OPEN
        return self

    async def _begin(self, deadline: float, timeout_s: float = 0.0) -> tuple[Link, int]:
        """Open a stream; nothing is logged yet, so attempts are repeated until the deadline.

        Raises:
            ClientClosed: no member was reachable by the deadline.
            StatementFailed: the server refused the transaction.
        """
        loop = asyncio.get_running_loop()
        request = begin(self._isolation, timeout_s)
        waits = Waits()
        while True:
            link = await self._session.pool.writer(deadline)
            stream = self._session.next_stream()
            outcome: Outcome | None = None
            link.hold_stream()
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await link.ask(request, stream=stream)
                outcome = outcome_of(answer.kind, answer.body)
                self._session.pool.observe(link, outcome)
                if isinstance(outcome, Unknown):
                    link.send_unanswered(ROLLBACK, stream=stream)
            except (ConnectionError, TimeoutError) as error:
                outcome = Refused(ErrorCode.NOT_LEADER, str(error) or "no answer to BEGIN")
                link.send_unanswered(ROLLBACK, stream=stream)
            except BaseException:
                link.send_unanswered(ROLLBACK, stream=stream)
                raise
            finally:
                if not isinstance(outcome, Committed):
                    link.release_stream()
            if isinstance(outcome, Committed):
                return link, stream
            is_final = not isinstance(outcome, Refused) or outcome.code not in TRY_AGAIN
            if is_final or loop.time() + RETRY_WAIT_S >= deadline:
                raise hopeless_error(outcome) or StatementFailed(outcome)
            await self._session.pool.pause(waits.next_s(), deadline)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._link is not None
        try:
            is_lost = self._state is TransactionState.LOST
            self._state = TransactionState.ENDING
            if is_lost:
                self.outcome = self._lost
            if kind is not None or is_lost:
                # If the connection ends, the member rolls the transaction back.
                with contextlib.suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(self._session.deadline_s):
                        await self._link.ask(ROLLBACK, stream=self._stream)
                return
            if self._link.is_over:
                self.outcome = RolledBack("the connection ended before COMMIT")
                return
            deadline = self._session.deadline()
            self.outcome = Unknown("COMMIT was cancelled before its outcome was known")
            self.outcome = await self._commit(deadline)
        finally:
            self._state = TransactionState.ENDED
            self._link.release_stream()

    async def _commit(self, deadline: float) -> Outcome:
        assert self._link is not None
        outcome = await self._commit_once(self._link, self._stream, deadline)
        if not isinstance(outcome, Unknown):
            return outcome
        if outcome.code == ErrorCode.KEY_EXPIRED:
            return RolledBack(outcome.reason)  # the only attempt did not run
        self._state = TransactionState.UNCERTAIN
        return outcome if self._key is None else await self._resolve(outcome, deadline)

    async def _commit_once(self, link: Link, stream: int, deadline: float) -> Outcome:
        asked_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline):
                answer = await link.ask(COMMIT, stream=stream, key=self._key)
        except (ConnectionError, TimeoutError) as broken:
            return Unknown(str(broken) or "no answer before the deadline")
        outcome = outcome_of(answer.kind, answer.body)
        if isinstance(outcome, Committed) and outcome.at:
            self._session.renew(outcome.at, asked_s)
        return outcome

    # --- an unknown COMMIT ----------------------------------------------------------------------

    async def _resolve(self, unknown: Unknown, deadline: float) -> Outcome:
        """Return the outcome of a COMMIT without an answer, or `unknown` at the deadline."""
        loop = asyncio.get_running_loop()
        waits = Waits()
        while loop.time() + RETRY_WAIT_S < deadline and not self._session.pool.is_closed:
            with contextlib.suppress(ConnectionError, TimeoutError, QsyncError):
                outcome = await self._repeat(deadline)
                # A rollback settles only the attempt that got it.
                if isinstance(outcome, Committed) or (
                    isinstance(outcome, Unknown) and outcome.code == ErrorCode.KEY_EXPIRED
                ):
                    return outcome
            await self._session.pool.pause(waits.next_s(), deadline)
        return unknown

    async def _repeat(self, deadline: float) -> Outcome:
        """Repeat the transaction as the head of this module describes."""
        link, stream = await self._begin(deadline)
        try:
            if await self._replay(link, stream, deadline):
                return await self._commit_once(link, stream, deadline)
            link.send_unanswered(ROLLBACK, stream=stream)
        finally:
            link.release_stream()
        link, stream = await self._begin(deadline, QUERY_S)
        try:
            await self._replay(link, stream, deadline)
            # Once the timeout has passed, COMMIT cannot execute: it only looks for the key.
            try:
                await asyncio.sleep(2 * QUERY_S)
            except BaseException:
                link.send_unanswered(ROLLBACK, stream=stream)
                raise
            return await self._commit_once(link, stream, deadline)
        finally:
            link.release_stream()

    async def _replay(self, link: Link, stream: int, deadline: float) -> bool:
        """Send the recorded requests; return whether all answers are those of the first attempt."""

        async def is_same(request: ClientRequest, before: _AnswerDigest | None) -> bool:
            answer = await link.ask(request, stream=stream, is_checked=False)
            return _digest_of(answer) == before

        recorded = [one for one in self._recorded if one is not None]
        try:
            async with asyncio.timeout_at(deadline):
                return all(await asyncio.gather(*(is_same(*one) for one in recorded)))
        except BaseException:
            link.send_unanswered(ROLLBACK, stream=stream)
            raise

    # --- statements -----------------------------------------------------------------------------

    async def _run(self, space: int | str, make: Make) -> Committed:
        """Execute one statement.

        Raises:
            AccessDenied: the user lacks a privilege.
            ClientClosed: the transaction is not open.
            SchemaError: a space, an index or a field does not exist.
            StatementFailed: the server refused the statement.
            TransactionLost: the connection ended.
        """
        self._open_link()
        deadline = self._session.deadline()
        while True:
            with self._unsent():
                request = await self._session.request(space, make, deadline)
            # The block may have ended while the schema was read.
            outcome = await self._execute(self._open_link(), request, deadline)
            if isinstance(outcome, Committed):
                return outcome
            if isinstance(outcome, Refused) and outcome.code == ErrorCode.WRONG_SCHEMA_VERSION:
                with self._unsent():
                    await self._session.read_schema(deadline)
                continue
            raise hopeless_error(outcome) or StatementFailed(outcome)

    @contextlib.contextmanager
    def _unsent(self) -> Iterating[None]:
        """End the transaction if a statement that waits for the schema is cancelled, or too late.

        Raises:
            TransactionLost: the schema could not be read.
        """
        try:
            yield
        except asyncio.CancelledError:
            if self._state is TransactionState.OPEN:
                self._lose("a statement was cancelled")
            raise
        except ClientClosed as error:
            if self._state is TransactionState.OPEN and not self._session.pool.is_closed:
                raise self._lose(str(error)) from error
            raise

    def _open_link(self) -> Link:
        """Return the connection for a statement that is sent now.

        Raises:
            ClientClosed: the transaction is not open.
        """
        if self._state is TransactionState.LOST:
            raise ClientClosed(f"the statement was not sent: {self._lost.reason}")
        if self._state is not TransactionState.OPEN or self._link is None:
            raise ClientClosed("the transaction is not open: use it inside its `async with` block")
        return self._link

    async def _execute(self, link: Link, request: ClientRequest, deadline: float) -> Outcome:
        place = len(self._recorded)
        self._recorded.append((request, None))  # requests are recorded as they are sent
        try:
            async with asyncio.timeout_at(deadline):
                answer = await link.ask(request, stream=self._stream)
        except (ConnectionError, TimeoutError) as error:
            reason = str(error) or "no answer before the deadline"
            raise self._lose(reason) from error
        except BaseException:
            # The server may execute the statement, and the caller does not know its result.
            self._lose("a statement was cancelled")
            raise
        outcome = outcome_of(answer.kind, answer.body, request.as_row)
        if isinstance(outcome, Unknown) and not outcome.code:
            raise self._lose(outcome.reason)
        if isinstance(outcome, Refused) and outcome.code == ErrorCode.WRONG_SCHEMA_VERSION:
            self._recorded[place] = None  # the server did not count it as a statement
        else:
            self._recorded[place] = (request, _digest_of(answer))
        return outcome

    def _lose(self, reason: str) -> TransactionLost:
        """Ensure that the transaction is rolled back, and return the exception for it."""
        self._state = TransactionState.LOST
        self._lost = RolledBack(f"the transaction ended before COMMIT: {reason}")
        return TransactionLost(self._lost)

    async def get(self, space: int | str, key: Any, *, index: int | str = 0) -> Row | None:
        """Return the tuple with a key of a unique index, or None. See `Client.get`."""
        check_whole_key(key)
        rows = await self.select(space, key, index=index, limit=1)
        return rows[0] if rows else None

    async def select(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = Iterator.EQ,
        limit: int = 1000,
        after: bytes | Sequence[Any] = b"",
    ) -> list[Row]:
        """Return rows, those that this transaction wrote included. See `Client.select`."""
        found = await self._run(
            space, lambda to: to.select(key, index, iterator, limit, after=after)
        )
        return found.tuples

    async def count(
        self,
        space: int | str,
        key: object = (),
        *,
        index: int | str = 0,
        iterator: IteratorName = Iterator.EQ,
    ) -> int:
        """Return the number of rows of a selection. The client reads the rows, in pages."""
        total, after, limit = 0, b"", PAGE_ROWS
        while True:
            try:
                page = await self._run(
                    space,
                    lambda to, after=after, limit=limit: to.select(  # type: ignore[misc]  # mypy infers no default of a lambda
                        key, index, iterator, limit, after=after, fetch_position=True
                    ),
                )
            except StatementFailed as failed:
                if not is_page_too_large(failed.outcome) or limit == 1:
                    raise
                limit //= 2
                continue
            total += len(page.tuples)
            after = page.position
            if len(page.tuples) < limit or not after:
                return total

    async def insert(self, space: int | str, fields: FieldValues) -> list[Row]:
        """Insert a tuple and return it. See `Client.insert`."""
        return (await self._run(space, lambda to: to.insert(fields))).tuples

    async def replace(self, space: int | str, fields: FieldValues) -> list[Row]:
        """Insert or replace a tuple and return it. See `Client.replace`."""
        return (await self._run(space, lambda to: to.replace(fields))).tuples

    async def update(
        self, space: int | str, key: object, operations: Operations, *, index: int | str = 0
    ) -> list[Row]:
        """Change fields of one tuple; return it, or nothing. See `Client.update`."""
        return (await self._run(space, lambda to: to.update(key, operations, index))).tuples

    async def upsert(
        self, space: int | str, fields: FieldValues, operations: Operations
    ) -> list[Row]:
        """Insert a tuple or update the existing one; return nothing. See `Client.upsert`."""
        return (await self._run(space, lambda to: to.upsert(fields, operations))).tuples

    async def delete(self, space: int | str, key: Any, *, index: int | str = 0) -> list[Row]:
        """Delete one tuple; return it, or nothing. See `Client.delete`."""
        return (await self._run(space, lambda to: to.delete(key, index))).tuples

    async def publish(self, journal: str, content: bytes) -> None:
        """Publish to a journal; `outcome` contains journal and sequence after the block."""
        request = call("qsync.publish", (journal, content))
        await self._run(0, lambda to: request)
