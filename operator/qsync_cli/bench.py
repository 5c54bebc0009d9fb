"""`qsync bench`: durable writes against any address, with progress, throughput and percentiles."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import qsync_client
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.output import progress
from qsync_node import errors

AddressArgument = Annotated[str, typer.Argument(help="IPROTO address.", metavar="HOST:PORT")]
UserOption = Annotated[str, typer.Option("--user", help="User that writes.")]
PasswordOption = Annotated[
    str, typer.Option("--password", envvar="QSYNC_PASSWORD", help="Password of the user.")
]
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_SPACES, _INDEXES = 280, 288
_FIRST_ID = 512


def bench(
    address: AddressArgument,
    user: UserOption = "app",
    password: PasswordOption = "",
    in_flight: InFlightOption = 64,
    seconds: SecondsOption = 10.0,
    size: BytesOption = 100,
    space: SpaceOption = "qsync_bench",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the throughput and latency of quorum-synchronous writes."""
    try:
        result = asyncio.run(
            _run(address, user, password, in_flight, seconds, size, space, as_json, ledger)
        )
    except (errors.QsyncError, OSError) as error:
        raise Failure(
            FailureReason.UNREACHABLE, f"benchmark of {address} failed: {error}"
        ) from error
    if as_json:
        typer.echo(json.dumps(result))
        return
    latencies = ", ".join(f"{name} {result[name]:.2f} ms" for name in ("p50", "p90", "p99", "max"))
    typer.echo(
        f"{result['writes']} writes, {result['rate']:,.0f} a second with {in_flight} in flight; "
        f"{latencies}; {result['failed']} failed"
    )


async def _run(
    address: str,
    user: str,
    password: str,
    in_flight: int,
    seconds: float,
    size: int,
    space: str,
    is_quiet: bool,
    ledger: Path | None,
) -> dict[str, Any]:
    latencies: list[float] = []
    failed = 0
    async with AsyncExitStack() as open_ones:
        lines = None if ledger is None else open_ones.enter_context(ledger.open("a"))
        client = await open_ones.enter_async_context(
            qsync_client.Client([address], user, password, deadline_s=10)
        )
        space_id = await ensure_space(client, space)
        started = time.perf_counter()
        deadline = started + seconds

        async def work(worker: int) -> None:
            nonlocal failed
            key = worker
            while (begin := time.perf_counter()) < deadline:
                asked_at = time.time()
                outcome = await client.replace(space_id, [key, "v" * size], retry=False)
                if lines is not None:
                    lines.write(_ledger_line(space_id, key, size, outcome, asked_at))
                if isinstance(outcome, qsync_client.Committed):
                    latencies.append(time.perf_counter() - begin)
                else:
                    failed += 1
                key += in_flight

        workers = asyncio.gather(*(work(number) for number in range(in_flight)))
        with progress("writing", seconds, is_quiet) as advance:
            while not workers.done():
                await asyncio.wait([workers], timeout=0.2)
                advance(min(time.perf_counter() - started, seconds))
        await workers
        took_s = time.perf_counter() - started
    if not latencies:
        raise Failure(
            FailureReason.FAILED,
            f"benchmark of {address} failed: no write was committed and {failed} failed; "
            "check `qsync status`",
        )
    return _summary(sorted(latencies), failed, took_s)


_OUTCOMES = {"Committed": "committed", "RolledBack": "rolled back", "Refused": "refused"}


def outcome_word(outcome: qsync_client.Outcome) -> str:
    """Return an outcome as ledgers name it."""
    return _OUTCOMES.get(type(outcome).__name__, "unknown")


def _ledger_line(
    space_id: int, key: int, size: int, outcome: qsync_client.Outcome, asked_at: float
) -> str:
    """Return a client's outcomes in the format of `qsync local audit --ledger`."""
    line = {
        "space": space_id,
        "id": key,
        "value": "v" * size,
        "outcome": outcome_word(outcome),
        "started": asked_at,
        "ended": time.time(),
    }
    return json.dumps(line) + "\n"


async def ensure_space(client: qsync_client.Client, name: str) -> int:
    """Return the id of the space. Create it with one unsigned key if it is missing."""
    found = await client.select(_SPACES + 1, iterator=2, limit=10_000)
    if not isinstance(found, qsync_client.Committed):
        raise Failure(FailureReason.REFUSED, f"cannot read the schema: {found.reason}")
    for row in found.tuples:
        if row[2] == name:
            return int(row[0])
    made: int = max([_FIRST_ID - 1, *(row[0] for row in found.tuples)]) + 1
    for space, row in (
        (_SPACES, [made, 1, name, "memtx", 0, {"is_sync": True}, []]),
        (_INDEXES, [made, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
    ):
        outcome = await client.insert(space, row)
        if not isinstance(outcome, qsync_client.Committed):
            raise Failure(
                FailureReason.REFUSED,
                f"cannot create the space {name}: {outcome.reason}",
            )
    return made


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
