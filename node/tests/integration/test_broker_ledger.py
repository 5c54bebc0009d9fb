"""Ledgers of appends: lines are written before the client learns an outcome."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgpack import packb

from qsync_broker.client import JournalClient, JournalError
from qsync_broker.ledger import (
    AppendLedger,
    AppendLedgerError,
    LedgerAppend,
    append_of_line,
    unknown_append,
)
from qsync_broker.pipelining import AppendPipeline
from qsync_broker.status import Status
from qsync_testing.brokers.servers import brokers

JOURNAL = "a/journal"
SUM = hashlib.sha1(b"one").digest()


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that answers each request so, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def recorded(path: Path) -> list[LedgerAppend]:
    return [append_of_line(line) for line in path.read_bytes().splitlines()]


def test_lines_are_read_as_written_and_barriers_are_left_out(tmp_path: Path) -> None:
    ledger = AppendLedger(tmp_path / "ledger")
    ledger.record([LedgerAppend(JOURNAL, 5, 5, SUM), LedgerAppend(JOURNAL, 5, 8, SUM, 7.5)])
    ledger.record([unknown_append(JOURNAL, 3, SUM)])
    ledger.close()
    first, second = recorded(tmp_path / "ledger")
    assert first == LedgerAppend(JOURNAL, 5, 8, SUM, 7.5)
    assert first.is_known
    assert not second.is_known
    assert second.end - second.begin == 3


@pytest.mark.parametrize("size", [1, 70_000, 140_000])
def test_incomplete_line_of_a_killed_process_is_replaced(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger"
    ledger = AppendLedger(path)
    ledger.record([LedgerAppend(JOURNAL, 0, 3, SUM)])
    ledger.close()
    with path.open("ab") as file:
        file.write(b"x" * size)
    ledger = AppendLedger(path)
    ledger.record([LedgerAppend(JOURNAL, 3, 6, SUM)])
    ledger.close()
    assert [one.begin for one in recorded(path)] == [0, 3]


def test_ledger_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AppendLedgerError, match="cannot be opened"):
        AppendLedger(tmp_path)
    ledger = AppendLedger(Path("/dev/full"))
    with pytest.raises(AppendLedgerError, match="No space left"):
        ledger.record([LedgerAppend(JOURNAL, 0, 3, SUM)])
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
    async with answering(b"") as url, AppendPipeline(url, JOURNAL, ledger=ledger) as pipeline:
        with pytest.raises(JournalError) as lost:
            await pipeline.append(b"unknown")
    assert not lost.value.is_refused
    last = recorded(path)[-1]
    assert not last.is_known
    assert (last.end - last.begin, last.sum) == (7, hashlib.sha1(b"unknown").digest())
    ledger.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 411, 413, 500, 503, None])
@pytest.mark.asyncio
async def test_refused_batch_is_not_recorded_as_unknown(tmp_path: Path, status: int | None) -> None:
    """None is a connection that is refused."""
    path = tmp_path / "ledger"
    ledger = AppendLedger(path)
    text = f"{JOURNAL}: the cause".encode()
    head = f"HTTP/1.1 {status} Error\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    async with answering(head + text) as url:
        if status is None:
            url = "http://127.0.0.1:1"
        async with AppendPipeline(url, JOURNAL, ledger=ledger) as pipeline:
            with pytest.raises(JournalError) as raised:
                await pipeline.append(b"content", union={"k": "w"})
    ledger.close()
    is_refused = status is None or status < 500
    assert (raised.value.is_refused, raised.value.status) == (is_refused, None)
    assert len(recorded(path)) == (0 if is_refused else 1)
    assert str(raised.value).count(JOURNAL) == 1
    if status is not None:
        assert str(raised.value) == f"{JOURNAL}: HTTP status {status}: the cause"


@pytest.mark.parametrize(
    "outcome",
    [
        ["STATUS_OF_A_LATER_VERSION"],
        [None],
        [[]],
        ["OK", "0"],
        ["OK", 0, None],
        ["OK", 0, 1, "sum"],
        ["OK", 0, 1, b"", ["register"]],
        ["OK", 0, 1, b"", {"lock": 1}],
        ["", 0, 0, b"", {}, 7],
    ],
)
@pytest.mark.asyncio
async def test_invalid_answer_to_a_batch_is_an_unknown_outcome(
    tmp_path: Path, outcome: list[object]
) -> None:
    """The append would otherwise wait forever."""
    body, ledger = packb(outcome), AppendLedger(tmp_path / "ledger")
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with (
        asyncio.timeout(5),
        answering(head + body) as url,
        AppendPipeline(url, JOURNAL, ledger=ledger) as pipeline,
    ):
        with pytest.raises(JournalError, match="answer to a batch is invalid") as raised:
            await pipeline.append(b"content")
    ledger.close()
    assert not raised.value.is_refused
    assert [one.is_known for one in recorded(tmp_path / "ledger")] == [False]


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
