"""Move an amount between two accounts, and publish the event to a journal: both or neither."""

import json

import asynctnt

ACCOUNTS = 600  # space of [name, balance]


async def transfer(
    connection: asynctnt.Connection, source: str, target: str, amount: int, event: dict
) -> None:
    """Commit both rows and the event in one transaction."""
    async with connection.stream() as stream:  # BEGIN, then COMMIT or ROLLBACK
        await stream.update(ACCOUNTS, [source], [["-", 1, amount]])
        await stream.update(ACCOUNTS, [target], [["+", 1, amount]])
        content = json.dumps(event).encode() + b"\n"
        await stream.call("qsync.publish", ["orders/eu", content])
