"""The frame of the drivers in Python: reports, and the loop of the last check."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

ADDRESSES = [
    (host, int(port))
    for host, _, port in (
        one.rpartition(":") for one in os.environ["CONNECTOR_ADDRESSES"].split(",")
    )
]
USER, PASSWORD = os.environ["CONNECTOR_USER"], os.environ["CONNECTOR_PASSWORD"]
VALUES: list[Any] = [
    None, True, False, 2**63 + 5, -(2**62), 3.5, "text", b"\0\xff", ["nested"], {"key": "value"},
    Decimal("-12345678901234567890.123456789"), UUID("64d22e4d-ac92-4a23-899a-e59f34af5479"),
]  # fmt: skip


class ConnectorCheckError(Exception):
    """A check saw another answer than the expected one."""


def expect(got: object, wanted: object) -> None:
    """Compare an answer with the one that Tarantool gives."""
    if got != wanted:
        raise ConnectorCheckError(f"{got!r} instead of {wanted!r}")


async def report(name: str, check: Callable[[], Awaitable[None]]) -> None:
    """Make a check and print its result."""
    try:
        await asyncio.wait_for(check(), 60)
    except Exception as error:  # noqa: BLE001 (each error of a connector is a result)
        print(f"{name}: failed: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
    else:
        print(f"{name}: ok", flush=True)


async def write_through_a_failover(write: Callable[[int], Awaitable[None]]) -> None:
    """Write until 50 writes succeeded after the first failure."""
    last: Exception | None = None
    after = number = 0
    end = time.monotonic() + 40
    while after < 50 and time.monotonic() < end:
        number += 1
        try:
            await write(1000 + number)
            after += last is not None
        except Exception as error:  # noqa: BLE001 (as the leader is killed, any error may come)
            last, after = error, 0
            await asyncio.sleep(0.02)
        if number == 20:
            print("failover: ready", flush=True)
        elif last is None:
            await asyncio.sleep(0.005)
    if after < 50:
        raise ConnectorCheckError(f"no writes after the failover: {last}")
