"""A client for many small appends to one journal: it sends them in batches, without waiting.

While batches are under way, further appends wait and form the next one. The size of batches thus
rises with the load, and a lone append is sent at once.
"""

import asyncio
import hashlib
import time
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from qsync_broker.batch import (
    BATCH_APPENDS,
    BATCH_BYTES,
    CHECKS_MAX,
    MEDIA_TYPE,
    PAIRS_MAX,
    BatchOutcome,
    decode_outcomes,
    encode_item,
)
from qsync_broker.client import JournalCommit, JournalError
from qsync_broker.labels import LabelSet
from qsync_broker.ledger import AppendLedger, AppendLedgerError, LedgerAppend, unknown_append
from qsync_broker.status import Status, refusal

UNDER_WAY = 4
"""Number of batches under way."""
BATCH_BYTES_AIM = 1 << 20
TIMEOUT_S = 90.0
_REFUSALS = {400, 401, 403, 404, 411, 413}
"""Statuses of HTTP with which a broker refuses a batch before it begins any append."""


class _WaitingAppend(NamedTuple):
    data: bytes
    content: bytes  # for the ledger
    check: str
    pairs: int  # number of registers to set or to remove
    result: "asyncio.Future[JournalCommit]"


class AppendPipeline:
    """Appends to one journal, many at a time."""

    def __init__(
        self, url: str, journal: str, token: str = "", ledger: AppendLedger | None = None
    ) -> None:
        """Prepare the pipeline; the first append opens its connections.

        Args:
            url: URL of any broker. The primary's is fastest: others forward batches to it.
            journal: name of the journal.
            token: token that permits the appends, or "".
            ledger: record of the appends, written before their futures have results, or None.

        Raises:
            ValueError: the URL has another form.
        """
        if not urlsplit(url).scheme.startswith("http") or not urlsplit(url).netloc:
            raise ValueError(f"invalid address {url!r} of a broker: use http://HOST:PORT")
        self._url = f"{url.rstrip('/')}/{journal}"
        self._journal = journal
        self._ledger = ledger
        self._headers = {"Content-Type": MEDIA_TYPE}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None
        self._waiting: deque[_WaitingAppend] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> "AppendPipeline":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for all appends, and close the connections. It takes no more appends."""
        self._is_closed = True
        ended: set[asyncio.Task[None]] = set()
        if self._senders:
            # This cancels none of them if this call is cancelled.
            ended, _ = await asyncio.wait(self._senders)
        if self._session is not None:
            await self._session.close()
        for sender in ended:
            sender.result()

    def append(self, content: bytes, **conditions: Any) -> "asyncio.Future[JournalCommit]":
        """Append content as a whole, and return the future commit.

        Appends are begun in the order of the calls. The future fails with JournalError if the
        append was refused; without `is_refused`, its outcome is unknown.

        Args:
            content: the content, not empty.
            conditions: `offset`, `check`, `union` and `subtract`, see `qsync_broker.batch`.

        Raises:
            JournalError: the pipeline is closed; nothing was sent.
            ValueError: the content is larger than a batch may be, or a condition is invalid.
        """
        if self._is_closed:
            raise JournalError(
                f"{self._journal}: the append was not sent: the pipeline is closed; open another"
                " one",
                is_refused=True,
            )
        if len(content) > BATCH_BYTES // 2:
            raise ValueError(f"an append of {len(content)} bytes is too large for a batch")
        is_plain = type(content) is bytes and not conditions
        # An invalid append would let the broker refuse all appends of its batch.
        data = encode_item(content if is_plain else {"content": content, **conditions})
        result: asyncio.Future[JournalCommit] = asyncio.get_running_loop().create_future()
        check = conditions.get("check") or ""
        pairs = sum(len(conditions.get(field) or ()) for field in ("union", "subtract"))
        kept = bytes(content) if self._ledger is not None else b""
        self._waiting.append(_WaitingAppend(data, kept, check, pairs, result))
        if len(self._senders) < UNDER_WAY:
            task = asyncio.get_running_loop().create_task(self._send())
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)
        return result

    async def _send(self) -> None:
        """Send batches until no append waits."""
        while self._waiting:
            batch = self._next_batch()
            try:
                await self._send_batch(batch)
            finally:
                for one in batch:
                    one.result.cancel()  # it has no result only after an unexpected error

    async def _send_batch(self, batch: list[_WaitingAppend]) -> None:
        is_refused = False
        try:
            outcomes = await self._exchange(b"".join(one.data for one in batch))
            if len(outcomes) != len(batch):
                raise JournalError("the answer has too few outcomes")
        except JournalError as error:
            is_refused = error.is_refused
            outcomes = [BatchOutcome("", error=str(error))] * len(batch)
        try:
            if not is_refused:
                await self._record(batch, outcomes)
        except AppendLedgerError as error:
            for one in batch:
                if not one.result.done():
                    one.result.set_exception(error)
            return
        for one, outcome in zip(batch, outcomes, strict=True):
            self._resolve(one.result, outcome, is_refused=is_refused)

    def _next_batch(self) -> list[_WaitingAppend]:
        """Remove the first appends that wait, as many as a broker accepts together."""
        batch: list[_WaitingAppend] = []
        checks: set[str] = set()
        size = checks_size = pairs = 0
        while self._waiting and len(batch) < BATCH_APPENDS:
            one = self._waiting[0]
            size += len(one.data)
            pairs += one.pairs
            if one.check not in checks:
                checks.add(one.check)
                checks_size += len(one.check.encode())
            if batch and (size > BATCH_BYTES_AIM or checks_size > CHECKS_MAX or pairs > PAIRS_MAX):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _exchange(self, body: bytes) -> list[BatchOutcome]:
        """Send a batch. Raises JournalError; its text does not begin with the journal."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=5)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.post(self._url, data=body, headers=self._headers) as answer:
                received = await answer.read()
                if answer.status != 200:
                    text = received.decode(errors="replace").strip()
                    text = text.removeprefix(f"{self._journal}: ")
                    raise JournalError(
                        f"HTTP status {answer.status}: {text}",
                        is_refused=answer.status in _REFUSALS,
                    )
            return decode_outcomes(received)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise JournalError(
                f"the broker cannot be reached: {text}",
                # Without a connection, nothing was sent.
                is_refused=isinstance(error, aiohttp.ClientConnectorError),
            ) from None

    async def _record(self, batch: list[_WaitingAppend], outcomes: list[BatchOutcome]) -> None:
        """Write outcomes to the ledger, except refusals. Raises AppendLedgerError."""
        if self._ledger is None:
            return
        appends, now_s = [], time.time()
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.status == "OK":
                appends.append(
                    LedgerAppend(self._journal, outcome.begin, outcome.end, outcome.sum, now_s)
                )
            elif not outcome.status:
                checksum = hashlib.sha1(one.content).digest()
                appends.append(unknown_append(self._journal, len(one.content), checksum))
        await asyncio.to_thread(self._ledger.record, appends)

    def _resolve(
        self, result: "asyncio.Future[JournalCommit]", outcome: BatchOutcome, *, is_refused: bool
    ) -> None:
        if result.done():
            return
        if outcome.status == "OK":
            registers = LabelSet.of(outcome.registers.items()) if outcome.registers else _NONE
            result.set_result(JournalCommit(outcome.begin, outcome.end, outcome.sum, registers))
        elif outcome.status:
            status = Status[outcome.status]
            text = outcome.error or refusal(self._journal, status)
            result.set_exception(JournalError(text, status))
        else:
            text = f"{self._journal}: {outcome.error}"
            result.set_exception(JournalError(text, is_refused=is_refused))


_NONE = LabelSet.of(())
