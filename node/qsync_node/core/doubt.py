"""State in doubt: a row that this replica could not apply was confirmed all the same (T7).

Theory. The log is right and the state is not. The replica keeps its log, continues to follow,
acknowledging and voting, serves no reads, leads only as a caretaker (E1: when its log is needed,
until one that may lead has it), and replaces its *state*. It pulls a snapshot of its leader at an
index that its own log reaches and loads it beside its own state, chunk by chunk. It takes the state
at exactly that index, and writes it as a checkpoint at once, so that a restart begins behind the
row. The doubt is stored beside the ballot and ends when that checkpoint is durable.

Between the two the state is right again and confirmed rows go into it, as always; before, they do
not, and it sends no snapshot of that state.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from qsync_node.core.loading import StateLoader
from qsync_node.core.messages import SnapshotChunk, SnapshotRequest
from qsync_node.errors import ClientError

if TYPE_CHECKING:
    from qsync_node.core.replica import Replica

TRANSFER_BASE = 1 << 32
"""Transfers of a state use their own numbers, apart from those of a re-join."""


class Doubt:
    """Replaces a state that does not follow from the log."""

    def __init__(self, replica: "Replica") -> None:
        self.replica = replica
        self._transfer = TRANSFER_BASE
        self._loader: StateLoader | None = None
        self._ready_index = 0
        self._asked_at_ns = 0
        self._sound_index = 0  # where this process took another member's state

    @property
    def is_open(self) -> bool:
        return bool(self.replica.ballot.doubt_index)

    @property
    def is_state_wrong(self) -> bool:
        """Whether the state in memory lacks a row that is confirmed."""
        return self.replica.ballot.doubt_index > self._sound_index

    def open(self, index: int) -> None:
        """From now on the state is not served (T7)."""
        replica = self.replica
        if index > replica.ballot.doubt_index:
            replica.store_ballot(replace(replica.ballot, doubt_index=index))
            replica.report("state_in_doubt", index=index)

    def tick(self) -> None:
        replica = self.replica
        if not self.is_open or self._ready_index or replica.applier.state.value != "following":
            return
        if replica.now_ns - self._asked_at_ns < 2 * replica.settings.election_timeout_ns:
            return
        if not self.is_state_wrong:
            # The state was replaced and its checkpoint failed or another was under way.
            self._asked_at_ns = replica.now_ns
            replica.machine.checkpoint()
            return
        self._begin_again()
        self._ask()

    def _begin_again(self) -> None:
        """Drop what was loaded; the next request begins a new transfer."""
        self._transfer += 1
        self._ready_index = 0
        if self._loader is not None:
            self.replica.machine.retire(self._loader.database)
            self._loader = None

    def _ask(self) -> None:
        replica = self.replica
        self._asked_at_ns = replica.now_ns
        at_least = max(replica.ballot.doubt_index, replica.limbo.confirmed_index)
        position = self._loader.rows if self._loader is not None else 0
        replica.send(replica.applier.link, SnapshotRequest(self._transfer, position, at_least))

    def on_chunk(self, link: int, chunk: SnapshotChunk) -> bool:
        """Takes the chunk if it belongs to a state transfer."""
        if chunk.transfer < TRANSFER_BASE:
            return False
        loader = self._loader
        if chunk.transfer != self._transfer or self._ready_index:
            return True
        if chunk.position != (loader.rows if loader is not None else 0):
            return True
        if loader is None:
            loader = self._loader = self.replica.machine.new_loader()
        try:
            loader.add(chunk.bodies)
        except ClientError as error:
            self.replica.report("snapshot_refused", index=chunk.log_index, reason=error.message)
            self._begin_again()
            return True
        if not chunk.is_last:
            self._ask()
        elif loader.checksum == chunk.checksum:
            self._ready_index = chunk.log_index
            self.before_confirm(self.replica.limbo.confirmed_index)
        return True

    def before_confirm(self, goal: int) -> None:
        """Take the state when the confirmed index is about to reach the snapshot's."""
        replica = self.replica
        index = self._ready_index
        if not index:
            return
        confirmed = replica.limbo.confirmed_index
        if index < confirmed:
            self._begin_again()
            return
        if index > max(goal, confirmed) or index > replica.tail.last_index:
            return
        if index > confirmed:
            replica.confirm(index)
        loader, self._loader = self._loader, None
        assert loader is not None, "a transfer that is complete was loaded"
        replica.machine.install(loader)
        self._sound_index = index
        self._ready_index = 0
        replica.machine.checkpoint()

    def on_state_replaced(self, index: int) -> None:
        """A snapshot at `index` is durable: a restart begins behind the row in doubt."""
        replica = self.replica
        if self.is_open and replica.ballot.doubt_index <= index:
            left = tuple(nack for nack in replica.ballot.nacks if nack.index > index)
            replica.store_ballot(replace(replica.ballot, doubt_index=0, nacks=left))
            replica.report("doubt_ended", index=index)
