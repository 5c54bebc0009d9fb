"""The time that a step of the core takes, in proportion to its work.

A meter counts the work of the production code while it runs: functions of the engine through which
all tuples, keys and rows pass are wrapped. A step takes a fixed time, and some time for each unit.
`python -m qsync_sim.measure_costs` measures these times on real steps of simulated schedules.

A schedule has few tuples, so that every step would be short. Some schedules therefore stand for a
database that is many times as large on a slow machine: each unit takes as long as `scale` units.
Work without a bound then loses a lease in the simulation, as it does in production (G1).

The interpreter runs one thread at a time. While a checkpoint is written, a step waits up to
`SWITCH_NS` for the thread that encodes tuples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from random import Random
from typing import Any

from qsync_node.consensus import entries
from qsync_node.engine import index

SWITCH_NS = 5_000_000
"""Interval after which CPython's running thread gives another one its turn."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Times in nanoseconds, measured by `python -m qsync_sim.measure_costs`.

    Attributes:
        steps: a step without inputs.
        inputs: an input.
        effects: an effect.
        puts: a changed entry of an index.
        tuples: a tuple that a read or a checkpoint draws.
        keys: a key that an index sorts.
        rows: a decoded row of the log.
    """

    steps: int = 14_000
    inputs: int = 5_000
    effects: int = 7_000
    puts: int = 6_000
    tuples: int = 2_000
    keys: int = 2_000
    rows: int = 17_000


class CostMeter:
    """Work units that this process has done since its begin, by kind."""

    def __init__(self) -> None:
        self.puts = 0
        self.tuples = 0
        self.keys = 0
        self.rows = 0

    def install(self) -> None:
        """Wrap the functions through which the work passes."""
        confirmed: Any = index.ConfirmedIndex
        view: Any = index.ReadView
        tree: Any = index.TreeIndex
        decoding: Any = entries
        confirmed.put = self._counted_put(confirmed.put)
        confirmed._catch_up = self._counted_sort(confirmed._catch_up)
        view.__iter__ = self._counted_tuples(view.__iter__)
        tree.scan = self._counted_tuples(tree.scan)
        decoding.decode_rows = self._counted_rows(decoding.decode_rows)

    def _counted_put(self, put: Callable[..., None]) -> Callable[..., None]:
        def counted(one: object, key: object, packed: bytes | None) -> None:
            self.puts += 1
            put(one, key, packed)

        return counted

    def _counted_tuples(self, draw: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(draw)
        def counted(*arguments: object) -> Iterator[Any]:
            for drawn in draw(*arguments):
                self.tuples += 1
                yield drawn

        return counted

    def _counted_sort(self, sort: Callable[..., None]) -> Callable[..., None]:
        def counted(one: Any) -> None:
            self.keys += len(one._fresh) + len(one._stale)
            sort(one)

        return counted

    def _counted_rows(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def counted(data: bytes) -> Any:
            rows = decode(data)
            self.rows += len(rows)
            return rows

        return counted

    def read(self) -> tuple[int, int, int, int]:
        """Return the units done: entries put, tuples drawn, keys sorted, rows decoded."""
        return self.puts, self.tuples, self.keys, self.rows


METER = CostMeter()
METER.install()


class Machine:
    """The machine on which the processes of a schedule run."""

    def __init__(self, costs: Costs | None, scale: int = 1) -> None:
        """Measure the work of steps.

        Args:
            costs: the times; None for a machine on which steps take no time.
            scale: number of units for which one unit stands.
        """
        self._costs = costs
        self._scale = scale
        self._rng = Random(scale)
        self._before = METER.read()

    @property
    def is_slow(self) -> bool:
        """Whether a step may take long enough for clients to notice."""
        return self._scale > 1

    def begin(self) -> None:
        """Note the work done before a step."""
        self._before = METER.read()

    def time_of(self, inputs: int, effects: int, *, is_checkpoint: bool) -> int:
        """Return the time of a step in nanoseconds.

        Args:
            inputs: number of its inputs.
            effects: number of its effects.
            is_checkpoint: whether another thread encodes a checkpoint.
        """
        costs = self._costs
        if costs is None:
            return 0
        puts, tuples, keys, rows = (
            now - before for now, before in zip(METER.read(), self._before, strict=True)
        )
        work = puts * costs.puts + tuples * costs.tuples + keys * costs.keys + rows * costs.rows
        fixed = costs.steps + inputs * costs.inputs + effects * costs.effects
        waiting = self._rng.randrange(SWITCH_NS) if is_checkpoint else 0
        return fixed + work * self._scale + waiting


INSTANT = Machine(None)

SCALES = (1, 1, 10, 60)


def machine_of(seed: int) -> Machine:
    """Return the machine of a seed. A quarter of them takes no time, as in stories."""
    rng = Random(f"machine of {seed}")
    if rng.random() < 0.25:
        return Machine(None)
    return Machine(Costs(), rng.choice(SCALES))
