"""`python -m qsync_sim.measure_costs`: measure the times that `qsync_sim.costs` states.

Real steps of simulated schedules are timed. The least-squares solution gives the time of each unit
of their work.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.node import Node
from qsync_sim.costs import METER
from qsync_sim.schedule import Schedule

UNITS = ("steps", "inputs", "effects", "puts", "tuples", "keys", "rows")


class Stopwatch:
    """Measures the CPU time of real steps and their units."""

    def __init__(self) -> None:
        self.samples: list[tuple[tuple[int, ...], int]] = []

    def step(self, step: Callable[..., list[fx.Effect]], *arguments: Any) -> list[fx.Effect]:
        """Perform a step and note its time."""
        before, began = METER.read(), time.thread_time_ns()
        out = step(*arguments)
        took = time.thread_time_ns() - began
        units = [now - then for now, then in zip(METER.read(), before, strict=True)]
        self.samples.append(((1, len(arguments[2]), len(out), *units), took))
        return out

    def fitted(self) -> list[float]:
        """Return the least-squares time of each unit in nanoseconds."""
        size = len(UNITS)
        matrix = [[0.0] * (size + 1) for _ in range(size)]
        for units, took in self.samples:
            for row in range(size):
                if units[row]:
                    for column in range(size):
                        matrix[row][column] += units[row] * units[column]
                    matrix[row][size] += units[row] * took
        return solved(matrix)


def solved(matrix: list[list[float]]) -> list[float]:
    """Return the solution of linear equations, given as rows with their right side at the end."""
    size = len(matrix)
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(matrix[row][pivot]))
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        head = matrix[pivot]
        for row in range(size):
            if row != pivot and head[pivot]:
                factor = matrix[row][pivot] / head[pivot]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], head, strict=True)]
    return [matrix[row][size] / matrix[row][row] for row in range(size)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the times of all units, and print them."""
    parser = argparse.ArgumentParser(prog="python -m qsync_sim.measure_costs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="number of schedules")
    options = parser.parse_args(arguments)
    stopwatch, step = Stopwatch(), Node.step
    watched: Any = Node
    watched.step = lambda node, *inputs: stopwatch.step(partial(step, node), *inputs)
    for seed in range(options.seeds):
        Schedule(seed).run()
    for name, nanoseconds in zip(UNITS, stopwatch.fitted(), strict=True):
        sys.stdout.write(f"{name:8} {nanoseconds / 1000:8.1f} us\n")
    sys.stdout.write(f"{len(stopwatch.samples)} steps of {options.seeds} schedules\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
