"""`qsync bench`: durable writes to a cluster, with progress, throughput and percentiles."""

import asyncio
import base64
import json
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import qsync_client
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, on_cluster
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, progress, warn
from qsync_cli.proof import ledger as ledgers
from qsync_node import errors

InFlightOption = Annotated[
    int, typer.Option("--in-flight", help="Concurrent writes.", min=1, max=4096)
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", help="Duration in seconds.", min=0.1, max=86400)
]
BytesOption = Annotated[
    int, typer.Option("--bytes", help="Size of each value.", min=1, max=1 << 20)
]
SpaceOption = Annotated[str, typer.Option("--space", help="Space to write to; created if missing.")]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="Write the outcome of each write to FILE, for audits.", metavar="FILE"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, as -o json.")]
KeepOption = Annotated[
    bool,
    typer.Option("--keep", help="Keep a space that the command created. --ledger keeps it, too."),
]

_SPACES, _INDEXES, _VINDEX = 280, 288, 289
_FIRST_ID = 512


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """The load of one run.

    Attributes:
        in_flight: concurrent writes.
        seconds: duration.
        size: bytes of each value.
        space: name of the space.
        is_kept: whether a space that the run created is kept.
        ledger: file for the outcomes, or None.
    """

    in_flight: int
    seconds: float
    size: int
    space: str
    is_kept: bool
    ledger: Path | None


@on_cluster
def bench(
    target: ConnectionTarget,
    in_flight: InFlightOption = 64,
    seconds: SecondsOption = 10.0,
    size: BytesOption = 100,
    space: SpaceOption = "qsync_bench",
    ledger: LedgerOption = None,
    keep: KeepOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure the throughput and latency of quorum-synchronous writes."""
    if target.is_address and target.user is None:
        target = replace(target, user="app")
    load = BenchLoad(in_flight, seconds, size, space, keep or ledger is not None, ledger)
    is_document = as_json or output in (Output.json, Output.yaml)
    with target.endpoint() as endpoint:
        try:
            result = asyncio.run(_run(endpoint, load, is_document))
        except (errors.QsyncError, OSError) as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # the ledger, not a member
            if isinstance(error, qsync_client.AccessDenied):
                with target.failures():
                    raise
            raise Failure(
                FailureReason.UNREACHABLE, f"benchmark of {target.cluster} failed: {error}"
            ) from error
    if is_document:
        print_document(result, output if output is Output.yaml else Output.json)
        return
    latencies = ", ".join(f"{name} {result[name]:.2f} ms" for name in ("p50", "p90", "p99", "max"))
    typer.echo(
        f"{result['writes']} writes, {result['rate']:,.0f} a second with {in_flight} in flight; "
        f"{latencies}; {result['failed']} failed"
    )


async def _run(endpoint: Endpoint, load: BenchLoad, is_quiet: bool) -> dict[str, Any]:
    latencies: list[float] = []
    failed = 0
    async with AsyncExitStack() as open_ones:
        lines = None
        if load.ledger is not None:
            lines = open_ones.enter_context(ledgers.open_ledger(load.ledger))
        client = await open_ones.enter_async_context(
            qsync_client.Client(
                endpoint.addresses,
                endpoint.user,
                endpoint.password,
                deadline_s=10,
                tls=endpoint.tls,
            )
        )
        space_id, is_new = await _space(client, load.space)
        started = time.perf_counter()
        deadline = started + load.seconds

        async def work(worker: int) -> None:
            nonlocal failed
            key = worker
            while (begin := time.perf_counter()) < deadline:
                asked_at = time.time()
                value = _random_text(load.size)
                outcome: qsync_client.Outcome = qsync_client.Unknown("interrupted")
                try:
                    outcome = await client.replace(space_id, [key, value], retry=False)
                finally:  # an interrupted write may take effect
                    if lines is not None:
                        lines.write(_ledger_line(space_id, (key, value), outcome, asked_at))
                if isinstance(outcome, qsync_client.Committed):
                    latencies.append(time.perf_counter() - begin)
                else:
                    failed += 1
                key += load.in_flight

        tasks = [asyncio.create_task(work(number)) for number in range(load.in_flight)]
        workers = asyncio.gather(*tasks)
        try:
            with progress("writing", load.seconds, is_quiet) as advance:
                while not workers.done():
                    await asyncio.wait([workers], timeout=0.2)
                    advance(min(time.perf_counter() - started, load.seconds))
            await workers
        finally:
            for task in tasks:  # each records its write while the ledger is open
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        took_s = time.perf_counter() - started
        if is_new and not load.is_kept:
            await _drop(client, space_id)
    if not latencies:
        raise Failure(
            FailureReason.FAILED,
            f"benchmark of {', '.join(endpoint.addresses)} failed: no write was committed and "
            f"{failed} failed; check `qsync status`",
        )
    return _summary(sorted(latencies), failed, took_s)


_OUTCOMES = {"Committed": "committed", "RolledBack": "rolled back", "Refused": "refused"}


def outcome_word(outcome: qsync_client.Outcome) -> str:
    """Return an outcome as ledgers name it."""
    return _OUTCOMES.get(type(outcome).__name__, "unknown")


def _random_text(size: int) -> str:
    """Return text that does not compress, so that disk and network carry all of its bytes."""
    return base64.b64encode(random.randbytes(size * 3 // 4 + 3)).decode()[:size]


async def _drop(client: qsync_client.Client, space_id: int) -> None:
    """Remove a space with its rows. It stays if the cluster refuses that."""
    for space, key in ((_INDEXES, [space_id, 0]), (_SPACES, [space_id])):
        outcome = await client.delete(space, key)
        if not isinstance(outcome, qsync_client.Committed):
            warn(f"the space {space_id} of the benchmark remains: {outcome.reason}")
            return


def _ledger_line(
    space_id: int, row: tuple[int, str], outcome: qsync_client.Outcome, asked_at: float
) -> str:
    """Return a client's outcomes in the format of `qsync local audit --ledger`."""
    line = {
        "space": space_id,
        "id": row[0],
        "value": row[1],
        "outcome": outcome_word(outcome),
        "started": asked_at,
        "ended": time.time(),
    }
    return json.dumps(line) + "\n"


async def ensure_space(client: qsync_client.Client, name: str) -> int:
    """Return the id of the space. Create it with one unsigned key if it is missing."""
    return (await _space(client, name))[0]


async def _space(client: qsync_client.Client, name: str) -> tuple[int, bool]:
    """Return the id of the space, and whether it is new. A new one has one unsigned key."""
    found = await client.select(_SPACES + 1, iterator=2, limit=10_000)
    if not isinstance(found, qsync_client.Committed):
        raise Failure(FailureReason.REFUSED, f"cannot read the schema: {found.reason}")
    for row in found.tuples:
        if row[2] == name:
            if not await _has_index(client, row[0]):  # a run ended between these two writes
                await _create(client, name, _INDEXES, _primary_of(row[0]))
            return int(row[0]), False
    made: int = max([_FIRST_ID - 1, *(row[0] for row in found.tuples)]) + 1
    await _create(client, name, _SPACES, [made, 1, name, "memtx", 0, {"is_sync": True}, []])
    await _create(client, name, _INDEXES, _primary_of(made))
    return made, True


def _primary_of(space: int) -> list[Any]:
    return [space, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]


async def _has_index(client: qsync_client.Client, space: int) -> bool:
    found = await client.select(_VINDEX, [space, 0], limit=1)
    if not isinstance(found, qsync_client.Committed):
        raise Failure(FailureReason.REFUSED, f"cannot read the schema: {found.reason}")
    return bool(found.tuples)


async def _create(client: qsync_client.Client, name: str, space: int, row: list[Any]) -> None:
    """Insert a row of a space, or of its index, into the schema. Raises Failure."""
    outcome = await client.insert(space, row)
    if not isinstance(outcome, qsync_client.Committed):
        raise Failure(
            FailureReason.REFUSED,
            f"cannot create the space {name}: {outcome.reason}; create it first, or use a user"
            " that may create spaces",
        )


def _summary(latencies: list[float], failed: int, took_s: float) -> dict[str, Any]:
    def at(share: float) -> float:
        return latencies[min(int(share * len(latencies)), len(latencies) - 1)] * 1000

    return {
        "writes": len(latencies),
        "failed": failed,
        "rate": len(latencies) / took_s,
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": latencies[-1] * 1000,
    }
