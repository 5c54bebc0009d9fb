"""`qsync chaos`: kills the leader at intervals while a workload records its outcomes."""

import asyncio
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.consent import require_consent
from qsync_cli.data.connecting import ConnectionTarget, on_cluster
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import counted, print_document, say
from qsync_cli.proof import ledger as ledgers
from qsync_cli.proof import victims as victim_platforms
from qsync_cli.proof import workload as workloads
from qsync_cli.where import Where
from qsync_client import QsyncError
from qsync_operator.api import base

if TYPE_CHECKING:
    from qsync_cli.proof.victims import Leadership, Victims
    from qsync_cli.proof.workload import LedgerWorkload

KillLeaderOption = Annotated[
    bool, typer.Option("--kill-leader", help="Kill the leader. It is the only fault so far.")
]
EveryOption = Annotated[
    str, typer.Option("--every", help="Time between two kills.", metavar="DURATION")
]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Number of kills.", min=1)]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="File to which the workload appends its outcomes.", metavar="FILE",
        show_default=False,
    ),
]  # fmt: skip
OwnOption = Annotated[
    bool,
    typer.Option(
        "--no-workload", help="Only kill: your program writes, and keeps the ledger itself."
    ),
]
RateOption = Annotated[
    float, typer.Option("--rate", help="Writes in a second; 0: no limit.", min=0)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without a question, in a script.")]
SPACE = "qsync_chaos"
"""Space of the workload; it is created if it is missing."""
WORKERS = 16
INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as of a shell."""
SETTLE_S = 90.0
"""Time in which all members must be up again after a kill."""
POLL_S = 0.2
FIRST_WRITES = 50
"""Writes with an outcome before the first kill."""


@dataclass(frozen=True, slots=True)
class LeaderKill:
    """One kill. `outage_ms` is None if no acknowledged write of the workload began after it."""

    member: str
    new_leader: str
    term: int
    at_s: float
    outage_ms: float | None


@on_cluster
def chaos(
    target: ConnectionTarget,
    kill_leader: KillLeaderOption = False,
    every: EveryOption = "5s",
    rounds: RoundsOption = 5,
    ledger: LedgerOption = None,
    no_workload: OwnOption = False,
    rate: RateOption = 500.0,
    yes: YesOption = False,
    output: OutputOption = None,
) -> None:
    """Kill the leader at intervals, under a workload that records the outcome of each write."""
    _check(target, kill_leader, ledger, no_workload)
    every_s = _seconds(every)
    is_quiet = output in (Output.json, Output.yaml)
    victims = _victims_of(target, is_given=yes)
    with ExitStack() as stack:
        stack.enter_context(target.failures())
        load: LedgerWorkload | None = None
        if not no_workload and ledger is not None:
            endpoint = stack.enter_context(target.endpoint())
            lines = stack.enter_context(ledgers.open_ledger(ledger))
            load = workloads.LedgerWorkload(endpoint, target.cluster, SPACE, lines, WORKERS, rate)
        kills: list[LeaderKill] = []
        is_interrupted = False
        try:
            asyncio.run(_run(victims, load, every_s, rounds, kills, is_quiet=is_quiet))
        except KeyboardInterrupt:
            is_interrupted = True
    _report(target, ledger, kills, load, output)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED_EXIT)


def _check(target: ConnectionTarget, is_leader: bool, ledger: Path | None, is_own: bool) -> None:
    """Refuse a command without a fault, or without a ledger. Raises BadParameter."""
    if not is_leader:
        raise typer.BadParameter("specify a fault: --kill-leader")
    if ledger is None and not is_own:
        raise typer.BadParameter(
            "--ledger FILE is missing: the workload records its outcomes there; with --no-workload"
            " your program does"
        )
    if ":" in target.cluster:
        raise typer.BadParameter("an address cannot be used here: specify CLUSTER")


def _seconds(text: str) -> float:
    try:
        return base.duration_ns(text) / 1e9
    except ValueError as error:
        raise typer.BadParameter(
            f"--every {text!r} is invalid: use a duration, such as 5s"
        ) from error


def _victims_of(target: ConnectionTarget, *, is_given: bool) -> "Victims":
    """Return the platform of the cluster, with consent for pods of a shared one."""
    if not target.is_on_kubernetes:
        store = clusters.open_store(target.cluster)
        clusters.ensure_supervisor(store)
        return victim_platforms.LocalVictims(store)
    where = Where(cluster=target.cluster, namespace=target.namespace, context=target.context)
    victims = victim_platforms.PodVictims(where)
    victims.observe()  # fails if there is no such cluster
    text = f"{target.cluster}: the pod of its leader is deleted in each round."
    require_consent(target.cluster, text, "Delete pods?", "add --yes", is_given=is_given)
    return victims


async def _run(
    victims: "Victims",
    load: "LedgerWorkload | None",
    every_s: float,
    rounds: int,
    kills: list[LeaderKill],
    *,
    is_quiet: bool,
) -> None:
    """Kill `rounds` leaders under the workload, if there is one. Add each kill to `kills`."""
    writing = asyncio.create_task(load.run()) if load is not None else None
    try:
        if load is not None and writing is not None:
            await _first_writes(load, writing)
        for number in range(rounds):
            if number:
                await asyncio.sleep(every_s)
            if writing is not None and writing.done():
                break
            kill = await _kill_one(victims, load)
            kills.append(kill)
            if not is_quiet:
                say(_line(kill))
    finally:
        if load is not None and writing is not None:
            load.is_stopping = True
            await writing


async def _first_writes(load: "LedgerWorkload", writing: "asyncio.Task[None]") -> None:
    """Wait for the outcomes of the first writes.

    Raises:
        Failure: none of them was acknowledged.
    """
    while load.writes < FIRST_WRITES and not writing.done():
        await asyncio.sleep(POLL_S)
    if writing.done():
        await writing  # raises its error
    if not load.committed:
        raise Failure(
            FailureReason.REFUSED,
            f"no leader is killed, because no write to {SPACE} was acknowledged: {load.refusal};"
            f" use a --user that may write to {SPACE}",
        )


async def _kill_one(victims: "Victims", load: "LedgerWorkload | None") -> LeaderKill:
    """Kill the leader once all members are up, and wait until they are up again.

    Raises:
        Failure: they are not within `SETTLE_S` seconds.
    """
    before = await _whole(victims, None)
    pause = ledgers.WritePause(time.time())
    if load is not None:
        load.pause = pause
    await asyncio.to_thread(victims.kill, before.leader)
    after = await _whole(victims, before)
    return LeaderKill(before.leader, after.leader, after.term, pause.began_s, pause.milliseconds)


async def _whole(victims: "Victims", before: "Leadership | None") -> "Leadership":
    """Wait until every member is up; after a kill, in a later term than `before`."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        with suppress(Failure, QsyncError):  # a cluster without a leader may not answer
            found = await asyncio.to_thread(victims.observe)
            if found.is_whole and (before is None or found.term > before.term):
                return found
        if time.monotonic() > deadline_s:
            raise Failure(
                FailureReason.TIMED_OUT,
                f"not all members are up after {SETTLE_S:g} s, so no leader is killed: run"
                " `qsync status`",
            )
        await asyncio.sleep(POLL_S)


def _line(kill: LeaderKill) -> str:
    clock = f"{datetime.fromtimestamp(kill.at_s):%H:%M:%S}"
    text = f"{clock}  killed {kill.member}; {kill.new_leader} leads term {kill.term}"
    if kill.outage_ms is None:
        return text
    return f"{text}; writes continued after {kill.outage_ms:.0f} ms"


def _report(
    target: ConnectionTarget,
    ledger: Path | None,
    kills: list[LeaderKill],
    load: "LedgerWorkload | None",
    output: Output | None,
) -> None:
    cluster = target.cluster
    place = f" -n {target.namespace}" if target.namespace is not None else ""
    outcomes = load.outcomes if load is not None else {}
    document: dict[str, Any] = {
        "cluster": cluster,
        "kills": [
            {
                "member": one.member, "newLeader": one.new_leader, "term": one.term,
                "at": one.at_s, "outageMilliseconds": one.outage_ms,
            }
            for one in kills
        ],
        "outcomes": outcomes,
        "ledger": str(ledger) if ledger is not None else None,
        "nextStep": f"qsync verify {ledger or 'FILE'} {cluster}{place}",
    }  # fmt: skip
    if output in (Output.json, Output.yaml):
        print_document(document, output)
        return
    if outcomes:
        listed = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
        say(f"{cluster}: {counted(len(kills), 'leader')} killed; {listed}")
    else:
        say(f"{cluster}: {counted(len(kills), 'leader')} killed")
    say(f"next: {document['nextStep']}")
