"""The first state of a cluster that starts from a restored one."""

from typing import Any

from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.constants import Key
from qsync_node.archive.restore.origin import restored_bodies, with_users
from qsync_node.format.mp import pack, unpack
from qsync_node.format.proofs import admin_password
from qsync_node.node import Node

UUID = "00000000-0000-4000-8000-00000000000{}"
USERS, REMOVED = 304, 492


def former_state() -> list[bytes]:
    return Node.bootstrap_bodies(UUID.format(1), "old-0", UUID.format(8), 3)


def restored(bodies: list[bytes]) -> list[bytes]:
    return restored_bodies(bodies, 7, UUID.format(2), "new-0", UUID.format(7), 3)


def row(space: int, *fields: object) -> bytes:
    body: bytes = pack({int(Key.SPACE_ID): space, int(Key.TUPLE): list(fields)})
    return body


def rows_in(bodies: list[bytes], space: int) -> list[list[Any]]:
    found = [unpack(body) for body in bodies]
    return [one[Key.TUPLE] for one in found if one[Key.SPACE_ID] == space]


def test_removed_members_of_the_former_cluster_are_forgotten() -> None:
    """One of them may be a new member: with this row, the leader would refuse it."""
    bodies = restored([*former_state(), row(REMOVED, UUID.format(3), 1)])
    assert rows_in(bodies, REMOVED) == []


def test_each_new_user_gets_an_id_of_its_own() -> None:
    """Two users with one id are one user: the second one replaces the first one."""
    bodies = with_users(restored(former_state()), {"app": "1", "batch": "2"}, "secret")
    ids = {fields[2]: fields[0] for fields in rows_in(bodies, USERS)}
    assert {"app", "batch"} <= set(ids)
    assert len(set(ids.values())) == len(ids)


def test_password_of_the_former_administrator_is_replaced() -> None:
    """It is derived from the secret of a cluster, and that of the new cluster differs."""
    former = with_users(former_state(), {}, "former secret")
    bodies = with_users(restored(former), {}, "secret")
    (admin,) = [fields for fields in rows_in(bodies, USERS) if fields[2] == "admin"]
    assert admin[4] == {"chap-sha1": stored_hash(admin_password("secret"))}
