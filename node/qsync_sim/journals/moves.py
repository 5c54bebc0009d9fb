"""Schedules that replace all brokers of journals, one after the other.

python -m qsync_sim.journals.moves --seeds 0..99

A broker that is replaced hands its journals over, and its disk is removed once the broker is
drained. Others fail, and sometimes lose their disk while all brokers are whole. In the end, none of
the first brokers exists.

In most schedules, the journals have no store. Every acknowledged byte must be on each broker of its
journal in the end. One in six schedules begins with a store that takes no fragment, and removes it
from the journals after the first broker handed them over. Another one in six has a store that is
full again and again; every acknowledged byte must be readable in the end.
"""

import sys
from collections import Counter

from qsync_broker.operations import SpoolKey
from qsync_broker.persister import AGAIN_MAX_NS
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    BrokerRow,
    JournalRow,
    Members,
    decode_row,
)
from qsync_sim.journals import seeds
from qsync_sim.journals.appending import AppendingClient
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.disk import SimBrokerDisk
from qsync_sim.journals.world import BrokerWorld

JOURNALS = ("orders/eu", "audit/log")
ROUNDS = 4
PATIENCE_NS = 60 * SECOND


class Moves:
    """One schedule: clients append while brokers are replaced and fail."""

    def __init__(self, seed: int) -> None:
        self.has_stores = seed % 3 == 2
        self.keeps_stores = self.has_stores and seed // 6 % 2 == 1
        self.replication = 1 + seed // 12 % 3 if self.keeps_stores else 2 + seed % 2
        self.names = [f"broker-{number}" for number in range(self.replication + seed % 3 // 2)]
        self.world = BrokerWorld(seed, self.names)
        self.rng = self.world.rng
        self.has_faults = seed % 4 > 0
        self.is_moving = True
        self.counts: Counter[str] = Counter()
        self.client = AppendingClient(self.world, self.world.observer.commit)

    def run(self) -> Counter[str]:
        """Run the schedule, and return how often everything happened.

        Raises:
            AssertionError: a byte is lost, or a broker cannot hand its journals over.
        """
        world = self.world
        world.stores.are_full = True
        for journal in JOURNALS:
            world.keys.create(journal, self.replication, stores=self.has_stores)
        for _ in range(3):
            world.after(self.rng.randrange(SECOND), self._append)
        if self.has_faults:
            world.after(SECOND, self._fault)
        world.run(3 * SECOND)
        for number in range(ROUNDS):
            if self.keeps_stores:
                world.stores.are_full = self.rng.random() < 0.7
            former = self._hand_over(f"broker-new-{number}")
            if self.keeps_stores:
                self._repair_stores(former)
            elif self.has_stores and not number and not self._remove_stores():
                self.counts["only copy at a former broker"] += 1
                return self.counts
            self._remove(former)
        self.is_moving = False
        for name in self.names:
            self._revive(name)
        assert world.run(PATIENCE_NS, self._is_settled), f"journals are incomplete: {self._rows()}"
        world.run(10 * SECOND)  # the last appends end, and peers learn that they are confirmed
        world.check_commits()
        if self.keeps_stores:
            assert world.run(PATIENCE_NS, lambda: not world.unreadable()), world.unreadable()
        else:
            self._check_copies()
        self.counts["commits"] = len(world.observer.commits)
        return self.counts

    # --- brokers ------------------------------------------------------------------------------

    def _hand_over(self, name: str) -> str:
        """Add a broker, let the oldest one hand its journals over, and return the latter's name."""
        world = self.world
        world.zones[name] = "zone"
        world.disks[name] = SimBrokerDisk(world.rng, world.after)
        world.start(name)
        self.names.append(name)
        world.run(self.rng.randrange(SECOND))
        former = self.names[0]
        self._revive(former)
        world.processes[former].core.exit()
        assert world.run(PATIENCE_NS, lambda: self._has_handed_over(former)), (
            f"{former} cannot hand its journals over: {self._rows()}"
        )
        return former

    def _remove(self, former: str) -> None:
        """Remove the disk of a broker that handed its journals over, once it is drained."""
        world = self.world
        assert world.run(PATIENCE_NS + AGAIN_MAX_NS, lambda: self._is_drained(former)), (
            f"{former} is not drained: {self._rows()}"
        )
        self.names.remove(former)
        assert all(self._is_kept(row, self.names) for row in self._rows()), (
            f"{former} has the only copy of bytes"
        )
        world.kill(former)
        world.disks[former].wipe()
        self.counts["moved"] += 1

    def _repair_stores(self, former: str) -> None:
        """Repair the stores after some time, unless the broker has no bytes for them."""
        world = self.world
        if world.run(self.rng.randrange(10 * SECOND), lambda: self._is_drained(former)):
            self.counts["drained beside full stores"] += world.stores.are_full
            return
        self.counts["awaited stores"] += 1
        world.stores.are_full = False

    def _remove_stores(self) -> bool:
        """Remove the store, which has no fragment, once all brokers are synchronised.

        Returns:
            False if the brokers of a journal do not have all of its bytes. Brokers of a journal
            with a store leave it although they have the only copy, which they keep for the store.
        """
        assert self.world.run(PATIENCE_NS, self._is_settled), f"not settled: {self._rows()}"
        if not all(self._is_kept(row, _names(row.route.members)) for row in self._rows()):
            return False
        for journal in JOURNALS:
            self.world.stores.replace(journal)
            self.counts["removed stores"] += 1
        return True

    def _has_handed_over(self, name: str) -> bool:
        process = self.world.processes[name]
        if not process.is_alive:
            self._revive(name)
            self.world.processes[name].core.exit()
        rows = self.world.keys.rows
        return not any(space == ASSIGNMENT_SPACE and key[2] == name for space, key in rows)

    def _is_drained(self, name: str) -> bool:
        if not self._has_handed_over(name):
            return False
        fields = self.world.keys.rows.get((BROKER_SPACE, ("zone", name)))
        row = decode_row(BROKER_SPACE, fields) if fields is not None else None
        return isinstance(row, BrokerRow) and row.is_drained

    def _revive(self, name: str) -> None:
        if name in self.names and not self.world.processes[name].is_alive:
            self.world.start(name)

    def _fault(self) -> None:
        """Fail once, then again some time later."""
        if not self.is_moving:
            return
        rng, world = self.rng, self.world
        name = rng.choice(self.names)
        kind = rng.choice(("kill", "kill", "break", "slow", "wipe"))
        if kind == "wipe" and not self._is_whole():
            kind = "kill"  # the disk may have the only copy of some bytes
        self.counts[kind] += 1
        delay_ns = rng.choice((100, 500, 2500)) * MS
        if kind in ("kill", "wipe"):
            world.kill(name)
            if kind == "wipe":
                world.disks[name].wipe()
            world.after(delay_ns, lambda: self._revive(name))
        elif kind == "break":
            process = world.processes[name]
            for link in [one for one in world.links if process in (one.primary, one.peer)]:
                link.close()
        else:
            world.disks[name].slow_ns = 50 * MS
            world.after(delay_ns, lambda: setattr(world.disks[name], "slow_ns", 0))
        world.after(rng.randrange(500, 4000) * MS, self._fault)

    # --- clients ------------------------------------------------------------------------------

    def _append(self) -> None:
        rng = self.world.rng
        self.client.append(rng.choice(self.names), rng.choice(JOURNALS))
        if self.is_moving:
            self.world.after(rng.randrange(200 * MS), self._append)

    # --- checks -------------------------------------------------------------------------------

    def _rows(self) -> list[JournalRow]:
        rows = self.world.keys.rows
        found = [decode_row(JOURNAL_SPACE, rows[JOURNAL_SPACE, (name,)]) for name in JOURNALS]
        return [row for row in found if isinstance(row, JournalRow)]

    def _is_whole(self) -> bool:
        """Return whether each journal has several synchronised brokers, and all are whole."""

        def is_synchronised(row: JournalRow, name: str) -> bool:
            process = self.world.processes[name]
            replica = process.core.replica(row.name) if process.is_alive else None
            return replica is not None and replica.spool.epoch == row.epoch

        return all(
            not row.partial
            and len(row.route.members) >= max(2, self.replication)
            and all(is_synchronised(row, member.suffix) for member in row.route.members)
            for row in self._rows()
        )

    def _is_kept(self, row: JournalRow, names: list[str]) -> bool:
        """Return whether stores and the disks of brokers have a journal's acknowledged appends."""
        disks = [self.world.disks[name] for name in names]
        persisted = self.world.stores.spans.get(row.name, [])
        return all(
            any(disk.has(row.name, one.begin, one.end) for disk in disks)
            or any(begin <= one.begin and one.end <= end for begin, end in persisted)
            for one in self.world.observer.commits
            if one.journal == row.name
        )

    def _is_settled(self) -> bool:
        """Return whether all journals have exactly their brokers, and all of these are whole."""
        keys = self.world.processes[self.names[0]].core.keys
        return all(
            keys.is_consistent(row)
            and len(keys.route(row.name).members) == self.replication
            and not partial_brokers(row)
            for row in self._rows()
        )

    def _check_copies(self) -> None:
        """Check that each broker of a journal has all of its bytes."""
        world = self.world
        for row in self._rows():
            for member in row.route.members:
                replica = world.processes[member.suffix].core.replica(row.name)
                assert replica is not None, f"{member.suffix} does not have {row.name}"
                end = 0
                for part in replica.local_parts:
                    assert part.begin <= end, (
                        f"{member.suffix} has no bytes of {row.name} from {end} to {part.begin}"
                    )
                    key = SpoolKey(row.name, row.create_revision, part.begin)
                    data = world.disks[member.suffix].read(key, part.begin, part.end)
                    assert len(data) == part.end - part.begin, f"{member.suffix} lacks {part}"
                    world.observer.note_visible(row.name, part.begin, data)
                    end = max(end, part.end)
                assert end == len(world.observer.known[row.name]), f"{member.suffix} ends at {end}"


def _names(members: Members) -> list[str]:
    return [member.suffix for member in members]


def main() -> int:
    """Run schedules, and return the exit code."""
    return seeds.main(__doc__, lambda seed: Moves(seed).run())


if __name__ == "__main__":
    sys.exit(main())
