"""Faults of brokers: at random moments, and while an append is in a chosen state.

A fault at a state is injected at the end of a step in which an append waits in this state. States
that were met least come first, and the faults of each state take turns. `Faults.reached` counts the
pairs of state and fault.

    fault        what happens
    ----------   ---------------------------------------------------------------------------------
    kill         the broker is killed, and a part of its last effects is lost
    torn         its machine loses power while its disk writes: a part of the unflushed bytes
                 remains
    power        all machines lose power
    pause        the broker does nothing for up to 3 s; its lease lasts 1 s
    lease        the broker cannot reach the cluster for longer than its lease
    cluster      the broker cannot reach the cluster for a while
    cut          the broker and another one cannot reach each other
    break        all connections of the broker break
    slow         its disk is slow
    write        many of its writes fail, and are repeated until they succeed
    flush        a flush fails; the broker stops and is started again
    store        the stores of fragments are down
    store-slow   the stores of fragments are slow
"""

from collections import Counter
from functools import partial

from qsync_broker.states import AppendState
from qsync_node.format.journals import NO_ROUTE
from qsync_sim.journals.clock import MS
from qsync_sim.journals.process import SimBroker
from qsync_sim.journals.world import BrokerWorld

RANDOM = (
    "kill",
    "kill",
    "torn",
    "power",
    "pause",
    "cut",
    "cut",
    "cluster",
    "lease",
    "break",
    "slow",
    "store",
    "store-slow",
    "write",
    "flush",
)
TARGETED = (
    "kill",
    "torn",
    "pause",
    "lease",
    "cut",
    "break",
    "slow",
    "write",
    "flush",
    "store",
    "store-slow",
)
WAITING = (
    AppendState.RESOLVE,
    AppendState.ACQUIRE_PIPELINE,
    AppendState.START_PIPELINE,
    AppendState.RESERVE_EPOCH,
    AppendState.RECV_PIPELINE_SYNC,
    AppendState.UPDATE_ASSIGNMENTS,
    AppendState.VALIDATE_PRECONDITIONS,
    AppendState.UPDATE_SUSPEND,
    AppendState.STREAM_CONTENT,
    AppendState.READ_ACKNOWLEDGEMENTS,
)
"""States in which an append waits. It passes the others within one step, so no fault meets them; a
kill can lose any part of the effects of that step."""

BUSY_MAX = 1200
"""Quarters of a millisecond in which a disk is expected to write something."""
PAIRS = tuple((state, fault) for state in WAITING for fault in TARGETED)
RARE = {
    AppendState.START_PIPELINE: 20,
    AppendState.UPDATE_ASSIGNMENTS: 1,
    AppendState.UPDATE_SUSPEND: 3,
}
"""Rare states, and the number of faults at them in one schedule that do not wait for their turn."""


class Faults:
    """Injects faults into a world.

    Attributes:
        counts: number of injected faults of each kind.
        reached: number of times that a fault met an append in a state.
    """

    def __init__(self, world: BrokerWorld, names: list[str], journals: tuple[str, ...]) -> None:
        self.counts: Counter[str] = Counter()
        self.reached: Counter[tuple[AppendState, str]] = Counter()
        self._world = world
        self._rng = world.rng
        self._names = names
        self._journals = journals
        self._is_over = False
        self._met = dict.fromkeys(WAITING, 0)
        self._is_due = False
        world.on_step = self._interrupt

    def start(self, delay_ns: int) -> None:
        """Inject faults until `heal`."""
        self._world.after(delay_ns, self._fault)
        self._world.after(delay_ns, self._let)

    def heal(self) -> None:
        """End all faults, and inject no more."""
        self._is_over = True
        world = self._world
        world.cuts.clear()
        world.stores.are_down = False
        world.stores.delay_ns = 0
        for name in self._names:
            world.disks[name].slow_ns = 0
            world.disks[name].is_failing = world.disks[name].is_flush_failing = False
            self._resume(name)
            self._revive(name)

    # --- choice -------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self._is_over:
            self.inject(self._rng.choice(RANDOM), self._victim())
            self._world.after(self._pause_ns(), self._fault)

    def _let(self) -> None:
        """Let an append that waits in any state have a fault."""
        self._is_due = True

    def _pause_ns(self) -> int:
        return self._rng.randrange(300, 2500) * MS

    def _interrupt(self, process: SimBroker, count: int) -> int | None:
        """Return the number of effects after which a process is killed, None to let it run."""
        states = [state for state in process.core.append_states if state in self._met]
        if self._is_over or not states:
            return None
        state = min(states, key=lambda one: self._met[one] - RARE.get(one, 0))
        if not self._is_due and self._met[state] >= RARE.get(state, 0):
            return None
        self._is_due = False
        kind = TARGETED[(5 * self._world.seed + self._met[state]) % len(TARGETED)]
        self._met[state] += 1
        self._world.after(self._pause_ns(), self._let)
        if kind == "kill":
            self._note(process, kind)
            self._world.after(self._delay_ns(), partial(self._revive, process.name))
            return self._rng.randrange(count + 1)
        # The effects of this step are carried out first.
        self._world.after(0, partial(self.inject, kind, process.name))
        return None

    def _victim(self) -> str:
        """Return a broker, with preference for primaries."""
        name = self._rng.choice(self._names)
        keys = self._world.processes[name].core.keys
        route = keys.route(self._rng.choice(self._journals))
        if route != NO_ROUTE and route.primary >= 0 and self._rng.random() < 0.5:
            return route.members[route.primary].suffix
        return name

    def _delay_ns(self) -> int:
        return self._rng.choice((100, 500, 1500, 3000)) * MS

    def _note(self, process: SimBroker, kind: str) -> None:
        self.counts[kind] += 1
        for state in process.core.append_states if process.is_alive else ():
            self.reached[state, kind] += 1

    # --- faults -------------------------------------------------------------------------------

    def inject(self, kind: str, name: str) -> None:
        """Inject a fault at a broker, and end it later."""
        if self._is_over:
            return
        world, process = self._world, self._world.processes[name]
        self._note(process, kind)
        delay_ns = self._delay_ns()
        if kind in ("kill", "torn"):
            self._kill_busy(name, BUSY_MAX, kind == "torn", delay_ns)
        elif kind == "power":
            for one in self._names:
                world.kill(one, is_power=True)
                world.after(delay_ns, partial(self._revive, one))
        elif kind == "pause" and process.is_alive:
            process.is_paused = True
            world.after(delay_ns, partial(self._resume, name))
        elif kind in ("cut", "cluster", "lease"):
            others = [one for one in self._names if one != name]
            other = self._rng.choice(others) if kind == "cut" else "cluster"
            cut = frozenset((name, other))
            world.cuts.add(cut)
            delay_ns = max(delay_ns, 1500 * MS) if kind == "lease" else delay_ns
            world.after(delay_ns, partial(world.cuts.discard, cut))
        elif kind == "break":
            for link in [one for one in world.links if process in (one.primary, one.peer)]:
                link.close()
        elif kind in ("slow", "write", "flush"):
            self._fail_disk(kind, name, delay_ns)
        elif kind == "store":
            world.stores.are_down = True
            world.after(delay_ns, partial(setattr, world.stores, "are_down", False))
        elif kind == "store-slow":
            world.stores.delay_ns = delay_ns
            world.after(2 * delay_ns, partial(setattr, world.stores, "delay_ns", 0))

    def _fail_disk(self, kind: str, name: str, delay_ns: int) -> None:
        world, disk = self._world, self._world.disks[name]
        if kind == "slow":
            disk.slow_ns = self._rng.choice((20, 200, 800)) * MS
            world.after(delay_ns, partial(setattr, disk, "slow_ns", 0))
        elif kind == "write":
            disk.is_failing = True
            world.after(delay_ns, partial(setattr, disk, "is_failing", False))
        else:
            disk.is_flush_failing = True
            self._await_stop(world.processes[name], delay_ns)

    def _kill_busy(self, name: str, patience: int, is_power: bool, delay_ns: int) -> None:
        """Kill a broker, if possible while its disk writes something, and start it again."""
        if self._is_over:
            return
        world = self._world
        if patience and not world.disks[name].is_busy:
            again = partial(self._kill_busy, name, patience - 1, is_power, delay_ns)
            world.after(MS // 4, again)
        else:
            world.kill(name, is_power)
            world.after(delay_ns, partial(self._revive, name))

    def _await_stop(self, process: SimBroker, delay_ns: int) -> None:
        """Start a broker again some time after it has stopped."""
        if not process.is_alive:
            self._world.after(delay_ns, partial(self._revive, process.name))
        elif not self._is_over:
            self._world.after(50 * MS, partial(self._await_stop, process, delay_ns))

    def _revive(self, name: str) -> None:
        if not self._world.processes[name].is_alive:
            self._world.start(name)

    def _resume(self, name: str) -> None:
        self._world.processes[name].is_paused = False
