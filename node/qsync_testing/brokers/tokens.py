"""Tokens of brokers, and brokers that require them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from qsync_broker.auth import Authorizer, Capability
from qsync_testing.brokers.servers import BrokerNode, brokers


def claims(
    selector: dict[str, Any],
    seconds: int,
    capability: Capability = Capability.ALL,
    key: str = "c2VjcmV0",
) -> str:
    authorizer = Authorizer.of_text(key)
    return authorizer.sign(capability, selector, seconds)


@contextlib.asynccontextmanager
async def guarded(folder: Path, count: int = 1) -> AsyncIterator[list[BrokerNode]]:
    keys = folder / "keys"
    keys.write_text("c2VjcmV0")
    async with brokers(folder, count, auth_keys_file=keys) as nodes:
        yield nodes


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
