"""The allocator: it brings the assignments of journals towards the wanted replication.

The live broker with the least create revision carries out the changes. It examines journals whose
rows have changed, all journals after a change of a broker, and all of them again from time to time.
Each examination returns at most one change, by the first rule that applies:

    rule        condition                                     change
    ---------   -------------------------------------------   ------------------------------------
    fill        fewer brokers than wanted                     add the missing ones
    make room   the same, but no broker has room              add another broker to a journal of a
                                                              full one, so that it can leave
    promote     no primary                                    move slot 0 to a synchronised broker
    forget      a broker has no lease, all others are         remove its assignment
                synchronised and whole
    shrink      more brokers than wanted, all synchronised    remove one; if it is the primary,
                                                              another one becomes the primary
    improve     a broker is leaving, or loaded more than      add one that takes its place; `shrink`
                its share, or one zone has all copies         follows

A journal therefore never has fewer synchronised brokers than it wants because of a change of the
allocator. Without a store, `forget`, `shrink` and `improve` also wait until no broker is partial
(`qsync_broker.wholeness`). Zones: a journal with several copies uses several zones if brokers in
them have room. Shares: each broker's load is in proportion to its limit.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from math import inf

from qsync_broker.keyspace import Absent, KeyChange, KeySpace, absent
from qsync_broker.wholeness import partial_brokers
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    JOURNAL_SPACE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    KeySpaceRow,
    next_revision,
)

CHANGES_MAX = 64
"""Maximum number of changes of one step."""
EXAMINED_MAX = 256
"""Maximum number of journals that one step examines."""
SEARCHED_MAX = 2000
"""Maximum number of journals that a search for room looks at."""
AssignmentRows = Mapping[BrokerId, AssignmentRow]
AGAIN_NS = 10_000_000_000
"""Interval between two examinations of all journals."""


def allocation_leader(keys: KeySpace) -> BrokerId | None:
    """Return the broker that carries out changes: the oldest live one."""
    oldest = min(keys.brokers.values(), key=lambda row: (row.create_revision, row.id), default=None)
    return oldest.id if oldest is not None else None


def wanted_replicas(journal: JournalRow, replication_max: int) -> int:
    """Return the number of brokers that a journal's route must have."""
    replication = journal.spec.get("replication", 3)
    stated = replication if type(replication) is int else 3
    return max(0, min((stated, min(stated, 1), 0)[min(journal.suspend_level, 2)], replication_max))


def is_settled(keys: KeySpace, journal: JournalRow, wanted: int) -> bool:
    """Return whether one of a journal's brokers may be removed without a loss of bytes.

    A journal without copies is suspended because it has no bytes: none can be lost.

    Args:
        keys: the key space.
        journal: the journal.
        wanted: number of brokers that its route must have.
    """
    return not wanted or (not partial_brokers(journal) and keys.is_consistent(journal))


def can_hand_over(keys: KeySpace, me: BrokerId, replication_max: int) -> bool:
    """Return whether other brokers could take, or take, the place of this one in a journal."""
    others = [row for row in keys.brokers.values() if row.id != me and not row.is_exiting]
    return any(
        _is_being_replaced(keys, journal, me, replication_max)
        or any(
            row.id not in keys.assignments(journal) and keys.load(row.id) < row.journal_limit
            for row in others
        )
        for journal in keys.journals_of(me)
    )


def _is_being_replaced(keys: KeySpace, name: str, me: BrokerId, replication_max: int) -> bool:
    """Return whether enough other brokers stay in a journal; they may not be synchronised yet."""
    journal = keys.journals.get(name)
    staying = [
        broker
        for broker in keys.assignments(name)
        if broker in keys.brokers and not keys.brokers[broker].is_exiting
    ]
    return journal is not None and len(set(staying) - {me}) >= max(
        1, wanted_replicas(journal, replication_max)
    )


class Allocator:
    """The allocator of one broker."""

    def __init__(self) -> None:
        self._noted: dict[str, None] = {}
        self._is_leader = False
        self._again_ns = 0

    def note(self, journal: str) -> None:
        """Examine a journal whose row or assignments have changed."""
        self._noted[journal] = None

    def note_all(self, keys: KeySpace) -> None:
        """Examine all journals: a broker came, left, or changed."""
        self._noted.update(dict.fromkeys((*keys.journals, *keys.assigned_journals())))

    def step(
        self, keys: KeySpace, me: BrokerId, replication_max: int, now_ns: int
    ) -> list[KeyChange]:
        """Return the next changes, if this broker carries them out.

        Args:
            keys: the key space.
            me: this broker.
            replication_max: upper limit of the replication of all journals.
            now_ns: monotonic time in nanoseconds.
        """
        was_leader, self._is_leader = self._is_leader, allocation_leader(keys) == me
        if not self._is_leader:
            self._noted.clear()
            return []
        if not was_leader or now_ns >= self._again_ns:
            self._again_ns = now_ns + AGAIN_NS
            self.note_all(keys)
        if not self._noted:
            return []
        examination = _Examination(keys, replication_max)
        changes: list[KeyChange] = []
        names = list(self._noted)[:EXAMINED_MAX]
        for name in names:
            del self._noted[name]
            found = examination.changes(name)
            if found:
                changes += found
                self._noted[name] = None  # there may be more to do afterwards
            if len(changes) >= CHANGES_MAX:
                break
        return changes


class _Examination:
    """One step over the key space, with the loads that its own changes add."""

    def __init__(self, keys: KeySpace, replication_max: int) -> None:
        self.keys = keys
        self.replication_max = replication_max
        self._revision = next_revision(keys.revision)
        self._loads = Counter({broker: keys.load(broker) for broker in keys.brokers})
        self._primaries = Counter({broker: keys.primaries(broker) for broker in keys.brokers})
        self._staying = {row.id: row for row in keys.brokers.values() if not row.is_exiting}
        self._zones = {broker.zone for broker in self._staying}
        slots = sum(row.journal_limit for row in self._staying.values())
        items = sum(self._loads.values())
        self._shares = {
            broker: -(-row.journal_limit * items // slots) for broker, row in self._staying.items()
        }

    def changes(self, name: str) -> list[KeyChange]:
        """Return the changes of a journal; of a deleted one, the removal of its assignments."""
        journal = self.keys.journals.get(name)
        if journal is None:
            gone = Absent(JOURNAL_SPACE, (name,))
            rows = self.keys.assignments(name).values()
            return [KeyChange((gone, row), (), (absent(row),)) for row in rows]
        change = self._change(journal)
        return [change] if change is not None else []

    def _change(self, journal: JournalRow) -> KeyChange | None:
        rows = self.keys.assignments(journal.name)
        live = sorted(broker for broker in rows if broker in self.keys.brokers)
        wanted = wanted_replicas(journal, self.replication_max)
        if len(live) < wanted:
            added = self._choose(live, rows, wanted, wanted - len(live))
            if added:
                return self._add(journal, added)
            room = self._make_room(rows)
            if room is not None:
                return room
        if live and not any(rows[broker].slot == 0 for broker in live):
            return self._promote(journal, live)
        lost = sorted(broker for broker in rows if broker not in self.keys.brokers)
        is_known = any(broker in live for broker in journal.route.members)
        if not is_settled(self.keys, journal, wanted):
            return None
        if lost and len(live) >= wanted and is_known:
            return self._remove(journal, lost[0])
        if len(live) > wanted:
            return self._remove(journal, self._worst(live, rows, wanted))
        better = self._improvement(live, rows, wanted)
        return self._add(journal, [better]) if better is not None else None

    # --- changes --------------------------------------------------------------------------

    def _expected(self, journal: JournalRow) -> tuple[KeySpaceRow, ...]:
        """Return the rows that must be unchanged: the journal and all its assignments."""
        return (journal, *sorted(self.keys.assignments(journal.name).values()))

    def _add(self, journal: JournalRow, brokers: list[BrokerId]) -> KeyChange:
        rows = self.keys.assignments(journal.name)
        slot = max((row.slot for row in rows.values()), default=-1) + 1
        revision = self._revision
        added = [
            AssignmentRow(journal.name, broker, number, revision, revision)
            for number, broker in enumerate(brokers, slot)
        ]
        if not slot:
            self._primaries[brokers[0]] += 1
        self._loads.update(brokers)
        keys = [Absent(ASSIGNMENT_SPACE, tuple(row.key)) for row in added]
        return KeyChange((*self._expected(journal), *keys), tuple(added))

    def _remove(self, journal: JournalRow, broker: BrokerId) -> KeyChange:
        """Remove a broker; if it is the primary, another one takes its place at once.

        Its fragments may not be persisted yet, so it is not drained before it has announced that.
        """
        self._loads[broker] -= 1
        rows = self.keys.assignments(journal.name)
        rest = sorted(one for one in rows if one != broker and one in self.keys.brokers)
        expected, written = self._expected(journal), list[KeySpaceRow]()
        if rows[broker].slot == 0 and rest:
            best = self._best_primary(journal, rest)
            written.append(rows[best]._replace(slot=0, mod_revision=self._revision))
        row = self.keys.brokers.get(broker)
        if row is not None and row.is_drained:
            expected += (row,)
            written.append(row._replace(is_drained=False, mod_revision=self._revision))
        return KeyChange(expected, tuple(written), (absent(rows[broker]),))

    def _promote(self, journal: JournalRow, live: list[BrokerId]) -> KeyChange:
        """Exchange the slots of the best broker and of the one that has slot 0, if any."""
        rows = self.keys.assignments(journal.name)
        best = self._best_primary(journal, live)
        revision = self._revision
        former = [row for row in rows.values() if row.slot == 0]
        moved = [row._replace(slot=rows[best].slot, mod_revision=revision) for row in former]
        promoted = rows[best]._replace(slot=0, mod_revision=revision)
        return KeyChange(self._expected(journal), (promoted, *moved))

    def _best_primary(self, journal: JournalRow, live: list[BrokerId]) -> BrokerId:
        """Return the broker that becomes the primary: a synchronised one with few primaries."""
        best = min(
            live,
            key=lambda broker: (
                broker not in journal.route.members,
                broker in partial_brokers(journal),
                self.keys.brokers[broker].is_exiting,
                self._primaries[broker] / self.keys.brokers[broker].journal_limit,
                broker,
            ),
        )
        self._primaries[best] += 1
        return best

    # --- choices --------------------------------------------------------------------------

    def _has_room(self, row: BrokerRow) -> bool:
        return self._loads[row.id] < row.journal_limit

    def _ratio(self, broker: BrokerId) -> float:
        return self._loads[broker] / self.keys.brokers[broker].journal_limit

    def _spans_zones(self, members: Collection[BrokerId], wanted: int) -> bool:
        """Return whether the copies of a journal are in several zones, if there are several."""
        if wanted < 2 or len(self._zones) < 2:
            return True
        return max(Counter(broker.zone for broker in members).values(), default=0) < wanted

    def _choose(
        self, live: list[BrokerId], rows: AssignmentRows, wanted: int, count: int
    ) -> list[BrokerId]:
        """Return brokers to add: in the zones with the fewest copies, then the least loaded."""
        chosen: list[BrokerId] = []
        for _ in range(count):
            members = [*live, *chosen]
            zones = Counter(broker.zone for broker in members)
            free = [
                row.id
                for row in self._staying.values()
                if row.id not in rows and row.id not in chosen and self._has_room(row)
            ]
            if not free:
                break
            # A journal's first broker becomes its primary.
            first = self._primaries if not rows and not chosen else Counter[BrokerId]()
            chosen.append(
                min(free, key=lambda one: (zones[one.zone], first[one], self._ratio(one), one))
            )
        return chosen

    def _make_room(self, rows: AssignmentRows) -> KeyChange | None:
        """Return the last move of a chain of moves that makes room at one of the other brokers.

        The chain is a path of the maximum flow from journals to brokers: a journal of the first
        broker can move to the second, one of the second to the third, and the last has room.
        """
        queue = deque(sorted(broker for broker in self._staying if broker not in rows))
        seen = set(queue)
        searched = 0
        while queue:
            full = queue.popleft()
            for name in self.keys.journals_of(full):
                searched += 1
                journal = self.keys.journals.get(name)
                if searched > SEARCHED_MAX:
                    return None
                if journal is None or not self.keys.is_consistent(journal):
                    continue
                others = self.keys.assignments(name)
                if len(others) > wanted_replicas(journal, self.replication_max):
                    return None  # a move is under way already
                free = self._choose([], others, 1, 1)
                count = len(others)
                if free and self._takes_place(free[0], full, list(others), others, count):
                    return self._add(journal, free)
                more = sorted(b for b in self._staying if b not in others and b not in seen)
                queue.extend(more)
                seen.update(more)
        return None

    def _worst(self, live: list[BrokerId], rows: AssignmentRows, wanted: int) -> BrokerId:
        """Return the broker that a journal loses if it has too many; of equal ones, the oldest."""

        def badness(broker: BrokerId) -> tuple[bool, bool, int, float, float, BrokerId]:
            rest = [one for one in live if one != broker]
            zones = Counter(one.zone for one in live)
            return (
                broker not in self._staying,
                self._spans_zones(rest, wanted),
                zones[broker.zone],
                self._ratio(broker),
                -rows[broker].create_revision if broker in rows else -inf,
                broker,
            )

        return max(live, key=badness)

    def _improvement(
        self, live: list[BrokerId], rows: AssignmentRows, wanted: int
    ) -> BrokerId | None:
        """Return a broker that should take the place of one of the journal's."""
        replaced: Iterable[BrokerId] = [broker for broker in live if broker not in self._staying]
        if not replaced and not self._spans_zones(live, wanted):
            replaced = live
        for broker in replaced:
            rest = [one for one in live if one != broker]
            for found in self._choose(rest, rows, wanted, 1):
                is_leaving = broker not in self._staying
                spans_zones = self._spans_zones([*rest, found], wanted)
                if (is_leaving or spans_zones) and self._takes_place(
                    found, broker, live, rows, wanted
                ):
                    return found
        return self._balance(live, rows, wanted)

    def _takes_place(
        self,
        added: BrokerId,
        broker: BrokerId,
        live: list[BrokerId],
        rows: AssignmentRows,
        wanted: int,
    ) -> bool:
        """Return whether `shrink` removes a broker once another one is added, and not that one."""
        self._loads[added] += 1
        worst = self._worst([*live, added], rows, wanted)
        self._loads[added] -= 1
        return worst == broker

    def _balance(self, live: list[BrokerId], rows: AssignmentRows, wanted: int) -> BrokerId | None:
        """Return a broker below its share, if one of the journal's is above its own."""
        over = [one for one in live if one in self._shares and self._loads[one] > self._shares[one]]
        if not over:
            return None
        worst = max(over, key=lambda one: (self._ratio(one), one))
        rest = [one for one in live if one != worst]
        found = [
            one
            for one in self._staying
            if one not in rows
            and self._loads[one] < self._shares[one]
            and self._spans_zones([*rest, one], wanted)
            and self._takes_place(one, worst, live, rows, wanted)
        ]
        return min(found, key=lambda one: (self._ratio(one), one), default=None)
