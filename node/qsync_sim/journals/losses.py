"""Schedules in which brokers lose their disks, and a person accepts the loss of acknowledged bytes.

python -m qsync_sim.journals.losses --seeds 0..99

Brokers of journals without a store fail, sometimes several at once, and return with their disk,
with an empty one, or much later. The person asks for the loss, and sometimes accepts it. In the
end, an acknowledged append may be missing only if the person accepted that, or if all disks that
had it are gone. Its offsets never get other bytes, and each journal accepts appends again.
"""

import sys
from collections import Counter
from functools import partial

from qsync_broker.loss import Loss
from qsync_broker.requests import Append, Appended, Suspend
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_sim.journals import seeds
from qsync_sim.journals.appending import HOPS_MAX, AppendingClient
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.observer import ObservedCommit
from qsync_sim.journals.process import SimBroker
from qsync_sim.journals.world import BrokerWorld

JOURNALS = ("orders/eu", "audit/log")
FAULTS_NS = 20 * SECOND
PATIENCE_NS = 60 * SECOND
AWAY_NS = (100 * MS, 500 * MS, 3 * SECOND, 8 * SECOND)
"""Times after which a broker returns; its lease lasts a second."""


class Losses:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.names = [f"broker-{letter}" for letter in "abcde"[: 3 + seed % 2]]
        self.world = BrokerWorld(seed, self.names)
        self.replication = 2 + seed // 2 % 2
        self.counts: Counter[str] = Counter()
        self.client = AppendingClient(self.world, self._on_commit)
        self.is_failing = True
        self.has_failed = False
        self.commits: list[ObservedCommit] = []
        self.accepted: dict[ObservedCommit, Loss] = {}
        self.destroyed: set[ObservedCommit] = set()

    def run(self) -> Counter[str]:
        """Run the schedule, and return how often everything happened.

        Raises:
            AssertionError: bytes are lost without an accepted loss, or a journal takes no appends.
        """
        world = self.world
        for journal in JOURNALS:
            world.keys.create(journal, self.replication)
        for _ in range(3):
            world.after(world.rng.randrange(SECOND), self._append)
        world.after(SECOND, self._ask)
        world.run(3 * SECOND)
        self._fault()
        world.run(FAULTS_NS)
        self.is_failing = False
        for name in self.names:
            self._revive(name)
        for journal in JOURNALS:
            is_done = partial(self._has_committed, journal, self._committed(journal) + 3)
            assert world.run(PATIENCE_NS, is_done), (
                f"{journal} accepts no appends: {self._row(journal)}"
            )
        self._check_commits()
        self.counts["commits"] = len(self.commits)
        self.counts["accepted commits"] = len(self.accepted)
        self.counts["destroyed"] = len(self.destroyed)
        return self.counts

    # --- brokers ------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Let one or several brokers fail, then again some time later."""
        if not self.is_failing:
            return
        rng, world = self.world.rng, self.world
        self.has_failed = True
        for name in rng.sample(self.names, rng.choice((1, 1, 2, len(self.names)))):
            loses_disk = rng.random() < 0.5
            self.counts["lost disk" if loses_disk else "kill"] += 1
            world.kill(name, is_power=rng.random() < 0.3)
            if loses_disk:
                world.disks[name].wipe()
                self._note_destroyed()
            world.after(rng.choice(AWAY_NS), partial(self._revive, name))
        world.after(rng.choice((1, 4, 10)) * SECOND, self._fault)

    def _note_destroyed(self) -> None:
        disks = self.world.disks.values()
        self.destroyed |= {
            one for one in self.commits
            if not any(disk.has(one.journal, one.begin, one.end) for disk in disks)
        }  # fmt: skip

    def _revive(self, name: str) -> None:
        if not self.world.processes[name].is_alive:
            self.world.start(name)

    # --- clients ------------------------------------------------------------------------------

    def _append(self) -> None:
        rng = self.world.rng
        self.client.append(rng.choice(self.names), rng.choice(JOURNALS))
        self.world.after(rng.randrange(200 * MS), self._append)

    def _on_commit(self, journal: str, result: Appended, data: bytes) -> None:
        self.world.observer.commit(journal, result, data)
        self.commits.append(self.world.observer.commits[-1])

    # --- the person -----------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for the loss of a journal, then again some time later."""
        rng = self.world.rng
        self._examine(rng.choice(self.names), rng.choice(JOURNALS), None, HOPS_MAX)
        self.world.after(rng.randrange(2 * SECOND), self._ask)

    def _examine(self, name: str, journal: str, loss: Loss | None, hops: int) -> None:
        """Ask a broker for the loss, or accept the one that it has named."""
        world = self.world
        if not world.processes[name].is_alive:
            return
        holders = self._holders(journal) if loss is not None else {}

        def done(result: Appended, is_proxied: bool) -> None:
            if is_proxied and hops:
                self._examine(result.resolution.broker.suffix, journal, loss, hops - 1)
            elif result.loss is not None and loss is None:
                assert self.has_failed, f"{journal} has lost {result.loss} without a fault"
                self.counts["loss"] += 1
                self._consider(name, journal, result.loss)
            elif loss is not None and not result.error and result.resolution.status is Status.OK:
                self.counts["accepted"] += 1
                self._check_holders(journal, loss, holders)

        offset = loss.resume if loss is not None else 0
        request = Append(journal, offset, suspend=Suspend.KEEP, accepts_loss=True)
        world.append(name, request, [], done)

    def _consider(self, name: str, journal: str, loss: Loss) -> None:
        """Accept a loss in some cases, at once or after the situation may have changed."""
        rng, world = self.world.rng, self.world
        if self.is_failing and rng.random() < 0.3:
            return
        for commit in self.commits:
            if commit.journal == journal and commit.begin < loss.resume:
                self.accepted.setdefault(commit, loss)
        delay_ns = rng.choice((1, 100 * MS, 3 * SECOND))
        world.after(delay_ns, lambda: self._examine(name, journal, loss, HOPS_MAX))

    # --- checks -------------------------------------------------------------------------------

    def _row(self, journal: str) -> JournalRow:
        row = decode_row(JOURNAL_SPACE, self.world.keys.rows[JOURNAL_SPACE, (journal,)])
        assert isinstance(row, JournalRow)
        return row

    def _committed(self, journal: str) -> int:
        return sum(commit.journal == journal for commit in self.commits)

    def _has_committed(self, journal: str, count: int) -> bool:
        return self._committed(journal) > count

    def _visible(self, process: SimBroker, journal: str) -> list[tuple[int, int]]:
        """Return the offsets that a broker has, and shows to readers if it is in the route."""
        replica = process.core.shelf(journal) if process.is_alive else None
        if replica is None:
            return []
        spans = [(begin, one.end) for begin, one in replica.completed.items()]
        return [*spans, (replica.spool.begin, replica.spool.confirmed)]

    def _holders(self, journal: str) -> dict[SimBroker, list[ObservedCommit]]:
        """Return acknowledged appends that live brokers of the recorded route have."""
        holders = {}
        leases = [process.core.keys.brokers for process in self._alive()]
        for member in self._row(journal).route.members:
            process = self.world.processes[member.suffix]
            if not all(member in known for known in leases):
                continue
            spans = self._visible(process, journal)
            holders[process] = [one for one in self.commits if self._is_shown(one, journal, spans)]
        return holders

    def _is_shown(self, commit: ObservedCommit, journal: str, spans: list[tuple[int, int]]) -> bool:
        return commit.journal == journal and any(
            begin <= commit.begin and commit.end <= end for begin, end in spans
        )

    def _check_holders(
        self, journal: str, loss: Loss, holders: dict[SimBroker, list[ObservedCommit]]
    ) -> None:
        """Check that an accepted loss covers no append of a live broker of the recorded route.

        Args:
            journal: the journal.
            loss: the accepted loss.
            holders: the brokers when the loss was accepted, and the appends that they showed.
        """
        route = [self.world.processes[one.suffix] for one in self._row(journal).route.members]
        kept = {one for process in route for one in self._shown_by(process, journal)}
        for process, commits in holders.items():
            if process.is_alive:
                for commit in commits:
                    assert commit in kept, f"{process.name} had {commit}, lost by {loss}"

    def _alive(self) -> list[SimBroker]:
        return [process for process in self.world.processes.values() if process.is_alive]

    def _shown_by(self, process: SimBroker, journal: str) -> list[ObservedCommit]:
        spans = self._visible(process, journal)
        return [one for one in self.commits if self._is_shown(one, journal, spans)]

    def _check_commits(self) -> None:
        """Check that each append is on a broker, part of an accepted loss, or destroyed."""
        kept = {
            one for process in self._alive() for journal in JOURNALS
            for one in self._shown_by(process, journal)
        }  # fmt: skip
        for commit in self.commits:
            is_allowed = commit in self.accepted or commit in self.destroyed
            assert is_allowed or commit in kept, f"no accepted loss covers {commit}"


def main() -> int:
    """Run schedules, and return the exit code."""
    return seeds.main(__doc__, lambda seed: Losses(seed).run())


if __name__ == "__main__":
    sys.exit(main())
