"""Snapshots on the wire: a replica whose next rows are gone gets confirmed state (S3, S4).

Theory. A snapshot is a read view at a confirmed index, with the clock and the history of terms up
to it. It is taken at once and on any member. The receiver pulls it in chunks, so that a slow
receiver delays no other member. The sender draws one chunk per request from the view and keeps only
the last one. A receiver that lost a chunk asks for it again on a new connection. Any other position
starts a new transfer. The checksum over all bodies comes with the last chunk; an incomplete
transfer is never used as a state.

Receivers that ask within `VIEW_SHARED_NS` share one view, because a view keeps all tuples that
change meanwhile in memory. A receiver that subscribed with a list of spaces gets only their tuples
(spaces.py).

The receiver truncates its unconfirmed tail before it asks (L6). It never takes a snapshot older
than the end of the log that it shares with the sender.
"""

import zlib

from qsync_node.consensus.context import Context
from qsync_node.consensus.filtering import refusal_to_serve
from qsync_node.consensus.interfaces import ConfirmedView, StateMachine
from qsync_node.consensus.messages import SnapshotChunk, SnapshotRequest
from qsync_node.consensus.repair import StateRepair

VIEW_LIFETIME_NS = 600_000_000_000
VIEW_SHARED_NS = 10_000_000_000
STALLED_NS = 10_000_000_000
CHUNK_ROWS = 4096


class _Transfer:
    """One view in transfer to one receiver."""

    __slots__ = ("_bodies", "_next", "checksum", "chunk", "position", "taken_ns", "touched_ns",
                 "view")  # fmt: skip

    def __init__(self, view: ConfirmedView, taken_ns: int, now_ns: int) -> None:
        self.view = view
        self.taken_ns = taken_ns
        self.touched_ns = now_ns
        self.position = 0  # of the chunk drawn last, in rows
        self.chunk: list[bytes] = []
        self.checksum = 0  # of everything up to the end of that chunk
        self._bodies = view.bodies()
        self._next = next(self._bodies, None)

    @property
    def is_last(self) -> bool:
        """Whether no row follows the chunk drawn last."""
        return self._next is None

    def draw(self, position: int, bytes_max: int) -> bool:
        """Draw the chunk at `position`, which must be the next one or the last one again.

        Returns:
            False for any other position.
        """
        if position == self.position and self.chunk:
            return True
        if position != self.position + len(self.chunk):
            return False
        chunk: list[bytes] = []
        size = 0
        body = self._next
        while body is not None and len(chunk) < CHUNK_ROWS and (size < bytes_max or not chunk):
            chunk.append(body)
            size += len(body)
            self.checksum = zlib.crc32(body, self.checksum)
            body = next(self._bodies, None)
        self._next = body
        self.position, self.chunk = position, chunk
        return True


class Snapshots:
    """Sending side of all transfers."""

    def __init__(self, context: Context, repair: StateRepair, machine: StateMachine) -> None:
        self.context = context
        self.repair = repair
        self.machine = machine
        self._transfers: dict[tuple[str, int, frozenset[int]], _Transfer] = {}

    def on_request(
        self, link: int, uuid: str, request: SnapshotRequest, spaces: frozenset[int]
    ) -> None:
        """Send the chunk that a receiver asks for.

        Args:
            link: the connection to it.
            uuid: its instance.
            request: transfer and position.
            spaces: ids of the spaces that it holds; empty for all.
        """
        context = self.context
        self._expire()
        if refusal_to_serve(context.ballot.spaces, spaces):
            return
        key = (uuid, request.transfer, spaces)
        limit = context.settings.relay_chunk_bytes
        transfer = self._transfers.get(key)
        if transfer is None or not transfer.draw(request.position, limit):
            if context.limbo.confirmed_index < request.at_least_index or context.is_stopped:
                return
            if self.repair.is_state_wrong:
                return
            # A receiver that starts over gets newer state than before.
            self._transfers = {k: t for k, t in self._transfers.items() if k[0] != uuid}
            transfer = self._begin(spaces, request.at_least_index)
            self._transfers[key] = transfer
            transfer.draw(0, limit)
        transfer.touched_ns = context.now_ns
        view = transfer.view
        context.send(
            link,
            SnapshotChunk(
                request.transfer,
                transfer.position,
                view.index,
                view.vclock,
                view.starts,
                transfer.chunk,
                transfer.is_last,
                transfer.checksum if transfer.is_last else 0,
            ),
        )

    def _begin(self, spaces: frozenset[int], at_least_index: int) -> _Transfer:
        """Return a transfer of a view that another receiver uses, or of a new view."""
        now_ns = self.context.now_ns
        for key, known in self._transfers.items():
            is_young = now_ns - known.taken_ns < VIEW_SHARED_NS
            if key[2] == spaces and is_young and known.view.index >= at_least_index:
                return _Transfer(known.view, known.taken_ns, now_ns)
        view = self.machine.snapshot_view(spaces)
        assert view.index >= at_least_index, "S3: the receiver continues after this state"
        return _Transfer(view, now_ns, now_ns)

    def _expire(self) -> None:
        oldest = self.context.now_ns - VIEW_LIFETIME_NS
        self._transfers = {
            key: transfer
            for key, transfer in self._transfers.items()
            if transfer.touched_ns > oldest
        }

    def pinned_index(self) -> int | None:
        """Return the index of the oldest view in use, or None (S4).

        The WAL after it is kept until the receiver follows.
        """
        self._expire()
        return min((t.view.index for t in self._transfers.values()), default=None)

    def release_stalled(self) -> None:
        """Drop transfers whose receivers stopped asking, because the disk fills up (S4, S5)."""
        oldest = self.context.now_ns - STALLED_NS
        self._transfers = {k: t for k, t in self._transfers.items() if t.touched_ns > oldest}

    def release(self, uuid: str) -> None:
        """Unpin the WAL for a receiver that now follows."""
        self._transfers = {k: t for k, t in self._transfers.items() if k[0] != uuid}
