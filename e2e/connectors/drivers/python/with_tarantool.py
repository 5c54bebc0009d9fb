"""The checks with tarantool-python, its pool of connections in the last one."""

import asyncio

import tarantool
from tarantool.connection_pool import ConnectionPool, Mode

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


def connect(password: str = PASSWORD) -> tarantool.Connection:
    """Connect to the leader."""
    host, port = ADDRESSES[0]
    return tarantool.Connection(host, port, user=USER, password=password)


class TarantoolChecks:
    """The checks, over one connection."""

    def __init__(self, connection: tarantool.Connection) -> None:
        self.connection = connection

    async def log_in(self) -> None:
        try:
            connect("wrong")
        except tarantool.error.DatabaseError as error:
            expect(error.args[0].args[0], 47)  # wrapped once more than other errors
        else:
            raise ConnectorCheckError("a wrong password is accepted")

    async def types(self) -> None:
        moment = tarantool.Datetime(year=2026, month=11, day=27, hour=4, nsec=7000)
        length = tarantool.Interval(year=1, day=-2)
        for value in [*VALUES, moment, length]:
            found = self.connection.replace("kv", (1, "types", value))
            expect(found.data[0][2], value)

    async def requests(self) -> None:
        for number in range(10, 15):
            expect(
                self.connection.insert("kv", (number, "row", number)).data,
                [[number, "row", number]],
            )
        expect(self.connection.update("kv", 10, [("+", 2, 5)]).data, [[10, "row", 15]])
        self.connection.upsert("kv", (11, "row", 0), [("+", 2, 5)])
        expect(self.connection.delete("kv", 12).data, [[12, "row", 12]])
        chosen = self.connection.select(
            "kv", 10, iterator=tarantool.const.ITERATOR_GE, offset=1, limit=2
        )
        expect(chosen.data, [[11, "row", 16], [13, "row", 13]])

    async def errors(self) -> None:
        try:
            self.connection.insert("kv", (10, "row", 0))
        except tarantool.error.DatabaseError as error:
            expect(error.args[0], 3)
        else:
            raise ConnectorCheckError("a duplicate key is accepted")

    async def names(self) -> None:
        expect(len(self.connection.select("kv", "types", index="name", limit=1).data), 1)

    async def console(self) -> None:
        expect(list(self.connection.eval("return true").data), [True])
        expect(len(self.connection.call("box.info").data), 1)

    async def failover(self) -> None:
        members = [{"host": host, "port": port} for host, port in ADDRESSES]
        pool = ConnectionPool(members, user=USER, password=PASSWORD, refresh_delay=0.1)

        async def write(number: int) -> None:
            pool.replace("kv", (number, "failover", number), mode=Mode.RW)

        await write_through_a_failover(write)
        pool.close()


async def main() -> None:
    """Make the checks in their order."""
    checks = TarantoolChecks(connect())
    for name in ("log in", "types", "requests", "errors", "names", "console", "failover"):
        await report(name, getattr(checks, name.replace(" ", "_")))


asyncio.run(main())
