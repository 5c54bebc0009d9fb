"""Linearizable reads, without a clock and without a row in the log (R2).

Theory. The leader, once its PROMOTE is confirmed, notes the confirmed index when the read arrives.
It begins a heartbeat round *after* that, and serves the read once a quorum has answered that round
in this term. No later leader can then have confirmed anything before the read began. A follower
asks the leader for the index and waits until it has applied it, for as long as it follows a leader.
Leases prove nothing here.
"""

from qsync_client.protocol.constants import Isolation
from qsync_node.consensus.messages import ReadIndex, ReadIndexReply
from qsync_node.consensus.source import SourceState
from qsync_node.engine.requests import Select
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.transactions.calls import Call
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stepped_reads import SteppedReads
from qsync_node.transactions.users import check_state_is_served

_LEVELS = {
    int(Isolation.DEFAULT): "confirmed",
    int(Isolation.READ_COMMITTED): "read-committed",
    int(Isolation.READ_CONFIRMED): "confirmed",
    int(Isolation.BEST_EFFORT): "confirmed",
    int(Isolation.LINEARIZABLE): "linearizable",
}


def isolation_of(request: "Select") -> str:
    """Return the isolation level that the SELECT requests; the default is `confirmed` (R1)."""
    level = _LEVELS.get(request.isolation)
    if level is None:
        raise ClientError(ErrorCode.ILLEGAL_PARAMS, "Illegal parameters, unknown isolation level")
    return level


class LeadershipProof:
    """A read or a read index that awaits proof that this member still leads."""

    __slots__ = ("call", "index", "link", "request", "sequence")

    def __init__(self, index: int, sequence: int) -> None:
        self.index = index
        self.sequence = sequence
        self.call: Call | None = None
        self.link = 0
        self.request = 0


class LinearizableReads:
    """Reads of this member's clients, and read indexes for other members."""

    def __init__(self, shared: Shared, stepped_reads: SteppedReads) -> None:
        self.context = shared.context
        self.replica = shared.replica
        self.answers = shared.answers
        self.budget = shared.budget
        self.stepped_reads = stepped_reads
        self.proofs: list[LeadershipProof] = []
        self.asked: dict[int, tuple[Call, int]] = {}
        self.applying: list[tuple[int, Call]] = []
        self._alone_since_ns = 0  # since when reads wait although no source sends rows
        self._next = 1

    def start(self, call: "Call") -> None:
        context = self.context
        replica = self.replica
        if replica.leader is not None:
            proof = self._prove()
            proof.call = call
            return
        link = context.link_to(replica.election.leader_uuid)
        if link is None:
            raise ClientError(
                ErrorCode.NOT_LEADER, "the read failed: the member knows no leader; retry"
            )
        number = self._next
        self._next += 1
        deadline = context.now_ns + 2 * context.settings.election_timeout_ns
        self.asked[number] = (call, deadline)
        context.send(link.number, ReadIndex(number))

    def _prove(self) -> LeadershipProof:
        """Request a round that begins after now: no later leader existed when it began (R2).

        It cannot be proven yet. Each step examines the proofs once, because thousands of reads may
        arrive in it (G1).
        """
        leader = self.replica.leader
        assert leader is not None
        proof = LeadershipProof(self.context.limbo.confirmed_index, leader.lease.want_round())
        self.proofs.append(proof)
        return proof

    def on_message(self, link: int, message: ReadIndex | ReadIndexReply) -> None:
        if isinstance(message, ReadIndex):
            if self.replica.leader is None:
                self.context.send(link, ReadIndexReply(message.request, 0))
                return
            proof = self._prove()
            proof.link, proof.request = link, message.request
            return
        asked = self.asked.pop(message.request, None)
        if asked is None:
            return
        if not message.log_index:
            self._fail(asked[0])
        elif self.budget.is_read_budget_spent():
            self.applying.append((message.log_index, asked[0]))  # a later step serves it
        elif message.log_index <= self.context.limbo.confirmed_index:
            self._serve(asked[0])
        else:
            self.applying.append((message.log_index, asked[0]))

    def on_round(self) -> None:
        """Serve the reads that a heartbeat answer has proven."""
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None or not self.proofs or not leader.is_confirmed:
            return
        proven = leader.lease.proven_sequence()
        waiting = []
        for proof in self.proofs:
            # An index noted before the PROMOTE was confirmed is too low (R2).
            index = max(proof.index, leader.promote_index)
            if proof.sequence > proven or index > context.limbo.confirmed_index:
                waiting.append(proof)
            elif proof.call is not None and self.budget.is_read_budget_spent():
                waiting.append(proof)  # it stays proven and is served in a later step
            elif proof.call is not None:
                self._serve(proof.call)
            else:
                context.send(proof.link, ReadIndexReply(proof.request, index))
        self.proofs = waiting

    def on_confirmed(self) -> None:
        self.on_round()
        if not self.applying:
            return
        confirmed = self.context.limbo.confirmed_index
        applying, self.applying = self.applying, []
        for index, call in applying:
            if index > confirmed or self.budget.is_read_budget_spent():
                self.applying.append((index, call))
            else:
                self._serve(call)

    @property
    def is_waiting(self) -> bool:
        """Whether a read waits for a proof, for rows, or for the budget of a step."""
        return bool(self.proofs or self.applying)

    def drop_answered(self) -> None:
        """Drop reads that were answered because their deadline passed."""
        self.applying = [(index, call) for index, call in self.applying if not call.is_done]
        self.asked = {number: asked for number, asked in self.asked.items() if not asked[0].is_done}
        self.proofs = [
            proof for proof in self.proofs if proof.call is None or not proof.call.is_done
        ]

    def tick(self) -> None:
        if self.proofs or self.applying:
            self.on_confirmed()
        if not self.applying:
            self._alone_since_ns = 0
        elif self._is_alone():
            applying, self.applying = self.applying, []
            for _, call in applying:
                self._fail(call, "the member follows no leader")
        now = self.context.now_ns
        for number, (call, deadline) in list(self.asked.items()):
            if now >= deadline:
                del self.asked[number]
                self._fail(call)

    def _is_alone(self) -> bool:
        """Return whether no rows can arrive since two election timeouts.

        So long the search for a new leader may take. A removed instance finds none (M5).
        """
        context, replica = self.context, self.replica
        state = replica.source.state
        if replica.leader is not None or state not in (SourceState.IDLE, SourceState.COMPARING):
            self._alone_since_ns = 0
            return False
        self._alone_since_ns = self._alone_since_ns or context.now_ns
        return context.now_ns - self._alone_since_ns >= 2 * context.settings.election_timeout_ns

    def _serve(self, call: "Call") -> None:
        try:
            check_state_is_served(self.replica)
            self.stepped_reads.serve(call, self.context.limbo.confirmed_index)
        except ClientError as error:
            self.answers.refuse(call, error.code, error.message)

    def _fail(self, call: "Call", cause: str = "the leader did not return a read index") -> None:
        self.answers.refuse(call, ErrorCode.NOT_LEADER, f"the read failed: {cause}; retry")

    def on_leadership_lost(self) -> None:
        proofs, self.proofs = self.proofs, []
        for proof in proofs:
            if proof.call is not None:
                self._fail(proof.call)
            elif proof.link in self.context.links:
                self.context.send(proof.link, ReadIndexReply(proof.request, 0))
