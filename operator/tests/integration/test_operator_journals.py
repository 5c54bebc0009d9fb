"""The brokers' user: its privileges on a real cluster, and its creation in an older one."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qsync_client import AccessDenied, Client, Committed
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.journals import (
    DATA_SPACES,
    JOURNAL_SPACE,
    NO_ROUTE,
    PUBLICATION_SPACE,
    WATCHED_SPACES,
    JournalRow,
    encode_row,
)
from qsync_node.format.proofs import admin_password, broker_password, broker_secret
from qsync_operator.api.journals import QsyncJournalSpec
from qsync_operator.api.users import BROKER_USER, GrantSpec
from qsync_operator.members import keyspace as journals
from qsync_operator.members.access import AccessRefused, Principal, bring, differing
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_testing.processes import ADMIN_PASSWORD, SECRET, ProcessCluster, running_cluster

ACCESS_DENIED, NO_SUCH_SPACE, BAD_PASSWORD = 42, 36, 47
USER_SPACE, PRIV_SPACE = 304, 312


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 1) as cluster:
        with admin(cluster) as database:
            journals.enable(database, SECRET)
            parts = [[0, "unsigned"]]
            database.insert(SystemSpace.SPACE, [600, 1, "kv", "memtx", 0, {"is_sync": True}, []])
            database.insert(SystemSpace.INDEX, [600, 0, "primary", "tree", {"unique": True}, parts])
            database.insert(600, [1])
        yield cluster


def admin(cluster: ProcessCluster) -> IprotoConnection:
    return IprotoConnection(cluster.leader().address, "admin", ADMIN_PASSWORD, 10)


def broker(cluster: ProcessCluster, secret: str = SECRET) -> IprotoConnection:
    return IprotoConnection(cluster.leader().address, BROKER_USER, broker_password(secret), 10)


def grants(database: IprotoConnection) -> list[list[Any]]:
    (user,) = database.select(USER_SPACE, [BROKER_USER], 2)
    return [row[2:] for row in database.select(PRIV_SPACE, [user[0]]) if row[1] == user[0]]


def test_user_has_the_privileges_of_the_key_space_and_no_other(cluster: ProcessCluster) -> None:
    with admin(cluster) as database:
        spaces = [["space", space, 3] for space in WATCHED_SPACES]
        spaces.append(["space", PUBLICATION_SPACE, 1])
        assert sorted(grants(database), key=str) == sorted(
            [*spaces, ["universe", 0, 8 | 16]], key=str
        )
    with broker(cluster) as database:
        for space in DATA_SPACES:
            assert isinstance(database.select(space), list)


@pytest.mark.parametrize("space", [272, 280, 288, 304, 312, 320, 600])
def test_user_reads_no_other_space(cluster: ProcessCluster, space: int) -> None:
    with broker(cluster) as database, pytest.raises(DatabaseError) as refused:
        database.select(space)
    assert refused.value.code == ACCESS_DENIED


@pytest.mark.parametrize(
    ("space", "row"),
    [
        (600, [2]),
        (SystemSpace.SPACE, [601, 1, "other", "memtx", 0, {}, []]),
        (
            SystemSpace.INDEX,
            [JOURNAL_SPACE, 1, "second", "tree", {"unique": False}, [[0, "string"]]],
        ),
        (SystemSpace.USER, [50, 1, "intruder", "user", {}]),
        (SystemSpace.PRIV, [1, 40, "universe", 0, 255]),
        (SystemSpace.CLUSTER, [50, "00000000-0000-4000-8000-000000000000"]),
        (SystemSpace.TRUNCATE, [JOURNAL_SPACE, 1]),
    ],
)
def test_user_writes_no_other_space(cluster: ProcessCluster, space: int, row: list[Any]) -> None:
    with broker(cluster) as database, pytest.raises(DatabaseError) as refused:
        database.replace(space, row)
    assert refused.value.code == ACCESS_DENIED


@pytest.mark.parametrize("name", ["qsync.status", "box.info", "box.ctl.promote"])
def test_user_executes_no_procedure(cluster: ProcessCluster, name: str) -> None:
    with broker(cluster) as database, pytest.raises(DatabaseError) as refused:
        database.call(name)
    assert refused.value.code == ACCESS_DENIED


def test_key_space_of_an_older_version_gets_the_user_and_its_grants(
    cluster: ProcessCluster,
) -> None:
    with admin(cluster) as database:
        (user,) = database.select(USER_SPACE, [BROKER_USER], 2)
        for row in database.select(PRIV_SPACE, [user[0]]):
            if row[1] == user[0]:
                database.delete(PRIV_SPACE, [user[0], *row[2:4]])
        database.delete(USER_SPACE, [user[0]])
        journals.enable(database, SECRET)
        database.replace(PRIV_SPACE, [1, user[0], "universe", 0, 31])
        journals.enable(database, SECRET)
        assert ["universe", 0, 24] in grants(database)
    with broker(cluster) as database:
        database.select(JOURNAL_SPACE)


def test_password_follows_the_secret_of_the_cluster(cluster: ProcessCluster) -> None:
    with admin(cluster) as database:
        journals.enable(database, "another secret")
    with pytest.raises(DatabaseError) as refused:
        broker(cluster)
    assert refused.value.code == BAD_PASSWORD
    broker(cluster, "another secret").__exit__(None, None, None)
    with admin(cluster) as database:
        journals.enable(database, SECRET)


def test_role_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster, admin(cluster) as database:
        database.insert(USER_SPACE, [40, 1, BROKER_USER, "role", {}])
        with pytest.raises(AccessRefused, match=BROKER_USER):
            journals.enable(database, SECRET)


def test_brokers_hold_neither_the_secret_nor_the_password_of_admin() -> None:
    held = {broker_password(SECRET), broker_secret(SECRET)}
    assert len(held) == 2
    assert not held & {SECRET, admin_password(SECRET)}


def publish_as(cluster: ProcessCluster, user: str, journal: str) -> int:
    """Publish, and return the code of the error, 0 without one."""

    async def ask() -> int:
        client = Client([cluster.leader().address], user, "a password", deadline_s=10)
        try:
            outcome = await client.publish(journal, b"content", retry=False)
        except AccessDenied as denied:
            return denied.code
        finally:
            await client.close()
        assert isinstance(outcome, Committed)
        return 0

    return asyncio.run(ask())


def test_grants_on_journals_limit_a_declared_user(cluster: ProcessCluster) -> None:
    """The operator's rows in a real database: publishing is permitted by folder and by name."""
    names = ("orders/eu", "orders/us", "clicks/eu", "clicks/us")
    grants = tuple(
        GrantSpec(journal=name, privileges=["write"]) for name in ("orders/*", "clicks/eu")
    )
    user = Principal("shop", stored_hash("a password"), grants=grants)
    with admin(cluster) as database:
        for number, name in enumerate(names, 900):
            row = JournalRow(name, {"replication": 1}, 0, 0, 0, 0, NO_ROUTE, number, number)
            database.insert(JOURNAL_SPACE, encode_row(row))
        assert differing(database, [user]) == ("shop",)
        bring(database, [user])
        assert differing(database, [user]) == ()
    found = {name: publish_as(cluster, "shop", name) for name in names}
    assert found == dict.fromkeys(names[:3], 0) | {"clicks/us": ACCESS_DENIED}
    with admin(cluster) as database:
        bring(database, [replace(user, grants=grants[1:])])
    found = {name: publish_as(cluster, "shop", name) for name in names}
    assert [name for name, code in found.items() if not code] == ["clicks/eu"]
    assert set(found.values()) == {0, ACCESS_DENIED}


def test_journal_below_or_above_an_existing_one_is_refused(cluster: ProcessCluster) -> None:
    """Both would read and delete the fragments of the other in their common folder."""

    def spec(name: str) -> QsyncJournalSpec:
        return QsyncJournalSpec(cluster="c", journal=name)

    with admin(cluster) as database:
        assert journals.declare(database, spec("shared/eu/x")) == "created"
        for name in ("shared", "shared/eu", "shared/eu/x/y"):
            with pytest.raises(journals.JournalRefused, match="would share a folder"):
                journals.declare(database, spec(name))
        for sibling in ("shared/eu/x-y", "shared/eu/w", "shared/e"):
            assert journals.declare(database, spec(sibling)) == "created"
        assert journals.declare(database, spec("shared/eu/x")) == "unchanged"
        changed = spec("shared/eu/x").model_copy(update={"max_append_rate": 5})
        assert journals.declare(database, changed) == "configured"
