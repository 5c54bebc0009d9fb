"""Recording of runs as behaviours of the specification (node/spec/Steps.tla).

A `Recorder` watches the replica of one process run and notes each action of the specification at
the moment at which the replica performs it. The members of a cluster share one list of events, in
the order in which they happened; `qsync_testing.specification.traces` lets TLC compare it with the

Watched are the few functions through which a replica changes its term, vote, role, log or confirmed
index, and its messages about them. After each step, a `see` event has the whole observable state,
so that a change which no event explains is found, too.

Orders of an administrator that overrule a majority (E11) are not in the specification. The first of
them ends a recording.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from qsync_node.consensus import messages as msg
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.consensus.source import SourceState
from qsync_node.node import Node

RecordedEvent = dict[str, Any]


class Promises(NamedTuple):
    """The parts of a ballot that the specification has.

    Attributes:
        term: the term.
        vote: UUID of the member that has the vote, or "".
        nacks: terms and indexes of refused rows.
    """

    term: int
    vote: str
    nacks: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ballot: Ballot) -> "Promises":
        """Return the parts of `ballot`."""
        return cls(ballot.term, ballot.vote, tuple((one.term, one.index) for one in ballot.nacks))


class Recording:
    """The events of a cluster from a moment at which all members agree.

    Attributes:
        names: names of the members by UUID.
        events: the events, oldest first; empty until `begin`.
        end: why the recording has ended, or "".
        violation: the rule that the simulation found violated, or "".
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.events: list[RecordedEvent] = []
        self.end = ""
        self.violation = ""

    def begin(self, nodes: Sequence[Node]) -> bool:
        """Begin if all members have one log, wholly confirmed and durable, and return whether."""
        leaders = [node for node in nodes if node.replica.leader is not None]
        if len(leaders) != 1:
            return False
        context = leaders[0].context
        state = context.term, context.tail.last_term, context.tail.last_index
        for node in nodes:
            other = node.context
            if (other.term, other.tail.last_term, other.tail.durable_index) != state:
                return False
            if other.limbo.confirmed_index != context.tail.last_index or not other.is_settled:
                return False
        self.events.append(
            {
                "do": "begin",
                "at": self.names[leaders[0].uuid],
                "base": context.tail.last_index,
                "term": context.term,
                "voters": [self.names[uuid] for uuid in context.voter_uuids()],
                "votes": {
                    self.names[node.uuid]: self.name(node.context.ballot.vote) for node in nodes
                },
            }
        )
        return True

    def name(self, uuid: str) -> str:
        return self.names[uuid] if uuid else ""

    def note(self, uuid: str, action: str, **fields: object) -> None:
        """Append an event of a member."""
        if self.events and not self.end:
            self.events.append({"do": action, "at": self.names[uuid], **fields})

    def stop(self, reason: str) -> None:
        """End the recording: what follows is not specified."""
        if self.events and not self.end:
            self.end = reason


class Recorder:
    """Notes the actions of one process run of a member."""

    def __init__(self, recording: Recording, node: Node) -> None:
        """Watch `node`, which has recovered its log and was not stepped yet."""
        self.recording = recording
        self.node = node
        context = node.context
        replica = node.replica
        self.note = partial(recording.note, node.uuid)
        self._tail = context.tail
        self._ballots: dict[int, Promises] = {}
        self._disk = Promises.of(context.ballot)
        self._round = -1
        self._seen: dict[str, Any] = {}
        tail = context.tail
        self.note(
            "reopen",
            last=tail.last_index,
            last_term=tail.last_term,
            term=context.term,
            vote=recording.name(context.ballot.vote),
            nacks=self._disk.nacks,
            known=context.limbo.confirmed_index,
        )
        for owner, name in (
            (node, "step"),
            (replica, "adopt_term"),
            (context, "store_ballot"),
            (context, "on_ballot_stored"),
            (context, "send"),
            (context, "send_to"),
            (context, "send_by_all"),
            (context, "append"),
            (replica, "on_log_written"),
            (replica, "forget_behind"),
            (replica, "confirm"),
            (replica, "step_down"),
            (context, "report"),
        ):
            self._watch(owner, name, getattr(self, f"_{name}"))
        applier = replica.applier
        self._watch(applier, "on_rewound", partial(self._on_replaced, SourceState.CUTTING))
        self._watch(
            applier.rejoin, "on_installed", partial(self._on_replaced, SourceState.INSTALLING)
        )

    @staticmethod
    def _watch(owner: object, name: str, observer: Callable[..., Any]) -> None:
        """Let `observer` receive the calls of a method, with the method first."""
        setattr(owner, name, partial(observer, getattr(owner, name)))

    # --- the whole state ----------------------------------------------------------------------

    def _step(self, original: Callable[..., Any], *inputs: object) -> Any:
        effects = original(*inputs)
        self._look_for_snapshot()
        context = self.node.context
        replica = self.node.replica
        seen = {
            "term": context.term,
            "vote": self.recording.name(context.ballot.vote),
            "leads": replica.leader is not None,
            "last": context.tail.last_index,
            "last_term": context.tail.last_term,
            "known": context.limbo.confirmed_index,
            "nacks": Promises.of(context.ballot).nacks,
            "voters": [self.recording.name(uuid) for uuid in context.voter_uuids()],
        }
        if seen != self._seen:
            self._seen = seen
            self.note("see", **seen)
        return effects

    def _look_for_snapshot(self) -> None:
        """Note a snapshot that has replaced the log."""
        tail = self.node.context.tail
        if tail is not self._tail:
            self._tail = tail
            self.note("install", last=tail.last_index)

    # --- ballots ------------------------------------------------------------------------------

    def _adopt_term(self, original: Callable[..., None], term: int, vote: str = "") -> None:
        self._look_for_snapshot()
        original(term, vote)
        self.note("stand" if vote else "adopt", term=term)

    def _store_ballot(self, original: Callable[..., None], ballot: Ballot) -> None:
        context = self.node.context
        before = context.ballot
        if ballot.forced_voters:
            self.recording.stop("forced")
        original(ballot)
        self._ballots[context.ballot_sequence] = Promises.of(ballot)
        if len(ballot.nacks) > len(before.nacks):
            self.note("nack", last=ballot.nacks[-1].index)
        elif ballot.nacks != before.nacks:
            self.note("lift", nacks=Promises.of(ballot).nacks)
        if ballot.term == before.term and ballot.vote != before.vote:
            self.note("choose", candidate=self.recording.name(ballot.vote))

    def _on_ballot_stored(self, original: Callable[..., None], sequence: int) -> None:
        self._look_for_snapshot()
        stored = self._ballots.get(sequence, self._disk)
        if stored != self._disk:
            self._disk = stored
            vote = self.recording.name(stored.vote)
            self.note("stored", term=stored.term, vote=vote, nacks=stored.nacks)
        self._ballots = {one: kept for one, kept in self._ballots.items() if one > sequence}
        original(sequence)

    # --- messages -----------------------------------------------------------------------------

    def _send(self, original: Callable[..., None], link: int, message: object) -> None:
        self._look_for_snapshot()
        context = self.node.context
        if isinstance(message, msg.VoteReply) and not message.is_prevote:
            peer = context.links.get(link)
            # A reply to a candidate of an earlier term does not wait for the ballot, and reports
            # only this term. A reply on a closed connection does not arrive.
            if peer is not None and (message.is_granted or context.is_settled):
                self.note(
                    "reply",
                    term=message.term,
                    candidate=self.recording.name(peer.peer_uuid),
                    granted=message.is_granted,
                    last=message.last_index,
                    last_term=message.last_term,
                    nack=message.nack_index,
                )
        elif isinstance(message, msg.Ack):
            self.note(
                "acknowledge",
                term=message.term,
                last=message.log_index,
                last_term=message.index_term,
                nack=message.nack_index,
            )
        original(link, message)

    def _send_to(self, original: Callable[..., bool], uuid: str, message: object) -> bool:
        if isinstance(message, msg.VoteRequest) and not message.is_prevote:
            if self._round != message.round:
                self.note("ask", last=message.last_index, last_term=message.last_term)
            self._round = message.round
        return original(uuid, message)

    _send_by_all = _send_to

    # --- log ----------------------------------------------------------------------------------

    def _append(self, original: Callable[..., None], entry: Entry) -> None:
        self._look_for_snapshot()
        original(entry)
        batch = entry.batch
        if not entry.is_own:
            self.note("extend", last=batch.last_index, last_term=entry.term)
        elif entry.kind is EntryKind.PROMOTE:
            replies = self.node.replica.election.replies
            voters = self.node.context.voter_uuids()
            names = [self.recording.name(uuid) for uuid in replies if uuid in voters]
            self.note("win", kept=entry.position, heard=sorted(names))
        elif entry.kind is EntryKind.USER:
            self.note("rows", count=batch.last_index - batch.first_index + 1)
        elif entry.kind is EntryKind.MEMBERSHIP:
            # A removal has two rows; the last one stands for the change.
            voters = self.node.context.configuration.voter_uuids
            others = batch.last_index - batch.first_index
            names = [self.recording.name(uuid) for uuid in voters]
            self.note("change", others=others, voters=names)
        else:
            self.note(entry.kind.name.lower(), position=entry.position)

    def _on_log_written(self, original: Callable[..., None], epoch: int, last_index: int) -> None:
        self._look_for_snapshot()
        tail = self.node.context.tail
        if epoch == tail.epoch and last_index > tail.durable_index:
            self.note("flush", last=last_index)
        original(epoch, last_index)

    def _forget_behind(self, original: Callable[..., None], index: int) -> None:
        self._look_for_snapshot()
        tail = self.node.context.tail
        is_cut = self.node.replica.source.state is SourceState.CUTTING
        if index < tail.last_index:
            self.note("truncate" if is_cut else "forget", last=index)
        original(index)

    def _on_replaced(self, state: SourceState, original: Callable[..., None], message: Any) -> None:
        """Note that the disk has the truncation or the snapshot of a stage."""
        self._look_for_snapshot()
        context = self.node.context
        replica = self.node.replica
        if message.epoch == context.tail.epoch and replica.source.state is state:
            self.note("replaced")
        original(message)

    def _confirm(self, original: Callable[..., None], index: int) -> None:
        self._look_for_snapshot()
        self.note("confirmed", last=index)
        original(index)

    def _step_down(self, original: Callable[..., None], reason: str) -> None:
        if self.node.replica.leader is not None:
            self.note("yield")
        original(reason)

    def _report(self, original: Callable[..., None], event: str, **fields: object) -> None:
        if event == "split_brain":
            self.recording.stop(event)
        original(event, **fields)
