"""A broker's copy of the key space: journals, live brokers, and assignments at one revision.

A watch applies confirmed rows to it (`qsync_broker.watch`), and resolution, the append machine and
the allocator read it. Every change that a broker wants is a `KeyChange`: rows that must still be as
read, rows to write, and rows to delete. The cluster carries it out as one serializable transaction,
and the watch returns its result.

An assignment is in force while the row of its broker exists. A journal's route consists of its
assignments in force.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    NO_ROUTE,
    PUBLISHER_SPACE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    KeySpaceRow,
    PublisherRow,
    Route,
    decode_row,
    encode_row,
    space_of,
)

_NONE: Mapping[BrokerId, AssignmentRow] = {}


class Absent(NamedTuple):
    """A key that must not exist, or that is to be deleted."""

    space: int
    key: tuple[str, ...]


class KeyChange(NamedTuple):
    """A transaction over the key space.

    Attributes:
        expected: rows that must exist exactly so, and keys that must not exist.
        written: rows to insert or replace.
        deleted: keys to delete.
    """

    expected: tuple[KeySpaceRow | Absent, ...]
    written: tuple[KeySpaceRow, ...] = ()
    deleted: tuple[Absent, ...] = ()


class Written(NamedTuple):
    """A tuple that was inserted or replaced."""

    space: int
    fields: list[Any]


class Updated(NamedTuple):
    """A tuple to which operations were applied."""

    space: int
    key: list[Any]
    operations: list[list[Any]]


class Deleted(NamedTuple):
    """A tuple that was deleted."""

    space: int
    key: list[Any]


RowChange: TypeAlias = Written | Updated | Deleted


def absent(row: KeySpaceRow) -> Absent:
    """Return the key of a row as one to be deleted."""
    return Absent(space_of(row), tuple(row.key))


class KeySpace:
    """Journals, brokers and assignments at a revision.

    Attributes:
        revision: confirmed index up to which rows have been applied.
        specified: revision of the last change of a specification or a suspension.
        journals: journals by name.
        brokers: live brokers.
        publishers: states of publications, by journal and its `create_revision`.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.specified = 0
        self._is_specified = False
        self.journals: dict[str, JournalRow] = {}
        self.brokers: dict[BrokerId, BrokerRow] = {}
        self.publishers: dict[str, dict[int, PublisherRow]] = {}
        self._assignments: dict[str, dict[BrokerId, AssignmentRow]] = {}
        self._by_broker: dict[BrokerId, dict[str, None]] = {}
        self._primaries: Counter[BrokerId] = Counter()

    # --- changes ------------------------------------------------------------------------------

    def apply(self, change: RowChange) -> tuple[str, ...]:
        """Apply a change of a row, and return the key of the row.

        Raises:
            ValueError: the tuple or the update has another form than rows of this space.
        """
        if change.space == PUBLISHER_SPACE:
            return self._apply_publisher(change)
        if isinstance(change, Deleted):
            self._delete(change.space, change.key)
            return tuple(change.key)
        fields = change.fields if isinstance(change, Written) else self._updated(change)
        row = decode_row(change.space, fields)
        if isinstance(row, JournalRow):
            former = self.journals.get(row.name)
            if former is None or former.mod_revision != row.mod_revision:
                self._is_specified = True
            self.journals[row.name] = row
        elif isinstance(row, BrokerRow):
            self.brokers[row.id] = row
        else:
            former_row = self.assignments(row.journal).get(row.broker)
            was_primary = former_row is not None and former_row.slot == 0
            self._primaries[row.broker] += (row.slot == 0) - was_primary
            self._assignments.setdefault(row.journal, {})[row.broker] = row
            self._by_broker.setdefault(row.broker, {})[row.journal] = None
        return tuple(row.key)

    def _updated(self, change: Updated) -> list[Any]:
        row: KeySpaceRow | None
        if change.space == JOURNAL_SPACE:
            row = self.journals.get(change.key[0])
        elif change.space == BROKER_SPACE:
            row = self.brokers.get(BrokerId(*change.key))
        else:
            row = self.assignments(change.key[0]).get(BrokerId(*change.key[1:]))
        if row is None:
            raise ValueError(f"space {change.space} has no row {change.key} to update")
        return self._set_fields(change, encode_row(row))

    @staticmethod
    def _set_fields(change: Updated, fields: list[Any]) -> list[Any]:
        for operator, field, value in change.operations:
            if operator != "=" or not isinstance(field, int) or not 0 <= field < len(fields):
                raise ValueError(f"row {change.key} was updated by {operator} {field}: use `=`")
            fields[field] = value
        return fields

    def _apply_publisher(self, change: RowChange) -> tuple[str, ...]:
        key = change.fields[:2] if isinstance(change, Written) else change.key
        journal, journal_id = key
        rows = self.publishers.setdefault(journal, {})
        if isinstance(change, Deleted):
            rows.pop(journal_id, None)
        elif isinstance(change, Written):
            rows[journal_id] = PublisherRow(*change.fields)
        else:
            rows[journal_id] = PublisherRow(*self._set_fields(change, list(rows[journal_id])))
        if not rows:
            del self.publishers[journal]
        return tuple(key)

    def advance(self, revision: int) -> None:
        """Note that all changes up to a revision were applied."""
        self.revision = max(self.revision, revision)
        if self._is_specified:
            self.specified, self._is_specified = self.revision, False

    def clear(self) -> None:
        """Forget all rows, before those of a new snapshot are applied."""
        self._is_specified = True
        self.journals.clear()
        self.brokers.clear()
        self.publishers.clear()
        self._assignments.clear()
        self._by_broker.clear()
        self._primaries.clear()

    def _delete(self, space: int, key: list[Any]) -> None:
        if space == JOURNAL_SPACE:
            self._is_specified |= self.journals.pop(key[0], None) is not None
        elif space == BROKER_SPACE:
            self.brokers.pop(BrokerId(*key), None)
        elif space == ASSIGNMENT_SPACE:
            journal, broker = key[0], BrokerId(*key[1:])
            of_journal = self._assignments.get(journal, {})
            removed = of_journal.pop(broker, None)
            self._primaries[broker] -= removed is not None and removed.slot == 0
            if not of_journal:
                self._assignments.pop(journal, None)
            of_broker = self._by_broker.get(broker, {})
            of_broker.pop(journal, None)
            if not of_broker:
                self._by_broker.pop(broker, None)

    # --- queries ------------------------------------------------------------------------------

    def assignments(self, journal: str) -> Mapping[BrokerId, AssignmentRow]:
        """Return all assignments of a journal, in force or not."""
        return self._assignments.get(journal, _NONE)

    def assigned_journals(self) -> Iterator[str]:
        """Return the names of the journals that have assignments; some may not exist any more."""
        return iter(self._assignments)

    def journals_of(self, broker: BrokerId) -> tuple[str, ...]:
        """Return the names of the journals of a broker, in the order of assignment."""
        return tuple(self._by_broker.get(broker, ()))

    def published(self, journal: JournalRow) -> int:
        """Return the sequence up to which publications of a journal were removed."""
        row = self.publishers.get(journal.name, {}).get(journal.create_revision)
        return row.published if row is not None else 0

    def load(self, broker: BrokerId) -> int:
        """Return the number of a broker's assignments."""
        return len(self._by_broker.get(broker, ()))

    def primaries(self, broker: BrokerId) -> int:
        """Return the number of a broker's assignments as a primary."""
        return self._primaries[broker]

    def route(self, journal: str) -> Route:
        """Return the route of a journal: its assignments in force, and the primary among them."""
        members = sorted(
            (broker, row.slot)
            for broker, row in self.assignments(journal).items()
            if broker in self.brokers
        )
        primary = next((n for n, (_, slot) in enumerate(members) if slot == 0), -1)
        return Route(tuple(broker for broker, _ in members), primary) if members else NO_ROUTE

    def is_consistent(self, journal: JournalRow) -> bool:
        """Return whether all brokers of a journal's route have been synchronised with each other.

        A broker that lost its disk since then is still in the route. The epoch of its data reveals
        it at the next synchronisation.
        """
        assignments = self.assignments(journal.name)
        return (
            journal.route.members == self.route(journal.name).members
            and journal.epoch > 0
            and all(
                assignments[broker].create_revision <= journal.epoch
                for broker in journal.route.members
            )
        )
