"""Listing and changing the specifications of journals, over a broker's copy of the key space."""

from collections.abc import Iterable
from typing import NamedTuple

from qsync_broker.folders import Folders, refusal
from qsync_broker.keyspace import Absent, KeyChange, KeySpace, absent
from qsync_broker.labels import LabelSelector, with_name
from qsync_broker.spec import JournalSpec, problem
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    NO_ROUTE,
    JournalRow,
    KeySpaceRow,
    next_revision,
)

CHANGES_MAX = 512
"""Maximum number of changes of one request."""
ANY_REVISION = -1
SUSPEND_LEVELS = (0, 1, 2)
"""NONE, PARTIAL and FULL."""


class ChangeError(ValueError):
    """A wanted change violates a rule; the text names it."""


class SpecChange(NamedTuple):
    """One wanted change of a specification.

    Attributes:
        name: name of the journal.
        spec: the new specification, or None to delete the journal.
        expected: revision of the last change, 0 if the journal must not exist, -1 for any.
        suspend: level and offset of the suspension, or None to keep it.
    """

    name: str
    spec: JournalSpec | None
    expected: int
    suspend: tuple[int, int] | None = None


def matches(row: JournalRow, selector: LabelSelector) -> bool:
    """Return whether a selector selects a journal, whose name counts as a label."""
    labels = JournalSpec.from_row(row.name, row.spec).labels
    return selector.matches(with_name(labels, row.name))


def check(changes: Iterable[SpecChange]) -> None:
    """Check changes by themselves.

    Raises:
        ChangeError: a change violates a rule.
    """
    names: set[str] = set()
    for number, change in enumerate(changes):
        where = f"changes[{number}]"
        if number >= CHANGES_MAX:
            raise ChangeError(f"a request may have {CHANGES_MAX} changes: split it")
        if change.name in names:
            raise ChangeError(f"{where}: {change.name!r} occurs twice")
        names.add(change.name)
        if change.spec is None and not change.expected:
            raise ChangeError(f"{where}.expect_mod_revision: must be -1 or positive to delete")
        if change.expected < ANY_REVISION:
            raise ChangeError(f"{where}.expect_mod_revision: must be -1 or more")
        found = problem(change.spec) if change.spec is not None else ""
        if found:
            raise ChangeError(f"{where}.upsert.{found}")
        if change.suspend is not None and change.suspend[0] not in SUSPEND_LEVELS:
            raise ChangeError(f"{where}.upsert.suspend.level: use NONE, PARTIAL or FULL")
        if change.suspend is not None and change.suspend[1] < 0:
            raise ChangeError(f"{where}.upsert.suspend.offset: must not be negative")


def plan(keys: KeySpace, changes: list[SpecChange]) -> KeyChange | None:
    """Return the transaction of checked changes, or None if a row has another revision.

    Raises:
        ChangeError: a new journal's name is a folder of another one, or in its folder.
    """
    _check_folders(keys, changes)
    expected: list[Absent | KeySpaceRow] = []
    written: list[KeySpaceRow] = []
    deleted: list[Absent] = []
    for change in changes:
        row = keys.journals.get(change.name)
        found = row.mod_revision if row is not None else 0
        if change.expected not in (found, ANY_REVISION):
            return None
        expected.append(row if row is not None else Absent(JOURNAL_SPACE, (change.name,)))
        if change.spec is not None:
            written.append(_written(keys, change, change.spec, row))
        elif row is not None:
            deleted.append(absent(row))
    return KeyChange(tuple(expected), tuple(written), tuple(deleted))


def _written(
    keys: KeySpace, change: SpecChange, spec: JournalSpec, row: JournalRow | None
) -> JournalRow:
    revision = next_revision(keys.revision, row)
    if row is None:
        row = JournalRow(spec.name, {}, 0, 0, 0, 0, NO_ROUTE, revision, revision)
    level, offset = change.suspend or (row.suspend_level, row.suspend_offset)
    return row._replace(
        spec=spec.row_fields(), suspend_level=level, suspend_offset=offset, mod_revision=revision
    )


def _check_folders(keys: KeySpace, changes: list[SpecChange]) -> None:
    """Refuse new names below or above other ones: all objects in a folder belong to one journal."""
    created = [change.name for change in changes if change.name not in keys.journals]
    deleted = {change.name for change in changes if change.spec is None}
    created = [name for name in created if name not in deleted]
    if not created:
        return
    folders = Folders(name for name in keys.journals if name not in deleted)
    for name in dict.fromkeys(created):
        other = folders.other(name)
        if other:
            raise ChangeError(refusal(name, other))
        folders.add(name)


def is_carried_out(keys: KeySpace, change: KeyChange) -> bool:
    """Return whether the rows are as a transaction, whose outcome may be unknown, leaves them."""
    return all(
        (found := keys.journals.get(row.name)) is not None
        and (found.spec, found.mod_revision) == (row.spec, row.mod_revision)
        for row in change.written
        if isinstance(row, JournalRow)
    ) and all(str(row.key[0]) not in keys.journals for row in change.deleted)
