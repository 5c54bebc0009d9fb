"""Compares declared spaces with those of the database, and creates missing ones.

Spaces and indexes are created, and a space's format and `isSync` are updated. Nothing is dropped,
and an index is never changed in place, because both destroy data. The operator reports such
differences and leaves them to the user.
"""

from typing import Any

from qsync_client.protocol.access import UserId
from qsync_client.protocol.spaces import FIRST_USER_SPACE, NAME_INDEX, SystemSpace
from qsync_operator.api.spaces import IndexSpec, PartSpec, SpaceSpec
from qsync_operator.members.iproto import IprotoConnection
from qsync_operator.plan.observed import SchemaView

SPACE_SPACE, INDEX_SPACE = int(SystemSpace.SPACE), int(SystemSpace.INDEX)
ADMIN_ID = int(UserId.ADMIN)


def compare(database: IprotoConnection, spaces: list[SpaceSpec]) -> SchemaView:
    """Return the declared spaces that are missing or differ, or a refusal.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    missing = []
    for space in spaces:
        row = _space_row(database, space.name)
        if row is None or not _is_same_space(row, space):
            missing.append(space.name)
            continue
        indexes = _index_rows(database, row[0])
        refusal = _refusal(space, indexes)
        if refusal:
            return SchemaView(True, (), refusal)
        if len([i for i in space.indexes if i.name in indexes]) < len(space.indexes):
            missing.append(space.name)
    return SchemaView(True, tuple(missing))


def create(database: IprotoConnection, spaces: list[SpaceSpec]) -> None:
    """Create and update the spaces and their indexes; changes made before an error remain.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    for space in spaces:
        row = _space_row(database, space.name)
        if row is None:
            taken = [row[0] for row in database.select(SPACE_SPACE)]
            space_id = max([FIRST_USER_SPACE - 1, *(i for i in taken if i < 1 << 30)]) + 1
            database.insert(SPACE_SPACE, _wanted_row(space, space_id))
        else:
            space_id = row[0]
            if not _is_same_space(row, space):
                database.replace(SPACE_SPACE, _wanted_row(space, space_id))
        _create_indexes(database, space, space_id)


def _create_indexes(database: IprotoConnection, space: SpaceSpec, space_id: int) -> None:
    existing = _index_rows(database, space_id)
    next_id = max((row[1] for row in existing.values()), default=-1) + 1
    for index in space.indexes:
        if index.name in existing:
            continue
        database.insert(
            INDEX_SPACE,
            [
                space_id,
                next_id,
                index.name,
                index.type.lower(),
                {"unique": index.unique},
                [_wanted_part(space, part) for part in index.parts],
            ],
        )
        next_id += 1


def _space_row(database: IprotoConnection, name: str) -> list[Any] | None:
    rows = database.select(SPACE_SPACE, [name], NAME_INDEX)
    return rows[0] if rows else None


def _index_rows(database: IprotoConnection, space_id: int) -> dict[str, list[Any]]:
    return {row[2]: row for row in database.select(INDEX_SPACE, [space_id])}


def _wanted_row(space: SpaceSpec, space_id: int) -> list[Any]:
    options = {"is_sync": space.is_sync}
    return [space_id, ADMIN_ID, space.name, "memtx", 0, options, _wanted_format(space)]


def _wanted_format(space: SpaceSpec) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "type": field.type}
        | ({"is_nullable": True} if field.is_nullable else {})
        for field in space.format
    ]


def _is_same_space(row: list[Any], space: SpaceSpec) -> bool:
    options = row[5] if isinstance(row[5], dict) else {}
    wanted = [(field.name, field.type, field.is_nullable) for field in space.format]
    found = [
        (field.get("name"), field.get("type", "any"), bool(field.get("is_nullable", False)))
        for field in row[6]
    ]
    return bool(options.get("is_sync", False)) == space.is_sync and found == wanted


def _wanted_part(space: SpaceSpec, part: PartSpec) -> dict[str, Any]:
    field = space.field_of(part)
    kind = part.type or (field.type if field is not None else None)
    assert kind is not None, part
    is_nullable = part.is_nullable
    if is_nullable is None:
        is_nullable = field.is_nullable if field is not None else False
    wanted: dict[str, Any] = {"field": space.number_of(part), "type": kind}
    return wanted | ({"is_nullable": True} if is_nullable else {})


def _refusal(space: SpaceSpec, existing: dict[str, list[Any]]) -> str:
    for index in space.indexes:
        row = existing.get(index.name)
        if row is not None and not _is_same_index(row, space, index):
            return (
                f"index {index.name} of space {space.name} differs from the one in the "
                "database: drop it by hand, or declare it as it exists"
            )
    return ""


def _is_same_index(row: list[Any], space: SpaceSpec, index: IndexSpec) -> bool:
    options = row[4] if isinstance(row[4], dict) else {}
    found = [_part_of(part) for part in row[5]]
    wanted = [_part_of(_wanted_part(space, part)) for part in index.parts]
    is_unique = bool(options.get("unique", True))
    return (str(row[3]).upper(), is_unique, found) == (index.type, index.unique, wanted)


def _part_of(part: Any) -> tuple[int, str, bool]:
    """Return a part, which is `{field, type, ...}`, or `[field, type]` from old versions."""
    if isinstance(part, dict):
        return int(part["field"]), str(part["type"]), bool(part.get("is_nullable", False))
    return int(part[0]), str(part[1]), False
