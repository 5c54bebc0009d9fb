"""The gRPC client of journals: content that cannot be read, and appends that are cancelled."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from qsync_broker.client import JournalClient, JournalError
from qsync_broker.ledger import AppendLedger
from qsync_broker.requests import Suspend
from qsync_testing.brokers.servers import brokers

pytestmark = pytest.mark.asyncio
JOURNAL = "a/journal"


async def test_error_of_the_content_is_raised_and_nothing_is_appended(tmp_path: Path) -> None:
    """gRPC alone would report a cancelled task."""

    def content() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk failed")

    path = tmp_path / "ledger"
    ledger = AppendLedger(path)
    async with (
        brokers(tmp_path, 1) as nodes,
        JournalClient(nodes[0].url, ledger=ledger) as client,
    ):
        with pytest.raises(OSError, match="the disk failed"):
            await client.append(JOURNAL, content())
        assert await client.head(JOURNAL) == 0
        assert (await client.append(JOURNAL, [b"whole"])).begin == 0
    ledger.close()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["begin"], line["end"]) == (0, 5)


async def test_cancelled_append_is_recorded_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the bytes. An audit would otherwise find an append of no client."""
    path, has_answer = tmp_path / "ledger", asyncio.Event()
    send = JournalClient._append

    async def append(client: JournalClient, request: object, content: Iterable[bytes]) -> object:
        answer: object = await send(client, request, content)
        if content:
            has_answer.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(JournalClient, "_append", append)
    ledger = AppendLedger(path)
    async with (
        brokers(tmp_path, 1) as nodes,
        JournalClient(nodes[0].url, ledger=ledger) as client,
    ):
        appending = asyncio.ensure_future(client.append(JOURNAL, [b"content"]))
        await has_answer.wait()
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert await client.head(JOURNAL) == 7
    ledger.close()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["outcome"], line["size"]) == ("unknown", 7)


async def test_append_waits_for_the_brokers_of_a_journal_that_it_resumes(tmp_path: Path) -> None:
    """It was refused, and had to be repeated by hand."""
    async with brokers(tmp_path, 3) as nodes, JournalClient(nodes[0].url) as client:
        keys = nodes[0].server.core.keys
        await client.append(JOURNAL, [b"one"])
        with pytest.raises(JournalError, match="SUSPENDED"):
            await client.append(JOURNAL, suspend=Suspend.NOW)
        async with asyncio.timeout(10):
            while len(keys.route(JOURNAL).members) > 1:
                await asyncio.sleep(0.01)
        with pytest.raises(JournalError, match="SUSPENDED"):
            await client.append(JOURNAL, [b"no"], suspend=Suspend.NO_RESUME)
        assert keys.journals[JOURNAL].suspend_level == 1
        assert (await client.append(JOURNAL, [b"two"])).begin == 3
