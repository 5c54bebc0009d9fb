"""The object store of the campaign on journals serves brokers, and fails on demand."""

import asyncio
import contextlib
import importlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_servers import free_ports

from qsync_broker.index import RemoteFragment
from qsync_broker.stores import FragmentStores, StoreError
from qsync_node.archive.location import open_store

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e" / "chaos"))
faulty: Any = importlib.import_module("faulty_store")

URL = f"s3://{faulty.BUCKET}/"
CONTENT = bytes(range(250)) * 40
PATH = f"a/b c/{0:016x}-{len(CONTENT):016x}-{'0' * 40}.raw"
FRAGMENT = RemoteFragment(0, len(CONTENT), bytes(20), 1, URL, PATH, 0)


@pytest.fixture
def faulty_store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a store, which is not started, after setting the variables of its users."""
    store = faulty.FaultyStore(free_ports(1)[0], random.Random(1))
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store


@contextlib.asynccontextmanager
async def running(store: Any) -> AsyncIterator[None]:
    await store.start()
    try:
        yield
    finally:
        await store.stop()


async def content(offset: int) -> bytes:
    return b"".join([data async for data in FragmentStores().read(FRAGMENT, offset)])


def test_broker_checks_lists_and_reads_objects(faulty_store: Any) -> None:
    async def main() -> None:
        async with running(faulty_store):
            stores = FragmentStores()
            await stores.check(URL, "a/b c/")
            await open_store(URL).put_async(PATH, CONTENT)
            (listed,) = await stores.list(URL, "a/b c")
            assert listed._replace(mod_time=0) == FRAGMENT
            assert await content(0) == CONTENT
            assert await content(777) == CONTENT[777:]

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["failing", "torn"])
def test_requests_fail_while_the_store_does(faulty_store: Any, fault: str) -> None:
    async def main() -> None:
        async with running(faulty_store):
            await open_store(URL).put_async(PATH, CONTENT)
            faulty_store.weakness = faulty.Weakness(**{fault: 1.0})
            with pytest.raises(StoreError):
                await content(0)
            assert faulty_store.requests
            faulty_store.weakness = faulty.Weakness()
            assert await content(0) == CONTENT

    asyncio.run(main())


def test_unanswered_request_has_an_effect(faulty_store: Any) -> None:
    async def main() -> None:
        async with running(faulty_store):
            faulty_store.weakness = faulty.Weakness(unanswered=1.0)
            with pytest.raises(StoreError):
                await FragmentStores().check(URL)
            faulty_store.weakness = faulty.Weakness()
            found = await open_store(URL).get_async(".test/health-check")
            assert bytes(await found.bytes_async()) == b"qsync"

    asyncio.run(main())
