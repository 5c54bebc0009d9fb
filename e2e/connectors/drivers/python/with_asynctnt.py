"""The checks with asynctnt."""

import asyncio
from datetime import datetime, timedelta, timezone

import asynctnt
from asynctnt.exceptions import TarantoolDatabaseError

from e2e.connectors.drivers.python.checks import (
    ADDRESSES,
    PASSWORD,
    USER,
    VALUES,
    ConnectorCheckError,
    expect,
    report,
    write_through_a_failover,
)


async def connect(number: int = 0, password: str = PASSWORD) -> asynctnt.Connection:
    """Connect to a member, without connecting again after an error."""
    host, port = ADDRESSES[number]
    connection = asynctnt.Connection(
        host=host,
        port=port,
        username=USER,
        password=password,
        reconnect_timeout=0,
        connect_timeout=5,
        request_timeout=5,
    )
    await connection.connect()
    return connection


class AsynctntChecks:
    """The checks, over one connection."""

    def __init__(self, connection: asynctnt.Connection) -> None:
        self.connection = connection

    async def log_in(self) -> None:
        try:
            await connect(password="wrong")
        except TarantoolDatabaseError as error:
            expect(error.code, 47)
        else:
            raise ConnectorCheckError("a wrong password is accepted")

    async def types(self) -> None:
        moment = datetime(2026, 11, 27, 4, 5, 6, tzinfo=timezone(timedelta(hours=3)))
        for value in [*VALUES, moment]:
            found = await self.connection.replace("kv", [1, "types", value])
            expect(found.body[0][2], value)

    async def requests(self) -> None:
        for number in range(10, 15):
            found = await self.connection.insert("kv", [number, "row", number])
            expect([list(row) for row in found.body], [[number, "row", number]])
        found = await self.connection.update("kv", [10], [("+", 2, 5)])
        expect(list(found.body[0]), [10, "row", 15])
        await self.connection.upsert("kv", [11, "row", 0], [("+", 2, 5)])
        found = await self.connection.delete("kv", [12])
        expect(list(found.body[0]), [12, "row", 12])
        chosen = await self.connection.select("kv", [10], iterator="GE", offset=1, limit=2)
        expect([list(row) for row in chosen.body], [[11, "row", 16], [13, "row", 13]])

    async def errors(self) -> None:
        try:
            await self.connection.insert("kv", [10, "row", 0])
        except TarantoolDatabaseError as error:
            expect(error.code, 3)
        else:
            raise ConnectorCheckError("a duplicate key is accepted")

    async def names(self) -> None:
        found = await self.connection.select("kv", ["types"], index="name", limit=1)
        expect(found.body[0]["name"], "types")

    async def transactions(self) -> None:
        for number in range(2):
            stream = self.connection.stream()
            await stream.begin()
            await stream.replace("kv", [30, "stream", number])
            expect(list((await self.connection.select("kv", [30])).body), [])
            await (stream.commit() if number else stream.rollback())
        found = await self.connection.select("kv", [30])
        expect([list(row) for row in found.body], [[30, "stream", 1]])

    async def console(self) -> None:
        expect((await self.connection.eval("return true")).body, [True])
        expect(len((await self.connection.call("box.info")).body), 1)

    async def failover(self) -> None:
        member, connection = 0, self.connection

        async def write(number: int) -> None:
            nonlocal member, connection
            try:
                await connection.replace("kv", [number, "failover", number])
            except Exception:  # the connection may fail in any way while the leader is killed
                member = (member + 1) % len(ADDRESSES)
                connection = await connect(member)
                raise

        await write_through_a_failover(write)


async def main() -> None:
    """Make the checks in their order."""
    checks = AsynctntChecks(await connect())
    for name in ("log in", "types", "requests", "errors", "names", "transactions", "console"):
        await report(name, getattr(checks, name.replace(" ", "_")))
    await report("failover", checks.failover)


asyncio.run(main())
