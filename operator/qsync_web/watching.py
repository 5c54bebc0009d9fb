"""Observes clusters while their pages are open: once per interval, for all viewers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Protocol

from qsync_web.journals import PageJournals, journals_document
from qsync_web.page import ClusterObservation, PageHistory

WATCHED_MAX = 32
"""Clusters whose history is kept; the one that was shown least recently is dropped first."""
JOURNALS_S = 2.0
"""Time for which an answer about journals is reused."""
SELECTIONS_MAX = 32
"""Selections of journals whose answers are kept."""


class PageError(Exception):
    """A cluster that cannot be shown; the text is the cause and what to do."""


@dataclass(frozen=True, slots=True)
class ListedCluster:
    """A cluster of the list. `key` identifies it in addresses of pages."""

    key: str
    name: str
    phase: str
    leader: str


class PageSource(Protocol):
    """A platform, as the page observes it."""

    interval_s: float
    """Minimum seconds between two observations of a cluster."""
    hint: str
    """Advice to users whose page loses its connection, as an imperative clause."""

    async def clusters(self) -> list[ListedCluster]:
        """Return all clusters, or raise PageError."""

    async def observe(self, key: str) -> ClusterObservation:
        """Observe a cluster, or raise PageError."""

    async def journals(self, key: str, part: str) -> PageJournals:
        """Return brokers, and journals whose names contain `part`, or raise PageError."""

    async def report(self, key: str, audit: str) -> bytes | None:
        """Return the report of an audit as HTML, or None if it cannot be read."""

    async def close(self) -> None: ...


class Watching:
    """The histories of the clusters that are shown."""

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self._watches: dict[str, _Watch] = {}
        self._journals: dict[tuple[str, str], _Selection] = {}

    async def document(self, key: str) -> dict[str, Any]:
        """Return the page's data of a cluster; observe it if the last observation is too old.

        Raises:
            PageError: the cluster cannot be observed.
        """
        watch = self._watches.pop(key, None) or _Watch(self.source, key)
        self._watches[key] = watch  # the last one is the one shown last
        try:
            found = await watch.document()
        except PageError:
            if watch.is_empty:  # a name that no cluster has
                self._watches.pop(key, None)
            raise
        while len(self._watches) > WATCHED_MAX:
            del self._watches[next(iter(self._watches))]
        return found

    async def journals(self, key: str, part: str) -> dict[str, Any]:
        """Return brokers and journals of a cluster; viewers of the same selection share answers.

        Raises:
            PageError: the cluster cannot be observed.
        """
        known = self._journals.pop((key, part), None)
        if known is None or time.monotonic() - known.begun_s >= JOURNALS_S:
            task = asyncio.create_task(self.source.journals(key, part))
            task.add_done_callback(_retrieve)
            known = _Selection(task, time.monotonic())
        self._journals[key, part] = known
        while len(self._journals) > SELECTIONS_MAX:
            del self._journals[next(iter(self._journals))]
        return journals_document(await asyncio.shield(known.task))


@dataclass(frozen=True, slots=True)
class _Selection:
    task: asyncio.Task[PageJournals]
    begun_s: float


class _Watch:
    def __init__(self, source: PageSource, key: str) -> None:
        self._source = source
        self._key = key
        self._history = PageHistory()
        self._observed_at_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self.is_empty = True

    async def document(self) -> dict[str, Any]:
        is_old = time.monotonic() - self._observed_at_s >= self._source.interval_s * 0.8
        if self._task is None and is_old:
            self._task = asyncio.create_task(self._observe())
            self._task.add_done_callback(_retrieve)
        if self._task is not None:
            await asyncio.shield(self._task)  # a viewer that leaves must not disturb the others
        return self._history.document()

    async def _observe(self) -> None:
        try:
            self._history.add(await self._source.observe(self._key))
            self._observed_at_s = time.monotonic()
            self.is_empty = False
        finally:
            self._task = None


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Read the error of an observation that all viewers left: asyncio would log it as lost."""
    if not task.cancelled():
        task.exception()
