"""Rights to change the catalogue, checked when a user's statement changes a system space.

Rows of the log are not checked again, so that a member reads rows that an older version accepted.
"""

import re
from typing import Any

from qsync_client.protocol.spaces import SYSTEM_SPACE_MAX
from qsync_node.errors import ClientError, ErrorCode

from . import errors, rows, sequences, system
from .access import User, denied, password_hash_of
from .numbers import SIGNED_MAX
from .space import SpaceData
from .state import DatabaseState
from .tupleformat import wrong_type

GrantFields = list[Any] | None
PASSWORD_HASH_LENGTH = 28
_SOURCES = {
    "space": system.SPACE_ID,
    "sequence": system.SEQUENCE_ID,
    "function": system.FUNC_ID,
    "role": system.USER_ID,
    "user": system.USER_ID,
}
_MISSING = {
    "space": (ErrorCode.NO_SUCH_SPACE, "Space '{}' does not exist"),
    "sequence": (errors.NO_SUCH_SEQUENCE, "Sequence '{}' does not exist"),
    "function": (ErrorCode.NO_SUCH_FUNCTION, "Function '{}' does not exist"),
    "role": (errors.NO_SUCH_ROLE, "Role '{}' is not found"),
    "user": (ErrorCode.NO_SUCH_USER, "User '{}' is not found"),
}
# Types that can be granted for all objects or for one; a grant on a collation has no effect.
_ENTITIES = frozenset({*_SOURCES, "collation"})
_OBJECTS = {
    system.SPACE_ID: "space",
    system.SEQUENCE_ID: "sequence",
    system.FUNC_ID: "function",
    system.USER_ID: "user",
}


def check_change(
    state: DatabaseState, user: User, space_id: int, old: GrantFields, new: GrantFields
) -> None:
    """Raise unless the user may make this change."""
    object_type = _OBJECTS.get(space_id)
    row = new if new is not None else old
    assert row is not None
    _check_builtin(state, space_id, old, new)
    check_row = _ROW_CHECKS.get(space_id)
    if check_row is not None:
        check_row(state, old, new)
    if object_type is not None:
        if space_id == system.USER_ID and row[3].lower() == "role":
            object_type = "role"
        owner = old[1] if old is not None else row[1]
        user.check_object(object_type, row[0], row[2], owner, _privilege(old, new))
    elif space_id in (system.INDEX_ID, system.TRUNCATE_ID, system.SPACE_SEQUENCE_ID):
        space = state.find_space(row[0])
        if space is not None:
            privilege = system.WRITE if space_id == system.TRUNCATE_ID else _privilege(old, new)
            owner = space.definition.owner
            user.check_object("space", space.id, space.name, owner, privilege)
            if space_id == system.INDEX_ID and new is not None:
                _check_index(space, new)
    elif space_id == system.PRIV_ID:
        if new is not None:
            check_grant_row(new)
            check_object_exists(state, new)
        _check_grant(state, user, row, system.REVOKE if new is None else system.GRANT)
        _check_privileges(old, new)


def _check_builtin(state: DatabaseState, space_id: int, old: GrantFields, new: GrantFields) -> None:
    """Refuse changes of objects that the engine itself depends on."""
    row = new if new is not None else old
    assert row is not None
    if space_id == system.SCHEMA_ID and row[0] == system.SCHEMA_VERSION_KEY:
        raise ClientError(
            ErrorCode.UNSUPPORTED,
            f"Can't modify '{row[0]}' in space '_schema': only the node changes it",
        )
    if space_id not in (system.SPACE_ID, system.INDEX_ID) or row[0] not in system.BUILTIN_IDS:
        return
    is_refused_later = new is None and (space_id == system.SPACE_ID or row[1] == 0)
    if old != new and not is_refused_later:
        space = state.space(row[0])
        raise ClientError(
            ErrorCode.ALTER_SPACE,
            f"Can't modify space '{space.name}': the definition of a system space cannot "
            "be changed",
        )


def _privilege(old: GrantFields, new: GrantFields) -> int:
    if old is None:
        return system.CREATE
    return system.DROP if new is None else system.ALTER


# --- rows that no member may ever read ------------------------------------------------------------


def _check_schema(_state: DatabaseState, old: GrantFields, new: GrantFields) -> None:
    """Refuse to change the UUID of the cluster: its replicas would not recognise the cluster."""
    row = new if new is not None else old
    assert row is not None
    if row[0] != "cluster":
        return
    if new is None:
        raise ClientError(
            errors.REPLICASET_UUID_IS_READ_ONLY,
            "Can't reset replica set UUID: it is already assigned",
        )
    uuid = new[1] if len(new) > 1 else None
    if not isinstance(uuid, str):
        raise wrong_type("2", "string")
    if not _UUID.fullmatch(uuid):
        raise ClientError(errors.INVALID_UUID, f"Invalid UUID: {uuid}")
    if old is not None and str(old[1]).lower() != uuid.lower():
        raise ClientError(
            ErrorCode.UNSUPPORTED,
            "Can't modify 'cluster' in space '_schema': only the node changes it",
        )


def _check_space(_state: DatabaseState, old: GrantFields, new: GrantFields) -> None:
    """Refuse to alter a space of a user into an unsupported one, which no member could load."""
    if old is not None and new is not None and new[0] > SYSTEM_SPACE_MAX:
        definition = rows.read_space(new, is_new=False)
        rows.check_flags(definition.name, definition.flags, rows.alter_error)


def _check_collation(_state: DatabaseState, old: GrantFields, new: GrantFields) -> None:
    if new is None:
        assert old is not None
        if old[0] == 0:
            raise ClientError(
                errors.DROP_COLLATION, f"Can't drop collation {old[1]} : system collation"
            )
        return
    raise ClientError(
        ErrorCode.UNSUPPORTED,
        ("Qsync does not support new collations: see docs/compatibility.md")
        if old is None
        else "collation does not support alter",
    )


def _check_sequence(_state: DatabaseState, _old: GrantFields, new: GrantFields) -> None:
    if new is None or rows.is_too_long(new[2]):
        return
    rows.check_name(new[2])
    for number, value in enumerate(new[3:8], 4):
        if value > SIGNED_MAX:
            raise wrong_type(str(number), "integer")


def _check_sequence_data(state: DatabaseState, _old: GrantFields, new: GrantFields) -> None:
    if new is None:
        return
    if state.row(system.SEQUENCE_ID, new[0]) is None:
        raise sequences.no_such_sequence(new[0])
    if new[1] > SIGNED_MAX:
        raise wrong_type("2", "integer")


def _check_function(_state: DatabaseState, old: GrantFields, new: GrantFields) -> None:
    """Refuse to rename a function, or to change its owner: its grants are for the old one."""
    if old is not None and new is not None and (old[1], old[2]) != (new[1], new[2]):
        raise ClientError(ErrorCode.UNSUPPORTED, "function does not support alter")


def _check_user(_state: DatabaseState, _old: GrantFields, new: GrantFields) -> None:
    if new is None or rows.is_too_long(new[2]):
        return
    rows.check_name(new[2])
    auth = new[4] if len(new) > 4 else None
    if not isinstance(auth, dict):
        return
    name, kind = new[2], new[3].lower()
    if auth and kind == "role":
        raise ClientError(
            ErrorCode.CREATE_ROLE,
            f"Failed to create role '{name}': authentication data can not be set for a role",
        )
    # The exact key "chap-sha1" is checked for every row, wherever it comes from.
    if kind == "user" and "chap-sha1" not in auth:
        password = password_hash_of(auth)
        is_hash = isinstance(password, str) and len(password) in (0, PASSWORD_HASH_LENGTH)
        if password is not None and not is_hash:
            raise ClientError(
                ErrorCode.CREATE_USER, f"Failed to create user '{name}': invalid user password"
            )


def _check_index(space: SpaceData, row: list[Any]) -> None:
    if row[1] == 0 or 0 in space.index_defs:
        rows.check_distance(row)


_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ROW_CHECKS = {
    system.SCHEMA_ID: _check_schema,
    system.SPACE_ID: _check_space,
    system.COLLATION_ID: _check_collation,
    system.SEQUENCE_ID: _check_sequence,
    system.SEQUENCE_DATA_ID: _check_sequence_data,
    system.FUNC_ID: _check_function,
    system.USER_ID: _check_user,
}


# --- grants ---------------------------------------------------------------------------------------


def _check_grant(state: DatabaseState, user: User, row: list[Any], privilege: int) -> None:
    """Check that the user may grant in the grantor's name.

    The grantor must own the object or be admin.
    """
    grantor, object_type, object_id = row[0], row[2].lower(), row[3]
    name, owner = find_object(state, object_type, object_id)
    user.check_object(object_type, object_id, name, grantor, privilege)
    is_public = object_type == "role" and object_id == system.PUBLIC
    if grantor not in (owner, system.ADMIN) and not (is_public and row[4] == system.EXECUTE):
        raise denied(privilege, object_type, name, user_name(state, grantor))


def _check_privileges(old: GrantFields, new: GrantFields) -> None:
    """Refuse to revoke a right of the admin: no other user could grant it back."""
    row = new if new is not None else old
    assert row is not None
    bits = new[4] & system.ALL_PRIVILEGES if new is not None else 0
    if new is not None and not bits:
        raise wrong_grant("the grant tuple has no privileges")
    is_admins = row[1] == system.ADMIN and row[2].lower() == "universe"
    if is_admins and bits != system.ALL_PRIVILEGES:
        raise wrong_grant("can't revoke universe from the admin user")


def wrong_grant(reason: str) -> ClientError:
    return ClientError(errors.GRANT, f"Incorrect grant arguments: {reason}")


def find_object(state: DatabaseState, object_type: str, object_id: object) -> tuple[str, int]:
    """Return the name and the owner of a grant's object; raise if there is no such object."""
    if object_type in ("universe", "collation") or object_id == "":
        return "", system.ADMIN
    source = _SOURCES.get(object_type)
    if source is None:
        raise _unknown_type(object_type)
    row = state.row(source, object_id)
    if row is None or (source == system.USER_ID and row[3].lower() != object_type):
        code, text = _MISSING[object_type]
        raise ClientError(code, text.format(object_id if row is None else row[2]))
    return row[2], row[1]


def _unknown_type(name: str) -> ClientError:
    return ClientError(ErrorCode.UNKNOWN_SCHEMA_OBJECT, f"Unknown object type '{name}'")


def check_grant_row(row: list[Any]) -> None:
    """Raise unless type and id of the object are valid; a type is not case-sensitive."""
    object_type, object_id = row[2].lower(), row[3]
    if object_id == "":
        is_known = object_type in _ENTITIES
    elif type(object_id) is not int or object_id < 0:
        raise wrong_type("4", "unsigned")
    else:
        is_known = object_type in _ENTITIES or object_type == "universe"
    if not is_known:
        raise _unknown_type(row[2])


def check_object_exists(state: DatabaseState, row: list[Any]) -> None:
    """Raise unless grantor, grantee and object of a `_priv` row exist."""
    for user_id in row[:2]:
        if state.row(system.USER_ID, user_id) is None:
            raise ClientError(ErrorCode.NO_SUCH_USER, f"User '{user_id}' is not found")
    find_object(state, row[2].lower(), row[3])


def is_about_a_role(row: list[Any]) -> bool:
    """Return whether a `_priv` row concerns one role, not all of them."""
    return bool(row[2].lower() == "role" and row[3] != "")


def is_granted(state: DatabaseState, object_type: str, object_id: int) -> bool:
    """Return whether a `_priv` row concerns the object; all rows are read, because they are few."""
    return any(
        row[3] == object_id and row[2].lower() == object_type
        for row in state.rows_with(system.PRIV_ID, 0)
    )


def check_sequence(state: DatabaseState, user: User, space: SpaceData) -> None:
    """Raise unless the user may draw from the space's sequence.

    A generated sequence is part of its space and needs no grant.
    """
    use = space.sequence
    if use is not None and not use.is_generated:
        row = state.row(system.SEQUENCE_ID, use.sequence_id)
        if row is not None:
            user.check_object("sequence", row[0], row[2], row[1], system.WRITE)


def user_name(state: DatabaseState, user_id: int) -> str:
    row = state.row(system.USER_ID, user_id)
    return "" if row is None else row[2]
