"""An observer of all disks and messages, which reports violated rules immediately.

The checker (checker.py) judges a schedule by the outcomes of its clients. There, a premature
promise is visible only if a crash follows. The observer does not wait for the crash: it inspects
the disks when a member makes a promise.

  D1  an ACK names nothing that is not on the sender's disk;
  D2  an ACK or heartbeat answer is of the sender's term; a vote, and a candidate's question, are on
      its disk before they are sent; so is a NACK (T7);
  E1  a leader has the votes of a majority of the voters in its own log, on their disks;
  L2  a confirmed row is on the disks of a quorum of the voters in the leader's log, pending ones
      included (M2), and so is the PROMOTE of its term;
  M2  no leader's log holds two unconfirmed membership changes; the configurations in
      force at any two members that can be elected, or that lead, have overlapping majorities;
  T7  a row that too many replicas refused is not confirmed in that term.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qsync_node.consensus import messages as msg
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.entries import EntryKind
from qsync_node.consensus.messages import PeerMessage
from qsync_sim import refusals, resources
from qsync_sim.authority import LeadershipChecks
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.consensus.context import Context
    from qsync_node.node import Node


class Onlooker:
    """The observer of all instances of a world."""

    def __init__(self, cluster: Cluster, authority: LeadershipChecks) -> None:
        self._cluster = cluster
        self._authority = authority
        self.refusals: dict[tuple[int, int], set[str]] = {}
        self._voters: dict[str, tuple[str, ...]] = {}  # by which each live member counts
        self._are_equal = True  # all live members count by the same voters

    # --- messages -----------------------------------------------------------------------------

    def on_send(self, shell: Shell, peer_uuid: str, message: PeerMessage) -> None:
        if shell.removed_before:
            self._authority.on_send(shell, peer_uuid, message)
        if isinstance(message, msg.Ack):
            self._check_ack(shell, message)
        elif isinstance(message, msg.VoteReply) and message.is_granted and not message.is_prevote:
            self._check_ballot(shell, message.term, peer_uuid)
        elif isinstance(message, msg.VoteRequest) and not message.is_prevote:
            self._check_ballot(shell, message.term, shell.uuid)
        elif isinstance(message, msg.ForwardReply) and message.code:
            refusals.check(self._cluster, shell, message.code, message.reason, peer_uuid)
        elif isinstance(message, msg.HeartbeatReply) and message.term < shell.term_before:
            raise InvariantViolation(f"D2: {shell.name} answers a heartbeat of term {message.term}")

    def _check_ack(self, shell: Shell, ack: msg.Ack) -> None:
        assert shell.storage is not None
        if ack.term < shell.term_before:
            raise InvariantViolation(
                f"D2: {shell.name} acknowledges in term {ack.term}, which it has left"
            )
        if ack.log_index > shell.storage.last_index:
            raise InvariantViolation(
                f"D1: {shell.name} acknowledges {ack.log_index}, "
                f"its disk ends at {shell.storage.last_index}"
            )
        if ack.nack_index and not any(
            nack.index == ack.nack_index for nack in _on_disk(shell).nacks
        ):
            raise InvariantViolation(
                f"T7: {shell.name} refuses {ack.nack_index} before it stored that"
            )

    def _check_ballot(self, shell: Shell, term: int, vote: str) -> None:
        ballot = _on_disk(shell)
        if (ballot.term, ballot.vote) != (term, vote):
            raise InvariantViolation(
                f"D2: {shell.name} votes in term {term}, its disk has {ballot.term} {ballot.vote}"
            )

    # --- transitions --------------------------------------------------------------------------

    def on_leader(self, shell: Shell, term: int) -> None:
        """Check the votes that elected this leader (E1)."""
        assert shell.node is not None
        self._authority.on_leader(shell, shell.node)
        # Its PROMOTE may already have restored an earlier configuration (M2).
        voters = shell.voters_before
        granted = sum(1 for uuid in voters if self._may_have_voted(uuid, term, shell.uuid))
        if granted < len(voters) // 2 + 1:
            raise InvariantViolation(
                f"E1: {shell.name} leads term {term} by {granted} of {len(voters)} votes"
            )

    def _may_have_voted(self, uuid: str, term: int, candidate: str) -> bool:
        ballot = _on_disk(self._cluster.shells[uuid])
        return ballot.term > term or (ballot.term, ballot.vote) == (term, candidate)

    def on_nack(self, shell: Shell, index: int, term: int) -> None:
        self.refusals.setdefault((term, index), set()).add(shell.uuid)

    def on_started(self, shell: Shell) -> None:
        """Check that a member sent no NACK that it had not stored."""
        self._authority.on_started(shell)
        stored = {(nack.term, nack.index) for nack in _on_disk(shell).nacks}
        for place, refusers in self.refusals.items():
            if place not in stored:
                refusers.discard(shell.uuid)

    def on_confirmed(self, shell: Shell, node: "Node", index: int, is_taken: bool) -> None:
        """Check that a leader has proof when the first member confirms `index`."""
        leader = node.replica.leader
        if leader is None:
            return
        term = node.context.term
        voters = node.context.voter_uuids()
        quorum = len(voters) // 2 + 1
        promote = leader.promote_index
        held = [uuid for uuid in voters if self._may_hold(uuid, max(index, promote), term)]
        if len(held) < quorum:
            raise InvariantViolation(
                f"L2: {shell.name} confirms {index} in term {term} with "
                f"{len(held)} of {len(voters)}"
            )
        refusers = self.refusals.get((term, index), set()).intersection(voters)
        if is_taken and len(voters) - len(refusers) < quorum:
            raise InvariantViolation(
                f"T7: {shell.name} confirms {index}, which {len(refusers)} refused"
            )

    def _may_hold(self, uuid: str, index: int, term: int) -> bool:
        """Return whether the disk of `uuid` holds the log to `index` and the PROMOTE of `term`."""
        shell = self._cluster.shells[uuid]
        if shell.is_removed or shell.storage is None or shell.node is None:
            return shell.disk_index >= index
        tail = shell.node.context.tail
        return shell.storage.last_index >= index and tail.history.last_term >= term

    def on_step(self, shell: Shell, node: "Node") -> None:
        resources.check_step(shell, node, self._cluster.ledger)
        if node.replica.leader is not None:
            self._authority.on_leading_step(shell, node)
        self._check_pending_changes(shell, node)
        self._note_voters(shell, node.context.voter_uuids())
        if not self._are_equal:
            self._check_majorities(shell, node)

    def on_stopped(self, shell: Shell) -> None:
        self._note_voters(shell, ())

    def _note_voters(self, shell: Shell, voters: tuple[str, ...]) -> None:
        """Note by which voters a member counts; none for a stopped or new one."""
        if self._voters.get(shell.uuid, ()) is not voters:
            self._voters[shell.uuid] = voters
            self._are_equal = len({one for one in self._voters.values() if one}) <= 1

    def _check_majorities(self, shell: Shell, node: "Node") -> None:
        """Check that no two members could win or lead by disjoint majorities (M2).

        An order that took the place of a majority answers for the majorities after it (E11).
        """
        if any(_context(one).ballot.was_forced for one in self._cluster.alive()):
            return
        mine = node.context.voter_uuids()
        for other in self._cluster.alive():
            theirs = _context(other).voter_uuids()
            if other is shell or mine == theirs or have_overlapping_majorities(mine, theirs):
                continue
            if self._may_decide(shell) and self._may_decide(other):
                raise InvariantViolation(
                    f"M2: {shell.name} counts by {len(mine)} voters and {other.name} by "
                    f"{len(theirs)}: majorities of the two need not overlap"
                )

    def _may_decide(self, shell: Shell) -> bool:
        """Return whether a majority of the voters in its own log could elect `shell`."""
        context = _context(shell)
        voters = context.voter_uuids()
        if shell.uuid not in voters:
            return False
        mine = (context.tail.last_term, context.tail.last_index)
        willing = 0
        for uuid in voters:
            peer = self._cluster.shells[uuid]
            if peer.node is None:
                willing += peer.disk_position <= mine
            elif context.is_leading:
                willing += peer.node.context.term <= context.term
            else:
                tail = peer.node.context.tail
                willing += (tail.last_term, tail.last_index) <= mine
        return willing >= len(voters) // 2 + 1

    def _check_pending_changes(self, shell: Shell, node: "Node") -> None:
        limbo = node.context.limbo
        if limbo.configuration is limbo.confirmed_configuration:
            return
        changes = [entry for entry in limbo.entries if entry.kind is EntryKind.MEMBERSHIP]
        if len(changes) < 2 or node.replica.leader is None:
            return
        if node.context.ballot.forced_voters:
            return  # they count until their own row is confirmed, also after a pending change (E11)
        # A restarted leader does not know yet the index that an earlier leader confirmed.
        confirmed = max(self._cluster.ledger, default=0)
        pending = sum(1 for entry in changes if entry.batch.last_index > confirmed)
        if pending > 1:
            raise InvariantViolation(f"M2: {shell.name} holds {pending} membership changes")


def have_overlapping_majorities(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether every majority of `one` shares a member with every majority of `other`."""
    common = len(set(one) & set(other))
    # Disjoint majorities take first the voters that only one side has, then share the common ones.
    wanted = sum(max(0, len(voters) // 2 + 1 - (len(voters) - common)) for voters in (one, other))
    return wanted > common


def _context(shell: Shell) -> "Context":
    assert shell.node is not None
    return shell.node.context


def _on_disk(shell: Shell) -> Ballot:
    return Ballot.decode(shell.ballot_on_disk) if shell.ballot_on_disk else Ballot()
