"""Conversion of a restored state to the first state of a new replica set (pure).

The data stays: spaces, users and their rights, positions of sequences, idempotency keys, terms and
the clock. Indexes therefore continue at the restored point, and a retry of an old request is
recognized. The identity of the old cluster is removed: its members, its removed members, its plan
and its name. A row of `_schema` records the source and the index of the state.
"""

from typing import Any

from qsync_client.protocol.access import FIRST_USER_ID, Privilege, UserId
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.membership import (
    CLUSTER_SPACE,
    LEVEL,
    REMOVED_SPACE,
    ClusterMember,
    Configuration,
)
from qsync_node.engine.database import Database
from qsync_node.errors import QsyncError
from qsync_node.format.body import put_body
from qsync_node.format.keys import DELETE, REPLACE, Key
from qsync_node.format.mp import pack
from qsync_node.format.proofs import admin_password
from qsync_node.transactions.own_rows import (
    OPEN_KEY,
    PLAN_KEY,
    RESTORED_KEY,
    SCHEMA_SPACE,
    read_key_body,
    read_term_body,
    rows_of,
    schema_value,
)

USER_SPACE, PRIV_SPACE = int(SystemSpace.USER), int(SystemSpace.PRIV)
ADMIN, PUBLIC = int(UserId.ADMIN), int(UserId.PUBLIC)
APPLICATION_BITS = sum(one for one in Privilege if one <= Privilege.ALTER)
EXECUTE = int(Privilege.EXECUTE)


class LevelError(QsyncError):
    """The state was written by a later version."""


def restored_bodies(
    bodies: list[bytes],
    index: int,
    uuid: str,
    name: str,
    replicaset_uuid: str,
    voters: int,
    *,
    supported: int = LEVEL,
) -> list[bytes]:
    """Return the rows of the first snapshot of the new replica set, whose only member is `uuid`.

    Args:
        bodies: the rows of the restored snapshot.
        index: the index of that snapshot.
        uuid: the instance that bootstraps the new replica set.
        name: its name.
        replicaset_uuid: the new replica set.
        voters: the planned number of voters.
        supported: the feature level of the new replica set.

    Raises:
        LevelError: the state has a feature level that this version does not support (P2).
    """
    database, kept = _load(bodies)
    level = Configuration(tuple(map(ClusterMember.from_tuple, database.cluster()))).level
    if level > supported:
        raise LevelError(
            f"cannot restore: the state has feature level {level}, and this version supports level "
            f"{supported}; restore with the version that wrote the archive, or a later one"
        )
    before = schema_value(database, "cluster")
    _delete_all(database, CLUSTER_SPACE)
    _delete_all(database, REMOVED_SPACE)
    _put(database, CLUSTER_SPACE, ClusterMember(1, uuid, name, "voter", True, supported).as_tuple())
    _put(database, SCHEMA_SPACE, ["cluster", replicaset_uuid])
    _put(database, SCHEMA_SPACE, [PLAN_KEY, voters])
    _put(database, SCHEMA_SPACE, [RESTORED_KEY, [before, index]])
    _delete(database, SCHEMA_SPACE, OPEN_KEY)
    return [*database.snapshot_bodies(), *kept]


def with_users(bodies: list[bytes], users: dict[str, str], secret: str) -> list[bytes]:
    """Return the rows with passwords set: that of `admin` is derived from the secret.

    Each of `users` (name -> password) may read, write and create in the whole cluster. A user that
    exists in a restored state keeps its id, its rights and its objects.
    """
    database, kept = _load(bodies)
    known = {row[2]: row for row in rows_of(database, USER_SPACE)}
    _put(database, USER_SPACE, _with_password(known["admin"], admin_password(secret)))
    for name, password in sorted(users.items()):
        row = known.get(name)
        if row is None:
            taken = {one[0] for one in known.values()}
            number = next(n for n in range(FIRST_USER_ID, FIRST_USER_ID + len(taken) + 1)
                          if n not in taken)  # fmt: skip
            row = known[name] = [number, ADMIN, name, "user", {}, [], 0]
        _put(database, USER_SPACE, _with_password(row, password))
        held = _bits_of(database, row[0])
        _put(database, PRIV_SPACE, [ADMIN, row[0], "universe", 0, held | APPLICATION_BITS])
        _put(database, PRIV_SPACE, [ADMIN, row[0], "role", PUBLIC, EXECUTE])
    return [*database.snapshot_bodies(), *kept]


def _with_password(row: list[Any], password: str) -> list[Any]:
    changed = [*row, *([], 0)[max(len(row) - 5, 0) :]]
    changed[4] = {"chap-sha1": stored_hash(password)}
    return changed


def _bits_of(database: Database, user: int) -> int:
    """Return the rights of a user on the whole cluster."""
    return next(
        (int(row[4]) for row in rows_of(database, PRIV_SPACE) if row[1:4] == [user, "universe", 0]),
        0,
    )


def _load(bodies: list[bytes]) -> tuple[Database, list[bytes]]:
    """Load a database. Return it, and separately the terms and keys, whose order (age) matters."""
    database, kept = Database(), []
    for body in bodies:
        if read_term_body(body) is not None or read_key_body(body) is not None:
            kept.append(body)
        else:
            database.load(body)
    return database, kept


def _put(database: Database, space: int, fields: list[Any]) -> None:
    database.apply(REPLACE, put_body(space, pack(fields)))


def _delete(database: Database, space: int, *key: object) -> None:
    fields = {int(Key.SPACE_ID): space, int(Key.INDEX_ID): 0, int(Key.KEY): list(key)}
    database.apply(DELETE, pack(fields))


def _delete_all(database: Database, space: int) -> None:
    for row in rows_of(database, space):
        _delete(database, space, row[0])
