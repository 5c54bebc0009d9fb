"""Who may change the catalogue: rights asked for when a user's statement changes a system space."""

from typing import TYPE_CHECKING, Any

from . import system
from .access import User

if TYPE_CHECKING:
    from .state import State

Fields = list[Any] | None
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
        _check_grant(state, user, row)


def _privilege(old: Fields, new: Fields) -> int:
    if old is None:
        return system.CREATE
    return system.DROP if new is None else system.ALTER


def _check_grant(state: "State", user: User, row: list[Any]) -> None:
    """Only the owner of an object, or admin, grants rights to it, and only in its own name."""
    grantor, _, object_type, object_id, _ = row[:5]
    if user.id in (system.ADMIN, system.SUPER):
        return
    if grantor != user.id:
        user.deny(system.USAGE, object_type, str(object_id))
    sources = {"space": system.SPACE_ID, "sequence": system.SEQUENCE_ID}
    sources |= {"function": system.FUNC_ID, "role": system.USER_ID, "user": system.USER_ID}
    source = sources.get(object_type)
    owned = state.row(source, object_id) if source is not None else None
    if owned is None or owned[1] != user.id:
        user.deny(system.USAGE, object_type, owned[2] if owned else "")
