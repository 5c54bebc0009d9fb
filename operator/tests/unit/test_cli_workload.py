"""The workloads of `qsync bench` and `chaos`: their space, their keys and their ledger."""

import asyncio
import io
import json
from pathlib import Path
from typing import Self

import pytest

import qsync_client
from qsync_cli import bench
from qsync_cli.data.connecting import Endpoint
from qsync_cli.failure import Failure
from qsync_cli.proof.workload import LedgerWorkload
from qsync_client import Committed, Outcome, Refused, Unknown

VSPACE, VINDEX, INDEX = 281, 289, 288
ENDPOINT = Endpoint(["127.0.0.1:1"], "app", "")


class WorkloadClient:
    """A cluster with one space; `has_index` is whether its primary index exists.

    Writes of rows never end.
    """

    def __init__(self, *, has_index: bool = True, newest: Outcome | None = None) -> None:
        self.has_index = has_index
        self.newest = newest or Committed([])
        self.requests: list[tuple[str, int, list[object]]] = []
        self.writing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def select(self, space: int, key: object = None, **_: object) -> Outcome:
        if space == VSPACE:
            return Committed([[600, 1, "load", "memtx", 0, {}, []]])
        if space == VINDEX:
            return Committed([[600, 0, "primary"]] if self.has_index else [])
        return self.newest

    async def insert(self, space: int, row: list[object], **_: object) -> Outcome:
        self.requests.append(("insert", space, row))
        if space == INDEX:
            return Committed([row])
        return await self._never()

    async def replace(self, space: int, row: list[object], **_: object) -> Outcome:
        self.requests.append(("replace", space, row))
        return await self._never()

    async def _never(self) -> Outcome:
        self.writing.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> WorkloadClient:
    client = WorkloadClient()
    monkeypatch.setattr(qsync_client, "Client", lambda *_, **__: client)
    monkeypatch.setattr("qsync_cli.proof.workload.Client", lambda *_, **__: client)
    return client


def test_index_is_made_up_for_if_a_run_died_before_it() -> None:
    client = WorkloadClient(has_index=False)
    assert asyncio.run(bench.ensure_space(client, "load")) == 600  # type: ignore[arg-type]  # a double
    assert [(space, row[:2]) for _, space, row in client.requests] == [(INDEX, [600, 0])]
    client = WorkloadClient()
    assert asyncio.run(bench.ensure_space(client, "load")) == 600  # type: ignore[arg-type]  # a double
    assert client.requests == []


@pytest.mark.parametrize("answer", [Unknown("no answer"), Refused(42, "denied")])
def test_keys_of_earlier_runs_are_never_used_again(client: WorkloadClient, answer: Outcome) -> None:
    client.newest = answer
    load = LedgerWorkload(ENDPOINT, "demo", "load", io.StringIO(), 1, 0.0)
    with pytest.raises(Failure, match="no write was sent"):
        asyncio.run(asyncio.wait_for(load.run(), 5))
    assert client.requests == []


async def interrupt(client: WorkloadClient, writing: "asyncio.Task[object]") -> None:
    await asyncio.wait_for(client.writing.wait(), 5)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


def test_write_of_an_interrupted_bench_is_unknown(client: WorkloadClient, tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"

    async def run() -> None:
        load = bench.BenchLoad(2, 60.0, 10, "load", True, file)
        await interrupt(client, asyncio.create_task(bench._run(ENDPOINT, load, True)))

    asyncio.run(run())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["id"], line["outcome"]) for line in lines] == [(0, "unknown"), (1, "unknown")]


def test_write_of_an_interrupted_workload_is_unknown(client: WorkloadClient) -> None:
    client.newest = Committed([[7, "x"]])
    lines = io.StringIO()

    async def run() -> None:
        load = LedgerWorkload(ENDPOINT, "demo", "load", lines, 1, 0.0)
        await interrupt(client, asyncio.create_task(load.run()))

    asyncio.run(run())
    line = json.loads(lines.getvalue())
    assert (line["id"], line["outcome"]) == (8, "unknown")


def test_bench_appends_to_no_ledger_with_an_incomplete_line(
    client: WorkloadClient, tmp_path: Path
) -> None:
    file = tmp_path / "l.jsonl"
    file.write_text('{"id": 1')
    load = bench.BenchLoad(1, 60.0, 10, "load", True, file)
    with pytest.raises(Failure, match="use a new --ledger"):
        asyncio.run(asyncio.wait_for(bench._run(ENDPOINT, load, True), 1))
    assert client.requests == []
