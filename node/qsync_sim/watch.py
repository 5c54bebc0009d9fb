"""Checks of leaderships, orders and links, made while a schedule runs.

Another observer inspects disks and messages, and judges promises. This one knows the faults of the
network and the disks, and judges when a member must act:

  E2   a member with `election_mode: manual` asks for no votes without an order; an outdated
       nomination is refused;
  E3   no member grants a PreVote while it leads or hears a leader, and a PreVote changes no term;
  E4   a leader steps down soon after it was separated from a quorum;
  E5   a leader steps down soon after its disk has begun to hang;
  E9   a leader writes no user rows during a switchover, which ends at its deadline;
  L5   the history of terms of a member ends where its log ends;
  L8   an unregistered replica gets confirmed rows only;
  T4   a leader rolls rows back soon after their timeout, unless the confirmed index rises;
  S4   a snapshot is sent in chunks of bounded size;
  M3   the voters that remain after a removal have a quorum of running members;
  M4   a new voter has almost all rows;
  G3   every order is answered.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from qsync_node.consensus.leader import Leader
    from qsync_node.consensus.transfer import LeadershipTransfer
    from qsync_node.node import Node

SLOW_STEP_NS = 300 * MILLISECOND
"""Time for a slow step."""
HEARD_NS = 600 * MILLISECOND
"""An election timeout by the slowest clock, after which a voter does not count as available."""
ORDER_NS = 10 * SECOND
"""Time for the answer to an order: its deadline by the slowest clock, and some more."""
SWITCHOVER_NS = 7 * SECOND
"""Time for a switchover: its deadline of 5 s by the slowest clock, and a slow step."""
ROUND_NS = SECOND
"""A new voter has the rows that its leader had before this time."""


class OpenOrder(NamedTuple):
    """An order that is not answered yet, with the term of the member when it was sent."""

    shell: Shell
    incarnation: int
    verb: str
    arguments: dict[str, Any]
    term: int
    sent_ns: int


class Handover(NamedTuple):
    """A switchover in progress, when it was first seen, and where the log of its leader ended."""

    switchover: "LeadershipTransfer"
    since_ns: int
    last_index: int


class WorldWatch:
    """The checks of one world."""

    def __init__(self, world: Cluster) -> None:
        self._world = world
        self._orders: dict[int, OpenOrder] = {}
        self._leading: dict[str, int] = {}  # term that a member led at the end of its last step
        self._separated_ns: dict[str, int] = {}  # since when a leader reaches no quorum
        self._stopped_ns: dict[str, int] = {}
        self._logs: dict[str, deque[tuple[int, int]]] = {}  # (time, last index) of leaders
        self._handovers: dict[str, Handover] = {}  # by leader

    # --- orders -------------------------------------------------------------------------------

    def on_order(self, sync: int, shell: Shell, verb: str, arguments: dict[str, Any]) -> None:
        """Note an order that is sent."""
        assert shell.node is not None
        term = shell.node.context.term
        now_ns = self._world.now_ns
        self._orders[sync] = OpenOrder(shell, shell.incarnation, verb, arguments, term, now_ns)

    def on_answer(self, answer: fx.Answer) -> None:
        """Check the answer to an order.

        Raises:
            Violation: a nomination of an earlier term was accepted.
        """
        order = self._orders.pop(answer.sync, None)
        if order is None or order.verb != "nominate" or answer.code:
            return
        if order.arguments["term"] < order.term:
            raise InvariantViolation(
                f"E2: {order.shell.name} in term {order.term} accepts a nomination of "
                f"term {order.arguments['term']}"
            )

    def check_orders(self) -> None:
        """Check that all orders to processes that still run were answered.

        Raises:
            Violation: one was not.
        """
        for order in self._orders.values():
            is_lost = order.shell.incarnation != order.incarnation
            if not is_lost and self._world.now_ns - order.sent_ns > ORDER_NS:
                raise InvariantViolation(
                    f"G3: {order.verb} at {order.shell.name} was never answered"
                )

    # --- messages -----------------------------------------------------------------------------

    def on_send(self, shell: Shell, peer_uuid: str, message: PeerMessage) -> None:
        """Check a message of the core."""
        if isinstance(message, msg.Rows):
            if message.batches:
                self._check_rows(shell, peer_uuid, message)
        elif isinstance(message, msg.SnapshotChunk):
            self._check_chunk(shell, message)
        elif isinstance(message, msg.VoteRequest) and message.is_prevote:
            self._check_candidacy(shell)
        elif isinstance(message, msg.VoteReply) and message.is_prevote and message.is_granted:
            self._check_prevote(shell)

    def _check_rows(self, shell: Shell, peer_uuid: str, rows: msg.Rows) -> None:
        context = _node(shell).context
        limbo, last = context.limbo, rows.batches[-1].last_index
        # A member keeps its id until its removal is confirmed. The removal may be of this step, and
        # so may the rollback of its registration.
        is_registered = (
            peer_uuid in shell.members_before
            or limbo.configuration.by_uuid(peer_uuid) is not None
            or context.confirmed_configuration.by_uuid(peer_uuid) is not None
        )
        if last > limbo.confirmed_index and not is_registered:
            raise InvariantViolation(
                f"L8: {shell.name} sends row {last} to a replica without an id"
            )

    @staticmethod
    def _check_chunk(shell: Shell, chunk: msg.SnapshotChunk) -> None:
        size = sum(map(len, chunk.bodies[:-1]))
        if size > shell.settings.relay_chunk_bytes:
            raise InvariantViolation(f"S4: {shell.name} sends {size} bytes of a snapshot at once")

    @staticmethod
    def _check_candidacy(shell: Shell) -> None:
        node = _node(shell)
        # A member that may not lead stands if its log is needed (E1).
        if node.settings.election_mode == "manual" and node.replica.election.may_lead():
            raise InvariantViolation(f"E2: {shell.name} stands without an order")

    def _check_prevote(self, shell: Shell) -> None:
        context = _node(shell).context
        replica = _node(shell).replica
        if replica.leader is not None and self._leading.get(shell.uuid) == context.term:
            raise InvariantViolation(f"E3: {shell.name} leads and grants a PreVote")
        election = replica.election
        silent_ns = context.now_ns - election.heard_at_ns
        # A heartbeat or a connection of this step may have arrived after the question.
        is_heard = 0 < silent_ns < context.settings.election_timeout_ns
        if not is_heard or context.link_to(election.leader_uuid) is None:
            return
        if not any(type(item) is fx.LinkUp for item in shell.inputs_now):
            raise InvariantViolation(
                f"E3: {shell.name} grants a PreVote {silent_ns / 1e6:.0f} ms after it heard "
                "its leader"
            )

    # --- reports ------------------------------------------------------------------------------

    def on_report(self, shell: Shell, report: fx.Report) -> None:
        """Check an event that a member reports."""
        if report.event == "unregister":
            self._check_removal(shell, report.fields["uuid"])
        elif report.event == "promoted_to_voting":
            self._check_promotion(shell, report.fields["uuid"])

    def on_stopped(self, shell: Shell) -> None:
        """Note that a process has ended."""
        self._stopped_ns[shell.uuid] = self._world.now_ns

    def _check_removal(self, leader: Shell, removed: str) -> None:
        voters = [uuid for uuid in _node(leader).context.voter_uuids() if uuid != removed]
        running = sum(1 for uuid in voters if self._has_run(uuid))
        if running < len(voters) // 2 + 1:
            raise InvariantViolation(
                f"M3: {leader.name} removes a member; {running} of {len(voters)} voters run"
            )

    def _has_run(self, uuid: str) -> bool:
        """Return whether a member runs, or has run shortly before."""
        since_ns = self._world.now_ns - self._stopped_ns.get(uuid, 0)
        return self._world.shells[uuid].is_alive or since_ns < HEARD_NS

    def _check_promotion(self, leader: Shell, uuid: str) -> None:
        storage = self._world.shells[uuid].storage
        early = [
            index
            for at_ns, index in self._logs.get(leader.uuid, ())
            if at_ns <= self._world.now_ns - ROUND_NS
        ]
        if storage is not None and early and storage.last_index < early[-1]:
            raise InvariantViolation(
                f"M4: {leader.name} lets a replica vote that has {storage.last_index} rows; "
                f"{ROUND_NS // MILLISECOND} ms before, the log had {early[-1]}"
            )

    # --- steps --------------------------------------------------------------------------------

    def on_step(self, shell: Shell, node: "Node") -> None:
        """Check a member after its step."""
        context = node.context
        replica = node.replica
        starts = context.tail.history.starts
        if starts and starts[-1].first_index > context.tail.last_index:
            raise InvariantViolation(
                f"L5: {shell.name} has {starts[-1]} after {context.tail.last_index}"
            )
        if context.term != shell.term_before:
            self._check_term(shell, node)
        if replica.leader is None:
            if shell.uuid in self._leading:
                self._handovers.pop(shell.uuid, None)
                del self._leading[shell.uuid]
                self._separated_ns.pop(shell.uuid, None)
                self._logs.pop(shell.uuid, None)
            return
        now_ns = self._world.now_ns
        if self._leading.get(shell.uuid) != context.term:
            self._leading[shell.uuid] = context.term
            self._separated_ns.pop(shell.uuid, None)
        log = self._logs.setdefault(shell.uuid, deque())
        log.append((now_ns, context.tail.last_index))
        while len(log) > 1 and log[1][0] <= now_ns - ROUND_NS:
            log.popleft()
        self._check_separation(shell, context.voter_uuids())
        self._check_switchover(shell, replica.leader)
        self._check_timeout(shell, node, replica.leader)
        write_since_ns = shell.tasks.write_since_ns if shell.tasks is not None else 0
        # A process learns after its pause only that the write before ended and a new one began.
        known_since_ns = max(write_since_ns, shell.resumed_ns)
        if write_since_ns and now_ns - known_since_ns > _longest_lease_ns(shell):
            raise InvariantViolation(f"E5: {shell.name} leads, although its disk hangs")

    @staticmethod
    def _check_term(shell: Shell, node: "Node") -> None:
        """Check that a candidacy, a row, or a message that is no PreVote raised the term (E3)."""
        term = node.context.term
        if node.context.ballot.vote == shell.uuid or node.context.tail.last_term == term:
            return
        if not any(
            type(item) is fx.Received and _announces(item.message, term)
            for item in shell.inputs_now
        ):
            raise InvariantViolation(f"E3: {shell.name} adopts term {term}, which no member is in")

    def _check_switchover(self, shell: Shell, leader: "Leader") -> None:
        switchover, now_ns = leader.transfer.switchover, self._world.now_ns
        if switchover is None:
            self._handovers.pop(shell.uuid, None)
            return
        handover = self._handovers.get(shell.uuid)
        if handover is None or handover.switchover is not switchover:
            last = _node(shell).context.tail.last_index
            self._handovers[shell.uuid] = Handover(switchover, now_ns, last)
            return
        for entry in _node(shell).context.limbo.entries:
            index = entry.batch.first_index
            if entry.is_clients_write and index > handover.last_index:
                raise InvariantViolation(f"E9: {shell.name} writes {index} during a switchover")
        if now_ns - handover.since_ns > SWITCHOVER_NS:
            raise InvariantViolation(
                f"E9: {shell.name} has held writes for "
                f"{(now_ns - handover.since_ns) / 1e6:.0f} ms because of a switchover"
            )

    def _check_timeout(self, shell: Shell, node: "Node", leader: "Leader") -> None:
        """Check that rows are rolled back soon after their timeout (T4)."""
        context = node.context
        entries = context.limbo.entries
        if not entries or not leader.is_confirmed or leader.is_confirm_due or leader.rollback_at:
            return
        if context.is_decision_in_flight():
            return
        for entry in entries:
            if entry.is_clients_write and entry.wait_ack:
                break
        else:
            return
        if not entry.written_at:
            return
        expected_ns = leader.tracker.quorum_expected_ns(entry.batch.last_index)
        started_ns = max(entry.written_at, leader.promote_confirmed_ns)
        since_ns = max(started_ns, leader.progress_ns, expected_ns)
        late_ns = context.now_ns - since_ns - context.settings.synchro_timeout_ns
        if late_ns > SLOW_STEP_NS and self._world.now_ns - shell.resumed_ns > SLOW_STEP_NS:
            raise InvariantViolation(
                f"T4: {shell.name} keeps row {entry.batch.first_index} for {late_ns / 1e6:.0f} ms "
                "after its timeout"
            )

    def _check_separation(self, shell: Shell, voters: tuple[str, ...]) -> None:
        now_ns = self._world.now_ns
        shells = self._world.shells
        reached = sum(1 for uuid in voters if self._can_reach(shell, shells[uuid]))
        if reached >= len(voters) // 2 + 1:
            self._separated_ns.pop(shell.uuid, None)
            return
        healed_ns = self._world.network.healed_ns
        since_ns = max(self._separated_ns.setdefault(shell.uuid, now_ns), healed_ns)
        if now_ns - since_ns > _longest_lease_ns(shell):
            raise InvariantViolation(
                f"E4: {shell.name} leads, although it has reached {reached} of {len(voters)} "
                f"voters for {(now_ns - since_ns) / 1e6:.0f} ms"
            )

    def _can_reach(self, shell: Shell, other: Shell) -> bool:
        if other is shell:
            return True
        network = self._world.network
        is_cut = network.is_cut(shell, other) or network.is_cut(other, shell)
        return other.is_alive and not other.is_paused and not is_cut

    # --- links --------------------------------------------------------------------------------

    def unfinished_links(self) -> list[str]:
        """Return the links that a process must still close or open."""
        return [
            f"{shell.name} {problem}"
            for shell in self._world.alive()
            if shell.peers is not None
            for problem in shell.peers.unfinished()
        ]

    def open_links(self) -> set[int]:
        """Return the numbers of all open links."""
        return {
            number
            for shell in self._world.alive()
            if shell.peers is not None
            for number in shell.peers.links
        }


def _node(shell: Shell) -> "Node":
    assert shell.node is not None
    return shell.node


def _announces(message: PeerMessage, term: int) -> bool:
    """Return whether a message proves that its sender is in `term`."""
    if isinstance(message, msg.VoteRequest) and message.is_prevote:
        return False
    if isinstance(message, msg.VoteReply) and message.is_prevote and message.is_granted:
        return False
    return bool(getattr(message, "term", -1) == term)


def _longest_lease_ns(shell: Shell) -> int:
    """Return the time within which a leader notices that its lease has ended, by any clock."""
    return 2 * shell.settings.election_timeout_ns + SLOW_STEP_NS
