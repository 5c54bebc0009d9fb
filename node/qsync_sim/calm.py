"""The calm end of a schedule: nothing fails, and the members do work that takes long.

All members run, are connected, and have fast disks. They write checkpoints, and new members join,
while clients work. Then no member may lose or take over the leadership (E4, G1), no request may be
refused for another reason than its own, and each is answered within `ANSWER_NS` (E12).

Then the network is slow for some time, so that a heartbeat round begins before the one before it is
answered. The leader still leads: its lease is several times longer than a round (E4).
"""

from collections.abc import Callable

from qsync_node.consensus.membership import Configuration
from qsync_node.errors import ErrorCode
from qsync_sim.network import LATE_NS, LATENCY_NS
from qsync_sim.operation import ClientOperation
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World

MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND
SETTLED_NS = 500 * MILLISECOND
"""Time without a change of the leadership after which the members count as settled."""
SETTLING_MAX_NS = 30 * SECOND
ANSWER_NS = 2 * SECOND
SWITCHOVER_NS = 2 * SECOND
SLOW_LATENCY_NS = 40 * MILLISECOND
"""Longer than half of a heartbeat interval, and shorter than a tenth of a lease."""
SLOW_NS = 1200 * MILLISECOND
TIMEOUT_NS = 500 * MILLISECOND
"""The shortest `synchro_timeout` with which no row times out in the slow network."""
STEPS = 5
STEP_NS = 400 * MILLISECOND
JOINING = {1: "voter", 3: "anonymous"}
"""Roles of the members that join, by step."""
OWN_REASONS = frozenset(
    {
        ErrorCode.TUPLE_FOUND,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_TIMEOUT,
        ErrorCode.KEY_EXPIRED,
    }
)
"""Errors that the content of a request causes, not the state of the cluster."""


class Calm:
    """The calm end of one schedule."""

    def __init__(self, world: World, is_caught_up: Callable[[], bool]) -> None:
        """Watch a world in which all faults have ended.

        Args:
            world: the world.
            is_caught_up: returns whether all members have almost all rows.
        """
        self._world = world
        self._is_caught_up = is_caught_up
        self._changed_ns = world.now_ns
        self._is_calm = False
        self._partial: set[str] = set()  # names of members that need not serve all requests
        world.on_leadership = self._on_leadership

    def _on_leadership(self, name: str, event: str) -> None:
        self._changed_ns = self._world.now_ns
        if self._is_calm:
            raise InvariantViolation(f"E4: {name} reports {event}, although nothing has failed")

    def run(self) -> None:
        """Let the members work.

        Raises:
            Violation: the leadership changed, or a request failed or waited too long.
        """
        world = self._world
        if not world.run_for(SETTLING_MAX_NS, self._is_settled):
            raise InvariantViolation(
                f"E12: no settled leader {SETTLING_MAX_NS // SECOND} s after the faults"
            )
        self._is_calm = True
        leader = world.leader()
        assert leader is not None
        assert leader.node is not None
        configuration = leader.node.context.confirmed_configuration
        self._partial = {
            shell.name
            for shell in world.alive()
            if shell.settings.spaces or not _has_joined(shell, configuration)
        }
        begin_ns = world.now_ns
        for step in range(STEPS):
            self._work(step)
            world.run_for(STEP_NS)
        end_ns = world.now_ns
        if leader.settings.synchro_timeout_ns >= TIMEOUT_NS:
            self._slow_down()
        self._is_calm = False
        world.on_leadership = None
        for operation in reversed(world.history):
            if operation.called_ns < begin_ns:
                break
            if 0 < operation.returned_ns <= end_ns or end_ns - operation.called_ns > ANSWER_NS:
                self._check(operation)
        world.count("calm ends")
        self._switch_over(leader)

    def _slow_down(self) -> None:
        """Let the members work in a slow network, and wait until they have caught up."""
        world = self._world
        world.network.latency_ns = SLOW_LATENCY_NS
        world.run_for(SLOW_NS)
        world.network.latency_ns = LATENCY_NS
        world.run_for(SETTLING_MAX_NS, self._is_settled)
        world.count("slow networks in a calm end")

    def _is_settled(self) -> bool:
        world = self._world
        leader = world.leader()
        if leader is None or world.now_ns - self._changed_ns < SETTLED_NS:
            return False
        if world.network.latest_arrival_ns() > world.now_ns + LATE_NS:
            return False  # a connection that waits for a lost packet is as good as cut
        assert leader.node is not None
        term = leader.node.replica.leader
        if term is None or term.transfer.is_active:
            return False  # writes wait for the end of a switchover (E9)
        return self._is_caught_up()

    def _work(self, step: int) -> None:
        """Give the members the work of one step."""
        world = self._world
        if step in JOINING:
            shell = world.add(JOINING[step])
            self._partial.add(shell.name)
            shell.start()
        for shell in world.alive():
            world.command(shell, "snapshot")

    def _switch_over(self, leader: Shell) -> None:
        """Transfer the leadership: clients wait, and no write is lost (E9).

        Raises:
            Violation: the target does not lead in time, or a write was lost.
        """
        world = self._world
        assert leader.node is not None
        term = leader.node.replica.leader
        targets = term.tracker.successors() if term is not None else []
        if not targets or term is None or term.transfer.is_active:
            return
        begin_ns = world.now_ns
        target = world.shells[targets[-1]]
        world.command(leader, "switchover", target=target.uuid)

        def has_ended() -> bool:
            node = target.node
            leads = node.replica.leader if node is not None else None
            return leads is not None and leads.is_confirmed

        if not world.run_for(SWITCHOVER_NS, has_ended):
            raise InvariantViolation(f"E9: {target.name} does not lead after a switchover")
        world.run_for(STEP_NS)
        for operation in reversed(world.history):
            if operation.called_ns < begin_ns:
                break
            if operation.outcome in ("unknown", "rolled back"):
                raise InvariantViolation(
                    f"E9: a switchover lost {operation.kind} {operation.value} at "
                    f"{operation.member}: {operation.outcome} ({operation.code})"
                )
        world.count("calm switchovers")

    def _check(self, operation: ClientOperation) -> None:
        world = self._world
        if operation.member in self._partial or operation.code == ErrorCode.UNKNOWN_REPLICA:
            return  # the member is not yet one, no longer, or refuses requests for other spaces
        waited_ns = (operation.returned_ns or world.now_ns) - operation.called_ns
        if waited_ns > ANSWER_NS:
            raise InvariantViolation(
                f"E12: {operation.kind} {operation.value} at {operation.member} waited "
                f"{waited_ns / 1e6:.0f} ms, although nothing has failed"
            )
        if operation.code in OWN_REASONS:
            return
        if operation.code == ErrorCode.SYNC_QUEUE_FULL and world.machine.is_slow:
            return  # the members cannot write as fast as clients ask (T11)
        if operation.outcome not in ("", "committed"):
            raise InvariantViolation(
                f"E12: {operation.kind} {operation.value} at {operation.member} was "
                f"{operation.outcome} ({operation.code}), although nothing has failed"
            )
        world.count("requests in a calm end")


def _has_joined(shell: Shell, configuration: Configuration) -> bool:
    """Return whether a process is a registered member, or a replica that never registers."""
    if shell.node is None or shell.uuid in configuration.removed:
        return False
    context = shell.node.context
    is_known = context.is_anonymous or configuration.by_uuid(shell.uuid) is not None
    return context.has_origin and is_known
