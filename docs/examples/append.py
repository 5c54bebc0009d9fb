"""Append events to a journal in batches, record them in a ledger, and read the journal."""

import asyncio
from pathlib import Path

from qsync_broker.client import JournalClient
from qsync_broker.ledger import AppendLedger
from qsync_broker.pipelining import AppendPipeline


async def append(url: str, journal: str, events: list[bytes], ledger: Path) -> list[int]:
    """Return the offset of each event; each is whole, and on the disks of all brokers."""
    async with AppendPipeline(url, journal, ledger=AppendLedger(ledger)) as pipeline:
        commits = await asyncio.gather(*(pipeline.append(event) for event in events))
    return [commit.begin for commit in commits]


async def read(url: str, journal: str, offset: int) -> bytes:
    """Return the bytes of a journal from an offset to its write head."""
    async with JournalClient(url) as client:
        return b"".join([data async for _, data in client.read(journal, offset)])
