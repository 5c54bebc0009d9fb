"""Reads of a journal at one of its brokers: fragment by fragment, from the disk or from a store.

An offset may be covered by no fragment. A read then waits, because the fragment may still be on its
way to a store, which is listed again meanwhile. It jumps to a later fragment only if nothing can
fill the gap any more: the later one was persisted some hours ago (as in Gazette), or it is the
first one of a journal whose old fragments are removed. The first persisted fragment of any other
journal shows nothing: this broker may have joined after an earlier fragment, which another broker
could not persist yet. Without a store, a broker that is not partial has all bytes that are left
(J11): a read passes over lost ones.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from qsync_broker import events as ev
from qsync_broker.index import RemoteFragment
from qsync_broker.operations import SpoolKey
from qsync_broker.replica import FragmentPart, JournalReplica
from qsync_broker.stores import FragmentMissing, FragmentStoreError
from qsync_broker.wholeness import partial_brokers
from qsync_node.errors import QsyncError

if TYPE_CHECKING:
    from qsync_broker.server import BrokerServer

CHUNK = 256 << 10
"""Maximum number of bytes of one piece of content."""
GAP_S = 6 * 3600
"""Age of a persisted fragment after which a gap before it counts as final."""
INDEX_S = 30.0
"""Time that a read waits for the first listing of its journal's stores."""

log = logging.getLogger("qsync.broker")


class ReadError(QsyncError):
    """The bytes of a journal cannot be read; the text has its name, the cause, and what to do."""


class FoundFragment(NamedTuple):
    """A fragment for a read, and the offset at which the read continues in it."""

    part: FragmentPart
    offset: int


def find(
    replica: JournalReplica, offset: int, unix_s: int, begin_mod_time: int = 0
) -> FoundFragment | None:
    """Return the fragment from which a read continues, or None if there is none yet.

    Args:
        replica: the journal at this broker.
        offset: offset of the next wanted byte.
        unix_s: the time.
        begin_mod_time: Unix time; fragments that were persisted before it are passed over.
    """
    while True:
        part = replica.part_at(offset)
        if part is None:
            later = replica.remote.after(offset)
            if later is None:
                return None
            is_first = replica.remote.begin == later.begin and not replica.has_before(offset)
            is_pruned = is_first and replica.settings.has_retention
            if not is_pruned and later.mod_time > unix_s - GAP_S:
                return None
            offset, part = later.begin, FragmentPart.of_remote(later)
        remote = part.remote
        if not begin_mod_time or remote is None or remote.mod_time >= begin_mod_time:
            return FoundFragment(part, offset)
        offset = part.end


class JournalReader:
    """Reads of one journal at this broker."""

    def __init__(self, server: "BrokerServer", replica: JournalReplica) -> None:
        self.replica = replica
        self._server = server

    @property
    def is_over(self) -> bool:
        """Return whether this broker does not have the journal any more, or stops."""
        core = self._server.core
        return self._server.is_stopping or core.replica(self.replica.journal) is not self.replica

    async def until_index_known(self) -> None:
        """Wait for the first listing of the journal's stores.

        Raises:
            ReadError: the stores cannot be listed, or this broker does not serve the journal.
        """
        replica = self.replica
        cause = "this broker has stopped serving it; wait"
        try:
            async with asyncio.timeout(INDEX_S):
                while not replica.is_index_known and not self.is_over:
                    await self._server.readable(replica.journal)
        except TimeoutError:
            error = replica.store_error or "no answer in time"
            cause = f"the stores cannot be listed: {error}; check the stores"
        if not replica.is_index_known:
            raise ReadError(f"a read of {replica.journal} failed: {cause}, then read again")

    def _is_copied(self, offset: int) -> bool:
        """Return whether this broker copies the bytes at an offset from another one."""
        core, replica = self._server.core, self.replica
        row = core.keys.journals.get(replica.journal)
        return row is not None and core.me in partial_brokers(row) and offset < replica.spool.begin

    async def next(
        self, offset: int, is_blocking: bool, begin_mod_time: int = 0
    ) -> FoundFragment | None:
        """Return the fragment from which a read continues; None at the end of the readable bytes.

        Args:
            offset: offset of the next wanted byte.
            is_blocking: whether to wait for bytes that are not there yet.
            begin_mod_time: see `find`.
        """
        replica = self.replica
        while not self.is_over:
            found = find(replica, offset, self._server.core.unix_s, begin_mod_time)
            if found is not None:
                return found
            is_copied = self._is_copied(offset)
            if not replica.settings.stores and not is_copied:
                later = next((one for one in replica.local_parts if one.begin > offset), None)
                if later is not None:
                    return FoundFragment(later, later.begin)
            if replica.lacks(offset):
                self._server.feed(ev.GapRead(replica.journal))
            if not is_blocking and not is_copied:
                return None
            await self._server.readable(replica.journal)
        return None

    async def content(self, part: FragmentPart, offset: int, end: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a fragment.

        It may end early: a local fragment is removed once it is persisted, and the next look-up
        finds it in its store.

        Args:
            part: the fragment.
            offset: offset of the first wanted byte.
            end: offset after the last wanted byte, 0 for the end of the fragment.

        Raises:
            ReadError: the store or the disk failed, or the fragment is damaged or was deleted. It
                is logged.
        """
        begin, end = offset, min(end or part.end, part.end)
        pieces = (
            self._stored(part.remote, offset) if part.remote else self._local(part, offset, end)
        )
        try:
            async for data in pieces:
                if offset >= end:
                    return
                self._server.metrics.on_read(min(len(data), end - offset))
                yield data[: end - offset]
                offset += len(data)
        except FragmentMissing as error:
            self._server.feed(ev.GapRead(self.replica.journal))  # its stores are listed again
            text = f"a read of {self.replica.journal} at {begin} failed: {error}; retry in a minute"
            log.warning("%s", text)
            raise ReadError(text) from None
        except (FragmentStoreError, OSError) as error:
            place = "store" if part.remote is not None else "disk of the broker"
            text = (
                f"a read of {self.replica.journal} at {begin} failed: {error}; check the {place},"
                " then read again"
            )
            log.warning("%s", text)
            raise ReadError(text) from None

    async def _stored(self, fragment: RemoteFragment, offset: int) -> AsyncIterator[bytes]:
        """Return the bytes of a persisted fragment. Raises StoreError."""
        metrics = self._server.metrics
        try:
            async for data in self._server.stores.read(fragment, offset):
                yield data
        except FragmentStoreError:
            metrics.on_store_request("read", is_ok=False)
            raise
        metrics.on_store_request("read", is_ok=True)

    async def _local(self, part: FragmentPart, offset: int, end: int) -> AsyncIterator[bytes]:
        """Return the bytes of a local fragment. Raises OSError, also if they are damaged."""
        server = self._server
        key = SpoolKey(self.replica.journal, self.replica.spool.journal_id, part.begin)
        problem = await server.verify(key)
        if problem is not None:
            raise OSError(f"{problem}; restart this broker to copy the bytes from another one")
        while offset < end:
            size = min(CHUNK, end - offset)
            try:
                read = server.storage.read
                data = await server.loop.run_in_executor(None, read, key, offset, size)
            except FileNotFoundError:
                data = b""
            if not data:
                if self._is_listed(part):  # another look-up would find the same fragment
                    path = server.storage.path_of(key)
                    raise OSError(
                        f"{path} lacks the bytes at {offset}; restart this broker to copy them"
                        " from another one"
                    )
                return
            yield data
            offset += len(data)

    def _is_listed(self, part: FragmentPart) -> bool:
        """Return whether a fragment still counts as one on this broker's disk."""
        replica = self.replica
        return not self.is_over and (
            part.begin in replica.completed or part.begin == replica.spool.begin
        )
