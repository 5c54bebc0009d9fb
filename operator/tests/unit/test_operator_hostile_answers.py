"""Answers of members that are no statuses: too long, too deep, or no text."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from qsync_operator.members import links as links_module
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_operator.members.links import LinkError, NodeLinks

LIMIT = 1000


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """Serve a body as /status, and yield the address."""

    async def status(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    application = web.Application()
    application.add_routes([web.get("/status", status)])
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        pytest.param(b"[" * 200_000, False, id="deep"),
        pytest.param(b'{"uuid": "\xff"}', False, id="no-text"),
        pytest.param(b"{}" + b" " * LIMIT, False, id="long"),
        pytest.param(b"{}" + b" " * (LIMIT - 2), True, id="longest"),
    ],
)
@pytest.mark.asyncio
async def test_hostile_status_is_an_error_of_its_member_alone(
    body: bytes, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not body.startswith(b"["):
        monkeypatch.setattr(links_module, "ANSWER_BYTES_MAX", LIMIT, raising=False)
    links = NodeLinks("secret")
    async with answering(body) as address, asyncio.timeout(10):
        found = await links.statuses({"a": address})
        await links.close()
    assert isinstance(found["a"], LinkError) is not is_read


def test_member_whose_address_is_gone_is_a_database_that_cannot_be_reached() -> None:
    with pytest.raises(DatabaseError, match="cannot connect"):
        IprotoConnection("", "admin", "secret", 1.0)
