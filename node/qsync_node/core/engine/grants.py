"""Who may change the catalogue: rights asked for when a user's statement changes a system space."""

from typing import TYPE_CHECKING, Any

from qsync_node.errors import ClientError, ErrorCode

from . import codes, system
from .access import User, denied
from .space import Space

if TYPE_CHECKING:
    from .state import State

Fields = list[Any] | None
_SOURCES = {
    "space": system.SPACE_ID,
    "sequence": system.SEQUENCE_ID,
    "function": system.FUNC_ID,
    "role": system.USER_ID,
    "user": system.USER_ID,
}
_MISSING = {
    "space": (ErrorCode.NO_SUCH_SPACE, "Space '{}' does not exist"),
    "sequence": (codes.NO_SUCH_SEQUENCE, "Sequence '{}' does not exist"),
    "function": (ErrorCode.NO_SUCH_FUNCTION, "Function '{}' does not exist"),
    "role": (codes.NO_SUCH_ROLE, "Role '{}' is not found"),
    "user": (ErrorCode.NO_SUCH_USER, "User '{}' is not found"),
}
_OBJECTS = {
    system.SPACE_ID: "space",
    system.SEQUENCE_ID: "sequence",
    system.FUNC_ID: "function",
    system.USER_ID: "user",
}


def check_change(state: "State", user: User, space_id: int, old: Fields, new: Fields) -> None:
    """Raise 42 unless the user may make this change."""
    object_type = _OBJECTS.get(space_id)
    row = new if new is not None else old
    assert row is not None
    _check_builtin(state, space_id, old, new)
    if object_type is not None:
        if space_id == system.USER_ID and row[3] == "role":
            object_type = "role"
        owner = old[1] if old is not None else row[1]
        user.check_object(object_type, row[0], row[2], owner, _privilege(old, new))
    elif space_id in (system.INDEX_ID, system.TRUNCATE_ID, system.SPACE_SEQUENCE_ID):
        space = state.find_space(row[0])
        if space is not None:
            privilege = system.WRITE if space_id == system.TRUNCATE_ID else _privilege(old, new)
            owner = space.definition.owner
            user.check_object("space", space.id, space.name, owner, privilege)
    elif space_id == system.PRIV_ID:
        if new is not None:
            check_object_exists(state, new)
        _check_grant(state, user, row, system.REVOKE if new is None else system.GRANT)


def _check_builtin(state: "State", space_id: int, old: Fields, new: Fields) -> None:
    """Nobody may change what the engine itself stands on."""
    row = new if new is not None else old
    assert row is not None
    if space_id == system.SCHEMA_ID and row[0] == system.SCHEMA_VERSION_KEY:
        raise ClientError(ErrorCode.UNSUPPORTED, f"'{row[0]}' is kept by the node itself")
    if space_id not in (system.SPACE_ID, system.INDEX_ID) or row[0] not in system.BUILTIN_IDS:
        return
    is_refused_later = new is None and (space_id == system.SPACE_ID or row[1] == 0)
    if old != new and not is_refused_later:
        space = state.space(row[0])
        raise ClientError(
            ErrorCode.ALTER_SPACE,
            f"Can't modify space '{space.name}': the definition of a system space is fixed",
        )


def _privilege(old: Fields, new: Fields) -> int:
    if old is None:
        return system.CREATE
    return system.DROP if new is None else system.ALTER


def _check_grant(state: "State", user: User, row: list[Any], privilege: int) -> None:
    """The user may grant in the grantor's name; the grantor owns the object or is admin."""
    grantor, _, object_type, object_id = row[:4]
    name, owner = find_object(state, object_type, object_id)
    user.check_object(object_type, object_id, name, grantor, privilege)
    is_public = object_type == "role" and object_id == system.PUBLIC
    if grantor not in (owner, system.ADMIN) and not (is_public and row[4] == system.EXECUTE):
        raise denied(privilege, object_type, name, user_name(state, grantor))


def find_object(state: "State", object_type: str, object_id: Any) -> tuple[str, int]:
    """(name, owner) of what a grant is about; raises if there is no such object."""
    if object_type == "universe" or object_id == "":
        return "", system.ADMIN
    source = _SOURCES.get(object_type)
    if source is None:
        raise ClientError(ErrorCode.UNKNOWN_SCHEMA_OBJECT, f"Unknown object type '{object_type}'")
    row = state.row(source, object_id)
    if row is None or (source == system.USER_ID and row[3] != object_type):
        code, text = _MISSING[object_type]
        raise ClientError(code, text.format(object_id))
    return row[2], row[1]


def check_object_exists(state: "State", row: list[Any]) -> None:
    """Raise unless grantor, grantee and object of a `_priv` row exist."""
    for user_id in row[:2]:
        if state.row(system.USER_ID, user_id) is None:
            raise ClientError(ErrorCode.NO_SUCH_USER, f"User '{user_id}' is not found")
    find_object(state, row[2], row[3])


def check_sequence(state: "State", user: User, space: Space) -> None:
    """Whether the user may draw from the space's sequence; a generated one is part of its space."""
    use = space.sequence
    if use is not None and not use.is_generated:
        row = state.row(system.SEQUENCE_ID, use.sequence_id)
        if row is not None:
            user.check_object("sequence", row[0], row[2], row[1], system.WRITE)


def user_name(state: "State", user_id: int) -> str:
    row = state.row(system.USER_ID, user_id)
    return "" if row is None else row[2]
