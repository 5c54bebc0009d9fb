"""Members that must not lead, and removed instances that must not influence anything.

  E10  A fence that an order reported as set is on the disk, also after a crash. A fenced member
       still votes and acknowledges, but is elected only as a read-only leader, if its log is needed
       (E1). A leader that is fenced writes no further user rows.
  T7   A leader whose state lacks a confirmed row writes no user rows.
  P1   Once a member has confirmed the removal of an instance, it grants that instance no vote,
       acknowledges nothing to it, and counts by voters without it. A message of that instance
       changes neither term, log, leader nor timers of the receiver.

These rules have no bound in time: each violation is reported at the step in which it happens. The
checks of removed instances run only at members that know of a removal.
"""

from typing import TYPE_CHECKING, Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.messages import PeerMessage
from qsync_sim.shell import Shell
from qsync_sim.timeline import Timeline
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.node import Node

FENCES = {"fence": True, "unfence": False}
PROMISES = frozenset({msg.Ack, msg.VoteReply})


class LeadershipChecks:
    """The observer of members that must not lead, and of removals."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._orders: dict[int, tuple[Shell, bool]] = {}  # without an answer, by their number
        self._fenced: set[str] = set()  # UUIDs of the members whose fence was reported as set
        self._barred: dict[str, tuple[int, int]] = {}  # process run and end of the log, by leader

    # --- fences -------------------------------------------------------------------------------

    def on_order(self, shell: Shell, sync: int, verb: str) -> None:
        """Note an order to set or clear the fence of a member."""
        self._orders[sync] = shell, FENCES[verb]
        if not FENCES[verb]:
            self._fenced.discard(shell.uuid)

    def on_order_answered(self, answer: fx.Answer) -> None:
        """Note the answer to an order of the administrator."""
        shell, is_fence = self._orders.pop(answer.sync, (None, False))
        if shell is not None and is_fence and not answer.code:
            is_over = any(other is shell for other, _ in self._orders.values())
            if not is_over:
                self._fenced.add(shell.uuid)

    def on_started(self, shell: Shell) -> None:
        """Check that a fence survives the end of the process."""
        if shell.uuid in self._fenced and not on_disk(shell).is_fenced:
            raise InvariantViolation(f"E10: {shell.name} was fenced, and starts without its fence")

    def on_leader(self, shell: Shell, node: "Node") -> None:
        """Check that a member that must not lead takes no user writes when it is elected."""
        ballot = node.context.ballot
        is_fenced = ballot.is_fenced or shell.uuid in self._fenced
        mode = node.settings.election_mode
        if not (is_fenced or ballot.divergent_index or mode == "voter"):
            return
        if node.replica.leader is None:
            return  # its leadership has ended in the same step
        if not node.replica.election.is_read_only:
            raise InvariantViolation(
                f"E10: {shell.name} leads although it is fenced ({is_fenced}), "
                f"diverges ({ballot.divergent_index}) or only votes ({mode})"
            )

    def on_leading_step(self, shell: Shell, node: "Node") -> None:
        """Check that a leader writes no user rows if it is fenced, or has a divergent state."""
        ballot = node.context.ballot
        if not ballot.is_fenced and not ballot.divergent_index:
            if self._barred:
                self._barred.pop(shell.uuid, None)
            return
        last = node.context.tail.last_index
        incarnation, barred_at = self._barred.setdefault(shell.uuid, (shell.incarnation, last))
        if incarnation != shell.incarnation:
            self._barred[shell.uuid] = shell.incarnation, last
            return
        for entry in node.context.limbo.entries:
            if entry.is_clients_write and entry.batch.first_index > barred_at:
                rule, cause = ("E10", "fenced") if ballot.is_fenced else ("T7", "divergent")
                raise InvariantViolation(
                    f"{rule}: {shell.name} writes {entry.batch.first_index}, {cause} at {barred_at}"
                )

    # --- removed instances --------------------------------------------------------------------

    @staticmethod
    def on_send(shell: Shell, peer_uuid: str, message: PeerMessage) -> None:
        """Check that a member promises nothing to an instance that it knows as removed."""
        if peer_uuid not in shell.removed_before or type(message) not in PROMISES:
            return
        is_flow_control = shell.settings.role == "anonymous"  # its ACKs count nowhere
        is_promise = isinstance(message, msg.VoteReply) and message.is_granted
        if is_promise or (isinstance(message, msg.Ack) and not is_flow_control):
            raise InvariantViolation(f"P1: {shell.name} sends {message} to a removed instance")

    def on_step(self, shell: Shell, node: "Node", inputs: list[Any], last_before: int) -> None:
        """Check a step of a member that knew of removals when it began.

        Args:
            shell: the member.
            node: its process.
            inputs: the inputs of the step.
            last_before: end of its log before the step.
        """
        replica, context, removed = node.replica, node.context, shell.removed_before
        if not removed.isdisjoint(context.voter_uuids()):
            raise InvariantViolation(f"M5: {shell.name} counts by a voter that was removed")
        if not inputs or not all(
            type(item) is fx.Received and _sender(shell, item) in removed for item in inputs
        ):
            return
        election = replica.election
        if context.term != shell.term_before and context.ballot.vote != shell.uuid:
            raise InvariantViolation(
                f"P1: {shell.name} adopts term {context.term} of a removed instance"
            )
        if replica.leader is None and context.tail.last_index > last_before:
            raise InvariantViolation(f"P1: {shell.name} appends rows of a removed instance")
        if election.leader_uuid in removed or election.heard_at_ns == context.now_ns:
            raise InvariantViolation(f"P1: {shell.name} hears the heartbeat of a removed instance")
        self._timeline.count("messages of removed instances checked")


def _sender(shell: Shell, item: fx.Received) -> str:
    link = shell.peers.links.get(item.link) if shell.peers is not None else None
    return link.uuid if link is not None else ""


def on_disk(shell: Shell) -> Ballot:
    """Return the ballot on the disk of a member."""
    return Ballot.decode(shell.ballot_on_disk) if shell.ballot_on_disk else Ballot()
