"""List and Read as JSON: framing, limits, tokens and errors."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qsync_broker.auth import Capability
from qsync_broker.rpc import rest
from qsync_testing.brokers.servers import BrokerNode, brokers
from qsync_testing.brokers.tokens import bearer, claims, guarded

pytestmark = pytest.mark.asyncio
JOURNAL = "a/journal"


async def ask(
    http: aiohttp.ClientSession, node: BrokerNode, verb: str, body: Any, **more: Any
) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the lines of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await http.post(f"{node.url}/v1/journals/{verb}", data=data, **more)
    assert answer.content_type == "application/json"
    return answer.status, [json.loads(line) for line in (await answer.read()).splitlines()]


async def test_list_has_defaults_and_names_of_json(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        status, (line,) = await ask(http, nodes[0], "list", {})
        assert status == 200
        (journal,) = line["result"]["journals"]
        assert line["result"]["status"] == "OK"
        assert journal["spec"]["name"] == JOURNAL
        assert journal["spec"]["maxAppendRate"] == "0"
        assert journal["spec"]["fragment"]["compressionCodec"] == "NONE"
        assert isinstance(journal["modRevision"], str)
        selector = {"include": {"labels": [{"name": "name", "value": "b/journal"}]}}
        status, (line,) = await ask(http, nodes[0], "list", {"selector": selector})
        assert line["result"]["journals"] == []


async def test_read_at_any_broker_has_content_in_base64(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as nodes, aiohttp.ClientSession() as http:
        await http.put(f"{nodes[0].url}/{JOURNAL}", data=b"content")
        await asyncio.sleep(0.1)
        for node in nodes:
            status, lines = await ask(http, node, "read", {"journal": JOURNAL, "offset": "3"})
            assert status == 200
            content = [base64.b64decode(line["result"]["content"]) for line in lines]
            assert b"".join(content) == b"tent"
            assert lines[0]["result"]["fragment"]["journal"] == JOURNAL
            assert lines[-1]["result"]["status"] == "OFFSET_NOT_YET_AVAILABLE"


async def test_blocking_read_sends_each_append(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        url = f"{nodes[0].url}/v1/journals/read"
        await http.put(f"{nodes[0].url}/{JOURNAL}", data=b"one")
        asking = asyncio.ensure_future(
            http.post(url, json={"journal": JOURNAL, "block": True, "offset": "3"})
        )
        answer = None
        for content in (b"two", b"three"):
            await http.put(f"{nodes[0].url}/{JOURNAL}", data=content)
            answer = answer or await asking
            found = b""
            while found != content:
                line = json.loads(await answer.content.readline())
                found = base64.b64decode(line["result"]["content"])
        assert answer is not None
        answer.close()


async def test_watch_sends_each_change(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        answer = await http.post(f"{nodes[0].url}/v1/journals/list", json={"watch": True})
        line = json.loads(await answer.content.readline())
        assert len(line["result"]["journals"]) == 1
        answer.close()


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("read", b"no JSON"),
        ("read", b"[]"),
        ("read", b'{"unknown": 1}'),
        ("read", b'{"journal": "a/journal", "offset": "x"}'),
        ("read", b'{"journal": "//"}'),
        ("list", b"\xff"),
        ("list", b"[" * 100_000),
    ],
)
async def test_invalid_request_is_refused(tmp_path: Path, verb: str, body: bytes) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        status, (line,) = await ask(http, nodes[0], verb, body)
        assert status == 400
        assert (line["error"]["grpcCode"], line["error"]["httpCode"]) == (3, 400)
        assert line["error"]["httpStatus"] == "Bad Request"


async def test_long_or_endless_request_is_refused(tmp_path: Path) -> None:
    async def endless() -> Any:
        yield b" "

    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        for data in (b" " * (rest.BODY_MAX + 1), endless()):
            answer = await http.post(f"{nodes[0].url}/v1/journals/list", data=data)
            assert answer.status == 400


async def test_unknown_journal_is_a_status_in_the_answer(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as nodes, aiohttp.ClientSession() as http:
        status, (line,) = await ask(http, nodes[0], "read", {"journal": "b/journal"})
        assert (status, line["result"]["status"]) == (200, "JOURNAL_NOT_FOUND")


async def test_token_is_required_and_its_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_broker.auth._LEEWAY_S", 0)
    request = {"journal": JOURNAL, "block": True}
    async with guarded(tmp_path) as nodes, aiohttp.ClientSession() as http:
        assert (await ask(http, nodes[0], "list", {}))[0] == 401
        headers = bearer(claims({}, 60, Capability.READ))
        assert (await ask(http, nodes[0], "list", {}, headers=headers))[0] == 401
        await http.put(f"{nodes[0].url}/{JOURNAL}", data=b"x", headers=bearer(claims({}, 60)))
        headers = bearer(claims({}, 2))
        status, lines = await ask(http, nodes[0], "read", request, headers=headers)
        assert status == 200
        assert lines[-1]["error"]["grpcCode"] == 16
