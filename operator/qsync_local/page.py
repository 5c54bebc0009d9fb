"""The web page of a local cluster, which its supervisor serves on the loopback interface.

The page must not slow failover down: it observes only while it is open, once a second, and reads
the files of events and audits only after they changed. Whatever fails here, supervision continues.
"""

import asyncio
import contextlib
import json
import secrets
import ssl
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from qsync_local.brokerpage import LocalBrokers
from qsync_local.observing import observe
from qsync_local.ports import PAGE_PORTS, NoFreePort, choose_port, is_free
from qsync_local.store import ClusterFiles, PageAddress, events_of
from qsync_local.views import VIEW_PATH, document_of
from qsync_operator.api.reasons import EventReason
from qsync_operator.api.status import ClusterStatus
from qsync_operator.members.links import NodeLinks, ask_each
from qsync_operator.plan.observed import SchemaView
from qsync_operator.views.live import live_sample
from qsync_operator.views.statusview import view_of
from qsync_web.journals import PageJournals
from qsync_web.page import (
    AUDITS_MAX,
    EVENTS_MAX,
    FAILOVERS_MAX,
    ClusterObservation,
    PageAudit,
    PageSpaces,
    read_spaces,
)
from qsync_web.server import PageServer
from qsync_web.watching import ListedCluster, PageError

SPACES_EVERY_S = 3.0
REPORT_BYTES_MAX = 64 << 20
_Mark = tuple[int, int]


class LocalSource:
    """The cluster of one supervisor, as the page observes it."""

    interval_s = 1.0

    def __init__(
        self,
        store: ClusterFiles,
        status: Callable[[], ClusterStatus],
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Prepare the source.

        Args:
            store: files of the cluster.
            status: returns the last status of the supervisor.
            context: returns the TLS context of connections to members.
        """
        self._store = store
        self._status = status
        self._links = NodeLinks("", context)  # reads only: no order has to be signed
        self._brokers = LocalBrokers(store)
        self._events = RecentEvents(store.directory / "events.jsonl")
        self._audits = FinishedAudits(store.directory / "audits")
        self._spaces: PageSpaces | None = None
        self._spaces_at_s = 0.0
        self.hint = f"run `qsync web {store.name}`"

    async def close(self) -> None:
        await self._links.close()
        await self._brokers.close()

    async def clusters(self) -> list[ListedCluster]:
        status, name = self._status(), self._store.name
        return [ListedCluster(name, name, status.phase, status.leader)]

    async def observe(self, key: str) -> ClusterObservation:
        cluster = self._store.load_cluster() if key == self._store.name else None
        if cluster is None:
            raise PageError(f"cluster {key} not found: run `qsync local status`")
        status = cluster.status = self._status()
        addresses = {one.name: one.admin_address for one in status.members if one.role != "down"}
        answers = await self._links.statuses(addresses)
        reports = {name: one for name, one in answers.items() if isinstance(one, dict)}
        leader = [name for name in reports if name == status.leader]
        await self._observe_spaces([addresses[name] for name in [*leader, *reports]][:1])
        view = view_of(cluster)
        now = datetime.now().astimezone()
        sample = live_sample(
            view, status, reports, None, at_s=time.monotonic(), clock=f"{now:%H:%M:%S}"
        )
        return ClusterObservation(
            time=now.isoformat(timespec="milliseconds"),
            sample=sample,
            status=status,
            health=view.health,
            events=self._events.read(),
            audits=self._audits.read(),
            spaces=self._spaces,
            has_brokers=self._brokers.exist,
        )

    async def journals(self, key: str, part: str) -> PageJournals:
        if key != self._store.name:
            raise PageError(f"cluster {key} not found: run `qsync local status`")
        return await self._brokers.observe(part)

    async def _observe_spaces(self, addresses: list[str]) -> None:
        if time.monotonic() - self._spaces_at_s < SPACES_EVERY_S:
            return
        self._spaces_at_s = time.monotonic()
        found = await ask_each(self._links.spaces, {one: one for one in addresses})
        self._spaces = next(map(read_spaces, found.values()), None)

    async def report(self, key: str, audit: str) -> bytes | None:
        # Compared, not joined: the name comes from the address.
        if key != self._store.name or audit not in {one.name for one in self._audits.read()}:
            return None
        path = self._store.directory / "audits" / audit / "report.html"
        return await asyncio.to_thread(_read_bounded, path)


def _read_bounded(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            text = file.read(REPORT_BYTES_MAX + 1)
    except OSError:
        return None
    return text if len(text) <= REPORT_BYTES_MAX else None


def _mark(path: Path) -> _Mark:
    """Return a mark that differs after each change of a file or folder."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


class RecentEvents:
    """The last events of a file, and older failovers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: _Mark = (-1, -1)
        self._events: list[dict[str, str]] = []

    def read(self) -> list[dict[str, str]]:
        """Return the events, oldest first. The file is read only after a change."""
        mark = _mark(self._path)
        if mark != self._mark:
            self._mark, self._events = mark, self._load()
        return self._events

    def _load(self) -> list[dict[str, str]]:
        lines: list[str] = []
        for path in (self._path.with_suffix(".old.jsonl"), self._path):
            with contextlib.suppress(OSError):
                lines += path.read_text(errors="replace").splitlines()
        complete = [line for line in lines if line.endswith("}")]
        failover = f'"reason": "{EventReason.FAILOVER}"'
        old, new = complete[:-EVENTS_MAX], complete[-EVENTS_MAX:]
        return events_of([*_last(old, failover, FAILOVERS_MAX), *new])


def _last(lines: list[str], part: str, most: int) -> list[str]:
    return [line for line in lines if part in line][-most:]


class FinishedAudits:
    """The last finished audits of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, PageAudit] = {}

    def read(self) -> list[PageAudit]:
        """Return the audits, newest first. Each result is read once: it does not change."""
        names = sorted(
            (path.parent.name for path in self._folder.glob("*/audit.json")), reverse=True
        )
        known = {name: self._known.get(name) or self._load(name) for name in names[:AUDITS_MAX]}
        self._known = {name: one for name, one in known.items() if one is not None}
        return list(self._known.values())

    def _load(self, name: str) -> PageAudit | None:
        try:
            said = json.loads((self._folder / name / "audit.json").read_text())
            return PageAudit(
                name=name,
                verdict=str(said["verdict"]),
                finished_at=_time_of(name),
                index=int(said["auditedIndex"]),
                violations=int(said["violationCount"]),
                has_page=True,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # an incomplete result; the next observation reads it again


def _time_of(name: str) -> str:
    """Return the time that an audit is named after, in ISO 8601, or ""."""
    try:
        return datetime.strptime(name, "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return ""


async def _current_view(store: ClusterFiles, schema: SchemaView) -> dict[str, Any]:
    """Return the document that `qsync_local.views` reads."""
    cluster, secrets_of_members = store.load_cluster(), store.load_secrets()
    if cluster is None or secrets_of_members is None:
        raise PageError(f"cluster {store.name} was deleted")
    cluster.status = await observe(store, secrets_of_members, cluster, schema)
    return document_of(view_of(cluster))


def _address_to_serve(store: ClusterFiles) -> PageAddress:
    """Return the last address, or a new token without a port if another program has that port.

    That program may have learned the last token, from a command that looked for the page there.
    """
    known = store.load_page()
    if known is not None and is_free(known.port):
        return known
    return PageAddress(0, secrets.token_urlsafe(24))


async def serve_page(
    store: ClusterFiles,
    status: Callable[[], ClusterStatus],
    context: Callable[[], ssl.SSLContext | None] = lambda: None,
    schema: Callable[[], SchemaView] = SchemaView,
) -> PageServer | None:
    """Serve the page at the port of the last time, or at another one if that is in use.

    Args:
        store: files of the cluster.
        status: returns the last status of the supervisor.
        context: returns the TLS context of connections to members.
        schema: returns the last comparison of the spaces with the manifest.

    Returns:
        The server; None, after a line in the log, if no port is available or the disk is full.
    """
    address = _address_to_serve(store)
    refusal = f"open the address that `qsync web {store.name}` prints: it contains a token"
    views = {VIEW_PATH: lambda: _current_view(store, schema())}
    server = PageServer(LocalSource(store, status, context), address.token, refusal, views)
    try:
        port = address.port or choose_port((), PAGE_PORTS)
        await server.listen(port)
        store.save_page(PageAddress(server.port, address.token))
    except (OSError, NoFreePort) as error:
        sys.stderr.write(f"the web page is not served: {error}\n")
        await server.close()
        return None
    return server
