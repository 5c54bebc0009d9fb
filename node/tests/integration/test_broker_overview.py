"""The bounded selection of journals that pages show."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qsync_broker import overview
from qsync_broker.auth import Authorizer, Capability
from qsync_testing.brokers.servers import BrokerNode, brokers, create

pytestmark = pytest.mark.asyncio
KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="


async def selected(node: BrokerNode, **query: str | int) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{node.url}/debug/journals", params=query) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


def names(found: dict[str, Any]) -> list[str]:
    return [one["name"] for one in found["journals"]]


async def test_selection_has_the_first_names_and_all_brokers(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as nodes, aiohttp.ClientSession() as http:
        for number in range(9):
            create(nodes[0].keys, f"b/{number}", 3)
        async with asyncio.timeout(20):
            while any(one.server.core.keys.load(one.server.core.me) < 10 for one in nodes):
                await asyncio.sleep(0.02)
            await http.put(f"{nodes[0].url}/a/journal", data=b"12345")
            # New journals have a problem until their brokers are synchronised.
            while len((found := await selected(nodes[0], limit=4))["journals"]) > 4:
                await asyncio.sleep(0.02)
        assert (found["total"], names(found)) == (10, ["a/journal", "b/0", "b/1", "b/2"])
        first = found["journals"][0]
        assert (first["write_head"], first["bytes"], first["persisted"]) == (5, 5, 0)
        assert [one["name"] for one in found["brokers"]] == ["broker-0", "broker-1", "broker-2"]
        assert all(one["zone"] and not one["is_exiting"] for one in found["brokers"])
        assert {one["assignments"] for one in found["brokers"]} == {10}
        assert sum(one["primaries"] for one in found["brokers"]) == 10
        assert names(await selected(nodes[0], limit=4, part="b/7")) == ["b/7"]
        assert names(await selected(nodes[0], limit=0)) == []
        for limit in ("x", "-1", "9" * 30, ""):
            async with http.get(f"{nodes[0].url}/debug/journals?limit={limit}") as answer:
                assert answer.status == 400
                assert "use a number" in await answer.text()


async def test_journals_with_a_problem_are_selected_beside_the_first_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "JOURNALS_MAX", 2)
    async with brokers(tmp_path, 1) as nodes:
        for number in range(5):
            create(nodes[0].keys, f"b/{number}", 1)
        create(nodes[0].keys, "z/lacks-brokers", 3)
        async with asyncio.timeout(20):
            while nodes[0].server.core.census.failing != ("z/lacks-brokers",):
                await asyncio.sleep(0.02)
        found = await selected(nodes[0], limit=1000)
        assert names(found) == ["a/journal", "b/0", "z/lacks-brokers"]
        assert found["total"] == 7
        assert names(await selected(nodes[0], limit=1000, part="b/")) == ["b/0", "b/1"]


async def test_selection_has_only_journals_that_the_token_selects(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    async with (
        brokers(tmp_path, 1, auth_keys_file=keys) as nodes,
        aiohttp.ClientSession() as http,
    ):
        create(nodes[0].keys, "b/journal", 1)
        async with asyncio.timeout(20):
            while len(nodes[0].server.core.keys.journals) < 2:
                await asyncio.sleep(0.02)
        url = f"{nodes[0].url}/debug/journals?limit=10"
        async with http.get(url) as answer:
            assert answer.status == 401
        authorizer = Authorizer.of_text(KEY)
        for selector, wanted in (
            ({}, ["a/journal", "b/journal"]),
            ({"include": {"labels": [{"name": "name", "value": "b/journal"}]}}, ["b/journal"]),
        ):
            token = authorizer.sign(Capability.LIST, selector, 60)
            async with http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                found = await answer.json()
            assert (names(found), found["total"]) == (wanted, len(wanted))
