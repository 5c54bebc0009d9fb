"""Keeps the key space of journals as declared: its spaces, their user, and the specifications.

Brokers log in as `qsync_broker`. This user reads and writes the spaces of the key space, and has no
other privilege: a broker that was taken over cannot read data of the database. Its password is
derived from the cluster's secret, as that of `admin` is.

A declared journal is created, and its specification is replaced when the declaration changes. A
journal that clients created (`gazctl journals apply`) is left alone, and so is one whose
declaration was removed: deleting a journal destroys data, so it is an order of its own.
"""

from collections.abc import Collection
from typing import Any, Final, Literal

from qsync_broker.allocator import can_hand_over
from qsync_broker.folders import folders_of, refusal
from qsync_broker.keyspace import KeySpace, Written
from qsync_broker.spec import REPLICATION_MAX
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.journals import (
    BROKER_SPACE,
    DATA_SPACES,
    JOURNAL_SPACE,
    KEY_SPACES,
    NO_ROUTE,
    PUBLICATION_SPACE,
    BrokerRow,
    JournalRow,
    decode_row,
    definitions,
    encode_row,
    next_revision,
)
from qsync_node.format.proofs import broker_password
from qsync_operator.api.journals import QsyncJournalSpec, row_spec
from qsync_operator.api.users import BROKER_USER, GrantSpec, PrivilegeName
from qsync_operator.members import access
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_operator.plan.observed import BrokersView

Declared = Literal["created", "configured", "unchanged"]
"""The change by a declaration."""

_SPACE: Final = int(SystemSpace.SPACE)
_MOD_REVISION = 8
"""Number of a journal's field `mod_revision`."""


def enable(database: IprotoConnection, secret: str) -> None:
    """Create the missing spaces of the key space, and set the brokers' user right.

    Args:
        database: connection to the leader.
        secret: the cluster's secret.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
        AccessRefused: a role has the name of the brokers' user.
    """
    existing = {row[0] for row in database.select(_SPACE) if row[0] in DATA_SPACES}
    if len(existing) < len(DATA_SPACES):
        _create(database)
    access.bring(database, [_user(database, secret)])


def _user(database: IprotoConnection, secret: str) -> access.Principal:
    names = [(row[0], row[2]) for row in database.select(_SPACE) if row[0] in DATA_SPACES]
    return access.Principal(
        BROKER_USER,
        stored_hash(broker_password(secret)),
        grants=tuple(GrantSpec(privileges=_privileges(space), space=name) for space, name in names),
        is_public=False,
    )


def _privileges(space: int) -> list[PrivilegeName]:
    """Return the privileges of brokers: they read publications, but do not publish."""
    return ["read"] if space == PUBLICATION_SPACE else ["read", "write"]


def _create(database: IprotoConnection) -> None:
    for space, fields in definitions():
        try:
            database.insert(space, fields)
        except DatabaseError as error:
            if error.code != ErrorCode.TUPLE_FOUND:
                raise


class JournalRefused(DatabaseError):  # noqa: N818  # a decision, nothing failed
    """A journal that cannot be created beside the existing ones."""

    def __init__(self, name: str, other: str) -> None:
        super().__init__(refusal(name, other), ErrorCode.ILLEGAL_PARAMS)


def declare(database: IprotoConnection, wanted: QsyncJournalSpec) -> Declared:
    """Create a declared journal, or update its specification, and return which of these was done.

    Args:
        database: connection to the leader.
        wanted: declared journal.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
        JournalRefused: the journal would share the folder of an existing one.
    """
    fields = row_spec(wanted)
    row = _row(database, wanted.journal)
    if row is not None and row.spec == fields:
        return "unchanged"
    revision = database.call("qsync.mark")[0]
    # Brokers and clients change the row as well, so it is read again.
    with database.transaction():
        _write(database, wanted.journal, fields, revision)
    return "created" if row is None else "configured"


def _write(database: IprotoConnection, name: str, fields: dict[str, Any], revision: int) -> None:
    row = _row(database, name)
    if row is None:
        _check_folders(database, name)
        made = next_revision(revision)
        created = JournalRow(name, fields, 0, 0, 0, 0, NO_ROUTE, made, made)
        database.insert(JOURNAL_SPACE, encode_row(created))
    else:
        # Brokers write the other fields of the row, so only the specification is replaced.
        changes = [["=", 1, fields], ["=", _MOD_REVISION, next_revision(revision, row)]]
        database.update(JOURNAL_SPACE, row.key, changes)


def _check_folders(database: IprotoConnection, name: str) -> None:
    """Refuse a new name below or above another one. Clients create journals, too."""
    for folder in folders_of(name):
        if _row(database, folder) is not None:
            raise JournalRefused(name, folder)
    below = database.first_from(JOURNAL_SPACE, [f"{name}/"])
    if below is not None and str(below[0]).startswith(f"{name}/"):
        raise JournalRefused(name, str(below[0]))


def observe(
    database: IprotoConnection, voters: Collection[str], leaving: Collection[str] = ()
) -> BrokersView:
    """Return the state of the brokers of voters.

    Args:
        database: connection to the leader.
        voters: names of the voters that have a broker.
        leaving: those that are about to be removed, and whose broker runs, or will soon.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    keys = KeySpace()
    existing = {row[0] for row in database.select(_SPACE)}
    if not existing.issuperset(KEY_SPACES):
        return BrokersView(missing=frozenset(voters))  # no broker has ever run
    for space in KEY_SPACES:
        for row in database.select(space):
            keys.apply(Written(space, row))
    live = {broker.suffix for broker in keys.brokers}
    return BrokersView(
        holding=frozenset(
            one.suffix for one in keys.brokers if can_hand_over(keys, one, REPLICATION_MAX)
        ),
        exiting=frozenset(one.suffix for one, row in keys.brokers.items() if row.is_exiting),
        undrained=frozenset(one.suffix for one, row in keys.brokers.items() if not row.is_drained)
        | (frozenset(leaving) - live),
        missing=frozenset(voters) - live,
    )


def drain(database: IprotoConnection, member: str) -> None:
    """Let the broker of a member hand its journals over.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    revision = database.call("qsync.mark")[0]
    with database.transaction():
        for fields in database.select(BROKER_SPACE):
            row = decode_row(BROKER_SPACE, fields)
            if isinstance(row, BrokerRow) and row.id.suffix == member:
                changed = row._replace(is_exiting=True, mod_revision=next_revision(revision, row))
                database.replace(BROKER_SPACE, encode_row(changed))


def _row(database: IprotoConnection, name: str) -> JournalRow | None:
    found: list[list[Any]] = database.select(JOURNAL_SPACE, [name])
    if not found:
        return None
    row = decode_row(JOURNAL_SPACE, found[0])
    assert isinstance(row, JournalRow)
    return row
