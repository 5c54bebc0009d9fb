"""One schedule: a cluster forms, clients work, faults occur, and everything is checked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND, ConsensusSettings
from qsync_node.consensus.source import SourceState
from qsync_node.format.body import space_mark
from qsync_node.format.mp import pack_map_head
from qsync_node.node import Node
from qsync_sim import (
    archive_checks,
    archive_faults,
    decay,
    faults,
    members,
    mixture,
    orders,
    publishing,
    rare,
    resources,
    slowreaders,
    versions,
)
from qsync_sim.archiving import ArchiveModel
from qsync_sim.calm import Calm
from qsync_sim.checker import Checker
from qsync_sim.clients import SHORT_THINK_MS, SimClient
from qsync_sim.costs import machine_of
from qsync_sim.disaster import Disaster
from qsync_sim.model import held_by, is_held
from qsync_sim.network import LATENCY_NS
from qsync_sim.operation import ClientOperation
from qsync_sim.readers import EarlyReader
from qsync_sim.restoring import check_restore
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation
from qsync_sim.workloads import check as check_workloads
from qsync_sim.workloads import make as make_workloads
from qsync_sim.workloads.base import WorkloadRequest
from qsync_sim.workloads.contents import check_indexes
from qsync_sim.workloads.order import SEQUENCE_DATA
from qsync_sim.world import World

OPERATIONS_MIN = 200
ROWS_BEHIND = 30
"""Rows that a member may lack that follows a busy leader."""
FAULTS_MIN = 5
PAUSES_NS = (150 * MILLISECOND, 500 * MILLISECOND, 1200 * MILLISECOND)
"""Longest pauses between faults: some meet the effects of others, some a settled cluster."""
FREQUENT_WEIGHT = 20
READERS = 2
CALM_ENDS = 0.4
"""The part of the schedules with a calm end, which takes as long as the rest."""
ARCHIVES = 0.25
"""The part of the schedules whose members archive their logs."""
DISASTERS = 0.2
"""The part of the schedules in which a quorum is lost for good at last."""
GLOBAL = (faults.break_connections, decay.garbage)
"""Faults of the connections between any members, which leave no trace in the state."""
SHORT_DEADLINES = 0.15
"""The part of the schedules in which requests expire while their outcome is under way (G3)."""
DEADLINES_NS = (250 * MILLISECOND, 700 * MILLISECOND, 2 * SECOND)
SMALL_WINDOWS, SMALL_WINDOW_BYTES = 0.25, 3_000
"""The part of the schedules in which leaders send little ahead of ACKs, and how many bytes."""
WAIT_NS = 10 * SECOND
"""Longer than any fault, and shorter than the deadline of a request."""
CHECKPOINT_NS = 10 * SECOND
"""Time for the last writes of a checkpoint, which may have met a slow disk."""
LINKS_NS = 8 * SECOND
"""Time in which a silent link is closed, and an address is dialled again."""
QUIET_NS = 6 * SECOND
"""Time in which a link without messages would be closed."""
LOST_STARTS = 0.03
"""Probability that the power is lost while a process starts."""
CHECKPOINT_DELAYS = 500
"""Writes of the longest checkpoint (0.1 s). Rows are confirmed during a checkpoint."""


class Schedule:
    """The schedule of one seed; `faults_limit` and `operations` shrink a failing one."""

    def __init__(
        self,
        seed: int,
        faults_limit: int | None = None,
        is_tracing: bool = False,
        frequent: Sequence[Callable[[World], None]] = (),
        workloads: Sequence[str] | None = None,
        is_plain: bool = False,
    ) -> None:
        """Draw a schedule.

        Args:
            seed: the seed of everything random.
            faults_limit: maximum number of faults, None for those that the seed draws.
            is_tracing: whether `world.trace` gets a line per event.
            frequent: faults that happen more often than usual.
            workloads: names of those to run, None for those that the seed chooses.
            is_plain: whether it has no workloads, journals, slow machine and calm end. Tests of
                archives use such schedules: they need rows and faults only.
        """
        self.world = World(seed)
        self.is_plain = is_plain
        if is_plain:
            workloads = ()
        else:
            self.world.machine = machine_of(seed)
            self.world.disks.lost_starts = LOST_STARTS
        if seed % 2:
            # Confirmations of an even seed stop after a few rows, those of an odd one at the end.
            rows_max = ConsensusSettings().confirm_rows_max
            self.world.base = replace(self.world.base, confirm_rows_max=rows_max)
        if not is_plain and Random(f"window of {seed}").random() < SMALL_WINDOWS:
            self.world.base = replace(self.world.base, relay_window_bytes=SMALL_WINDOW_BYTES)
        deadlines = Random(f"deadlines of {seed}")
        if not is_plain and deadlines.random() < SHORT_DEADLINES:
            timeout_ns = deadlines.choice(DEADLINES_NS)
            self.world.base = replace(self.world.base, request_timeout_ns=timeout_ns)
            self.world.count("short deadlines")
        self.world.disks.checkpoint_delays = CHECKPOINT_DELAYS
        self.world.is_tracing = is_tracing
        self.faults_limit = faults_limit
        self.faults_done = 0
        self.workloads = make_workloads(self.world, workloads)
        self.slow_readers: list[slowreaders.SlowReader] = []
        chosen = mixture.FAULTS if is_plain else [*mixture.FAULTS, *orders.ALL, *decay.ALL]
        if not is_plain and Random(f"archive of {seed}").random() < ARCHIVES:
            self.world.archive = ArchiveModel(self.world, self.world.replicaset_uuid)
            chosen = [*chosen, *archive_faults.ALL]
        if not is_plain:
            self.world.versions = versions.draw(self.world)
        self._faults = [*chosen, *((FREQUENT_WEIGHT, fault) for fault in frequent)]

    def run(self) -> World:
        """Raises `InvariantViolation`, or AssertionError of the node, when a rule is broken."""
        world = self.world
        rng = world.rng
        voters = rng.choice([3, 3, 3, 5])
        unconfirmed = rng.choice(["adopt", "adopt", "rollback"])
        timeout_ns = rng.choice([700, 700, 120]) * MILLISECOND
        for workload in self.workloads:
            world.base = replace(world.base, **workload.settings())
        world.bootstrap(voters, failover_unconfirmed=unconfirmed, synchro_timeout_ns=timeout_ns)
        if world.seed % 4 == 3 and not self.is_plain:
            publishing.enable(world, self._are_clients_stopped)
        for workload in self.workloads:
            workload.set_up()
        self._start_clients(rng.choice([3, 5, 8]))
        for workload in self.workloads:
            workload.start()
        if not self.is_plain:
            self.slow_readers = slowreaders.start(world)
        world.availability.start()
        if not self.is_plain:
            rare.plan(world)
        if world.versions is not None:
            world.versions.begin()
        self._disturb()
        world.run_for(SECOND)
        world.run_for(20 * SECOND, lambda: len(world.history) >= OPERATIONS_MIN)
        self.end_faults()
        for workload in self.workloads:
            workload.stop()
        if self._ends_calmly():
            Calm(world, self._is_caught_up).run()
        self._judge()
        if self._ends_in_disaster():
            Disaster(world).strike()
            self.check_convergence()
            self.check_states()
        return world

    def _disturb(self) -> None:
        """Let the faults of the schedule happen."""
        world = self.world
        rng = world.rng
        count = rng.randrange(FAULTS_MIN, 3 * FAULTS_MIN)
        weights = [weight for weight, _ in self._faults]
        for _ in range(count):
            world.run_for(self._draw_pause_ns())
            fault = rng.choices([fault for _, fault in self._faults], weights)[0]
            if self.faults_limit is None or self.faults_done < self.faults_limit:
                if world.is_tracing:
                    world.trace.append(f"{world.now_ns / 1e6:10.3f} ---- {fault.__name__}")
                fault(world)
                if fault in GLOBAL:
                    world.availability.disturb()
                world.availability.observe()
                self.faults_done += 1
                for workload in self.workloads:
                    workload.wake()

    def _judge(self) -> None:
        """Check the history of the schedule, and the state of the members at its end."""
        world = self.world
        self.check_liveness()
        archive_checks.check_progress(world, self._members())
        archive_checks.check(world)
        check_restore(world)
        world.availability.is_watching = False
        Checker(world).check()
        self._check_availability()
        self.check_waits()
        self.check_links()
        if world.versions is not None:
            world.versions.check()
        for reader in self.slow_readers:
            reader.finish()
        self.check_released()
        world.watch.check_orders()
        members.check(world)
        check_workloads(world, self.workloads)
        self.check_states()

    def _start_clients(self, count: int) -> None:
        world = self.world
        world.clients = [SimClient(world, number) for number in range(count)]
        for client in world.clients:
            if self.is_plain:
                client.think_ms = SHORT_THINK_MS
            client.act()
        if not self.is_plain:
            world.readers = [EarlyReader(world, number) for number in range(READERS)]
            world.clients += world.readers

    def _draw_pause_ns(self) -> int:
        """Return the time until the next fault."""
        rng = self.world.rng
        longest_ns = PAUSES_NS[-1] if self.is_plain else rng.choice(PAUSES_NS)
        return rng.randrange(20 * MILLISECOND, longest_ns)

    def _ends_in_disaster(self) -> bool:
        """Return whether the schedule ends in a disaster; small limits would refuse its writes."""
        is_chosen = Random(f"disaster of {self.world.seed}").random() < DISASTERS
        return is_chosen and not self.is_plain and not self._has_small_limits()

    def _has_small_limits(self) -> bool:
        return any(workload.name == "limits" for workload in self.workloads)

    def _ends_calmly(self) -> bool:
        """Return whether the schedule has a calm end. Small limits refuse requests in it, too."""
        is_chosen = Random(f"calm end of {self.world.seed}").random() < CALM_ENDS
        return is_chosen and not self.is_plain and not self._has_small_limits()

    def _check_availability(self) -> None:
        requests = [request for workload in self.workloads for request in workload.requests]
        is_queue_judged = not self._has_small_limits() and not self.world.machine.is_slow
        for judged in (self.world.history, requests):
            self.world.availability.check(judged, is_queue_judged=is_queue_judged)

    def end_faults(self) -> None:
        """End all faults: every member that is not removed runs, connects and keeps time."""
        world = self.world
        world.has_faults = False
        world.ambushes.clear()
        archive_faults.end_all(world)
        world.network.heal()
        world.network.latency_ns = LATENCY_NS
        world.network.loss = 0.0
        world.disks.lost_starts = 0.0
        if world.versions is not None:
            world.versions.end()
        for shell in list(world.shells.values()):
            shell.disk_delay_ns = 200_000
            shell.disk.capacity_bytes = 1 << 62
            shell.fail_next_write = ""
            shell.resume()
            world.start_again(shell)
            if shell.node is not None:
                shell.node.refuse_rows = False
        for shell in world.alive():
            shell.step([fx.SpaceLow(False)])
            world.command(shell, "unfence")
            world.command(shell, "configure", quorum="majority")
            orders.stand_again(world, shell)
        world.network.break_cut_off()

    def check_liveness(self) -> None:
        """Check that writes are accepted and all members catch up within bounded time (E12)."""
        world = self.world
        operations = len(world.history)

        def is_done() -> bool:
            is_long = len(world.history) >= max(OPERATIONS_MIN, operations + 20)
            return is_long and any(map(_is_accepted, world.history[operations:]))

        if not world.run_for(30 * SECOND, is_done):
            raise InvariantViolation(
                "E12: no write was accepted within 30 s after the faults ended"
            )
        for client in world.clients:
            client.is_stopped = True
        for workload in self.workloads:
            workload.stop()
        world.run_for(35 * SECOND, self._is_idle)
        if not self._is_idle():
            raise InvariantViolation("K1: a request was never answered")
        self.check_convergence()

    def check_convergence(self) -> None:
        """Check that all members catch up within bounded time (E12)."""
        world = self.world
        done = world.run_for(30 * SECOND, self._has_converged)
        if not done:
            raise InvariantViolation(
                f"E12: no agreement 30 s after the faults ended: {self._positions()}"
            )

    def check_waits(self) -> None:
        """Check that no request had to wait for its deadline (G3).

        A quorum of all voters may wait for a voter whose disk is lost.
        """
        if self.world.counters["fault quorum changed"]:
            return
        requests: list[ClientOperation | WorkloadRequest] = list(self.world.history)
        for workload in self.workloads:
            requests += workload.requests
        for request in requests:
            waited_ns = request.returned_ns - request.called_ns
            if waited_ns > WAIT_NS:
                raise InvariantViolation(
                    f"G3: {request.kind} at {request.member} waited {waited_ns / 1e6:.0f} ms, "
                    f"answered {request.outcome} ({request.code})"
                )

    def check_links(self) -> None:
        """Check that each process has one link to each address, and keeps its links."""
        world = self.world
        watch = world.watch
        if not world.run_for(LINKS_NS, lambda: not watch.unfinished_links()):
            raise InvariantViolation(
                f"Peering: {watch.unfinished_links()} after {LINKS_NS // SECOND} s"
            )
        if world.counters["calm ends"]:
            before = watch.open_links()
            world.run_for(QUIET_NS)
            lost = before - watch.open_links()
            if lost:
                raise InvariantViolation(
                    f"Peering: {len(lost)} links were lost, although nothing failed"
                )

    def _are_clients_stopped(self) -> bool:
        return any(client.is_stopped for client in self.world.clients[:1])

    def check_released(self) -> None:
        """Check that members hold nothing for connections that are closed."""
        world = self.world
        for client in world.clients:
            client.disconnect()
        for workload in self.workloads:
            workload.disconnect()
        world.run_for(SECOND)
        if not world.run_for(
            CHECKPOINT_NS, lambda: not any(map(_writes_checkpoint, world.alive()))
        ):
            raise InvariantViolation("S2: a member waits for the end of a checkpoint")
        for shell in world.alive():
            assert shell.node is not None
            clients = shell.node.clients
            held = len(clients.streams.open), clients.streams.held_bytes, len(clients.homes)
            if any(held):
                raise InvariantViolation(
                    f"T11: {shell.name} holds {held} for closed connections: "
                    "transactions, their bytes, streams"
                )

    def _is_idle(self) -> bool:
        """Return whether no request waits for its answer."""
        clients = self.world.clients
        return all(client.waiting is None for client in clients) and all(
            workload.is_idle for workload in self.workloads
        )

    def _members(self) -> list[Shell]:
        leader = self.world.leader()
        if leader is None or leader.node is None:
            return []
        configuration = leader.node.context.confirmed_configuration
        return [
            shell
            for shell in self.world.alive()
            if configuration.by_uuid(shell.uuid) is not None
            or (shell.settings.role == "anonymous" and shell.uuid not in configuration.removed)
        ]

    def _has_converged(self) -> bool:
        world = self.world
        leader = world.leader()
        if leader is None or leader.node is None:
            return False
        goal = leader.node.context.tail.last_index
        if leader.node.context.limbo.confirmed_index != goal:
            return False
        members = [s for s in world.alive() if s in self._members()]
        return leader in members and all(
            shell.node is not None
            and shell.node.context.limbo.confirmed_index == goal
            and not shell.node.replica.repair.is_open
            for shell in members
        )

    def _is_caught_up(self) -> bool:
        """Return whether all members follow the leader, lack a few rows at most, and refuse none.

        One may follow a former leader while the messages of the new one are delayed.

        A refused row that is still pending leads to a repair of the state once it is confirmed.
        """
        leader = self.world.leader()
        if leader is None or leader.node is None:
            return False
        goal = leader.node.context.limbo.confirmed_index
        return all(
            shell.node is not None
            and (shell is leader or shell.node.replica.source.state is SourceState.FOLLOWING)
            and shell.node.context.term == leader.node.context.term
            and shell.node.context.limbo.confirmed_index >= goal - ROWS_BEHIND
            and not shell.node.replica.repair.is_open
            and not _refuses_pending_row(shell.node)
            for shell in self._members()
        )

    def _positions(self) -> str:
        parts = []
        for shell in self.world.shells.values():
            node = shell.node
            if node is None:
                parts.append(f"{shell.name} down")
                continue
            context = node.context
            replica = node.replica
            parts.append(
                f"{shell.name} term {context.term} last {context.tail.last_index} "
                f"confirmed {context.limbo.confirmed_index} {replica.election.role.value} "
                f"{replica.source.state.value} diverged {context.ballot.divergent_index} "
                f"id {context.replica_id} voting {context.is_voting}"
            )
        return "; ".join(parts)

    def check_states(self) -> None:
        """Check that equal logs give equal states, byte for byte (S1, S2)."""
        first: list[bytes] | None = None
        # Members with a list of spaces come last: they hold a part of the state.
        for shell in sorted(self.world.alive(), key=lambda one: bool(one.settings.spaces)):
            if shell not in self._members() or shell.node is None:
                continue
            resources.check_end(shell, shell.node)
            check_indexes(shell.name, shell.node.database)
            held = held_by(shell.settings.spaces)
            bodies = list(shell.node.database.snapshot_bodies())
            keys = repr(sorted(shell.node.keys.items())).encode()
            state = [keys, *bodies]
            if first is None:
                first = state
                continue
            expected = first
            if held:
                # A row that is not sent advances no sequence (Deviations of F1 in replication.md).
                expected = [first[0], *(body for body in first[1:] if is_held(body, held))]
                expected, state = _without_sequences(expected), _without_sequences(state)
            if state != expected:
                different = [
                    pair for pair in zip(expected, state, strict=False) if pair[0] != pair[1]
                ]
                raise InvariantViolation(f"S1: {shell.name} has another state: {different[:2]}")


def _writes_checkpoint(shell: Shell) -> bool:
    return shell.node is not None and shell.node.checkpoints.is_writing


def _is_accepted(operation: ClientOperation) -> bool:
    return operation.outcome == "committed" and operation.kind in ("insert", "replace", "keyed")


def _refuses_pending_row(node: Node) -> bool:
    confirmed = node.context.limbo.confirmed_index
    return any(nack.index > confirmed for nack in node.context.ballot.nacks)


def _without_sequences(state: list[bytes]) -> list[bytes]:
    """Return a state without the last values of sequences."""
    head = pack_map_head(2) + space_mark(SEQUENCE_DATA)
    return [body for body in state if not body.startswith(head)]
