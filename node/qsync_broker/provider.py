"""Parts of completed fragments for brokers that lack them (J11)."""

from collections.abc import Callable
from typing import NamedTuple

from qsync_broker import events as ev
from qsync_broker import messages as msg
from qsync_broker.index import LocalFragment
from qsync_broker.operations import SpoolKey
from qsync_broker.replica import JournalReplica

PART_BYTES = 256 << 10
"""Maximum number of bytes of one answer."""
READS_MAX = 64
"""Reads of a broker at a time; one more is refused, and its copy is tried again later."""


class _Read(NamedTuple):
    number: int
    stream: int
    fragment: LocalFragment
    at: int


class Provider:
    """Answers of one broker to the copies of others."""

    def __init__(
        self, find: Callable[[str], JournalReplica | None], emit: Callable[[ev.BrokerEffect], None]
    ) -> None:
        self._find = find
        self._emit = emit
        self._reads: dict[int, _Read] = {}
        self._tokens = 0

    def on_fetch(self, number: int, stream: int, fetch: msg.Fetch) -> None:
        """Read a part of a fragment for the stream of a connection."""
        replica = self._find(fetch.journal)
        if replica is None or replica.spool.journal_id != fetch.journal_id:
            self._reply(number, stream, msg.Failed("the broker does not have the journal"))
            return
        if len(self._reads) >= READS_MAX:
            self._reply(number, stream, msg.Failed("too many copies read from this broker"))
            return
        found = [
            fragment
            for begin, fragment in replica.completed.items()
            if fragment.end > fetch.after and begin < fetch.until
        ]
        fragment = min(found, default=None)
        has_first = fragment is not None and fragment.begin <= fetch.after
        epoch = replica.spool.epoch
        if not has_first and epoch != fetch.epoch:
            # If its disk was lost since the recorded synchronisation, others may have these bytes.
            reason = f"the broker was last synchronised in epoch {epoch}, not in {fetch.epoch}"
            self._reply(number, stream, msg.Failed(reason))
            return
        if fragment is None:
            self._reply(number, stream, msg.Fetched(0, 0, b"", 0, 0, 0, b""))
            return
        at = min(max(fetch.at, fragment.begin), fragment.end)
        self._tokens += 1
        self._reads[self._tokens] = _Read(number, stream, fragment, at)
        key = SpoolKey(fetch.journal, fetch.journal_id, fragment.begin)
        size = min(PART_BYTES, fragment.end - at)
        self._emit(ev.ReadSpool(self._tokens, key, at, size))

    def on_read(self, event: ev.SpoolRead) -> None:
        """Send a part that was read."""
        read = self._reads.pop(event.token)
        if event.data is None:
            self._reply(read.number, read.stream, msg.Failed("the fragment cannot be read"))
        else:
            fetched = msg.Fetched(*read.fragment, read.at, event.data)
            self._reply(read.number, read.stream, fetched)

    def _reply(self, number: int, stream: int, message: msg.Message) -> None:
        self._emit(ev.SendPeer(number, stream, message))
