"""Schedules of random faults over brokers of journals, each reproduced by its seed.

python -m qsync_sim.journals.schedule --seeds 0..199
"""

import argparse
import sys
import traceback
from collections import Counter

from qsync_broker.append import Append, Appended
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_sim.journals.world import MS, SECOND, World

FAULTS = ("kill", "kill", "power", "pause", "cut", "cut", "cluster", "break", "slow", "store")
JOURNALS = ("orders/eu", "orders/us", "audit/log")


class Schedule:
    """One schedule: clients append while brokers, disks and connections fail."""

    def __init__(self, seed: int) -> None:
        count = 3 + seed % 3
        names = [f"broker-{letter}" for letter in "abcde"[:count]]
        zones = {name: f"zone-{number % 2}" for number, name in enumerate(names)}
        self.world = World(seed, names, zones if seed % 2 else None)
        self.rng = self.world.rng
        self.names = names
        self.counts: Counter[str] = Counter()
        self.is_faulty = True
        self.texts = 0
        self.is_done = 0

    def run(self, faults_ns: int = 12 * SECOND) -> Counter[str]:
        """Run the schedule, and return how often everything happened.

        Raises:
            AssertionError: an invariant does not hold.
        """
        world = self.world
        for number in range(len(JOURNALS)):
            delay_ns = number and self.rng.randrange(8 * SECOND)
            world.after(delay_ns, lambda number=number: self._create(number))  # type: ignore[misc]
        for _ in range(4):
            world.after(self.rng.randrange(SECOND), self._client)
        world.after(SECOND, self._fault)
        world.run(faults_ns)
        self.is_faulty = False
        self._heal()
        world.run(6 * SECOND)
        self._check_available()
        world.check_commits()
        self.counts["commits"] = len(world.commits)
        self.counts["stale snapshot"] = world.stale_snapshots
        return self.counts

    def _create(self, number: int) -> None:
        world = self.world
        world.create(JOURNALS[number], 1 + (world.seed + number) % 3, stores=number > 0)

    # --- clients ------------------------------------------------------------------------------

    def _client(self) -> None:
        """Append once, then again some time later."""
        rng, world = self.rng, self.world
        self._append(rng.choice(self.names), rng.choice(JOURNALS), rng.random() < 0.1, 3)
        if self.is_faulty:
            world.after(rng.randrange(200 * MS), self._client)

    def _append(self, name: str, journal: str, breaks: bool, hops: int) -> None:
        world, rng = self.world, self.rng
        process = world.processes[name]
        if not process.is_alive:
            return
        self.texts += 1
        sizes = [rng.choice((1, 10, 300, 1500)) for _ in range(rng.randrange(0, 4))]
        pieces = [(f"<{self.texts}.{n}>".encode() * size)[:size] for n, size in enumerate(sizes)]

        def done(result: Appended, is_proxied: bool) -> None:
            status = result.resolution.status
            if is_proxied:
                self.counts["proxied"] += 1
                if hops:
                    self._append(result.resolution.broker.suffix, journal, breaks, hops - 1)
            elif result.error:
                self.counts["errors"] += 1
            elif status is not Status.OK:
                self.counts[status.name] += 1
            else:
                assert not breaks, "an append of a client that broke off was acknowledged"
                world.commit(journal, result, b"".join(pieces))
                self.is_done += 1

        # A slow client holds the pipeline while leases end and other primaries take over.
        pause_ns = (1500 if self.is_faulty and rng.random() < 0.05 else 3) * MS
        world.append(name, Append(journal), pieces, done, breaks=breaks, pause_ns=pause_ns)

    # --- faults -------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self.is_faulty:
            return
        rng, world = self.rng, self.world
        name = self._victim()
        kind = rng.choice(FAULTS)
        self.counts[kind] += 1
        delay_ns = rng.choice((100, 500, 1500, 3000)) * MS
        process = world.processes[name]
        if kind == "kill":
            self._kill_busy(name, 200)
            world.after(delay_ns, lambda: self._revive(name))
        elif kind == "power":
            for one in self.names:
                world.kill(one)
                world.after(delay_ns, lambda one=one: self._revive(one))  # type: ignore[misc]
        elif kind == "pause" and process.is_alive:
            process.is_paused = True
            world.after(delay_ns, lambda: self._resume(name))
        elif kind in ("cut", "cluster"):
            other = rng.choice(self.names) if kind == "cut" else "cluster"
            cut = frozenset((name, other))
            world.cuts.add(cut)
            world.after(delay_ns, lambda: world.cuts.discard(cut))
        elif kind == "break":
            for link in [one for one in world.links if process in (one.primary, one.peer)]:
                link.close()
        elif kind == "slow":
            world.disks[name].slow_ns = rng.choice((20, 200)) * MS
            world.after(delay_ns, lambda: setattr(world.disks[name], "slow_ns", 0))
        elif kind == "store":
            world.are_stores_down = True
            world.after(delay_ns, lambda: setattr(world, "are_stores_down", False))
        world.after(rng.randrange(50, 900) * MS, self._fault)

    def _kill_busy(self, name: str, patience: int) -> None:
        """Kill a broker, if possible while its disk writes something."""
        if patience and not self.world.disks[name].is_busy:
            self.world.after(MS // 4, lambda: self._kill_busy(name, patience - 1))
        else:
            self.world.kill(name)

    def _victim(self) -> str:
        """Return a broker, with preference for primaries."""
        name = self.rng.choice(self.names)
        keys = self.world.processes[name].core.keys
        route = keys.route(self.rng.choice(JOURNALS))
        if route.primary >= 0 and self.rng.random() < 0.5:
            return route.members[route.primary].suffix
        return name

    def _revive(self, name: str) -> None:
        if not self.world.processes[name].is_alive:
            self.world.start(name)

    def _resume(self, name: str) -> None:
        self.world.processes[name].is_paused = False

    def _heal(self) -> None:
        self.world.cuts.clear()
        self.world.are_stores_down = False
        for name in self.names:
            self.world.disks[name].slow_ns = 0
            self._resume(name)
            self._revive(name)

    def _check_available(self) -> None:
        """Check that each journal is consistent again, and accepts appends."""
        world = self.world
        for journal in JOURNALS:
            row = decode_row(JOURNAL_SPACE, world.keys.rows[JOURNAL_SPACE, (journal,)])
            assert isinstance(row, JournalRow)
            keys = world.processes[self.names[0]].core.keys
            assert keys.is_consistent(row), f"{journal} is not consistent: {row}"
            before = self.is_done
            for name in self.names:
                self._append(name, journal, False, 3)
            assert world.run(20 * SECOND, lambda: self.is_done >= before + len(self.names)), (  # noqa: B023
                f"{journal} accepts no appends"
            )


def main() -> int:
    """Run schedules, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0..99", help="first and last seed")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    failed, counts = 0, Counter[str]()
    for seed in range(int(first), int(last or first) + 1):
        try:
            counts += Schedule(seed).run()
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
            if not str(error):
                traceback.print_exc()
    sys.stdout.write(f"{failed} failed; {dict(sorted(counts.items()))}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
