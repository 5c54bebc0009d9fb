"""Schedules of random faults over brokers of journals, each reproduced by its seed.

python -m qsync_sim.journals.schedule --seeds 0..199 --all-pairs
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from functools import partial

from qsync_broker.requests import Append, Appended, Suspend
from qsync_broker.states import AppendState
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.conditional import ConditionalClients
from qsync_sim.journals.faults import PAIRS, Faults
from qsync_sim.journals.register_model import EVENTS
from qsync_sim.journals.world import BrokerWorld

READABLE_S = 20
"""Time after the last fault in which each broker must serve all visible bytes."""
JOURNALS = ("orders/eu", "orders/us", "audit/log")


class JournalSchedule:
    """One schedule: clients append while brokers, disks and connections fail."""

    def __init__(self, seed: int, *, moves_stores: bool = False, fills_disks: bool = False) -> None:
        """Prepare a schedule.

        Args:
            seed: names the schedule.
            moves_stores: whether specifications replace the stores of journals meanwhile.
            fills_disks: whether the disks of brokers are nearly full for a while.
        """
        count = 3 + seed % 3
        names = [f"broker-{letter}" for letter in "abcde"[:count]]
        zones = {name: f"zone-{number % 2}" for number, name in enumerate(names)}
        self.world = BrokerWorld(seed, names, zones if seed % 2 else None)
        self.rng = self.world.rng
        self.names = names
        self.faults = Faults(self.world, names, JOURNALS)
        self.counts: Counter[str] = Counter()
        self.is_faulty = True
        self.moves_stores = moves_stores
        self.fills_disks = fills_disks
        self.full_ns: dict[str, int] = {}  # since when the disk of a broker is nearly full
        self.texts = 0
        self.is_done = 0
        self.conditional: ConditionalClients | None = None
        if seed // 3 % 3 == 2:
            self.conditional = ConditionalClients(
                self.world, names, JOURNALS[1:], JOURNALS[:1], self
            )

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
        for _ in range(2):
            world.after(self.rng.randrange(SECOND), self._publish)
        world.after(2 * SECOND, self._scale)
        if self.moves_stores:
            world.after(2 * SECOND, self._move_stores)
        if self.fills_disks:
            world.after(2 * SECOND, self._fill_disk)
        self.faults.start(SECOND)
        if self.conditional is not None:
            self.conditional.start()
        world.run(faults_ns)
        self.is_faulty = False
        for name in self.names:
            self._free_disk(name)
        self.faults.heal()
        world.run(6 * SECOND)
        self._check_available()
        self._check_readable()
        if self.conditional is not None:
            self.conditional.finish()
        assert world.run(20 * SECOND, world.is_published), (
            f"publications wait: {world.keys.publishers}"
        )
        world.check_commits()
        world.check_publications()
        if self.conditional is not None:
            self.conditional.check()
        self.counts += self.faults.counts
        self.counts["publications"] = sum(map(len, world.keys.published.values()))
        self.counts["commits"] = len(world.observer.commits)
        self.counts["stale snapshot"] = world.stale_snapshots
        return self.counts

    def _create(self, number: int) -> None:
        world = self.world
        world.keys.create(JOURNALS[number], 1 + (world.seed + number) % 3, stores=number > 0)

    # --- clients ------------------------------------------------------------------------------

    def _client(self) -> None:
        """Append once, then again some time later."""
        rng, world = self.rng, self.world
        name, journal = rng.choice(self.names), rng.choice(JOURNALS)
        if rng.random() < 0.05:
            self._suspend(name, journal, 3)
        else:
            self._append(name, journal, rng.random() < 0.1, 3)
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

        begun_ns, knows = world.now_ns, bool(process.core.space_problem)

        def done(result: Appended, is_proxied: bool) -> None:
            status = result.resolution.status
            if knows and status is Status.OK and not result.error and not is_proxied:
                has_space = self.full_ns.get(name, begun_ns + 1) > begun_ns
                assert has_space, f"{name} appends although its disk is nearly full"
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
                world.observer.commit(journal, result, b"".join(pieces))
                self.is_done += 1

        # A slow client holds the pipeline while leases end and other primaries take over. The
        # content of a fast one is stored together with its commit.
        is_slow = self.is_faulty and rng.random() < 0.05
        pause_ns = 1500 * MS if is_slow else rng.choice((MS // 20, 3 * MS, 3 * MS))
        world.append(name, Append(journal), pieces, done, breaks=breaks, pause_ns=pause_ns)

    def _suspend(self, name: str, journal: str, hops: int) -> None:
        """Suspend a journal, which the next append resumes."""
        world, wish = self.world, self.rng.choice((Suspend.NOW, Suspend.IF_FLUSHED))
        if not world.processes[name].is_alive:
            return

        def done(result: Appended, is_proxied: bool) -> None:
            if is_proxied and hops:
                self._suspend(result.resolution.broker.suffix, journal, hops - 1)
            elif not result.error and result.resolution.status is Status.OK:
                self.counts["suspended"] += 1

        world.append(name, Append(journal, suspend=wish), [], done)

    def _scale(self) -> None:
        """Change the replication of a journal; slow disks let appends be in flight meanwhile."""
        if self.is_faulty:
            self.world.keys.scale(self.rng.choice(JOURNALS), self.rng.randrange(1, 4))
            for name in self.names if self.rng.random() < 0.5 else ():
                self.faults.inject("slow", name)
            self.world.after(self.rng.randrange(500, 5000) * MS, self._scale)

    def _move_stores(self) -> None:
        """Replace the store of a journal; slow uploads and listings end after the change."""
        if not self.is_faulty:
            return
        rng, world = self.rng, self.world
        journal = rng.choice(JOURNALS[1:])
        if (JOURNAL_SPACE, (journal,)) in world.keys.rows:
            self.counts["moved stores"] += 1
            world.stores.replace(journal, f"file:///store-{self.counts['moved stores']}/")
        world.stores.delay_ns = rng.choice((0, 200, 1000)) * MS
        world.after(rng.randrange(200, 2000) * MS, self._move_stores)

    def _fill_disk(self) -> None:
        """Fill the disk of a broker, and free it again."""
        if not self.is_faulty:
            return
        rng, world, name = self.rng, self.world, self.rng.choice(self.names)
        world.disks[name].space_problem = "the disk is nearly full"
        self.full_ns.setdefault(name, world.now_ns)
        self.counts["filled disks"] += 1
        world.after(rng.randrange(500, 4000) * MS, partial(self._free_disk, name))
        world.after(rng.randrange(300, 3000) * MS, self._fill_disk)

    def _free_disk(self, name: str) -> None:
        self.world.disks[name].space_problem = ""
        self.full_ns.pop(name, None)

    def _publish(self) -> None:
        """Commit some publications, then others some time later."""
        rng, world = self.rng, self.world
        for _ in range(rng.choice((1, 1, 2, 40))):
            self.texts += 1
            size = rng.choice((0, 10, 1500))
            world.keys.publish(rng.choice(JOURNALS), b"(P%d:%s)" % (self.texts, b"-" * size))
        if self.is_faulty:
            world.after(rng.randrange(400 * MS), self._publish)

    # --- end ------------------------------------------------------------------------------------

    def _check_available(self) -> None:
        """Check that each journal is consistent again, and accepts appends."""
        world = self.world
        for journal in JOURNALS:
            for name in self.names:
                self._check_append(name, journal)
            row = decode_row(JOURNAL_SPACE, world.keys.rows[JOURNAL_SPACE, (journal,)])
            assert isinstance(row, JournalRow)
            keys = world.processes[self.names[0]].core.keys
            assert keys.is_consistent(row), f"{journal} is not consistent: {row}"

    def _check_readable(self) -> None:
        """Check that soon, each broker serves all visible bytes."""
        for _ in range(READABLE_S):
            if not (where := self.world.unreadable()):
                return
            self.world.run(SECOND)
        raise AssertionError(f"{where}, {READABLE_S} s after the end of all faults")

    def _check_append(self, name: str, journal: str) -> None:
        """Check that an append succeeds, perhaps after others that resume the journal."""
        before = self.is_done
        for _ in range(20):
            self._append(name, journal, False, 3)
            if self.world.run(SECOND, lambda: self.is_done > before):
                return
        raise AssertionError(f"{journal} accepts no appends at {name}")


def main() -> int:
    """Run schedules, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0..99", help="first and last seed")
    parser.add_argument("--hunt", metavar="SEEDS", help="stop at the first seed that fails")
    parser.add_argument("--minutes", type=float, help="begin no schedule after this time")
    parser.add_argument("--at-least", type=int, default=0, help="schedules that run in any case")
    parser.add_argument(
        "--all-pairs",
        action="store_true",
        help="fail if a fault has met no append in some state, or an event has not happened",
    )
    parser.add_argument(
        "--move-stores", action="store_true", help="replace the stores of journals meanwhile"
    )
    parser.add_argument(
        "--fill-disks", action="store_true", help="fill the disks of brokers meanwhile"
    )
    arguments = parser.parse_args()
    first, _, last = (arguments.hunt or arguments.seeds).partition("..")
    seeds = range(int(first), int(last or first) + 1)
    if arguments.hunt:
        return _hunt(seeds, fills_disks=arguments.fill_disks)
    end_s = time.monotonic() + 60 * (arguments.minutes or 1e9)
    failed, run, counts = 0, 0, Counter[str]()
    reached: Counter[tuple[AppendState, str]] = Counter()
    for seed in seeds:
        if run >= arguments.at_least and time.monotonic() > end_s:
            break
        run += 1
        schedule = JournalSchedule(
            seed, moves_stores=arguments.move_stores, fills_disks=arguments.fill_disks
        )
        try:
            counts += schedule.run()
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
            if not str(error):
                traceback.print_exc()
        reached += schedule.faults.reached
    missing = [f"{fault} at {state.value}" for state, fault in PAIRS if not reached[state, fault]]
    sys.stdout.write(f"{run} schedules, {failed} failed; {dict(sorted(counts.items()))}\n")
    sys.stdout.write(
        f"{len(PAIRS) - len(missing)} of {len(PAIRS)} pairs of state and fault"
        f"{': without ' if missing else ''}{', '.join(missing)}\n"
    )
    missing += [event for event in EVENTS if not counts[event]]
    return 1 if failed or (missing and arguments.all_pairs) else 0


def _hunt(seeds: range, *, fills_disks: bool) -> int:
    """Run schedules until one finds a planted bug, which may fail in any way."""
    for seed in seeds:
        try:
            JournalSchedule(seed, fills_disks=fills_disks).run()
        except Exception as error:  # noqa: BLE001  # see above
            sys.stdout.write(f"found by seed {seed}: {error or type(error).__name__}\n")
            return 0
    sys.stdout.write("nothing found\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
