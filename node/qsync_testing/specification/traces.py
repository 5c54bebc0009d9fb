"""`make spec`: compare recorded runs with the specification `Steps.tla`.

    python -m qsync_testing.specification.traces JAR [--seeds 0..49]

Each seed is a simulated cluster under load and faults. `Trace.tla` maps recorded events to actions
of the specification. TLC follows the events of a run, and stops at one that is no step of the
specification, or violates an invariant.
"""

import argparse
import heapq
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.node import Node
from qsync_node.server.trace import Birth, TraceStep, read_trace
from qsync_sim import mixture
from qsync_sim.clients import SimClient
from qsync_sim.recorder import RecordedEvent, Recorder, Recording
from qsync_sim.violation import InvariantViolation
from qsync_sim.world import World
from qsync_testing.specification.tlc import INVARIANTS, SPEC, STEPS_SWITCHES, configuration, search

FAULTS = 24
EVENTS_MAX = 700
RUN_S = 900
CHUNK = 5
"""Runs in one search."""
KINDS = frozenset(re.findall(r'e\.do = "(\w+)"', (SPEC / "Trace.tla").read_text()))
"""Kinds of events, each of which must happen in 50 schedules."""
INDEXES = ("last", "known", "position", "kept", "nack")
TERMS = ("term", "last_term")
SETS = ("voters", "heard")


def record(seed: int) -> Recording:
    """Record the simulated schedule of a seed."""
    world = World(seed)
    world.recording = recording = Recording()
    rng = world.rng
    world.bootstrap(
        rng.choice([3, 3, 5]),
        failover_unconfirmed=rng.choice(["adopt", "rollback"]),
        synchro_timeout_ns=rng.choice([700, 120]) * MILLISECOND,
    )
    if not world.run_for(20 * SECOND, lambda: recording.begin(_nodes(world))):
        raise RuntimeError(f"seed {seed}: the members do not agree after the start")
    client = SimClient(world, 0)
    world.clients = [client]
    client.act()
    weights, kinds = zip(*mixture.FAULTS, strict=True)
    for _ in range(FAULTS):
        if recording.end or len(recording.events) > EVENTS_MAX:
            break
        try:
            rng.choices(kinds, weights)[0](world)
            world.run_for(rng.randrange(5 * MILLISECOND, 400 * MILLISECOND))
        except (InvariantViolation, AssertionError) as error:
            recording.violation = str(error)
            break
    return recording


def _nodes(world: World) -> list[Node]:
    return [shell.node for shell in world.alive() if shell.node is not None]


def replay_processes(paths: Sequence[Path]) -> Recording:
    """Return the recording of processes from their traces (setting `trace`).

    The traces of all members of one machine are replayed in the order of its monotonic clock. A
    step has its time before it sends anything, so a message arrives after the step that sent it.

    Args:
        paths: one trace per member; the name of a member is the stem of its file.
    """
    recording = Recording()
    births = [(path, next(read_trace(path))) for path in paths]
    recording.names = {birth.uuid: path.stem for path, birth in births if isinstance(birth, Birth)}
    nodes: dict[Path, Node] = {}
    for _, path, item in heapq.merge(*(_timed(path) for path in paths), key=lambda one: one[0]):
        if isinstance(item, Birth):
            nodes[path] = item.make()
            Recorder(recording, nodes[path])
        else:
            nodes[path].step(item.now_ns, item.wall_s, item.inputs)
        if not recording.events and len(nodes) == len(paths):
            recording.begin(list(nodes.values()))
    return recording


def _timed(path: Path) -> Iterator[tuple[int, Path, Birth | TraceStep]]:
    for item in read_trace(path):
        yield item.now_ns, path, item


# --- events in TLA+ -------------------------------------------------------------------------------


def abstracted(events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """Return the events with the indexes and terms of `Trace.tla`.

    The last row before the beginning has index 2, and the term of the beginning is 1. Index 1
    stands for all earlier rows: a member that restarts may know only these as confirmed, because
    the newest CONFIRM does not record itself, and may send a snapshot of them.
    """
    base, term = events[0]["base"], events[0]["term"]
    shown = []
    for event in events:
        last = event.get("last", 0)
        is_early = 0 < last < base
        if is_early and event["do"] in ("extend", "flush", "confirmed"):
            continue  # one index stands for all
        fields = {key: value for key, value in event.items() if key != "base"}
        for key, value in event.items():
            if key in INDEXES:
                fields[key] = max(min(value, 1), value - base + 2)
            elif key == "nacks":
                fields[key] = frozenset((one - term + 1, index - base + 2) for one, index in value)
            elif key in TERMS:
                fields[key] = max(0, value - term + 1)
            elif key in SETS:
                fields[key] = frozenset(value)
        if is_early and "last_term" in fields:
            fields["last_term"] = 1
        shown.append(fields)
    return shown


def to_tla(value: Any) -> str:
    """Return a value of Python as an expression of TLA+."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(to_tla(one) for one in value)) + "}"
    if isinstance(value, dict):
        return "[" + ", ".join(f"{key} |-> {to_tla(one)}" for key, one in value.items()) + "]"
    return "<<" + ",\n".join(to_tla(one) for one in value) + ">>"


class TraceRefusal(NamedTuple):
    """The event at which a run leaves the specification.

    Attributes:
        run: index of the run.
        number: index of the event in the run.
        reason: "Deadlock" if the event is no step of the specification, else the invariant that its
            result violates.
        events: the last events up to it, as the specification sees them.
    """

    run: int
    number: int
    reason: str
    events: list[RecordedEvent]


def compare(
    jar: Path, runs: Sequence[Sequence[RecordedEvent]], planted: Sequence[str] = ()
) -> TraceRefusal | None:
    """Let TLC follow the events of runs; return the first refusal, or None.

    Args:
        jar: TLC.
        runs: the events of each run.
        planted: names of planted bugs, with which the specification allows more.
    """
    shown = [abstracted(events) for events in runs]
    every = [event for events in shown for event in events]
    names = {event["at"] for event in every}.union(*(event.get("voters", ()) for event in every))
    constants = {
        "Nodes": to_tla(frozenset(names)),
        "NoVote": '""',
        "TermMax": max(event.get("term", 0) for event in every),
        "LogMax": 1 << 20,
        "KeyMax": 0,
        "LedBy": '""',
    }
    lines = [f"INVARIANTS StepsTypeOK {INVARIANTS}"]
    switches = ["WithRollbacks", "WithSnapshots", "WithNacks", *planted]
    settings = configuration("TraceSpec", constants, switches, lines, STEPS_SWITCHES)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "TraceData.tla"
        data.write_text(f"---- MODULE TraceData ----\nRuns == {to_tla(shown)}\n====\n")
        found = search(jar, "Trace", settings, Path(folder), RUN_S, workers=1, is_short=True)
    if not found.violated:
        return None
    run = int(re.findall(r"/\\ run = (\d+)", found.text)[-1]) - 1
    # `next` counts from 1: after a deadlock it is the refused event, else the one after the last.
    at = int(re.findall(r"/\\ next = (\d+)", found.text)[-1]) - 1
    number = at if found.violated == "Deadlock" else at - 1
    return TraceRefusal(run, number, found.violated, shown[run][max(0, number - 5) : number + 1])


def main() -> int:
    """Record and compare all seeds, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jar", type=Path)
    parser.add_argument("--seeds", default="0..49", help="first and last seed, for example 0..49")
    arguments = parser.parse_args()
    first, last = (int(part) for part in arguments.seeds.split(".."))
    seeds = range(first, last + 1)
    began = time.monotonic()
    with ProcessPoolExecutor() as pool:
        recordings = list(pool.map(record, seeds))
    runs = [recording.events for recording in recordings]
    wrong = sum(bool(recording.violation) for recording in recordings)
    for seed, recording in zip(seeds, recordings, strict=True):
        if recording.violation:
            sys.stdout.write(f"seed {seed}: {recording.violation}\n")
    chunks = [range(at, min(at + CHUNK, len(runs))) for at in range(0, len(runs), CHUNK)]
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(
            lambda chunk: compare(arguments.jar, [runs[at] for at in chunk]), chunks
        )
        for chunk, refusal in zip(chunks, found, strict=True):
            if refusal is not None:
                wrong += 1
                sys.stdout.write(
                    f"seed {first + chunk[refusal.run]}: event {refusal.number} is refused"
                    f" ({refusal.reason}), after\n"
                )
                sys.stdout.writelines(f"  {event}\n" for event in refusal.events)
    kinds = Counter(event["do"] for events in runs for event in events)
    sys.stdout.write(
        "\n".join(f"{count:10,} {kind}" for kind, count in sorted(kinds.items()) if kind != "begin")
        + "\n"
    )
    missing = sorted(KINDS - kinds.keys())
    if missing and len(runs) >= 50:
        sys.stdout.write(f"never happened: {', '.join(missing)}\n")
    sys.stdout.write(
        f"{len(runs)} schedules with {sum(kinds.values()):,} events,"
        f" {'all are' if not wrong else 'not all are'} behaviours of the specification,"
        f" {time.monotonic() - began:.0f} s\n"
    )
    return 1 if wrong or (missing and len(runs) >= 50) else 0


if __name__ == "__main__":
    sys.exit(main())
