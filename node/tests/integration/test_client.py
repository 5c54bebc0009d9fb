"""The client against real servers: names, reads, schema, errors and rights."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    Refused,
    RequestFailed,
    SchemaError,
)
from qsync_client import client as client_module
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.client_cluster import ACCOUNTS, COUNTERS, FORMAT, ClientBody
from qsync_testing.processes import ADMIN_PASSWORD, PASSWORD, USER, ProcessCluster


def test_writes_and_reads_use_names(with_client: Callable[[ClientBody], None]) -> None:
    async def body(client: Client) -> None:
        made = await client.insert("accounts", {"id": 1, "balance": 100, "owner": "ann"})
        assert isinstance(made, Committed)
        assert made.at > 0
        assert made.tuples[0].as_dict() == {"id": 1, "balance": 100, "owner": "ann"}
        changed = await client.update("accounts", 1, [("+", "balance", 5)])
        assert isinstance(changed, Committed)
        assert changed.tuples == [[1, 105, "ann"]]
        await client.upsert("accounts", [2, 10, "bob"], [("+", "balance", 1)])
        await client.upsert("accounts", [2, 10, "bob"], [("+", "balance", 1)])
        await client.replace("accounts", {"id": 3, "balance": 7})
        found = await client.get("accounts", 2)
        assert found is not None
        assert found.as_dict()["balance"] == 11
        assert await client.get("accounts", 9) is None
        assert await client.count("accounts") == 3
        assert await client.count("accounts", "bob", index="by_owner") == 1
        deleted = await client.delete("accounts", 1)
        assert isinstance(deleted, Committed)
        assert deleted.tuples == [[1, 105, "ann"]]
        with pytest.raises(RequestFailed) as failed:
            await client.get("accounts", "no number")
        assert isinstance(failed.value.outcome, Refused)

    with_client(body)


def test_select_takes_index_iterator_limit_and_position(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        for number in range(1, 7):
            await client.insert("accounts", [number, 0, "ann" if number % 2 else "bob"])

        async def ids(*key: Any, **options: Any) -> list[int]:
            found = await client.select("accounts", key, **options)
            assert isinstance(found, Committed)
            return [row[0] for row in found.tuples]

        assert await ids("bob", index="by_owner") == [2, 4, 6]
        assert await ids(4, iterator="GT") == [5, 6]
        assert await ids(4, iterator="le", limit=2) == [4, 3]
        assert await ids(iterator="ALL", after=[4, 0, "bob"]) == [5, 6]
        page = await client.select("accounts", limit=4, iterator="ALL", fetch_position=True)
        assert isinstance(page, Committed)
        assert await ids(iterator="ALL", after=page.position) == [5, 6]
        assert await ids(3, linearizable=True) == [3]

    with_client(body)


def test_scan_and_count_continue_after_each_page(
    with_client: Callable[[ClientBody], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE_ROWS", 3)
    monkeypatch.setattr("qsync_client.transaction.PAGE_ROWS", 3)

    async def body(client: Client) -> None:
        for number in range(7):
            await client.insert("accounts", [number, 0])
        assert [row[0] async for row in client.scan("accounts")] == list(range(7))
        assert await client.count("accounts", 2, iterator="GE") == 5
        async with client.transaction() as transaction:
            await transaction.insert("accounts", [7, 0])
            assert await transaction.count("accounts") == 8

    with_client(body)


def test_scan_and_count_take_smaller_pages_of_large_rows(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        large = "x" * 1_000_000  # an answer has at most 16 MiB
        for number in range(18):
            await client.insert("accounts", [number, 0, large])
        assert [row[0] async for row in client.scan("accounts")] == list(range(18))
        async with client.transaction() as transaction:
            await transaction.insert("accounts", [18, 0])
            assert await transaction.count("accounts") == 19

    with_client(body)


def test_schema_is_read_again_after_a_change(
    cluster: ProcessCluster, with_client: Callable[[ClientBody], None]
) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", {"id": 1, "balance": 1})
        more = [*FORMAT, {"name": "city", "type": "string", "is_nullable": True}]
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.update(SystemSpace.SPACE, ACCOUNTS, [("=", 6, more)])
        # The client has not seen this change, and the server refuses the old version once.
        found = await client.select("accounts", 1)
        assert isinstance(found, Committed)
        row = found.tuples[0]
        assert row.as_dict()["city"] is None
        made = await client.insert("accounts", {"id": 2, "balance": 1, "city": "Rome"})
        assert isinstance(made, Committed)
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.insert(
                SystemSpace.SPACE, [600, 1, "late", "memtx", 0, {"is_sync": True}, []]
            )
            await other.insert(
                SystemSpace.INDEX, [600, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]]
            )
        assert isinstance(await client.insert("late", [1]), Committed), "a name unknown so far"
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.update(SystemSpace.SPACE, ACCOUNTS, [("=", 6, FORMAT)])
        async with client.transaction() as transaction:
            await transaction.update("accounts", 1, [("+", "balance", 1)])
            rows = await transaction.select("accounts", 1)
        assert isinstance(transaction.outcome, Committed)
        assert rows[0].as_dict() == {"id": 1, "balance": 2, "owner": None}

    with_client(body)


def test_errors_that_cannot_heal_raise_at_once(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD, deadline_s=60) as client:
            for attempt in (
                client.insert("missing", [1]),
                client.insert(9999, [1]),
                client.select("accounts", index="missing"),
                client.select(ACCOUNTS, index=9),
                client.insert("accounts", {"missing": 1}),
            ):
                with pytest.raises(SchemaError):
                    await attempt
        async with Client(cluster.addresses, "clerk", "clerk", deadline_s=60) as clerk:
            for attempt in (
                clerk.select(COUNTERS),
                clerk.insert(COUNTERS, [1, 1], retry=False),
                clerk.call("box.ctl.promote"),
            ):
                with pytest.raises(AccessDenied):
                    await attempt

    started = time.monotonic()
    asyncio.run(body())
    assert time.monotonic() - started < 30, "nothing was retried until the deadline of 60 s"


def test_user_with_rights_on_one_space_writes_with_keys(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, "clerk", "clerk") as clerk:
            key = await clerk.new_key()
            first = await clerk.replace("accounts", [901, 1], request_key=key)
            assert isinstance(first, Committed)
            again = await clerk.replace("accounts", [901, 1], request_key=key)
            assert isinstance(again, Committed)
            assert again.at == first.at
            async with clerk.transaction() as transaction:
                await transaction.delete("accounts", 901)
            assert isinstance(transaction.outcome, Committed)
            assert transaction.outcome.at > first.at > 0

    asyncio.run(body())


def test_closed_client_raises_at_once(cluster: ProcessCluster) -> None:
    async def body() -> None:
        client = Client(cluster.addresses, USER, PASSWORD)
        assert isinstance(await client.replace("accounts", [1, 1]), Committed)
        await client.close()
        with pytest.raises(ClientClosed):
            await client.replace("accounts", [1, 1])

    asyncio.run(body())
