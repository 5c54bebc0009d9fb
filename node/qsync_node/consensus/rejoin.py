"""Rejoin: a replica takes a snapshot when its source no longer has the next rows (S3).

Theory. The replica pulls the transfer chunk by chunk. It can resume on a new connection while the
source holds the view (S4). It loads each chunk on arrival into a state beside the one in use, so
that no step loads more than a chunk (G1). Only a complete transfer with the right checksum replaces
log and state, and never one that would remove rows of the local, matched log. The snapshot file is
written from the new state. If spaces were configured by name, an empty replica first fetches the
schema alone to learn their ids (spaces.py).

Invariants

  J1  An installed snapshot reaches at least the requested index and covers the whole local log.
  J2  The list of spaces is durable before the first snapshot that was filtered by it (F2).
"""

from dataclasses import replace

from qsync_node.consensus import effects as fx
from qsync_node.consensus.context import Context
from qsync_node.consensus.filtering import ids_of
from qsync_node.consensus.history import History
from qsync_node.consensus.interfaces import Loader, StateMachine, Transitions
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.messages import SnapshotChunk, SnapshotRequest
from qsync_node.consensus.repair import StateRepair
from qsync_node.consensus.source import Source, SourceState
from qsync_node.consensus.tail import Tail
from qsync_node.errors import ClientError


class Rejoin:
    """The receiving end of a transfer that replaces log and state."""

    def __init__(
        self,
        context: Context,
        source: Source,
        repair: StateRepair,
        machine: StateMachine,
        transitions: Transitions,
    ) -> None:
        self.context = context
        self.source = source
        self.repair = repair
        self.machine = machine
        self.transitions = transitions
        self.loader: Loader | None = None
        self.transfer = 0
        self.transfer_index = 0
        self.goal_index = 0

    # --- snapshot -----------------------------------------------------------------------------

    def fetch(self, at_least_index: int) -> None:
        """Pull confirmed state from the source (S3); a transfer can be resumed (S4).

        Args:
            at_least_index: the snapshot must reach this index.
        """
        context = self.context
        if self.goal_index != at_least_index or not self.transfer:
            self.begin_again()
        self.goal_index = at_least_index
        self.source.become(SourceState.FETCHING)
        context.report("snapshot_wanted", at_least_index=at_least_index, source=self.source.uuid)
        self._ask(self.source.link)

    def _ask(self, link: int) -> None:
        position = self.loader.rows if self.loader is not None else 0
        self.context.send(link, SnapshotRequest(self.transfer, position, self.goal_index))

    def begin_again(self) -> None:
        """Drop the loaded rows; the next request begins a new transfer."""
        self.transfer += 1
        if self.loader is not None:
            self.machine.discard(self.loader)
            self.loader = None

    def on_chunk(self, link: int, chunk: SnapshotChunk) -> None:
        context = self.context
        if self.repair.on_chunk(link, chunk):
            return
        if (
            self.source.state is not SourceState.FETCHING
            or chunk.transfer != self.transfer
            or link != self.source.link
        ):
            return
        loader = self._loader_for(chunk)
        if loader is None:
            if chunk.log_index != self.transfer_index:
                # Another source has a view of another index, which it would offer each time (S4).
                self.begin_again()
            self.source.retry_later()
            return
        try:
            loader.add(chunk.bodies)
        except ClientError as error:
            context.report("snapshot_refused", index=chunk.log_index, reason=error.message)
            self.begin_again()
            self.source.retry_later()
            return
        self.source.since_ns = context.now_ns
        if not chunk.is_last:
            self._ask(link)
        elif loader.checksum != chunk.checksum or chunk.log_index < self.goal_index:
            self.begin_again()
            self.source.retry_later()
        elif self.is_learning_spaces:
            self._learn_spaces(loader)
        else:
            self._install(chunk, loader)

    def _loader_for(self, chunk: SnapshotChunk) -> Loader | None:
        """Return the loader for the chunk, or None if the chunk does not continue the transfer."""
        loader = self.loader
        if chunk.position == 0:
            if loader is not None:
                self.machine.discard(loader)
            loader = self.loader = self.machine.new_loader()
            self.transfer_index = chunk.log_index
            return loader
        if loader is None or chunk.position != loader.rows:
            return None
        return loader if chunk.log_index == self.transfer_index else None

    def _install(self, chunk: SnapshotChunk, loader: Loader) -> None:
        """Replace log and state by the snapshot; the tail was truncated before (S3)."""
        context = self.context
        if context.tail.last_index > chunk.log_index:
            # Rows of the local, matched log lie after the snapshot: it would remove them.
            self.begin_again()
            self.source.retry_later()
            return
        self.source.become(SourceState.INSTALLING)
        epoch = context.tail.epoch + 1
        self.loader = None
        self.transfer += 1
        configuration = self.machine.install(loader)
        history = History(chunk.starts)
        settings = context.settings
        tail = Tail(chunk.vclock, history, chunk.log_index + 1, settings.tail_cache_bytes)
        tail.epoch = epoch
        limbo = Limbo(chunk.log_index, chunk.vclock, configuration)
        self.transitions.replace_log(tail, limbo)
        bodies = self.machine.snapshot_view().bodies()
        context.out.append(fx.InstallSnapshot(epoch, chunk.log_index, dict(chunk.vclock), bodies))
        context.report("snapshot_taken", index=chunk.log_index)
        self.transitions.stop_at_unsupported_level()

    def on_installed(self, message: fx.SnapshotInstalled) -> None:
        context = self.context
        if self.source.state is not SourceState.INSTALLING or message.epoch != context.tail.epoch:
            return
        self.repair.on_state_replaced(context.tail.last_index)
        context.report("snapshot_installed", index=context.tail.last_index)
        self.source.become(SourceState.IDLE)
        self.source.retry_at_ns = 0

    # --- list of spaces -----------------------------------------------------------------------

    @property
    def is_learning_spaces(self) -> bool:
        """Whether the ids of the configured names are not known yet."""
        context = self.context
        return bool(
            context.settings.spaces and not context.ballot.spaces and not context.has_origin
        )

    def settle_list(self) -> None:
        """Store the configured list on an empty replica; any other keeps its own (F1, F2)."""
        context = self.context
        listed = context.settings.spaces
        if context.has_origin or context.ballot.listed_spaces == listed:
            return
        self._store_list(ids_of(listed, lambda name: None)[0])

    def _store_list(self, ids: tuple[int, ...]) -> None:
        context = self.context
        listed = context.settings.spaces if ids else ()
        if (context.ballot.spaces, context.ballot.listed_spaces) != (ids, listed):
            context.store_ballot(replace(context.ballot, spaces=ids, listed_spaces=listed))

    def _learn_spaces(self, loader: Loader) -> None:
        """Resolve the names with the fetched schema, and store their ids before using them (F2)."""
        context = self.context
        find = loader.id_of_space
        ids, refused = ids_of(context.settings.spaces, find)
        self.begin_again()
        self.source.restart()
        self.source.refused = refused
        if self.source.refused:
            context.report("spaces_unknown", reason=self.source.refused)
            self.source.retry_at_ns = context.now_ns + context.settings.election_timeout_ns
            return
        self._store_list(ids)
        context.report("spaces_known", spaces=list(ids))
