"""Reads what brokers report about declared journals, in the background."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from qsync_operator.plan.journalstatus import JournalReport, Sight, sights

ASK_AGAIN_S = 2.0
TIMEOUT_S = 2.0
NAMES_MAX = 50
"""Journals in one request: their names are in the URL, which has at most 8 KiB."""


class JournalReports:
    """The reports of the brokers of one cluster."""

    def __init__(self, context: Callable[[], ssl.SSLContext], wake: Callable[[], None]) -> None:
        """Prepare the requests.

        Args:
            context: returns the TLS context of connections to members.
            wake: called when the reports have changed.
        """
        self._context = context
        self._wake = wake
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked_s = -ASK_AGAIN_S
        self.found: dict[str, Sight] = {}

    def ask(self, brokers: Mapping[str, str], names: Sequence[str], token: str = "") -> None:
        """Ask brokers in the background if that is due.

        Args:
            brokers: URL of each broker.
            names: journals to ask for.
            token: token of the requests, or "".
        """
        is_busy = self._task is not None and not self._task.done()
        if is_busy or time.monotonic() - self._asked_s < ASK_AGAIN_S:
            return
        self._asked_s = time.monotonic()
        self._task = asyncio.create_task(self._ask(dict(brokers), list(names), token))

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _ask(self, brokers: dict[str, str], names: list[str], token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = (self._ask_one(url, names, headers) for url in brokers.values())
        answers = await asyncio.gather(*asked)
        known = {
            broker: answer
            for broker, answer in zip(brokers, answers, strict=True)
            if answer is not None
        }
        found = sights(known)
        if found != self.found:
            self.found = found
            self._wake()

    async def _ask_one(
        self, url: str, names: list[str], headers: dict[str, str]
    ) -> tuple[int, list[JournalReport]] | None:
        """Return revision and reports of a broker, or None if it does not answer."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S))
        found: list[JournalReport] = []
        revision = 0
        # An invalid answer counts as none: no broker may end the turn of its cluster.
        with contextlib.suppress(
            aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError
        ):
            for first in range(0, len(names), NAMES_MAX):
                query = [("name", name) for name in names[first : first + NAMES_MAX]]
                async with self._session.get(
                    f"{url}/debug/journals", params=query, headers=headers, ssl=self._context()
                ) as answer:
                    said = await answer.json()
                revision = int(said["revision"])
                found += [JournalReport.model_validate(one) for one in said["journals"]]
            return revision, found
        return None
