"""The node: one replica, its state machine and its clients, driven by `step`.

    effects = node.step(now_ns, wall_s, inputs)

`now_ns` is a monotonic clock; `wall_s` is the wall clock that a leader writes into its rows. A step
takes every input of one turn of the event loop, decides it as one batch and returns the effects for
the shell, in order. On the data path these are one log write, one frame per follower and one write
per connection. `next_deadline_ns()` returns when to step again if no input arrives.

This file routes inputs and maintains the state machine. It applies confirmed rows to the
`Database`, drops rows that a decision removed, and informs the clients of both.
"""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, ClassVar

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.ballot import Ballot, OldBallotError
from qsync_node.consensus.context import Context
from qsync_node.consensus.entries import Entry, EntryKind, read_entries
from qsync_node.consensus.history import History, TermStart
from qsync_node.consensus.interfaces import Loader
from qsync_node.consensus.limbo import Limbo
from qsync_node.consensus.membership import (
    CLUSTER_SPACE,
    LEVEL,
    REMOVED_SPACE,
    ClusterMember,
    Configuration,
)
from qsync_node.consensus.replica import Replica
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.consensus.tail import Tail
from qsync_node.engine.database import Database
from qsync_node.format.batch import LogBatch
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TUPLE, REPLACE
from qsync_node.format.mp import pack
from qsync_node.tarantool.gateway import Gateway
from qsync_node.transactions.applying import RowApplier
from qsync_node.transactions.builds import Builds
from qsync_node.transactions.calls import Call
from qsync_node.transactions.checkpoints import Checkpoints
from qsync_node.transactions.clients import Clients
from qsync_node.transactions.commits import Commits
from qsync_node.transactions.forwarded import Forwarded
from qsync_node.transactions.forwarding import Forwarding
from qsync_node.transactions.idempotency import KeyTable
from qsync_node.transactions.leases import Leases
from qsync_node.transactions.limits import WriteLimits
from qsync_node.transactions.linearizable import LinearizableReads
from qsync_node.transactions.own_rows import (
    KEY_WINDOW_ROWS,
    define_own_spaces,
    key_window_of,
    rows_of,
)
from qsync_node.transactions.procedures import Procedures
from qsync_node.transactions.registrar import Registrar
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.snapshot import SnapshotView, StateLoader
from qsync_node.transactions.state import StatementState
from qsync_node.transactions.status import LiveStatus
from qsync_node.transactions.stepped_reads import SteppedReads
from qsync_node.transactions.streams import Streams

EntryObserver = Callable[[list[Entry], list[Entry]], None]
"""Callback for traces and checkers: receives confirmed and removed entries in log order."""

RETIRED_ENTRIES = 8192


class Node:
    """One instance. `recover` loads its state, and `start` begins its timers."""

    def __init__(self, uuid: str, settings: ConsensusSettings, rng: Random, ballot: Ballot) -> None:
        self.uuid = uuid
        self.state = StatementState()
        self.context = Context(uuid, settings, rng, ballot)
        self.replica = Replica(self.context, self)
        self.rows = RowApplier(self.context, self.replica.repair, self.state)
        self.registrar = Registrar(self.replica, self.state)
        self.tarantool = Gateway(self.replica, self.state, self.registrar)
        self.checkpoints = Checkpoints(self.replica, self.state, self.tarantool.pinned_index)
        self.status = LiveStatus(
            self.replica,
            self.state,
            self.registrar,
            checkpoint_index=lambda: self.checkpoints.index,
            tarantool_replicas=self.tarantool.status,
        )
        shared = Shared(self.context, self.replica, self.state)
        self.shared = shared
        self.commits = Commits(shared, self.rows, self._fail_transaction)
        self.limits = WriteLimits(
            self.replica, self.state, shared.answers, self.commits, self.registrar
        )
        self.streams = Streams(shared, self.commits, self.limits)
        self.stepped_reads = SteppedReads(shared)
        self.linearizable_reads = LinearizableReads(shared, self.stepped_reads)
        self.builds = Builds(shared)
        self.forwarding = Forwarding(shared)
        self.leases = Leases(shared)
        self.procedures = Procedures(shared, self.registrar, self.status, self.checkpoint)
        self.clients = Clients(
            shared,
            commits=self.commits,
            limits=self.limits,
            streams=self.streams,
            stepped_reads=self.stepped_reads,
            linearizable_reads=self.linearizable_reads,
            builds=self.builds,
            forwarding=self.forwarding,
            procedures=self.procedures,
        )
        self.forwarded = Forwarded(shared, self.clients)
        self._control = self._routes()
        self._retired: deque[Database] = deque()
        self.observer: EntryObserver | None = None
        self.refuse_rows = False  # a fault for tests: this replica cannot apply user rows (T7)

    @property
    def settings(self) -> ConsensusSettings:
        return self.context.settings

    @property
    def database(self) -> Database:
        """The confirmed state."""
        return self.state.database

    @property
    def schema_version(self) -> int:
        """Version of the confirmed schema, which answers carry."""
        return self.state.database.schema_version

    @property
    def keys(self) -> KeyTable:
        return self.state.keys

    def _fail_transaction(self, call: Call) -> None:
        self.streams.fail(call)

    # --- creation and recovery ----------------------------------------------------------------

    @classmethod
    def bootstrap_bodies(
        cls,
        uuid: str,
        name: str,
        replicaset_uuid: str,
        planned_voters: int,
        key_window_rows: int = KEY_WINDOW_ROWS,
    ) -> list[bytes]:
        """Return the rows of a replica set's first snapshot: its origin, at index 0 (M1)."""
        database = Database.bootstrap(replicaset_uuid)
        define_own_spaces(database, planned_voters, key_window_rows)
        member = ClusterMember(1, uuid, name, "voter", True, LEVEL)
        body = pack({KEY_SPACE_ID: CLUSTER_SPACE, KEY_TUPLE: member.as_tuple()})
        database.apply(REPLACE, body)
        return list(database.snapshot_bodies())

    def recover(
        self,
        now_ns: int,
        vclock: dict[int, int],
        bodies: Iterable[bytes],
        batches: Iterable[LogBatch],
        first_available_index: int,
    ) -> None:
        """Load the newest snapshot and the log after it; rows without a CONFIRM stay pending (S1).

        Args:
            now_ns: monotonic clock, in nanoseconds.
            vclock: vclock of the snapshot; its sum is the snapshot's index.
            bodies: row bodies of the snapshot.
            batches: log batches after the snapshot, in log order.
            first_available_index: index of the first row that the log files still hold.
        """
        context = self.context
        context.now_ns = now_ns
        loader = self.new_loader()
        loader.add(bodies)
        configuration = self.install(loader)
        index = sum(vclock.values())
        self.checkpoints.index = index
        settings = self.settings
        context.tail = Tail(
            vclock, History(loader.starts), first_available_index, settings.tail_cache_bytes
        )
        context.limbo = Limbo(index, vclock, configuration)
        self.replica.stop_at_unsupported_level()
        self.tarantool.on_state_loaded(index)
        for batch in batches:
            self._replay(batch)
        context.tail.durable_index = context.tail.last_index
        if context.tail.last_term > context.term:
            self._take_term_of_log(context.tail.last_term)

    def _take_term_of_log(self, term: int) -> None:
        """Adopt the term of the last row, of which an anonymous replica learns by its rows.

        It never voted in that term. It may have another role from now on, so the term is stored.

        Raises:
            OldBallotError: this replica has a role in which it stores each term before its rows.
        """
        context = self.context
        if context.replica_id and not context.is_anonymous:
            raise OldBallotError(context.term, term)
        context.store_ballot(context.ballot.in_term(term))

    def _replay(self, batch: LogBatch) -> None:
        context = self.context
        tail, limbo = context.tail, context.limbo
        if context.is_stopped:
            return  # this version may not know the rest of the log (P2)
        for entry in read_entries(batch, tail.last_term):
            part = entry.batch
            if entry.kind is EntryKind.PROMOTE:
                tail.history.append(TermStart(entry.term, part.replica_id, part.first_index))
            tail.append(part)
            limbo.append(entry)
            if entry.kind is EntryKind.MEMBERSHIP and self.replica.stop_at_unsupported_level():
                return
            self.state.bytes_since_checkpoint += len(part.data)
            if entry.kind is EntryKind.CONFIRM and entry.position > limbo.confirmed_index:
                taken, removed = limbo.confirm(entry.position)
                if self.observer is not None:
                    self.observer(taken, removed)
                self.tarantool.log.add_removed(removed)
                self.rows.apply(taken)

    def start(self, now_ns: int) -> None:
        self.context.now_ns = now_ns
        self.replica.election.start()

    # --- step ---------------------------------------------------------------------------------

    def step(self, now_ns: int, wall_s: float, inputs: Iterable[fx.Input]) -> list[fx.Effect]:
        """Decide every input of one turn of the event loop and return the effects for the shell.

        Args:
            now_ns: monotonic clock in nanoseconds; must not decrease.
            wall_s: wall clock in seconds.
            inputs: the inputs in their order of arrival.
        """
        context = self.context
        replica = self.replica
        context.begin_step(now_ns, wall_s)
        self.shared.budget.begin_step()
        if replica.source.is_confirm_due:
            replica.applier.confirm_due()
        for item in inputs:
            self._handlers[type(item)](self, item)
        replica.tick()
        self.clients.tick()
        self.commits.on_round()  # a single voter gets no replies that would trigger this
        self.forwarding.tick()
        self.linearizable_reads.tick()
        self.procedures.tick()
        self.registrar.on_confirmed()
        self.builds.advance()
        self.leases.tick()
        self.clients.run_queue()
        self.clients.refuse_old()
        self.stepped_reads.advance()
        self.commits.flush()
        self.checkpoints.consider()
        self._free_retired()
        self.tarantool.tick()
        replica.finish_step()
        out = context.out
        context.out = []
        return out

    def next_deadline_ns(self) -> int:
        """Return the latest time at which to step again, on the monotonic clock."""
        context = self.context
        replica = self.replica
        leader = replica.leader
        if replica.source.is_confirm_due or (leader is not None and leader.is_confirm_due):
            return context.now_ns
        if self.clients.has_work_left() or self.builds.is_active:
            return context.now_ns
        horizon = context.now_ns + context.settings.heartbeat_ns // 2
        if leader is not None:
            horizon = min(horizon, leader.lease.next_heartbeat_ns)
            if leader.confirm_due_ns:
                horizon = min(horizon, leader.confirm_due_ns)
        else:
            horizon = min(horizon, max(replica.election.deadline_ns, context.now_ns + 1_000_000))
        return horizon

    def _on_request(self, item: fx.Request) -> None:
        self.clients.take(Call(item, self.context.now_ns))

    def _on_session_closed(self, item: fx.SessionClosed) -> None:
        self.clients.on_session_closed(item.session)
        self.tarantool.on_session_closed(item.session)

    def _on_tarantool_request(self, item: fx.TarantoolRequest) -> None:
        self.tarantool.on_request(item)

    def _on_tarantool_drained(self, item: fx.TarantoolDrained) -> None:
        self.tarantool.on_drained(item)

    def _on_command(self, item: fx.Command) -> None:
        self.procedures.on_command(item)

    def _on_log_written(self, item: fx.LogWritten) -> None:
        self.replica.on_log_written(item.epoch, item.last_index)

    def _on_log_failed(self, item: fx.LogFailed) -> None:
        self.replica.on_log_failed(item)

    def _on_rewound(self, item: fx.Rewound) -> None:
        self.replica.applier.on_rewound(item)

    def _on_ballot_stored(self, item: fx.BallotStored) -> None:
        self.context.on_ballot_stored(item.sequence)

    def _on_log_read(self, item: fx.LogRead) -> None:
        if item.reader < 0:
            self.tarantool.on_log_read(item.reader, item.batches)
        else:
            self.replica.relays.on_log_read(item.reader, item.batches)

    def _on_link_up(self, item: fx.LinkUp) -> None:
        self.replica.on_link_up(item)

    def _on_link_down(self, item: fx.LinkDown) -> None:
        link = self.context.links.get(item.link)
        self.replica.on_link_down(item.link)
        if link is not None:
            self.forwarding.on_link_down(item.link)
            self.clients.on_link_down(item.link)

    def _on_space_low(self, item: fx.SpaceLow) -> None:
        self.replica.on_space(item.is_low)
        if item.is_low:
            self.checkpoints.on_space_low()

    def _on_segments_removed(self, item: fx.SegmentsRemoved) -> None:
        tail = self.context.tail
        tail.first_available_index = max(tail.first_available_index, item.first_available_index)
        self.tarantool.log.forget_before(tail.first_available_index)

    def _on_snapshot_installed(self, item: fx.SnapshotInstalled) -> None:
        index = self.context.tail.last_index
        self.checkpoints.on_state_replaced(index)
        self.tarantool.on_state_loaded(index)
        self.replica.on_snapshot_installed(item)

    def _on_received(self, item: fx.Received) -> None:
        """Dispatch a peer's message; the connection identifies its sender (P1).

        Messages of a removed instance are ignored, including their terms. Its SUBSCRIBE and the
        requests of its clients are refused, which informs both that it was removed (M5).
        """
        context = self.context
        replica = self.replica
        link = context.links.get(item.link)
        if link is None:
            return
        uuid, message = link.peer_uuid, item.message
        if isinstance(message, msg.Subscribe):
            replica.relays.on_subscribe(item.link, uuid, message)
        elif context.is_removed(uuid):
            if isinstance(message, msg.Forward):
                self.forwarded.refuse_removed(item.link, message)
            elif isinstance(message, msg.ForwardClosed):
                # The transactions that it forwarded before its removal must not stay open (T11).
                self.forwarded.on_closed(item.link, message)
            elif isinstance(message, msg.Ack):
                # It counts for nothing, but frees the window: the removal follows in the rows.
                replica.relays.on_ack(uuid, message)
        elif isinstance(message, msg.Rows):
            replica.applier.on_rows(item.link, message)
        elif isinstance(message, msg.Ack):
            replica.on_ack(uuid, message)
        else:
            self._control[type(message)](item.link, uuid, message)

    def _routes(self) -> dict[type[Any], Callable[[int, str, Any], None]]:
        """Return the handler of each message type, called with (link, sender, message)."""
        replica = self.replica
        applier, election = replica.applier, replica.election
        return {
            msg.Heartbeat: applier.on_heartbeat,
            msg.HeartbeatReply: self._on_heartbeat_reply,
            msg.VoteRequest: election.on_vote_request,
            msg.VoteReply: lambda link, uuid, m: election.on_vote_reply(uuid, m),
            msg.Histories: lambda link, uuid, m: applier.on_histories(link, m),
            msg.Follow: replica.on_follow,
            msg.Refusal: lambda link, uuid, m: applier.on_refusal(link, m),
            msg.SnapshotRequest: replica.on_snapshot_request,
            msg.SnapshotChunk: lambda link, uuid, m: applier.rejoin.on_chunk(link, m),
            msg.RegisterReply: lambda link, uuid, m: applier.registering.on_reply(m),
            msg.Register: self.registrar.on_register,
            msg.NominationOrder: lambda link, uuid, m: self._on_nominate(m),
            msg.ReadIndex: lambda link, uuid, m: self.linearizable_reads.on_message(link, m),
            msg.ReadIndexReply: lambda link, uuid, m: self.linearizable_reads.on_message(link, m),
            msg.Forward: lambda link, uuid, m: self.forwarded.on_request(link, m),
            msg.ForwardReply: lambda link, uuid, m: self.forwarding.on_reply(link, m),
            msg.ForwardClosed: lambda link, uuid, m: self.forwarded.on_closed(link, m),
        }

    def _on_nominate(self, message: msg.NominationOrder) -> None:
        reason = self.replica.election.on_nominate(message)
        if reason:
            self.context.report("nomination_refused", reason=reason)

    def _on_heartbeat_reply(self, link: int, uuid: str, message: msg.HeartbeatReply) -> None:
        context = self.context
        replica = self.replica
        if message.term > context.term:
            replica.adopt_term(message.term)
        elif replica.leader is not None and message.term == context.term:
            replica.leader.on_heartbeat_reply(uuid, link, message)
            self.linearizable_reads.on_round()
            self.commits.on_round()

    # --- state machine ------------------------------------------------------------------------

    def on_confirmed(self, taken: list[Entry], removed: list[Entry]) -> None:
        """Apply confirmed rows, drop removed ones, and inform the clients of both (T5, T6)."""
        if self.observer is not None:
            self.observer(taken, removed)
        if removed:
            self.tarantool.log.add_removed(removed)
            self.commits.on_rolled_back(removed)
        is_state_wrong = self.replica.repair.is_state_wrong
        if self.state.pending is None and not is_state_wrong:
            self.rows.apply(taken)
        self.commits.on_confirmed(taken)
        self.linearizable_reads.on_confirmed()
        self.forwarding.on_confirmed()
        if not is_state_wrong:
            self.registrar.on_confirmed()

    def on_asynchronous_written(self) -> None:
        self.commits.on_asynchronous_written()

    def on_leadership_gained(self) -> None:
        self.commits.on_leadership_gained()

    def on_leadership_lost(self, reason: str) -> None:
        self.clients.on_leadership_lost(reason)
        self.linearizable_reads.on_leadership_lost()
        self.registrar.on_leadership_lost()
        self.leases.on_leadership_lost()

    def on_acknowledged_lost(self, writes: int) -> None:
        """Count and report answered asynchronous writes that a truncation discarded (T1, L6).

        No acknowledged data is lost silently.
        """
        self.state.lost_acknowledged += writes
        self.context.report("acknowledged_writes_lost", writes=writes)

    def on_decision_written(self) -> None:
        self.commits.on_decision_written()

    def confirmable(self, index: int) -> int:
        return self.builds.limit(index)

    def can_apply(self, entry: Entry) -> bool:
        return not (self.refuse_rows and entry.kind is EntryKind.USER)

    # --- snapshots ----------------------------------------------------------------------------

    def snapshot_view(self, spaces: frozenset[int] = frozenset()) -> SnapshotView:
        """Return a view of the confirmed state, vclock, history and keys, at once (S2).

        Args:
            spaces: ids of the wanted user spaces; empty for all.
        """
        return self.checkpoints.view(spaces)

    def new_loader(self) -> StateLoader:
        return StateLoader()

    def install(self, loader: Loader) -> Configuration:
        """Replace the state with the loaded one; the old one is freed over many steps."""
        assert isinstance(loader, StateLoader), "`new_loader` has made it"
        self.retire(self.state.database)
        database = self.state.database = loader.database
        database.held_spaces = self.context.ballot.spaces
        database.build_tuples_max = self.settings.build_tuples_max
        self.builds.on_state_replaced()
        self.state.keys = loader.keys
        self.state.keys.set_window(*key_window_of(database))
        self.clients.on_state_replaced()
        self.registrar.on_state_replaced()
        return _configuration_of(database)

    def discard(self, loader: Loader) -> None:
        """Free the state of a transfer that is not completed."""
        assert isinstance(loader, StateLoader), "`new_loader` has made it"
        self.retire(loader.database)

    def retire(self, database: Database) -> None:
        """Free a state that is no longer in use, `RETIRED_ENTRIES` per step (G1)."""
        self._retired.append(database)

    def _free_retired(self) -> None:
        self.state.database.free_discarded(RETIRED_ENTRIES)
        if self._retired and self._retired[0].dismantle(RETIRED_ENTRIES):
            self._retired.popleft()

    def work(self) -> int:
        """Return the total cost of all statements so far, in units of 25 ns."""
        return self.state.database.work

    def checkpoint(self) -> bool:
        """Begin a snapshot of the confirmed state; return whether one has begun (S2).

        Any member can write a snapshot, with or without a leader.
        """
        return self.checkpoints.begin()

    def _on_snapshot_written(self, item: fx.SnapshotWritten) -> None:
        self.procedures.on_snapshot_written(item)
        self.checkpoints.on_written(item)

    _handlers: ClassVar[dict[type[Any], Any]] = {
        fx.Request: _on_request,
        fx.Received: _on_received,
        fx.LogWritten: _on_log_written,
        fx.LogFailed: _on_log_failed,
        fx.Rewound: _on_rewound,
        fx.BallotStored: _on_ballot_stored,
        fx.LogRead: _on_log_read,
        fx.LinkUp: _on_link_up,
        fx.LinkDown: _on_link_down,
        fx.SessionClosed: _on_session_closed,
        fx.TarantoolRequest: _on_tarantool_request,
        fx.TarantoolDrained: _on_tarantool_drained,
        fx.Command: _on_command,
        fx.SpaceLow: _on_space_low,
        fx.SegmentsRemoved: _on_segments_removed,
        fx.SnapshotWritten: _on_snapshot_written,
        fx.SnapshotInstalled: _on_snapshot_installed,
    }


def _configuration_of(database: Database) -> Configuration:
    members = tuple(ClusterMember.from_tuple(fields) for fields in database.cluster())
    removed = frozenset(str(fields[0]) for fields in rows_of(database, REMOVED_SPACE))
    return Configuration(members, removed)
