"""Compares declared spaces with those of the database, and creates missing ones.

Spaces and indexes are created, and a space's format and `isSync` are updated. An index is never
changed in place. Omitted parts are kept, because an omission can be a mistake: spaces
always, and fields and indexes unless the space is declared with `prune`. The operator reports
differences that it leaves to the user.
"""

from typing import Any

from qsync_client.protocol.access import UserId
from qsync_client.protocol.spaces import FIRST_USER_SPACE, NAME_INDEX, SystemSpace
from qsync_operator.api.spaces import IndexSpec, PartSpec, SpaceSpec
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_operator.plan.observed import SchemaView

SPACE_SPACE, INDEX_SPACE = int(SystemSpace.SPACE), int(SystemSpace.INDEX)
ADMIN_ID = int(UserId.ADMIN)


def compare(database: IprotoConnection, spaces: list[SpaceSpec]) -> SchemaView:
    """Return the declared spaces that are missing or differ, or a refusal.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
    """
    missing, kept = [], []
    for space in spaces:
        row = _space_row(database, space.name)
        if row is None:
            missing.append(space.name)
            continue
        indexes = _index_rows(database, row[0])
        refusal = _format_refusal(row, space) or _refusal(row, space, indexes)
        if refusal:
            return SchemaView(True, (), refusal)
        is_whole = all(index.name in indexes for index in space.indexes)
        if (
            not is_whole
            or not _is_same_space(row, space)
            or (space.prune and _omitted(row, space, indexes))
        ):
            missing.append(space.name)
        elif not space.prune:
            kept += [_kept(space, what) for what in _omitted(row, space, indexes)]
    return SchemaView(True, tuple(missing), "", tuple(kept))


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
            refusal = _format_refusal(row, space)
            if refusal:
                raise DatabaseError(refusal)
            if not _is_same_space(row, space):
                database.replace(SPACE_SPACE, _changed_row(row, space))
        _create_indexes(database, space, space_id)
        if space.prune:
            _drop_indexes(database, space, space_id)


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


def _drop_indexes(database: IprotoConnection, space: SpaceSpec, space_id: int) -> None:
    """Drop the indexes that the manifest omits, except the primary key."""
    declared = {index.name for index in space.indexes}
    for name, row in _index_rows(database, space_id).items():
        if name not in declared and row[1] != 0:
            database.delete(INDEX_SPACE, [space_id, row[1]])


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


def _changed_row(row: list[Any], space: SpaceSpec) -> list[Any]:
    """Return the row of an existing space as the manifest declares it."""
    wanted = _wanted_row(space, row[0])
    wanted[6] += _kept_fields(row, space)
    return wanted


def _kept_fields(row: list[Any], space: SpaceSpec) -> list[dict[str, Any]]:
    """Return the fields at the end of the format that the manifest omits, unless it prunes."""
    return [] if space.prune else list(row[6][len(space.format) :])


def _is_same_space(row: list[Any], space: SpaceSpec) -> bool:
    options = row[5] if isinstance(row[5], dict) else {}
    wanted, found = (
        [_field_of(one) for one in part] for part in (_changed_row(row, space)[6], row[6])
    )
    return bool(options.get("is_sync", False)) == space.is_sync and found == wanted


def _field_of(field: dict[str, Any]) -> tuple[Any, Any, bool]:
    return field.get("name"), field.get("type", "any"), bool(field.get("is_nullable", False))


def _format_refusal(row: list[Any], space: SpaceSpec) -> str:
    """Return why the format cannot become the declared one, or "".

    A field that moves to another position would give its name to other values.
    """
    positions = {field.get("name"): position for position, field in enumerate(row[6])}
    for position, field in enumerate(space.format):
        before = positions.get(field.name, position)
        if before != position:
            return (
                f"field {field.name} of space {space.name} cannot move from position {before + 1}"
                f" to {position + 1}: declare the fields before it as they are in the database"
            )
    return ""


def _omitted(row: list[Any], space: SpaceSpec, indexes: dict[str, list[Any]]) -> list[str]:
    """Return the fields and indexes that the database has and the manifest omits."""
    declared = {index.name for index in space.indexes}
    fields = [f"field {field.get('name')}" for field in row[6][len(space.format) :]]
    return fields + [
        f"index {name}" for name, one in indexes.items() if name not in declared and one[1]
    ]


def _kept(space: SpaceSpec, what: str) -> str:
    return (
        f"{what} of space {space.name} is not in the manifest, and is kept: declare it, or set "
        f"prune: true of the space to remove it"
    )


def _wanted_part(space: SpaceSpec, part: PartSpec) -> dict[str, Any]:
    field = space.field_of(part)
    kind = part.type or (field.type if field is not None else None)
    assert kind is not None, part
    is_nullable = part.is_nullable
    if is_nullable is None:
        is_nullable = field.is_nullable if field is not None else False
    wanted: dict[str, Any] = {"field": space.number_of(part), "type": kind}
    return wanted | ({"is_nullable": True} if is_nullable else {})


def _refusal(space_row: list[Any], space: SpaceSpec, existing: dict[str, list[Any]]) -> str:
    for index in space.indexes:
        row = existing.get(index.name)
        if row is not None and not _is_same_index(row, space, index):
            changed = _changed_type(space_row, row, space, index)
            if changed:
                return changed
            return (
                f"index {index.name} of space {space.name} differs from the one in the "
                "database: declare it as it exists, or apply the space without it and with "
                "prune: true, and declare it again"
            )
    return ""


def _changed_type(
    space_row: list[Any], index_row: list[Any], space: SpaceSpec, index: IndexSpec
) -> str:
    """Return that a field of an index has another type than in the database, or ""."""
    stored = {one.get("name"): one.get("type", "any") for one in space_row[6]}
    numbers = {_part_of(part)[0] for part in index_row[5]}
    for number, field in enumerate(space.format):
        before = stored.get(field.name, field.type)
        if number in numbers and before != field.type:
            return (
                f"the type of field {field.name} of space {space.name} cannot change from {before} "
                f"to {field.type}, because index {index.name} contains it: declare the type "
                f"{before}, or copy the rows into a space that has the new type"
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
