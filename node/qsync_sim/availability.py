"""Whether the cluster serves while faults happen to a minority of its voters.

A group of voters is *sound* under three conditions. Each of them runs, has a fast disk with space,
keeps its election mode, and has no rows that it could not apply. No direction between two of them
is cut. The group has the quorum by the configuration of each. Orders that move the leadership,
broken connections and a slow or lossy network begin a new period of soundness.

The group may lose members while it remains a quorum. A leader outside it also begins a new period
if it reaches only some of the group, or if its own configuration has a quorum that the group and
itself are not: no vote replaces it, because the group hears it (E3).

  E12  A sound group is without a leader that runs, reaches it and has confirmed its PROMOTE for
       `LEADERLESS_NS` at most. That time contains a lease, a wait of up to two election timeouts
       (0.4 s each), lost rounds with their growing waits, and a new connection.
  E12  A request that is sent to a member of the group after `SETTLED_NS` is answered within
       `ANSWER_NS`, as in a calm end, and is not refused for the state of the cluster: no leader, a
       read-only member, a full queue. A request is judged only if the leader belonged to the group
       and did not change while it waited and `STEADY_NS` before. Otherwise the member may have sent
       it to the old leader.
  E4   A leader in the group that steps down after `STEADY_NS` is a needless failover. A schedule
       may have `NEEDLESS_MAX` of them. A member that returns with a later term ends a leadership,
       too. That is not needless if an order made it stand while it was cut off (E2). A leader whose
       PROMOTE is not confirmed yet may lose to a candidate of a later term: that is a round of the
       same election, and the limit on the time without a leader (E12) includes it. The messages of
       that candidate may arrive much later, if it was cut off. A member outside of the group may
       have stood before the period, too, when a quorum heard no leader, and returns with its term.

The full queue is not judged with small limits and on slow machines, on which clients may write
faster than the members confirm.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from qsync_node.consensus.quorum import needed
from qsync_node.errors import ErrorCode
from qsync_sim.cluster import Cluster
from qsync_sim.network import LATE_NS
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND
INTERVAL_NS = 100 * MILLISECOND
"""Shorter than any fault that leaves no trace; each one is observed when it begins, too."""
SETTLED_NS = SECOND
LEADERLESS_NS = 2 * SECOND
ANSWER_NS = 2 * SECOND
STEADY_NS = 500 * MILLISECOND
NEEDLESS_MAX = 0
DISK_DELAY_MAX_NS = 5 * MILLISECOND
LATENCY_MAX_NS = 5 * MILLISECOND
MOVING = frozenset(
    {"nominate", "demote", "promote", "switchover", "fence", "unfence", "configure", "set_role"}
    | {"unregister"}
)
"""Orders that may move the leadership or change the voters."""
REFUSALS = frozenset(
    {
        ErrorCode.READONLY,
        ErrorCode.TIMEOUT,
        ErrorCode.LOADING,
        ErrorCode.NOT_LEADER,
        ErrorCode.SYNC_QUEUE_FULL,
        ErrorCode.DISK_FULL,
    }
)
"""Errors that the state of the cluster causes, not the content of a request."""


class Period:
    """Time during which a group was sound.

    Attributes:
        since_ns: when the first of its groups became sound.
        begin_ns: from when on it has exactly these members.
        end_ns: when a member left it or the soundness ended.
        names: names of the members.
    """

    __slots__ = ("begin_ns", "end_ns", "names", "since_ns")

    def __init__(self, since_ns: int, begin_ns: int, names: frozenset[str]) -> None:
        self.since_ns = since_ns
        self.begin_ns = begin_ns
        self.end_ns = 1 << 62
        self.names = names


class Availability:
    """The observer of one schedule."""

    def __init__(self, world: Cluster) -> None:
        self.periods: list[Period] = []
        self.needless = 0
        self._promoted: dict[str, int] = {}  # the last term in which each member led for certain
        self._confirmed_ns: dict[int, int] = {}  # when the PROMOTE of each term was confirmed
        self._opened: dict[int, tuple[int, Shell]] = {}  # when a member adopted each term first
        self.changes_ns: list[int] = []  # when a member became leader or stepped down
        self._world = world
        self._group: list[Shell] = []
        self._since_ns = 0
        self._led_ns = 0  # when a confirmed leader was last seen
        self._sound_ns: dict[str, int] = {}  # from when on each member counts as sound
        self._incarnations: dict[str, int] = {}
        self._ordered_terms: set[int] = set()  # that orders may open
        self._clear_ns = 0  # from when on the network counts as sound
        self._is_lossy = False  # packets are lost, or lost ones are under way
        self.is_watching = False

    def start(self) -> None:
        """Observe the world from now on."""
        self.is_watching = True
        self._tick()

    def _tick(self) -> None:
        self.observe()
        if self.is_watching:
            self._world.after(INTERVAL_NS, self._tick)

    def on_order(self, shell: Shell) -> None:
        """Begin a new period: an order may move the leadership, now or when it arrives."""
        if shell.node is not None:
            self._ordered_terms.add(shell.node.context.term + 1)
        self.disturb()

    def disturb(self) -> None:
        """Begin a new period: a fault concerns all members."""
        if self.is_watching:
            self._clear_ns = self._world.now_ns
            self._end()

    def _end(self) -> None:
        if self._group:
            self.periods[-1].end_ns = self._world.now_ns
        self._group = []

    # --- soundness ----------------------------------------------------------------------------

    def observe(self) -> None:
        """Update the group, and check that a sound one has a leader."""
        if not self.is_watching:
            return
        world, now_ns = self._world, self._world.now_ns
        self._observe_network()
        sound = _voters([shell for shell in world.shells.values() if self._is_sound(shell)])
        if now_ns < self._clear_ns:
            self._end()
            return
        group = self._connected([shell for shell in self._group if shell in sound])
        if not _is_quorum(group):
            self._end()
            group = self._connected(sound)
            if not _is_quorum(group):
                return
            self._since_ns = now_ns
        if self._is_partial(group):
            self._end()
            return
        if group != self._group:
            if self._group:
                self.periods[-1].end_ns = now_ns
            names = frozenset(shell.name for shell in group)
            self.periods.append(Period(self._since_ns, now_ns, names))
            self._group = group
        self._check_leader()

    def _observe_network(self) -> None:
        """Note until when packets are late: lost ones are sent again with growing pauses."""
        network, now_ns = self._world.network, self._world.now_ns
        if network.latency_ns > LATENCY_MAX_NS:
            self._clear_ns = max(self._clear_ns, now_ns + 2 * network.latency_ns)
        if not network.loss and not self._is_lossy:
            return
        latest_ns = network.latest_arrival_ns()
        self._is_lossy = bool(network.loss) or latest_ns > now_ns + LATE_NS
        self._clear_ns = max(self._clear_ns, latest_ns + LATE_NS, now_ns + LATE_NS)

    def _is_sound(self, shell: Shell) -> bool:
        now_ns, node = self._world.now_ns, shell.node
        if node is None or self._incarnations.get(shell.uuid) != shell.incarnation:
            self._incarnations[shell.uuid] = shell.incarnation
            self._sound_ns[shell.uuid] = now_ns + 1
            return False
        context = node.context
        if shell.disk_delay_ns > DISK_DELAY_MAX_NS:
            # A write that has begun takes as long as the disk took then.
            end_ns = now_ns + 2 * shell.disk_delay_ns
            self._sound_ns[shell.uuid] = max(self._sound_ns[shell.uuid], end_ns)
        return (
            now_ns >= self._sound_ns[shell.uuid]
            and not shell.is_paused
            and not shell.is_removed
            and not shell.fail_next_write
            and shell.disk.capacity_bytes >= 1 << 62
            and not node.refuse_rows
            and not context.ballot.nacks
            and not context.ballot.divergent_index
            and not context.ballot.is_fenced
            and not context.is_space_low
            and not context.is_disk_full
            and node.settings.election_mode == "candidate"
            and shell.uuid in context.voter_uuids()
        )

    def _connected(self, shells: "Sequence[Shell]") -> "list[Shell]":
        """Return the members without those that have the most cuts, until no cut is left.

        Of two members with a cut between them, the leader remains.
        """
        group, leader = list(shells), self._world.leader()
        cuts = self._world.network.cuts
        while cuts and group:
            uuids = {shell.uuid for shell in group}
            ends = [end for pair in cuts if uuids.issuperset(pair) for end in pair]
            if not ends:
                break
            worst = max(group, key=lambda shell: (ends.count(shell.uuid), shell is not leader))
            group.remove(worst)
        return group

    def _is_partial(self, group: "Sequence[Shell]") -> bool:
        """Return whether writes wait for a handover, or only a part of the group has the leader."""
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return False
        term = leader.node.replica.leader
        if term is not None and term.transfer.is_active:
            return True
        if leader in group:
            return False
        if not _is_quorum_of(leader, [*group, leader]):
            return True
        return 0 < self._cuts_to(leader, group) < len(group)

    def _cuts_to(self, leader: Shell, group: "Sequence[Shell]") -> int:
        """Return how many members of the group are cut from the leader in a direction."""
        network = self._world.network
        if not network.cuts:
            return 0
        return sum(network.is_cut(leader, one) or network.is_cut(one, leader) for one in group)

    # --- checks -------------------------------------------------------------------------------

    def _check_leader(self) -> None:
        world = self._world
        now_ns, leader = world.now_ns, world.leader()
        if leader not in self._group:
            self.changes_ns.append(now_ns)
        if leader is not None and leader.node is not None and not leader.is_paused:
            term = leader.node.replica.leader
            if term is not None and term.is_confirmed and not self._cuts_to(leader, self._group):
                self._led_ns = now_ns
        if now_ns - self._since_ns >= SETTLED_NS:
            world.count("sound groups observed")
        without_ns = now_ns - max(self._led_ns, self._since_ns)
        if without_ns > LEADERLESS_NS:
            names = ", ".join(shell.name for shell in self._group)
            raise InvariantViolation(
                f"E12: no leader for {without_ns / 1e6:.0f} ms, although {names} are connected and "
                f"run since {self._since_ns / 1e6:.0f} ms"
            )

    def on_promote_confirmed(self, shell: Shell, term: int) -> None:
        """Note that a member leads a term and its PROMOTE is confirmed."""
        self._promoted[shell.name] = term
        self._confirmed_ns[term] = self._world.now_ns

    def on_term(self, shell: Shell, term: int) -> None:
        """Note that a member has adopted a term."""
        self._opened.setdefault(term, (self._world.now_ns, shell))

    def on_leadership(self, shell: Shell, reason: str) -> None:
        """Count a leadership that ends although nothing hinders its leader (E4).

        Args:
            shell: a member that became leader or stepped down.
            reason: why it stepped down, "" if it became leader.
        """
        self.changes_ns.append(self._world.now_ns)
        if not reason:
            return
        self.observe()
        if shell not in self._group or self._world.now_ns - self._since_ns < STEADY_NS:
            return
        assert shell.node is not None
        if not self._ordered_terms.isdisjoint(
            range(shell.term_before + 1, shell.node.context.term + 1)
        ):
            self._world.count("failovers by late orders")
            return
        if self._promoted.get(shell.name) != shell.term_before:
            self._world.count("leaders that lost before their PROMOTE was confirmed")
            return
        if self._was_opened_before(shell.node.context.term, shell.term_before):
            self._world.count("failovers by candidates of the same election")
            return
        if self._was_opened_outside(shell.node.context.term):
            self._world.count("failovers by candidates that were cut off")
            return
        self.needless += 1
        self._world.count("needless failovers")
        self._world.count(f"needless failovers: {reason[:40]}")
        if self.needless > NEEDLESS_MAX:
            raise InvariantViolation(
                f"E4: needless failover number {self.needless}: {shell.name}, {reason}"
            )

    def _was_opened_before(self, later: int, term: int) -> bool:
        """Return whether a later term was opened before the PROMOTE of a term was confirmed."""
        now_ns = self._world.now_ns
        opened_ns, _ = self._opened.get(later, (now_ns, None))
        return later > term and opened_ns < self._confirmed_ns[term]

    def _was_opened_outside(self, later: int) -> bool:
        """Return whether a member outside of the group opened a term before the group was sound."""
        opened_ns, opener = self._opened.get(later, (self._world.now_ns, None))
        return opened_ns < self._since_ns and opener not in self._group

    def check(self, requests: "Iterable[Any]", *, is_queue_judged: bool) -> None:
        """Check that members of a sound group served their requests.

        Args:
            requests: operations of clients or requests of workloads.
            is_queue_judged: whether the queue of unconfirmed transactions must not be full.

        Raises:
            Violation: a request was refused or waited too long.
        """
        self._end()
        for request in requests:
            if not request.called_ns:
                continue
            returned_ns = request.returned_ns or self._world.now_ns
            waited_ns = returned_ns - request.called_ns
            is_refused = request.outcome == "refused" and request.code in REFUSALS
            if request.code == ErrorCode.SYNC_QUEUE_FULL and not is_queue_judged:
                continue
            if not is_refused and waited_ns <= ANSWER_NS:
                continue
            until_ns = min(returned_ns, request.called_ns + ANSWER_NS)
            if self._has_changed(request.called_ns - STEADY_NS, until_ns):
                continue
            if self._was_sound(request.member, request.called_ns, until_ns):
                raise InvariantViolation(
                    f"E12: {request.kind} at {request.member}, {request.called_ns / 1e6:.3f} .. "
                    f"{returned_ns / 1e6:.3f} ms, was {request.outcome or 'not answered'} "
                    f"({request.code}) although a quorum is sound"
                )

    def _has_changed(self, first_ns: int, last_ns: int) -> bool:
        """Return whether the leadership changed, or was not in the group, during this time."""
        position = bisect_left(self.changes_ns, first_ns)
        return position < len(self.changes_ns) and self.changes_ns[position] <= last_ns

    def _was_sound(self, name: str, first_ns: int, last_ns: int) -> bool:
        """Return whether a member was in one sound group, settled before, during this time."""
        periods = [period for period in self.periods if name in period.names]
        at_ns = first_ns
        for period in periods:
            if period.since_ns + SETTLED_NS > first_ns:
                return False
            if period.begin_ns <= at_ns <= period.end_ns:
                at_ns = period.end_ns
                if at_ns >= last_ns:
                    return True
        return False


def _voters(shells: "list[Shell]") -> "list[Shell]":
    """Return those that are voters by the newest log of them: a removed one may not know it."""
    if not shells:
        return shells
    voters = max(map(_log_of, shells))[1]
    return [shell for shell in shells if shell.uuid in voters]


def _log_of(shell: Shell) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Return the position at the end of the log of a member, and the voters by it."""
    assert shell.node is not None
    context = shell.node.context
    return (context.tail.last_term, context.tail.last_index), context.voter_uuids()


def _is_quorum(group: "Sequence[Shell]") -> bool:
    """Return whether the group has the quorum by the configuration of each of its members."""
    return bool(group) and all(_is_quorum_of(shell, group) for shell in group)


def _is_quorum_of(member: Shell, group: "Sequence[Shell]") -> bool:
    """Return whether the group has the quorum by the configuration of a member."""
    assert member.node is not None
    voters = member.node.context.voter_uuids()
    uuids = {shell.uuid for shell in group}
    return len(uuids.intersection(voters)) >= needed(len(voters), member.node.settings.quorum)
