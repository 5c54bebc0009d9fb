"""Keeps the key space of journals as declared: its three spaces, and the specifications.

A declared journal is created, and its specification is replaced when the declaration changes. A
journal that clients created (`gazctl journals apply`) is left alone, and so is one whose
declaration was removed: deleting a journal destroys data, so it is an order of its own.
"""

from typing import Any

from qsync_node.format.journals import (
    JOURNAL_SPACE,
    KEY_SPACES,
    NO_ROUTE,
    JournalRow,
    decode_row,
    definitions,
    encode_row,
    next_revision,
)
from qsync_operator.iproto import Connection, DatabaseError
from qsync_operator.models.journals import JournalSpec, row_spec

_SPACE = 280
_TUPLE_FOUND = 3
_MOD_REVISION = 8
"""Number of a journal's field `mod_revision`."""


def enable(database: Connection) -> None:
    """Create the spaces of the key space that are missing.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    existing = {row[0] for row in database.select(_SPACE) if row[0] in KEY_SPACES}
    if len(existing) == len(KEY_SPACES):
        return
    for space, fields in definitions():
        try:
            database.insert(space, fields)
        except DatabaseError as error:
            if error.code != _TUPLE_FOUND:
                raise


def declare(database: Connection, wanted: list[JournalSpec]) -> list[str]:
    """Create and update declared journals, and return the names of the changed ones.

    Args:
        database: connection to the leader.
        wanted: declared journals.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    changed = []
    revision = database.call("qsync.mark")[0]
    for spec in wanted:
        row = _row(database, spec.journal)
        fields = row_spec(spec)
        if row is None:
            made = next_revision(revision)
            row = JournalRow(spec.journal, fields, 0, 0, 0, 0, NO_ROUTE, made, made)
            database.insert(JOURNAL_SPACE, encode_row(row))
        elif row.spec != fields:
            # Brokers write the other fields of the row, so only the specification is replaced.
            database.update(
                JOURNAL_SPACE,
                row.key,
                [["=", 1, fields], ["=", _MOD_REVISION, next_revision(revision, row)]],
            )
        else:
            continue
        changed.append(spec.journal)
    return changed


def _row(database: Connection, name: str) -> JournalRow | None:
    found: list[list[Any]] = database.select(JOURNAL_SPACE, [name])
    if not found:
        return None
    row = decode_row(JOURNAL_SPACE, found[0])
    assert isinstance(row, JournalRow)
    return row
