"""State repair: a row that this replica could not apply was nevertheless confirmed (T7).

Theory. The log is right and the state diverges from it. The replica keeps its log and continues to
follow, acknowledge and vote, but it serves no reads. If its log is needed, it leads as a read-only
leader until a member that may lead has that log (E1). Meanwhile it replaces its *state*. It pulls a
snapshot at an index that its own log reaches, and loads it beside its state, chunk by chunk. It
asks its leader first. If no answer comes, it asks the other members in turn, because the leader's
state may diverge, too. It installs the new state at exactly that index and writes a checkpoint at
once, so that a restart begins after the row. The mark of divergence is stored in the ballot and
ends when that checkpoint is durable.

Rows after that index are not confirmed until the installation: otherwise the state would be too old
on its arrival, again and again, for as long as clients write. They have the bounds of the
queue of unconfirmed transactions; beyond them the transfer begins again (T11).

Between installation and checkpoint the state is correct, and confirmed rows are applied as usual.
Before the installation they are not applied, and the replica sends no snapshot of its state.
"""

from dataclasses import replace

from qsync_node.consensus.context import Context
from qsync_node.consensus.interfaces import Loader, StateMachine, Transitions
from qsync_node.consensus.messages import SnapshotChunk, SnapshotRequest
from qsync_node.consensus.source import Source, SourceState
from qsync_node.errors import ClientError

TRANSFER_BASE = 1 << 32
"""First transfer number of state repairs, distinct from those of a rejoin."""


class StateRepair:
    """Repair of a divergent state."""

    def __init__(
        self, context: Context, source: Source, machine: StateMachine, transitions: Transitions
    ) -> None:
        self.context = context
        self.source = source
        self.machine = machine
        self.transitions = transitions
        self._transfer = TRANSFER_BASE
        self._loader: Loader | None = None
        self._view_index = 0  # of the state in transfer, 0 without one
        self._ready_index = 0  # the same, once the state has arrived
        self._asked_at_ns = 0
        self._attempts = 0  # transfers that began since the last one that arrived
        self._link = 0  # to the member that is asked
        self._sound_index = 0  # index at which this process installed another member's state

    @property
    def is_open(self) -> bool:
        return bool(self.context.ballot.divergent_index)

    @property
    def is_state_wrong(self) -> bool:
        """Whether the state in memory lacks a confirmed row."""
        return self.context.ballot.divergent_index > self._sound_index

    def latest_index(self) -> int | None:
        """Return the index after which no row may be confirmed now, or None."""
        if not self._view_index:
            return None
        return max(self._view_index, self.context.limbo.confirmed_index)

    def open(self, index: int) -> None:
        """Mark the state as divergent from row `index` on; from now on it is not served (T7)."""
        context = self.context
        if index > context.ballot.divergent_index:
            context.store_ballot(replace(context.ballot, divergent_index=index))
            context.report("state_diverged", index=index)

    def tick(self) -> None:
        context = self.context
        settings = context.settings
        is_long = context.limbo.is_longer_than(settings.limbo_entries_max, settings.limbo_bytes_max)
        if self._view_index and is_long:
            # Too many rows wait for the state: confirm them first.
            self._begin_again()
            self.source.is_confirm_due = True
        if self._view_index and self._view_index < context.limbo.confirmed_index:
            # This replica led meanwhile, and its term confirmed rows after the state in transfer.
            self._begin_again()
            self.source.is_confirm_due = True
        if not self.is_open or self._ready_index or self.source.state is not SourceState.FOLLOWING:
            return
        if context.now_ns - self._asked_at_ns < 2 * context.settings.election_timeout_ns:
            return
        if not self.is_state_wrong:
            # The state was replaced, but its checkpoint failed or another one was under way.
            self._asked_at_ns = context.now_ns
            self.machine.checkpoint()
            return
        self._begin_again()
        self._link = self._next_link()
        self._attempts += 1
        self._ask()

    def _next_link(self) -> int:
        """Return the link to the leader, or to other members in turn after attempts that failed.

        Only the source knows which spaces this replica holds, if it does not hold all (F1).
        """
        context, leader = self.context, self.source.uuid
        if context.ballot.spaces:
            return self.source.link
        others = {
            link.peer_uuid
            for link in context.links.values()
            if link.peer_uuid != leader and context.configuration.by_uuid(link.peer_uuid)
        }
        uuids = [leader, *sorted(others)]
        link = context.link_to(uuids[self._attempts % len(uuids)])
        return link.number if link is not None else self.source.link

    def _begin_again(self) -> None:
        """Drop the loaded rows; the next request begins a new transfer."""
        self._transfer += 1
        self._view_index = self._ready_index = 0
        if self._loader is not None:
            self.machine.discard(self._loader)
            self._loader = None

    def _ask(self) -> None:
        context = self.context
        self._asked_at_ns = context.now_ns
        at_least = max(context.ballot.divergent_index, context.limbo.confirmed_index)
        position = self._loader.rows if self._loader is not None else 0
        context.send(self._link, SnapshotRequest(self._transfer, position, at_least))

    def on_chunk(self, link: int, chunk: SnapshotChunk) -> bool:
        """Take the chunk if it belongs to a state repair; return whether it does."""
        if chunk.transfer < TRANSFER_BASE:
            return False
        loader = self._loader
        if chunk.transfer != self._transfer or self._ready_index:
            return True
        if chunk.position != (loader.rows if loader is not None else 0):
            return True
        if chunk.log_index < self.context.limbo.confirmed_index:
            self._begin_again()
            return True
        if loader is None:
            loader = self._loader = self.machine.new_loader()
        self._view_index = chunk.log_index
        try:
            loader.add(chunk.bodies)
        except ClientError as error:
            self.context.report("snapshot_refused", index=chunk.log_index, reason=error.message)
            self._begin_again()
            return True
        if not chunk.is_last:
            self._ask()
        elif loader.checksum == chunk.checksum:
            self._ready_index = chunk.log_index
            self._attempts = 0
            self.before_confirm(self.context.limbo.confirmed_index)
        return True

    def before_confirm(self, goal: int) -> None:
        """Install the loaded state when the confirmed index is about to reach its index."""
        context = self.context
        index = self._ready_index
        if not index:
            return
        confirmed = context.limbo.confirmed_index
        if index < confirmed:
            self._begin_again()
            return
        if index > max(goal, confirmed) or index > context.tail.last_index:
            return
        if index > confirmed:
            self.transitions.confirm(index)
        loader, self._loader = self._loader, None
        assert loader is not None, "T7: a complete transfer has a loader"
        assert context.limbo.confirmed_index == index, "T7: the state is installed at its index"
        self.machine.install(loader)
        self._sound_index = index
        self._view_index = self._ready_index = 0
        self.source.is_confirm_due = True
        self.machine.checkpoint()

    def on_state_replaced(self, index: int) -> None:
        """End the repair: a durable snapshot at `index` lets a restart begin after the row."""
        context = self.context
        if self.is_open and context.ballot.divergent_index <= index:
            left = tuple(nack for nack in context.ballot.nacks if nack.index > index)
            context.store_ballot(replace(context.ballot, divergent_index=0, nacks=left))
            context.report("state_repaired", index=index)
            if self._view_index:
                # A snapshot for log and state came first: confirmation waits for no other state.
                self._begin_again()
                self.source.is_confirm_due = True
