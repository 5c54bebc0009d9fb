"""Declared users and roles are created in a database as declared; others stay unchanged."""

from typing import Any, cast

import pytest
from pydantic import ValidationError

from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.spaces import SystemSpace
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.api.mistakes import sentence_of
from qsync_operator.members.access import AccessRefused, bring, differing, principals
from qsync_operator.members.iproto import IprotoConnection
from qsync_testing.operator.catalogue import AccessCatalogue
from qsync_testing.operator.desired import cluster_of

SPEC: dict[str, Any] = {
    "roles": [{"name": "clerk", "grants": [{"space": "orders", "privileges": ["read", "write"]}]}],
    "users": [
        {"name": "alice", "passwordSecret": "alice", "roles": ["clerk"]},
        {
            "name": "bob",
            "passwordSecret": "bob",
            "grants": [{"universe": True, "privileges": ["execute"]}],
        },
    ],
}


def test_users_and_roles_become_as_declared_and_others_stay() -> None:
    catalogue = AccessCatalogue()
    database = cast(IprotoConnection, catalogue)
    wanted = principals(cluster_of(**SPEC).spec, {"alice": "a", "bob": "b"})
    assert differing(database, wanted) == ("clerk", "alice", "bob")
    bring(database, wanted)
    assert differing(database, wanted) == ()
    assert catalogue.grants("clerk") == {("space", 512): 3}
    assert catalogue.grants("alice") == {("role", 2): 4, ("universe", 0): 24, ("role", 33): 4}
    assert catalogue.grants("bob") == {("role", 2): 4, ("universe", 0): 28}
    assert catalogue.grants("app") == {("universe", 0): 255}
    row = next(row for row in catalogue.rows[304] if row[2] == "alice")
    assert row[1:] == [1, "alice", "user", {"chap-sha1": stored_hash("a")}]
    before = catalogue.writes
    bring(database, wanted)
    assert catalogue.writes == before


def test_grants_on_journals_become_grants_of_functions() -> None:
    catalogue = AccessCatalogue()
    database = cast(IprotoConnection, catalogue)
    names = ("orders/eu", "orders/*")
    grants = [{"journal": name, "privileges": ["write"]} for name in names]
    roles = [{"name": "publisher", "grants": grants[1:]}]
    users = [{"name": "alice", "passwordSecret": "alice", "grants": grants}]
    wanted = principals(cluster_of(roles=roles, users=users).spec, {"alice": "a"})
    assert differing(database, wanted) == ("publisher", "alice")
    bring(database, wanted)
    assert differing(database, wanted) == ()
    functions = {row[2]: row for row in catalogue.rows[296] if row[0] > 66}
    assert {name: row[:2] for name, row in functions.items()} == {
        "qsync.publish:orders/*": [67, 1],
        "qsync.publish:orders/eu": [68, 1],
    }
    assert catalogue.grants("publisher") == {("function", 67): 4}
    assert catalogue.grants("alice") == {
        ("role", 2): 4, ("universe", 0): 24, ("function", 67): 4, ("function", 68): 4
    }  # fmt: skip
    before = catalogue.writes
    bring(database, wanted)
    assert catalogue.writes == before
    users[0]["grants"] = grants[:1]
    wanted = principals(cluster_of(roles=roles, users=users).spec, {"alice": "a"})
    assert differing(database, wanted) == ("alice",)
    bring(database, wanted)
    assert ("function", 67) not in catalogue.grants("alice")


@pytest.mark.parametrize(
    ("grant", "sentence"),
    [
        ({"journal": "orders/eu", "privileges": ["read"]}, "has the privilege write only"),
        ({"journal": "orders/eu", "privileges": ["write", "read"]}, "the privilege write only"),
        ({"journal": "orders/eu", "space": "orders", "privileges": ["write"]}, "exactly one of"),
        ({"journal": "*", "privileges": ["write"]}, "journal"),
        ({"journal": "orders*", "privileges": ["write"]}, "journal"),
        ({"privileges": ["write"]}, "exactly one of space, journal and universe"),
    ],
)
def test_invalid_grants_on_journals_are_refused(grant: dict[str, Any], sentence: str) -> None:
    users = [{"name": "alice", "passwordSecret": "alice", "grants": [grant]}]
    with pytest.raises(ValidationError) as refused:
        cluster_of(users=users)
    assert sentence in str(refused.value)


def test_a_new_password_and_a_hand_made_grant_are_put_right() -> None:
    catalogue = AccessCatalogue()
    database = cast(IprotoConnection, catalogue)
    bring(database, principals(cluster_of(**SPEC).spec, {"alice": "a", "bob": "b"}))
    catalogue.insert(SystemSpace.PRIV, [1, 34, "space", 280, 1])
    wanted = principals(cluster_of(**SPEC).spec, {"alice": "a", "bob": "another"})
    assert differing(database, wanted) == ("alice", "bob")
    bring(database, wanted)
    assert ("space", 280) not in catalogue.grants("alice")
    assert differing(database, wanted) == ()


class CatalogueOfEveryGrant(AccessCatalogue):
    """Catalogue that returns the grants of all users, whichever user is asked for."""

    def select(self, space: int, key: list[Any] | None = None, index: int = 0) -> list[list[Any]]:
        return super().select(space, None if space == SystemSpace.PRIV else key, index)


def test_grants_of_others_are_neither_compared_nor_revoked() -> None:
    catalogue = CatalogueOfEveryGrant()
    database = cast(IprotoConnection, catalogue)
    wanted = principals(cluster_of(**SPEC).spec, {"alice": "a", "bob": "b"})
    bring(database, wanted)
    assert differing(database, wanted) == ()
    assert catalogue.grants("bob") == {("role", 2): 4, ("universe", 0): 28}
    assert catalogue.grants("app") == {("universe", 0): 255}


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"grants": [{"space": "no", "privileges": ["read"]}]}, "cannot grant space no to"),
        ({"roles": ["no"]}, "cannot grant role no to"),
        ({"name": "public2", "roles": ["app"]}, "cannot grant role app to"),
    ],
)
def test_missing_objects_are_reported(user: dict[str, Any], sentence: str) -> None:
    spec = {"users": [{"name": "eve", "passwordSecret": "s", **user}]}
    wanted = principals(cluster_of(**spec).spec, {"eve": "e", "public2": "e"})
    with pytest.raises(AccessRefused, match=sentence):
        bring(cast(IprotoConnection, AccessCatalogue()), wanted)


def test_a_user_is_never_made_of_a_role() -> None:
    catalogue = AccessCatalogue()
    catalogue.insert(SystemSpace.USER, [40, 1, "eve", "role", {}])
    spec = {"users": [{"name": "eve", "passwordSecret": "s"}]}
    with pytest.raises(AccessRefused, match="database has a role"):
        differing(
            cast(IprotoConnection, catalogue), principals(cluster_of(**spec).spec, {"eve": "e"})
        )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"users": [{"name": "admin", "passwordSecret": "s"}]}, "is reserved"),
        ({"users": [{"name": "app", "passwordSecret": "s"}]}, "app"),
        ({"roles": [{"name": "r", "grants": [{"privileges": ["read"]}]}]}, "exactly one of space"),
        (
            {"podTemplate": {"spec": {"containers": [{"name": "node", "command": ["sh"]}]}}},
            "podTemplate.spec.containers[node].command cannot be set: the pod starts",
        ),
        ({"podTemplate": {"spec": {"volumes": [{"name": "data"}]}}}, "choose another name"),
        ({"podTemplate": {"metadata": {"labels": {"qsync.dev/role": "x"}}}}, "Services select"),
        ({"podTemplate": {"spec": {"restartPolicy": "Never"}}}, "must restart"),
        ({"podTemplate": {"spec": {"containers": "x"}}}, "must be lists of maps"),
    ],
)
def test_a_bad_declaration_is_refused_with_a_sentence(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        cluster_of(**spec)
    assert sentence in sentence_of(refused.value, QsyncCluster)
