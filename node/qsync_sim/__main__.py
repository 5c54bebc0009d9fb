"""`python -m qsync_sim --seeds A..B`: run schedules, print their coverage, shrink a failure."""

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from qsync_sim import decay, mixture, orders, rare
from qsync_sim.schedule import Schedule
from qsync_sim.violation import InvariantViolation

MUST_HAPPEN = (
    "event leader",
    "event rewind",
    "event rollback",
    "event rolled_back",
    "tails adopted at failover",
    "tails rolled back at failover",
    "event snapshot_taken",
    "event snapshot_installed",
    "event checkpoint",
    "event register",
    "event promoted_to_voting",
    "event unregister",
    "event nack",
    "event disk_full",
    "event switchover",
    "event step_down",
    "event fence",
    "event state_repaired",
    "event promote_confirmed",
    "anti-quorums",
    "ambushes",
    "fault promise tested",
    "fault leader deaf",
    "fault rollback stranded",
    "restarts after a failed write",
    "switchovers without a failed request",
    "linearizable reads checked",
    "linearizable reads in transactions checked",
    "early reads",
    "keyed retries",
    "keyed transactions checked",
    "keyed transactions repeated",
    "fault key window changed",
    "reads deferred",
    "reads of sessions checked",
    "refusals judged",
    "sound groups observed",
    "messages of removed instances checked",
    "scans checked",
    "linearizable scans checked",
    "transactions checked",
    "indexes: writes checked",
    "indexes: answers without a row checked",
    "indexes: reads checked",
    "indexes: linearizable reads checked",
    "indexes: dirty reads checked",
    "paginations checked",
    "schema changes: create",
    "schema changes: rename",
    "schema changes: format",
    "schema changes: index",
    "schema changes: alter index",
    "schema changes: drop index",
    "schema changes: truncate",
    "schema changes: drop",
    "schema changes: transactions",
    "refused schema changes: index",
    "tables: writes checked",
    "tables: reads checked",
    "tables: linearizable reads checked",
    "transactions: default checked",
    "transactions: read-committed checked",
    "transactions: read-confirmed checked",
    "transactions: best-effort checked",
    "transactions: linearizable checked",
    "transactions: linearizable reads checked",
    "transactions: conflicts",
    "transactions timed out",
    "transactions begun twice",
    "pipelined transactions committed",
    "pipelined writes refused with their BEGIN",
    "sequences: draw checked",
    "sequences: put checked",
    "sequences: set checked",
    "sequences: reset checked",
    "sequences: alter checked",
    "sequences: overflows checked",
    "access: grant",
    "access: revoke",
    "access: role",
    "access: password",
    "access: drop user",
    "access: create user",
    "access: writes accepted",
    "access: writes refused",
    "access: writes of dropped users refused",
    "access: reads accepted",
    "access: reads refused",
    "access: log-ins checked",
    "limits: large tuple refused",
    "limits: upsert of many operations refused",
    "limits: body of many keys refused",
    "limits: deep tuple refused",
    "limits: index of many parts refused",
    "limits: long client of a key refused",
    "limits: size of a transaction",
    "limits: size of open transactions",
    "limits: transactions of guest",
    "limits: transactions of admin",
    "limits: full queue",
    "limits: memory",
    "keys answered again",
    "keys expired",
    "keys reused",
    "keys: commits answered again",
    "keys: reused commits refused",
    "keys: pending keys reused",
    "keys: window changes",
    "members discovered",
    "attempts to connect failed",
    "handshakes timed out",
    "silent links closed",
    "links to earlier processes closed",
    "links closed because of garbage",
    "packets lost",
    "order switchover to a member",
    "order switchover to any member",
    "switchovers stranded",
    "event switchover_ended",
    "order promote",
    "order role voter",
    "order role async",
    "order election mode manual",
    "order election mode voter",
    "order stop",
    "order force-confirm",
    "order force-rollback",
    "pending rows at force-confirm",
    "pending rows at force-rollback",
    "order two changes",
    "fault low disk",
    "fault block divided",
    "fault divergent member needed",
    "answers to slow readers",
    "slow readers held back",
    "version raised",
    "version lowered",
    "feature levels raised",
    "stopped at an unsupported level",
    "fault power lost while re-joining",
    "fault promote stranded",
    "fault longer log stranded",
    "fault archive unavailable",
    "fault archive slow",
    "archive operations failed",
    "archive operations interrupted",
    "archived segments checked",
    "archives complete",
    "archives restored",
    "clusters founded with a restored state",
    "damaged files refused",
    "power lost during WriteLog",
    "power lost during StoreBallot",
    "power lost during WriteSnapshot",
    "power lost during Rewind",
    "power lost during InstallSnapshot",
    "power lost during a start",
    "calm ends",
    "requests in a calm end",
    "slow networks in a calm end",
    "outcome committed",
    "outcome rolled back",
    "outcome unknown",
    "outcome refused",
)

FAULTS = {fault.__name__: fault for _, fault in [*mixture.FAULTS, *orders.ALL, *decay.ALL]}
FAULTS |= {chain.__name__: chain for chain in [*rare.ALL, rare.strand_a_longer_log]}


SWARM_SIZES = (2, 3)
"""How many faults and orders a schedule of a swarm has more often."""


class SeedResult(NamedTuple):
    """The result of one schedule.

    Attributes:
        seed: its seed.
        problem: its failure, or empty.
        counters: events by name.
        simulated_ns: the time that has passed in it.
        cpu_ns: the time of the processor that it took.
    """

    seed: int
    problem: str
    counters: Counter[str]
    simulated_ns: int
    cpu_ns: int


def run_seed(
    seed: int,
    faults_limit: int | None = None,
    workloads: list[str] | None = None,
    frequent: Sequence[str] = (),
) -> SeedResult:
    """Run one schedule."""
    began_ns = time.process_time_ns()
    schedule = Schedule(
        seed, faults_limit, frequent=[FAULTS[name] for name in frequent], workloads=workloads
    )
    problem = ""
    try:
        with _collecting_afterwards():
            schedule.run()
    except InvariantViolation as violation:
        problem = str(violation)
    except Exception:  # noqa: BLE001  # an assertion of the node is a finding like any other
        problem = traceback.format_exc(limit=-6)
    world = schedule.world
    cpu_ns = time.process_time_ns() - began_ns
    return SeedResult(seed, problem, world.counters, world.now_ns, cpu_ns)


@contextmanager
def _collecting_afterwards() -> Iterator[None]:
    """Free cycles of objects after a schedule: passes in between take 6 % of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def swarm_of(seed: int) -> tuple[str, ...]:
    """Return the faults and orders that a schedule of a swarm has more often than usual.

    Many different mixtures find more than one mixture of everything, in which faults hide each
    other (Groce et al., Swarm Testing, ISSTA 2012).
    """
    rng = Random(f"swarm {seed}")
    return tuple(rng.sample(sorted(FAULTS), rng.choice(SWARM_SIZES)))


def shrink(seed: int, frequent: Sequence[str]) -> int:
    """Return the smallest number of faults with which this seed still fails."""
    for limit in range(40):
        if run_seed(seed, limit, frequent=frequent).problem:
            return limit
    return 40


def show(
    seed: int, limit: int | None, workloads: list[str] | None, frequent: Sequence[str]
) -> None:
    """Run one seed again and print its trace."""
    chosen = [FAULTS[name] for name in frequent]
    schedule = Schedule(seed, limit, is_tracing=True, frequent=chosen, workloads=workloads)
    try:
        schedule.run()
    except Exception as error:  # noqa: BLE001  # any failure ends the trace
        schedule.world.trace.append(f"FAILED {error}")
    sys.stdout.write("\n".join(schedule.world.trace) + "\n")


def hunt(first: int, last: int, workloads: list[str] | None, frequent: Sequence[str]) -> int:
    """Run seeds until one fails, and print their number.

    Args:
        first: the first seed.
        last: the last seed.
        workloads: names of the workloads; None for those that each seed chooses.
        frequent: names of faults and orders that happen more often than usual.
    """
    for seed in range(first, last + 1):
        problem = run_seed(seed, workloads=workloads, frequent=frequent).problem
        if problem:
            reason = problem.strip().splitlines()[-1]
            sys.stdout.write(f"found by seed {seed}: {reason}\n")
            return 0
    sys.stdout.write(f"nothing found by seeds {first}..{last}\n")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_sim", description=__doc__)
    parser.add_argument("--seeds", default="0..99", help="A..B, both included")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="run those of the seeds that fit into these")
    parser.add_argument(
        "--at-least",
        type=int,
        default=0,
        help="with --minutes: run at least this number of schedules",
    )
    parser.add_argument("--show", type=int, help="print the trace of one seed")
    parser.add_argument("--faults", type=int, help="with --show: only this number of faults")
    parser.add_argument("--hunt", help="A..B: stop at the first seed that fails")
    parser.add_argument(
        "--workloads", nargs="*", help="with --hunt or --show: only these workloads"
    )
    parser.add_argument(
        "--frequent",
        nargs="*",
        default=(),
        choices=sorted(FAULTS),
        metavar="FAULT",
        help="with --hunt or --show: more of these faults and orders",
    )
    parser.add_argument(
        "--swarm",
        action="store_true",
        help="with --seeds: each schedule has more of some faults, chosen by its seed",
    )
    arguments = parser.parse_args()
    if arguments.hunt is not None:
        first, last = (int(part) for part in arguments.hunt.split(".."))
        return hunt(first, last, arguments.workloads, arguments.frequent)
    if arguments.show is not None:
        show(arguments.show, arguments.faults, arguments.workloads, arguments.frequent)
        return 0
    first, last = (int(part) for part in arguments.seeds.split(".."))
    mixtures = {seed: swarm_of(seed) if arguments.swarm else () for seed in range(first, last + 1)}
    return run_range(mixtures, arguments.workers, arguments.minutes, arguments.at_least)


PROGRESS_EVERY = 1_000
"""Schedules between two lines about the progress in a file."""


def run_range(
    mixtures: Mapping[int, Sequence[str]],
    workers: int,
    minutes: float | None = None,
    at_least: int = 0,
) -> int:
    """Run schedules.

    Args:
        mixtures: by seed, the faults that happen more often than usual.
        workers: number of processes.
        minutes: run those that fit into this time; None for all.
        at_least: the smallest number of schedules, however long they take.

    Returns:
        0 when nothing failed and everything that must happen happened.
    """
    counters: Counter[str] = Counter()
    failures: list[int] = []
    total = len(mixtures)
    ran = simulated_ns = cpu_ns = 0
    started = time.monotonic()
    # Passes of the collector then skip the modules, which are most of the objects.
    with ProcessPoolExecutor(workers, initializer=gc.freeze) as pool:
        jobs = [pool.submit(run_seed, seed, frequent=some) for seed, some in mixtures.items()]
        for done, job in enumerate(as_completed(jobs), 1):
            is_over = minutes is not None and time.monotonic() - started > 60 * minutes
            if is_over and done >= at_least:
                total -= sum(waiting.cancel() for waiting in jobs)
                minutes = None
            if job.cancelled():
                continue
            result = job.result()
            ran += 1
            counters += result.counters
            simulated_ns += result.simulated_ns
            cpu_ns += result.cpu_ns
            if result.problem:
                failures.append(result.seed)
                sys.stdout.write(f"seed {result.seed} failed: {result.problem}\n")
            if sys.stdout.isatty():
                sys.stdout.write(f"\r{ran}/{total} schedules ")
            elif ran % PROGRESS_EVERY == 0:
                sys.stdout.write(f"{ran} of {total} schedules, {len(failures)} failed\n")
            sys.stdout.flush()
    for name, count in sorted(counters.items()):
        sys.stdout.write(f"{count:10} {name}\n")
    for seed in failures[:3]:
        limit = shrink(seed, mixtures[seed])
        command = f"python -m qsync_sim --show {seed} --faults {limit}"
        if mixtures[seed]:
            command += f" --frequent {' '.join(mixtures[seed])}"
        sys.stdout.write(f"seed {seed} fails with {limit} faults: {command}\n")
    missing = [name for name in MUST_HAPPEN if not counters[name]]
    if missing:
        sys.stdout.write(f"never happened: {', '.join(missing)}\n")
    sys.stdout.write(
        f"{total - len(failures)} passed, {len(failures)} failed\n"
        f"in {time.monotonic() - started:.0f} s: {total * 60e9 / cpu_ns:.0f} schedules per minute "
        f"of processor time, {simulated_ns / cpu_ns:.1f} simulated hours per hour of it\n"
    )
    if total < len(jobs):
        sys.stdout.write(f"{len(jobs) - total} of {len(jobs)} not run: the time was over\n")
    return 1 if failures or (missing and total >= 2000) else 0


if __name__ == "__main__":
    sys.exit(main())
