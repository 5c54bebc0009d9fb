"""The pipeline of a journal: the primary's streams to all peers of a route, under one epoch.

    phase       event                                    next
    ---------   --------------------------------------   ---------
    NEW         open(): Prepare is sent to each peer     PREPARING
    PREPARING   each peer has promised (J2)              PROMISED
    PROMISED    adopt(choice): Adopt is sent (J4)        ADOPTING
    ADOPTING    each adopter has adopted it durably      READY
    READY       adopt(rest): Adopt is sent to all        ADOPTING
    READY       content and proposals are sent (J6)      READY
    any         a peer fails, refuses, or is lost        FAILED
    any         close()                                  FAILED

Appends share the pipeline: one at a time sends, and several wait for acknowledgements. Peers
acknowledge sequence numbers cumulatively. `acked` is the number that all peers and this broker have
acknowledged.
"""

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from qsync_broker import messages as msg
from qsync_broker.operations import Buffer, SpoolOperation
from qsync_broker.spool import Choice, Proposal, Spool
from qsync_node.format.journals import BrokerId, ChosenEnds, JournalRow, Members, Route


class Phase(Enum):
    """Phase of a pipeline."""

    NEW = "new"
    PREPARING = "preparing"
    PROMISED = "promised"
    ADOPTING = "adopting"
    READY = "ready"
    FAILED = "failed"


class PipelineStreams(Protocol):
    """The broker's streams to its peers, and its storage."""

    def open(
        self,
        peer: BrokerId,
        on_message: Callable[[msg.Message], None],
        on_lost: Callable[[str], None],
    ) -> int:
        """Open a stream to a peer, and return its number."""

    def send(self, peer: BrokerId, stream: int, message: msg.Message) -> None:
        """Send a message on a stream."""

    def close(self, peer: BrokerId, stream: int) -> None:
        """End a stream; its callbacks are not called any more."""

    def store(self, operations: list[SpoolOperation], done: Callable[[], None]) -> None:
        """Make operations durable, then call `done`."""


class _Peer:
    """A broker of the route, and its answers."""

    __slots__ = ("acked", "broker", "promised", "stream")

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.stream = 0
        self.promised: msg.Promised | None = None
        self.acked = -1


class Pipeline:
    """Replication from the primary to all peers of a route.

    Attributes:
        route: brokers of the journal, this one included.
        epoch: epoch of the synchronisation.
        phase: see above.
        error: reason of a failure.
        wrong_revision: revision at which a peer knows another route, 0 if none does.
        sequence: number of the last proposal.
        acked: number of the last proposal that all brokers have made durable.
        partial: brokers that lack earlier bytes of the journal.
        adopters: brokers that have adopted a choice, or are about to.
        rest: what all brokers adopt once an adoption of a part of them is recorded, or None.
    """

    def __init__(
        self,
        streams: PipelineStreams,
        spool: Spool,
        me: BrokerId,
        route: Route,
        epoch: int,
        changed: Callable[[], None],
        confirm: Callable[[int], None],
        promise: Callable[[], msg.Promised],
    ) -> None:
        """Prepare a pipeline; `open` begins the synchronisation.

        Args:
            streams: streams to peers, and the storage.
            spool: this broker's spool of the journal.
            me: this broker.
            route: brokers of the journal.
            epoch: reserved epoch.
            changed: called when the phase or `acked` changes.
            confirm: called with the end of bytes that all brokers have.
            promise: returns the state of this broker.
        """
        self.route = route
        self.epoch = epoch
        self.phase = Phase.NEW
        self.error = ""
        self.wrong_revision = 0
        self.wrong_epoch = 0
        self.sequence = 0
        self.acked = 0
        self._streams = streams
        self._spool = spool
        self._changed = changed
        self._confirm = confirm
        self._promise = promise
        self.partial: Members = ()
        self.ends: ChosenEnds = ()
        self.adopters: Members = route.members
        self.rest: Choice | None = None
        self._is_rest_begun = False
        self._chosen_end = 0  # that is confirmed once the synchronisation is recorded
        self._proposed: deque[tuple[int, int]] = deque()  # numbers and ends
        self._me = _Peer(me)
        self._peers = [_Peer(broker) for broker in route.members if broker != me]
        self._told_confirmed = 0

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    @property
    def lagging(self) -> list[str]:
        """Return the names of the brokers whose answers are missing."""
        is_asked = self.phase is Phase.PREPARING
        return [
            peer.broker.suffix
            for peer in (*self._peers, self._me)
            if (peer.promised is None if is_asked else peer.acked < self.sequence)
        ]

    # --- synchronisation ----------------------------------------------------------------------

    def open(self, revision: int) -> None:
        """Ask all peers, and this broker's own spool, for a promise.

        Args:
            revision: revision of the key space at which the route was resolved.
        """
        self.phase = Phase.PREPARING
        spool, streams = self._spool, self._streams
        members = tuple((member.zone, member.suffix) for member in self.route.members)
        prepare = msg.Prepare(
            spool.journal, spool.journal_id, members, self.route.primary, revision, self.epoch
        )
        for peer in self._peers:
            peer.stream = streams.open(peer.broker, self._listener(peer), self._loser(peer))
            streams.send(peer.broker, peer.stream, prepare)
        spool.rollback()
        # Earlier commits of this spool may not be durable yet.
        streams.store([], lambda: self._on_promised(self._me, self._promise()))

    def adopt(self, choice: Choice) -> None:
        """Send the chosen state to the adopters, and take it over if this broker is one."""
        self.phase = Phase.ADOPTING
        self._chosen_end = choice.end
        for peer in (*self._peers, self._me):
            peer.acked = -1 if peer.broker in self.adopters else 0
        for peer in self._peers:
            if peer.acked < 0:
                self._streams.send(peer.broker, peer.stream, msg.Adopt(*choice))
        if self._me.acked < 0:
            self._streams.store([self._spool.adopt(choice)], lambda: self._on_acked(self._me, 0))

    def prepare_rest(self) -> Choice | None:
        """Return the choice to adopt now that some brokers are recorded, None if there is none.

        The recorded ones complete their fragments first: once others have the epoch, they may be
        removed, and complete nothing that they do not know as confirmed.
        """
        rest = self.rest
        if self._is_rest_begun:
            self.rest, self.adopters = None, self.route.members
        self._is_rest_begun = True
        return rest

    def recorded(self) -> None:
        """Confirm the chosen end: the record of the synchronisation excludes a smaller one."""
        end, self._chosen_end = self._chosen_end, 0
        if end:
            self._confirm(end)
            self.tell_confirmed()

    @property
    def promises(self) -> list[msg.Promised]:
        """Return the states of all brokers."""
        return list(self.promised.values())

    @property
    def promised(self) -> dict[BrokerId, msg.Promised]:
        """Return the states of the brokers that have promised."""
        peers = (*self._peers, self._me)
        return {peer.broker: peer.promised for peer in peers if peer.promised is not None}

    # --- appends ------------------------------------------------------------------------------

    def send_content(self, data: Buffer) -> None:
        """Send a part of an append to all peers, and write it to the own spool."""
        content = msg.Content(self._spool.delta, data)
        self._to_peers(content)
        self._streams.store([self._spool.receive(content.delta, data)], _nothing)

    def propose(self, registers: bytes, now: int) -> int:
        """Propose to commit the sent content, and return the proposal's number."""
        spool = self._spool
        proposal = spool.proposal(registers)
        self.sequence += 1
        self._told_confirmed = spool.confirmed
        self._to_peers(msg.Propose(self.sequence, *proposal, spool.confirmed))
        number = self.sequence
        self._proposed.append((number, proposal.end))
        operations = commit_operations(spool, proposal, now)
        self._streams.store(operations, lambda: self._on_acked(self._me, number))
        return number

    def abort(self) -> None:
        """Discard the content that was sent since the last proposal."""
        self._spool.rollback()
        self._to_peers(msg.Abort())

    def begin(self, codec: int) -> None:
        """Begin a new fragment at the end of the present one, which is confirmed."""
        begin = self._spool.end
        self.tell_confirmed()
        self._to_peers(msg.Begin(begin, codec))
        self._streams.store([self._spool.roll(begin, codec)], _nothing)

    def tell_confirmed(self) -> None:
        """Send the confirmed end to all peers if they do not know it."""
        if self._spool.confirmed > self._told_confirmed and self.is_ready:
            self._told_confirmed = self._spool.confirmed
            self._to_peers(msg.Confirm(self._spool.confirmed))

    def close(self, reason: str = "the pipeline was closed") -> None:
        """End all streams."""
        if self.phase is Phase.FAILED:
            return
        self.phase = Phase.FAILED
        self.error = self.error or reason
        self._spool.rollback()
        for peer in self._peers:
            if peer.stream:
                self._streams.close(peer.broker, peer.stream)

    # --- answers ------------------------------------------------------------------------------

    def _to_peers(self, message: msg.Message) -> None:
        for peer in self._peers:
            self._streams.send(peer.broker, peer.stream, message)

    def _listener(self, peer: _Peer) -> Callable[[msg.Message], None]:
        def on_message(message: msg.Message) -> None:
            if isinstance(message, msg.Acked):
                self._on_acked(peer, message.sequence)
            elif isinstance(message, msg.Promised):
                self._on_promised(peer, message)
            elif isinstance(message, msg.PeerRefused):
                self.wrong_revision = max(self.wrong_revision, message.revision)
                self.wrong_epoch = max(self.wrong_epoch, message.epoch)
                self._fail(peer, "it knows another route or a later epoch")
            elif isinstance(message, msg.Failed):
                self._fail(peer, message.reason)
            else:
                self._fail(peer, f"it sent an unexpected {type(message).__name__}")

        return on_message

    def _loser(self, peer: _Peer) -> Callable[[str], None]:
        return lambda reason: self._fail(peer, reason)

    def _on_promised(self, peer: _Peer, promised: msg.Promised) -> None:
        if self.phase is not Phase.PREPARING:
            return
        peer.promised = promised
        if len(self.promises) == len(self._peers) + 1:
            self.phase = Phase.PROMISED
            self._changed()

    def _on_acked(self, peer: _Peer, sequence: int) -> None:
        if self.phase is Phase.FAILED or not peer.acked < sequence <= self.sequence:
            return
        peer.acked = sequence
        least = min(peer.acked for peer in (*self._peers, self._me))
        if least < 0:
            return
        if self.phase is Phase.ADOPTING:
            self.phase = Phase.READY
        elif least <= self.acked:
            return
        self.acked = least
        while self._proposed and self._proposed[0][0] <= least:
            self._confirm(self._proposed.popleft()[1])
        self._changed()

    def _fail(self, peer: _Peer, reason: str) -> None:
        if self.phase is not Phase.FAILED:
            zone, suffix = peer.broker
            self.close(f"replication to broker {suffix} in zone {zone} failed: {reason}")
            self._changed()


def _nothing() -> None:
    """Ignore the end of a write that no answer depends on."""


def promise_of(spool: Spool) -> msg.Promised:
    """Return the state of a spool for the primary's choice."""
    return msg.Promised(
        spool.epoch, spool.begin, spool.end, spool.sum, spool.registers, spool.codec
    )


def commit_operations(spool: Spool, proposal: Proposal, now: int) -> list[SpoolOperation]:
    """Commit a proposal, and return what makes it durable: nothing if it changes nothing."""
    is_change = proposal.end != spool.end or proposal.registers != spool.registers
    commit = spool.commit(proposal, now)
    return [commit] if is_change else []


def choose(epoch: int, promises: list[msg.Promised], codec: int) -> Choice:
    """Choose the state that all brokers take over (J3): of the greatest epoch, the least end.

    A broker that begins after the end of another one of its epoch was the first to resume after
    missing bytes. No fragment has bytes in between, and the others resume there, too.

    Args:
        epoch: epoch of the synchronisation.
        promises: states of all brokers of the route.
        codec: codec of a new fragment.
    """
    source = max(promise.epoch for promise in promises)
    candidates = [promise for promise in promises if promise.epoch == source]
    begin = max(promise.begin for promise in candidates)
    ready = [promise for promise in candidates if promise.end >= begin]
    chosen = min(ready, key=lambda promise: promise.end)
    is_continued = all(promise._replace(missing=chosen.missing) == chosen for promise in promises)
    return Choice(epoch, source, chosen.end, chosen.registers, codec, is_continued)


def first_adopters(
    row: JournalRow, promised: Mapping[BrokerId, msg.Promised], choice: Choice
) -> Members:
    """Return the brokers that adopt a choice, and are recorded, before the others; () for none.

    They have the chosen bytes. Until a record excludes it, another synchronisation may choose a
    smaller end of a broker that did not promise here: nothing may be based on the bytes in between.
    And a crash must not leave the greatest epoch at brokers without the bytes only.

    Args:
        row: the journal.
        promised: the states of all brokers of the route.
        choice: the choice from these states; none of them has its source if an append resumes
            after missing bytes.
    """
    holders = {broker for broker, state in promised.items() if state.epoch == choice.source}
    is_proven = choice.source == row.epoch and set(promised) == holders >= set(row.route.members)
    if choice.is_continued or is_proven or not choice.end:
        return ()
    return tuple(sorted(one for one in holders if promised[one].end >= choice.end))


def route_of(members: Members, route: Route) -> Route:
    """Return a route of some of its brokers, with the same primary if it is one of them."""
    if members == route.members:
        return route
    primary = route.members[route.primary] if route.primary >= 0 else None
    return Route(members, members.index(primary) if primary in members else -1)
