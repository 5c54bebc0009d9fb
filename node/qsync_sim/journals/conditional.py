"""Clients that append with checks and changes of registers, or at offsets of their own.

They also delete a journal and create it again with the same name, as another process of a broker
would: with the key space that a broker knows, which may be old. They take their choices from a
generator of their own.
"""

from collections import Counter
from random import Random
from typing import Protocol

from qsync_broker.directory import ANY_REVISION, SpecChange, plan
from qsync_broker.requests import Appended, Suspend
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, decode_row
from qsync_sim.journals.appending import HOPS_MAX
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.keys import SPEC
from qsync_sim.journals.register_model import (
    EVENT,
    ConditionalAppend,
    Registers,
    check_history,
    registers_of,
)
from qsync_sim.journals.world import BrokerWorld

RECREATED = "orders/recreated"
"""The journal that is deleted again and again. It has no store, which would keep its bytes."""
NAMES = ("a", "b", "lock")
FAR = 1 << 40
"""Offset after all heads."""
PATIENCE = 40


class ConditionalSchedule(Protocol):
    """The schedule that the clients belong to."""

    is_faulty: bool
    counts: Counter[str]


class ConditionalClients:
    """All clients of one schedule.

    Attributes:
        appends: all appends of these clients.
    """

    def __init__(
        self,
        world: BrokerWorld,
        names: list[str],
        stored: tuple[str, ...],
        unstored: tuple[str, ...],
        schedule: ConditionalSchedule,
    ) -> None:
        """Prepare the clients.

        Args:
            world: the brokers.
            names: the names of the brokers.
            stored: journals with stores.
            unstored: journals without one. In the others, an append at a known offset after lost
                bytes accepts their loss.
            schedule: the schedule.
        """
        self.appends: list[ConditionalAppend] = []
        self._world = world
        self._rng = Random(f"conditional appends {world.seed}")
        self._brokers = names
        self._unstored = (*unstored, RECREATED)
        self._journals = (*stored, *self._unstored)
        self._schedule = schedule
        self._known: dict[str, Registers] = {}
        self._heads: dict[str, list[int]] = {}
        self._ends: dict[str, int] = {}  # of acknowledged appends, by the names of the observer
        self._names: dict[int, str] = {}
        self._ids: set[int] = set()
        self._forbidden: set[int] = set()

    def start(self) -> None:
        """Append until the faults of the schedule end."""
        world = self._world
        self._create()
        for _ in range(3):
            world.after(self._rng.randrange(SECOND), self._client)

    # --- appends ------------------------------------------------------------------------------

    def _client(self) -> None:
        rng, world = self._rng, self._world
        self._begin(rng.choice(self._brokers), self._choose(rng.choice(self._journals)))
        if self._schedule.is_faulty:
            world.after(rng.randrange(200 * MS), self._client)

    def _choose(self, journal: str) -> ConditionalAppend:
        """Return an append with wishes that the present state fulfils, or nearly does."""
        rng = self._rng
        one = ConditionalAppend(len(self.appends) + 1, journal)
        one.size = rng.choice((0, 5, 300, 1500))
        one.breaks = rng.random() < 0.1
        if rng.random() < 0.1:
            one.suspend = Suspend.NO_RESUME
        known, name = self._known.get(journal, {}), rng.choice(NAMES)
        values = known.get(name, frozenset("1"))
        kind = rng.random()
        if kind < 0.6:
            self._choose_check(one, name, values)
        if 0.1 < kind < 0.5:
            count = rng.choice((1, 1, 2))
            one.union = {name: frozenset(f"{one.number}.{n}" for n in range(count))}
        elif 0.5 < kind < 0.7:
            one.subtract = {name: values if rng.random() < 0.8 else frozenset("1")}
            if rng.random() < 0.3:
                one.union = {name: frozenset(str(one.number))}
        elif kind >= 0.7:
            one.offset = self._choose_offset(journal)
        if rng.random() < 0.1:
            one.size = -1
        return one

    def _choose_check(self, one: ConditionalAppend, name: str, values: frozenset[str]) -> None:
        rng = self._rng
        value = rng.choice(["", *sorted(values)])
        if rng.random() < 0.7:
            one.include = {name: value}
        else:
            one.exclude = {name: rng.choice((value, "1"))}
        if rng.random() < 0.2:
            one.exclude.update({rng.choice(NAMES): "1"})

    def _choose_offset(self, journal: str) -> int:
        rng, heads = self._rng, self._heads.get(journal, [0])
        if journal not in self._unstored:
            return FAR
        return rng.choice((heads[-1], heads[-1], rng.choice(heads), heads[-1] + 1, FAR))

    def _begin(self, name: str, one: ConditionalAppend) -> None:
        one.least = dict(self._ends)
        self.appends.append(one)
        self._send(name, one, HOPS_MAX)

    def _send(self, name: str, one: ConditionalAppend, hops: int) -> None:
        world, rng = self._world, self._rng
        if not world.processes[name].is_alive:
            return

        def done(result: Appended, is_proxied: bool) -> None:
            if is_proxied:
                if hops:
                    self._send(result.resolution.broker.suffix, one, hops - 1)
                return
            self._answer(one, result)

        data, middle = one.data, rng.randrange(len(one.data) + 1)
        pieces = [piece for piece in (data[:middle], data[middle:]) if piece]
        pause_ns = rng.choice((MS // 20, 3 * MS, 3 * MS, 400 * MS))
        world.append(name, one.request, pieces, done, breaks=one.breaks, pause_ns=pause_ns)

    def _answer(self, one: ConditionalAppend, result: Appended) -> None:
        """Remember an answer, and the state of the journal in it."""
        one.result = result
        observer, row = self._world.observer, result.resolution.journal
        if row is None:
            return
        name = self._names[one.number] = observer.name_of(one.journal, row.create_revision)
        is_present = name == one.journal
        if one.is_acknowledged:
            assert not one.breaks, f"an append of a client that broke off succeeded: {one}"
            observer.commit(one.journal, result, one.data)
            self._ends[name] = max(self._ends.get(name, 0), result.end)
        if one.is_acknowledged or result.resolution.status is Status.REGISTER_MISMATCH:
            head = result.end if one.is_acknowledged else result.head
            if is_present and head is not None:
                self._known[one.journal] = registers_of(result.registers)
                self._heads.setdefault(one.journal, []).append(head)

    # --- deletion -----------------------------------------------------------------------------

    def _create(self) -> None:
        """Create the journal at some broker, and delete it some time later."""
        world, rng = self._world, self._rng
        spec = JournalSpec.from_row(RECREATED, {"replication": rng.randrange(1, 4), **SPEC})
        if not self._change(SpecChange(RECREATED, spec, 0)):
            world.after(rng.randrange(MS, 50 * MS), self._create)
            return
        row = self._row()
        assert row is not None
        assert row.create_revision not in self._ids, f"two journals are {row.create_revision}"
        self._ids.add(row.create_revision)
        if self._schedule.is_faulty:
            world.after(rng.randrange(500, 5000) * MS, self._delete)

    def _row(self) -> JournalRow | None:
        fields = self._world.keys.rows.get((JOURNAL_SPACE, (RECREATED,)))
        row = decode_row(JOURNAL_SPACE, fields) if fields is not None else None
        assert row is None or isinstance(row, JournalRow)
        return row

    def _change(self, change: SpecChange) -> bool:
        """Change the journal at a broker, and return whether it was changed."""
        world, name = self._world, self._rng.choice(self._brokers)
        process = world.processes[name]
        keys = process.core.keys
        is_cut = not process.is_alive or process.is_paused or world.is_cut(name, "cluster")
        if is_cut or (change.spec is None) != (RECREATED in keys.journals):
            return False
        planned = plan(keys, [change])
        return planned is not None and world.keys.transact(planned)

    def _delete(self) -> None:
        """Delete the journal, and create it again at once or soon."""
        world, rng, row = self._world, self._rng, self._row()
        if not self._schedule.is_faulty:
            return
        if row is None or not self._change(SpecChange(RECREATED, None, ANY_REVISION)):
            world.after(rng.randrange(MS, 50 * MS), self._delete)
            return
        self._schedule.counts[EVENT + "deletion"] += 1
        for name in self._brokers:
            if rng.random() < 0.4:
                self._schedule.counts[EVENT + "lost watch"] += 1
                world.processes[name].lose_watch(rng.choice((100, 300, 600)) * MS)
        self._end(row.create_revision)
        world.after(rng.choice((1, rng.randrange(1, 1500) * MS)), self._create)

    def _end(self, journal_id: int) -> None:
        """Note that a journal was deleted: no answered append may be in another one."""
        former = self._world.observer.end(RECREATED, journal_id)
        self._forbidden |= {
            one.number for one in self.appends if one.journal == RECREATED and one.result
        }
        self._names = {
            number: former if name == RECREATED else name for number, name in self._names.items()
        }
        for one in self.appends:
            one.least = {
                former if name == RECREATED else name: end for name, end in one.least.items()
            }
        if RECREATED in self._ends:
            self._ends[former] = self._ends.pop(RECREATED)
        self._known.pop(RECREATED, None)
        self._heads.pop(RECREATED, None)

    # --- end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check that each journal accepts appends, and answers with its registers."""
        world, rng = self._world, self._rng
        assert world.run(20 * SECOND, lambda: self._row() is not None), f"no {RECREATED}"
        for journal in self._journals:
            for _ in range(PATIENCE):
                one = ConditionalAppend(len(self.appends) + 1, journal, size=-1)
                self._begin(rng.choice(self._brokers), one)
                if world.run(SECOND, lambda: one.is_acknowledged):  # noqa: B023  # called in this iteration
                    break
            else:
                raise AssertionError(f"{journal} accepts no appends: {one.result}")

    def check(self) -> None:
        """Check all answers against the visible bytes.

        Raises:
            AssertionError: an answer or a byte is not as the registers and offsets demand.
        """
        observer = self._world.observer
        contents = {}
        for name, known in observer.known.items():
            gap = known.find(0)
            contents[name] = bytes(observer.seen[name][: gap if gap >= 0 else len(known)])
        counts = self._schedule.counts
        counts += check_history(contents, self.appends, self._names)
        for number in self._forbidden:
            assert b"(Q%d:" % number not in contents.get(RECREATED, b""), (
                f"append {number} of a deleted {RECREATED} is in the new one"
            )
        counts[EVENT + "appends"] = len(self.appends)
