"""Users and their privileges.

Effective privileges are the user's own, those of its roles, and those of the roles' roles. They are
bits per object: the universe, all objects of a type, or one object. A `User` stays the same object
while its grants change, so that a session never holds an outdated one.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from qsync_node.errors import ClientError, ErrorCode

from . import system
from .definitions import SpaceDef

Grants = dict[tuple[str, Any], int]
_ENTITY = ""


class User:
    """One user or role with its effective privileges."""

    __slots__ = ("grants", "id", "is_dropped", "name", "password_hash", "universe")

    def __init__(self, user_id: int, name: str) -> None:
        self.id = user_id
        self.name = name
        self.password_hash: str | None = None
        self.universe = 0
        self.grants: Grants = {}
        self.is_dropped = False

    def bits(self, object_type: str, object_id: object) -> int:
        """Return the privileges on one object from all grants, without those of its owner."""
        grants = self.grants
        return (
            self.universe
            | grants.get((object_type, _ENTITY), 0)
            | grants.get((object_type, object_id), 0)
        )

    def check_session(self) -> None:
        """Raise error 42 unless the user may log in."""
        if not self.universe & system.SESSION:
            self.deny(system.SESSION, "universe", "")

    def check_space(self, space: SpaceDef, privilege: int) -> None:
        """Raise error 42 unless the user has the privilege on the space."""
        wanted = (privilege | system.USAGE) & ~self.universe
        if not wanted:
            return
        if wanted & system.USAGE:
            self.deny(system.USAGE, "universe", "")
        if space.owner != self.id and wanted & ~self.bits("space", space.id):
            self.deny(privilege, "space", space.name)

    def check_object(
        self, object_type: str, object_id: object, name: str, owner: int, privilege: int
    ) -> None:
        """Raise error 42 unless the user may create, alter or drop the object."""
        wanted = (privilege | system.USAGE) & ~self.universe
        if wanted & system.USAGE:
            self.deny(system.USAGE, "universe", "")
        is_owner = self.id in (owner, system.ADMIN) and privilege != system.CREATE
        if wanted and not is_owner and wanted & ~self.bits(object_type, object_id):
            self.deny(privilege, object_type, name)

    def deny(self, privilege: int, object_type: str, name: str) -> NoReturn:
        raise denied(privilege, object_type, name, self.name)


def denied(privilege: int, object_type: str, name: str, user: str) -> ClientError:
    return ClientError(
        ErrorCode.ACCESS_DENIED,
        f"{system.PRIVILEGE_NAMES[privilege]} access to {object_type} '{name}' "
        f"is denied for user '{user}'",
    )


def password_hash_of(auth: object) -> Any:
    """Return the password hash in a `_user` row; names of methods are not case-sensitive."""
    if isinstance(auth, dict):
        for method, value in auth.items():
            if isinstance(method, str) and method.lower().startswith("chap-sha1"):
                return value
    return None


def fill_user(
    user: User, row: list[Any] | None, grants_of: Callable[[int], Iterable[list[Any]]]
) -> None:
    """Set a user's fields from its `_user` row and the `_priv` rows by grantee.

    Args:
        row: None if the user was dropped.
        grants_of: returns the `_priv` rows of a grantee.
    """
    user.universe = 0
    user.grants = {}
    user.password_hash = None
    user.is_dropped = row is None
    if row is None:
        return
    user.name = row[2]
    password_hash = password_hash_of(row[4] if len(row) > 4 else {})
    user.password_hash = password_hash if isinstance(password_hash, str) and password_hash else None
    seen = {user.id}
    waiting = [user.id]
    while waiting:
        for grant in grants_of(waiting.pop()):
            object_type, object_id, privilege = grant[2].lower(), *grant[3:5]
            if object_type == "role" and object_id != _ENTITY:
                if object_id not in seen and privilege & system.EXECUTE:
                    seen.add(object_id)
                    waiting.append(object_id)
            elif object_type == "universe":
                user.universe |= privilege
            key = (object_type, object_id if object_id != 0 or object_type == "user" else _ENTITY)
            user.grants[key] = user.grants.get(key, 0) | privilege
