"""Ledgers of appends: lines are written before the client learns an outcome."""

import asyncio
import hashlib
from pathlib import Path

import pytest
from broker_servers import brokers

from qsync_broker.client import JournalClient, JournalError
from qsync_broker.ledger import (
    Append,
    AppendLedger,
    AppendLedgerError,
    append_of_line,
    unknown_append,
)
from qsync_broker.pipelining import AppendPipeline
from qsync_broker.status import Status

JOURNAL = "a/journal"
SUM = hashlib.sha1(b"one").digest()


def recorded(path: Path) -> list[Append]:
    return [append_of_line(line) for line in path.read_bytes().splitlines()]


def test_lines_are_read_as_written_and_barriers_are_left_out(tmp_path: Path) -> None:
    ledger = AppendLedger(tmp_path / "ledger")
    ledger.record([Append(JOURNAL, 5, 5, SUM), Append(JOURNAL, 5, 8, SUM, 7.5)])
    ledger.record([unknown_append(JOURNAL, 3, SUM)])
    ledger.close()
    first, second = recorded(tmp_path / "ledger")
    assert first == Append(JOURNAL, 5, 8, SUM, 7.5)
    assert first.is_known
    assert not second.is_known
    assert second.end - second.begin == 3


@pytest.mark.parametrize("size", [1, 70_000, 140_000])
def test_incomplete_line_of_a_killed_process_is_replaced(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger"
    ledger = AppendLedger(path)
    ledger.record([Append(JOURNAL, 0, 3, SUM)])
    ledger.close()
    with path.open("ab") as file:
        file.write(b"x" * size)
    ledger = AppendLedger(path)
    ledger.record([Append(JOURNAL, 3, 6, SUM)])
    ledger.close()
    assert [one.begin for one in recorded(path)] == [0, 3]


def test_ledger_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AppendLedgerError, match="cannot be opened"):
        AppendLedger(tmp_path)
    ledger = AppendLedger(Path("/dev/full"))
    with pytest.raises(AppendLedgerError, match="No space left"):
        ledger.record([Append(JOURNAL, 0, 3, SUM)])
    ledger.close()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"{", "is not valid JSON"),
        (b"[]", "is no object"),
        (b'{"begin": 0}', "has no journal"),
        (b'{"journal": "a/b", "begin": 0, "end": 1, "sha1": "0"}', "has no sha1"),
        (b'{"journal": "a/b", "begin": 1, "end": 1, "sha1": "%s"}' % (b"0" * 40), "begin and end"),
        (b'{"journal": "a/b", "outcome": "lost", "sha1": "%s"}' % (b"0" * 40), "outcome 'lost'"),
        (b'{"journal": "a/b", "time": "now", "sha1": "%s"}' % (b"0" * 40), "time 'now'"),
    ],
)
def test_invalid_lines_are_refused(line: bytes, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        append_of_line(line)


@pytest.mark.asyncio
async def test_clients_record_appends_and_unknown_outcomes_but_no_refusals(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = AppendLedger(path)
    async with brokers(tmp_path, 1) as nodes:
        async with AppendPipeline(nodes[0].url, JOURNAL, ledger=ledger) as pipeline:
            commits = await asyncio.gather(*(pipeline.append(b"%d" % n) for n in range(50)))
            with pytest.raises(JournalError):
                await pipeline.append(b"refused", offset=7)
        async with JournalClient(nodes[0].url, ledger=ledger) as client:
            commits.append(await client.append(JOURNAL, [b"content", b" in parts"]))
            with pytest.raises(JournalError) as raised:
                await client.append(JOURNAL, [b"refused"], offset=7)
            assert raised.value.status is Status.WRONG_APPEND_OFFSET
        assert {one[1:4] for one in recorded(path)} == {one[:3] for one in commits}
        assert all(one.journal == JOURNAL and one.time > 0 for one in recorded(path))
    async with AppendPipeline(nodes[0].url, JOURNAL, ledger=ledger) as pipeline:
        with pytest.raises(JournalError):
            await pipeline.append(b"unknown")
    last = recorded(path)[-1]
    assert not last.is_known
    assert (last.end - last.begin, last.sum) == (7, hashlib.sha1(b"unknown").digest())
    ledger.close()


@pytest.mark.asyncio
async def test_append_that_the_ledger_lacks_is_not_reported_as_carried_out(tmp_path: Path) -> None:
    ledger = AppendLedger(Path("/dev/full"))
    async with brokers(tmp_path, 1) as nodes:
        async with AppendPipeline(nodes[0].url, JOURNAL, ledger=ledger) as pipeline:
            with pytest.raises(AppendLedgerError):
                await pipeline.append(b"content")
        async with JournalClient(nodes[0].url, ledger=ledger) as client:
            with pytest.raises(AppendLedgerError):
                await client.append(JOURNAL, [b"content"])
    ledger.close()
