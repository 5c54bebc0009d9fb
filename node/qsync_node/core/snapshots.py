"""Snapshots on the wire: a replica whose rows are gone gets confirmed state instead (S3, S4).

Theory. A snapshot is a read view at a confirmed index, taken at once and on any member, with the
clock and the history of terms up to it. It is pulled in chunks, so that a slow receiver slows
nobody, and can be resumed on a new connection while the sender still holds the view. The checksum
over all bodies comes with the last chunk; an incomplete transfer is never a start state.

A receiver that subscribed with a list of spaces gets the tuples of those only (spaces.py).

The receiver has cut its unconfirmed tail before it asks (L6), and never takes a snapshot older than
the end of the log it shares with the sender.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsync_node.core.history import TermStart
from qsync_node.core.messages import SnapshotChunk, SnapshotRequest
from qsync_node.core.spaces import refusal_to_serve

if TYPE_CHECKING:
    from qsync_node.core.replica import Replica

VIEW_LIFETIME_NS = 600_000_000_000
STALLED_NS = 10_000_000_000
CHUNK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class View:
    """Confirmed state at `index`: row bodies, the history among them (S2).

    The state is fixed when the view is taken; `bodies` are made from it as they are drawn, once, so
    that a large state does not hold the node up.
    """

    index: int
    vclock: dict[int, int]
    starts: list[TermStart]
    bodies: Iterator[bytes]


class _Transfer:
    """One view on its way; what was drawn is kept, so that a receiver may ask for it again."""

    __slots__ = ("checksum", "drawn", "is_complete", "touched_ns", "view")

    def __init__(self, view: View, now_ns: int) -> None:
        self.view = view
        self.touched_ns = now_ns
        self.drawn: list[bytes] = []
        self.checksum = 0
        self.is_complete = False

    def chunk(self, position: int, bytes_max: int) -> list[bytes]:
        """Bodies from `position` on; draws as many as one chunk takes, and looks one ahead."""
        size = 0
        end = position
        while end - position < CHUNK_ROWS and (size < bytes_max or end == position):
            if not self._draw_to(end):
                break
            size += len(self.drawn[end])
            end += 1
        self._draw_to(end)
        return self.drawn[position:end]

    def _draw_to(self, position: int) -> bool:
        while len(self.drawn) <= position and not self.is_complete:
            body = next(self.view.bodies, None)
            if body is None:
                self.is_complete = True
            else:
                self.drawn.append(body)
                self.checksum = zlib.crc32(body, self.checksum)
        return len(self.drawn) > position


def checksum(bodies: list[bytes]) -> int:
    value = 0
    for body in bodies:
        value = zlib.crc32(body, value)
    return value


class Snapshots:
    """Sending side of all transfers."""

    def __init__(self, replica: "Replica") -> None:
        self.replica = replica
        self._transfers: dict[tuple[str, int, frozenset[int]], _Transfer] = {}

    def on_request(self, link: int, uuid: str, request: SnapshotRequest) -> None:
        replica = self.replica
        self._expire()
        spaces = replica.relays.list_of(link)
        if refusal_to_serve(replica.ballot.spaces, spaces):
            return
        key = (uuid, request.transfer, spaces)
        transfer = self._transfers.get(key)
        position = request.position
        if transfer is None:
            if replica.limbo.confirmed_index < request.at_least_index or replica.split_brain:
                return
            if replica.doubt.is_state_wrong:
                return
            transfer = _Transfer(replica.machine.snapshot_view(spaces), replica.now_ns)
            self._transfers = {k: t for k, t in self._transfers.items() if k[0] != uuid}
            self._transfers[key] = transfer
            position = 0
        transfer.touched_ns = replica.now_ns
        view = transfer.view
        bodies = transfer.chunk(position, replica.settings.relay_chunk_bytes)
        is_last = transfer.is_complete and position + len(bodies) >= len(transfer.drawn)
        replica.send(
            link,
            SnapshotChunk(
                request.transfer,
                position,
                view.index,
                view.vclock,
                view.starts,
                bodies,
                is_last,
                transfer.checksum if is_last else 0,
            ),
        )

    def _expire(self) -> None:
        oldest = self.replica.now_ns - VIEW_LIFETIME_NS
        self._transfers = {
            key: transfer
            for key, transfer in self._transfers.items()
            if transfer.touched_ns > oldest
        }

    def pinned_index(self) -> int | None:
        """The WAL behind the oldest view in use is kept until its joiner follows (S4)."""
        self._expire()
        return min((t.view.index for t in self._transfers.values()), default=None)

    def release_stalled(self) -> None:
        """The disk fills: who does not ask for more just now begins anew later (S4, S5)."""
        oldest = self.replica.now_ns - STALLED_NS
        self._transfers = {k: t for k, t in self._transfers.items() if t.touched_ns > oldest}

    def release(self, uuid: str) -> None:
        """The joiner follows: its pin ends."""
        self._transfers = {k: t for k, t in self._transfers.items() if k[0] != uuid}
