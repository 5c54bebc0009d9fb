"""Compares declared users and roles with those of the database, and corrects them.

The operator manages only the users listed in the manifest. It sets their password, roles and
grants, and revokes their other grants. It does not change other users. It drops no user, because
that would require dropping the objects of the user as well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qsync_client.protocol.access import FIRST_USER_ID, Privilege, UserId
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.spaces import NAME_INDEX, SystemSpace
from qsync_node.format.journals import publish_function
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.api.users import GrantSpec, RoleSpec, UserSpec
from qsync_operator.members.iproto import IprotoConnection

USER_SPACE, PRIV_SPACE = int(SystemSpace.USER), int(SystemSpace.PRIV)
SPACE_SPACE, FUNC_SPACE = int(SystemSpace.SPACE), int(SystemSpace.FUNC)
ADMIN_ID, PUBLIC_ID = int(UserId.ADMIN), int(UserId.PUBLIC)
BITS = {str(one.name).lower(): int(one) for one in Privilege}
SESSION_AND_USAGE = int(Privilege.SESSION | Privilege.USAGE)

Granted = dict[tuple[str, Any], int]  # type and id of an object -> privileges


class AccessRefused(Exception):  # noqa: N818  # an answer, not a failure
    """A declaration refers to a missing object; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A declared user, or a role, which has no password."""

    name: str
    password_hash: str | None
    roles: tuple[str, ...] = ()
    grants: tuple[GrantSpec, ...] = ()
    is_whole: bool = True
    """Whether roles and grants are declared; otherwise only the password is."""
    is_public: bool = True
    """Whether a user has the role `public`, which clients of applications need."""

    @property
    def kind(self) -> str:
        return "role" if self.password_hash is None else "user"

    @property
    def auth(self) -> dict[str, str]:
        return {} if self.password_hash is None else {"chap-sha1": self.password_hash}


def principals(spec: ClusterSpec, passwords: Mapping[str, str]) -> list[Principal]:
    """Return the declared roles and users. Roles come first, because users refer to them."""
    roles = [_principal(role, None) for role in spec.roles]
    return roles + [_principal(u, stored_hash(passwords[u.name])) for u in spec.users]


def password_of(name: str, password: str) -> Principal:
    """Return the initial user of a cluster, whose password alone is managed here."""
    return Principal(name, stored_hash(password), is_whole=False)


def _principal(declared: RoleSpec | UserSpec, password_hash: str | None) -> Principal:
    return Principal(declared.name, password_hash, tuple(declared.roles), tuple(declared.grants))


def differing(database: IprotoConnection, wanted: Iterable[Principal]) -> tuple[str, ...]:
    """Return the names of principals that differ from their declaration.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
        AccessRefused: a declaration cannot be satisfied.
    """
    found = []
    declared = {principal.name for principal in wanted}
    for principal in wanted:
        row = _row(database, principal.name)
        if row is None and not principal.is_whole:
            continue  # the user was dropped: its grants are unknown here
        if row is None or not _is_same(row, principal):
            found.append(principal.name)
            continue
        if not principal.is_whole:
            continue
        missing = [r for r in principal.roles if r in declared and _row(database, r) is None]
        if missing or _grants_of(database, row[0]) != _wanted(database, principal):
            found.append(principal.name)
    return tuple(found)


def bring(database: IprotoConnection, wanted: Iterable[Principal]) -> None:
    """Make the principals match their declarations.

    Changes made before an error remain.

    Raises:
        DatabaseError: the database cannot be reached or refused a request.
        AccessRefused: a declaration cannot be satisfied.
    """
    chosen = [p for p in wanted if p.is_whole or _row(database, p.name) is not None]
    _bring_functions(database, chosen)
    ids = {principal.name: _bring_row(database, principal) for principal in chosen}
    for principal in chosen:
        if not principal.is_whole:
            continue
        grantee = ids[principal.name]
        found, asked = _grants_of(database, grantee), _wanted(database, principal)
        for (kind, object_id), bits in asked.items():
            if found.get((kind, object_id)) != bits:
                database.replace(PRIV_SPACE, [ADMIN_ID, grantee, kind, object_id, bits])
        for kind, object_id in found.keys() - asked.keys():
            database.delete(PRIV_SPACE, [grantee, kind, object_id])


def _bring_row(database: IprotoConnection, principal: Principal) -> int:
    row = _row(database, principal.name)
    if row is None:
        taken = [int(one[0]) for one in database.select(USER_SPACE)]
        user_id = max([FIRST_USER_ID - 1, *taken]) + 1
        row = [user_id, ADMIN_ID, principal.name, principal.kind, principal.auth]
        database.insert(USER_SPACE, row)
    elif not _is_same(row, principal):
        database.replace(USER_SPACE, [*row[:4], principal.auth, *row[5:]])
    return int(row[0])


def _bring_functions(database: IprotoConnection, wanted: Iterable[Principal]) -> None:
    """Create the functions that are the objects of grants on journals."""
    names = {publish_function(g.journal) for p in wanted for g in p.grants if g.journal is not None}
    for name in sorted(names):
        if not database.select(FUNC_SPACE, [name], NAME_INDEX):
            taken = [int(row[0]) for row in database.select(FUNC_SPACE)]
            database.insert(FUNC_SPACE, function_row(max(taken) + 1, name))


def function_row(function_id: int, name: str) -> list[Any]:
    """Return the row of a function without a body, which belongs to admin."""
    head = [function_id, ADMIN_ID, name, 0, "LUA", "", "function", [], "any", "none", "none"]
    return [*head, False, False, True, ["LUA"], {}, "", "", ""]


def _row(database: IprotoConnection, name: str) -> list[Any] | None:
    rows = database.select(USER_SPACE, [name], NAME_INDEX)
    return rows[0] if rows else None


def _is_same(row: list[Any], principal: Principal) -> bool:
    """Return whether the password is as declared.

    Raises:
        AccessRefused: the name belongs to a principal of another kind.
    """
    if row[3] != principal.kind:
        raise AccessRefused(
            f"cannot create {principal.kind} {principal.name}: the database has a "
            f"{row[3]} of this name; declare another name"
        )
    return principal.password_hash is None or row[4] == principal.auth


def _grants_of(database: IprotoConnection, grantee: int) -> Granted:
    rows = database.select(PRIV_SPACE, [grantee])
    return {(row[2], row[3]): int(row[4]) for row in rows if int(row[1]) == grantee}


def _wanted(database: IprotoConnection, principal: Principal) -> Granted:
    """Return the declared grants.

    Raises:
        AccessRefused: a role or a space does not exist.
    """
    asked: Granted = {}
    if principal.kind == "user":
        # The grants that `box.schema.user.create` gives to every user: log in, and the role
        # `public`.
        asked = {("universe", 0): SESSION_AND_USAGE}
        if principal.is_public:
            asked["role", PUBLIC_ID] = BITS["execute"]
    for name in principal.roles:
        row = _row(database, name)
        if row is None or row[3] != "role":
            raise AccessRefused(
                f"cannot grant role {name} to {principal.name}: the role does not exist; "
                "declare it under roles"
            )
        asked["role", row[0]] = BITS["execute"]
    for grant in principal.grants:
        place: tuple[str, Any] = ("universe", 0)
        if grant.space is not None:
            rows = database.select(SPACE_SPACE, [grant.space], NAME_INDEX)
            if not rows:
                raise AccessRefused(
                    f"cannot grant space {grant.space} to {principal.name}: the space "
                    "does not exist; declare it under spaces, or create it"
                )
            place = ("space", rows[0][0])
        if grant.journal is not None:
            name = publish_function(grant.journal)
            rows = database.select(FUNC_SPACE, [name], NAME_INDEX)
            # Before the function exists, its name differs from the id of any grant.
            asked["function", rows[0][0] if rows else name] = BITS["execute"]
            continue
        for privilege in grant.privileges:
            asked[place] = asked.get(place, 0) | BITS[privilege]
    return asked
