"""Traces: all inputs and effects of a core, step by step, for a later replay.

A replay of a real process through the node alone yields identical effects. The shell therefore adds
nothing that is invisible to the simulator. A core depends only on its seed, the two clocks and its
inputs, and the file contains all of them.

The file is a pickle: tests write and read it on one machine. Never read a file of another source.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.effects import Effect, InstallSnapshot, WriteSnapshot
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.format.batch import LogBatch
from qsync_node.node import Node


class Birth(NamedTuple):
    """The parameters of a node: identity, settings, seed and the contents of its disk."""

    uuid: str
    settings: ConsensusSettings
    seed: int
    ballot: bytes
    now_ns: int
    vclock: dict[int, int] | None  # None: the disk had no snapshot
    bodies: list[bytes]
    batches: list[LogBatch]
    first_available_index: int

    def make(self) -> Node:
        node = Node(self.uuid, self.settings, Random(self.seed), Ballot.decode(self.ballot))
        if self.vclock is not None:
            node.recover(
                self.now_ns, self.vclock, self.bodies, self.batches, self.first_available_index
            )
        node.start(self.now_ns)
        return node


class TraceStep(NamedTuple):
    """One call of `Node.step` and its result."""

    now_ns: int
    wall_s: float
    inputs: list[Any]
    effects: list[Any]


class Trace:
    """A writer for one incarnation of a node. The next incarnation appends to the same file."""

    def __init__(self, path: Path, birth: Birth) -> None:
        _cut_torn_end(path)
        self._file = path.open("ab", buffering=0)  # a killed process leaves every whole step
        self._write(birth)

    def record(self, now_ns: int, wall_s: float, inputs: list[Any], effects: list[Any]) -> None:
        self._write(TraceStep(now_ns, wall_s, inputs, comparable(effects)))

    def _write(self, item: Birth | TraceStep) -> None:
        rest = memoryview(pickle.dumps(item))
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()


def comparable(effects: list[Effect]) -> list[object]:
    """Return effects without the rows of snapshots, an iterator that only the disk may consume."""
    return [
        (type(effect).__name__, *effect[:-1])
        if isinstance(effect, WriteSnapshot | InstallSnapshot)
        else effect
        for effect in effects
    ]


def _cut_torn_end(path: Path) -> None:
    """Remove the incomplete record of a killed process: a record after it could not be read."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = 0
        try:
            while True:
                pickle.load(file)
                end = file.tell()
        except (EOFError, pickle.UnpicklingError):
            file.truncate(end)


def read_trace(path: Path) -> Iterator[Birth | TraceStep]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return  # a killed process leaves an incomplete record


def replay(path: Path) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """Yield (number of the record, recorded effects, effects of the replay) of all steps."""
    node: Node | None = None
    for number, item in enumerate(read_trace(path)):
        if isinstance(item, Birth):
            node = item.make()
            continue
        assert node is not None, "a trace begins with a birth"
        yield number, item.effects, comparable(node.step(item.now_ns, item.wall_s, item.inputs))
