"""The gRPC client of journals: content that cannot be read, and appends that are cancelled."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_broker.client import JournalClient
from qsync_broker.ledger import AppendLedger
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
