"""`make demo`: three members, a real connector, a killed leader, every write read back and proved.

With FAULT=lose-one, the demo deletes one acknowledged row without recording it, and must then fail:
a check that cannot fail proves nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from e2e.checker import read_ledger
from e2e.local_cluster import LocalCluster, kill, temporary_cluster
from e2e.timeouts import AUDIT_S, CONVERGE_S, FAILOVER_S, WRITER_S
from qsync_cli.proof.ledger import WritePause
from qsync_testing.paths import ROOT

MANIFEST = ROOT / "docs" / "examples" / "three-nodes.yaml"
SPACE = "demo"
WRITES = 12_000
KEPT = ROOT / "artifacts" / "demo"
"""The report and the ledger of the last run; the cluster's own files are deleted."""
HERE = Path(__file__).resolve().parent
console = Console(highlight=False)


def space_id(credentials: dict[str, Any], address: str) -> int:
    """Create the demo's space through the connector and return its id: DDL is an insert."""
    script = """
import asyncio, asynctnt, sys
async def main(host, port, user, password, name):
    c = asynctnt.Connection(host=host, port=int(port), username=user, password=password)
    await c.connect()
    if name not in [row[2] for row in await c.select(281)]:
        top = max(row[0] for row in await c.select(281))
        made = max(top + 1, 512)
        await c.insert(280, [made, 32, name, 'memtx', 0, {'is_sync': True},
                             [{'name': 'id', 'type': 'unsigned'}, {'name': 'value', 'type':
                             'string'}]])
        await c.insert(288, [made, 0, 'primary', 'tree', {'unique': True}, [[0, 'unsigned']]])
    print([row[0] for row in await c.select(281) if row[2] == name][0])
    await c.disconnect()
asyncio.run(main(*sys.argv[1:]))
"""
    host, _, port = address.rpartition(":")
    done = subprocess.run(
        [sys.executable, "-c", script, host, port, credentials["username"],
         credentials["password"], SPACE],
        capture_output=True, text=True, check=True, timeout=WRITER_S,
    )  # fmt: skip
    return int(done.stdout)


def take_one_away(credentials: dict[str, Any], address: str, space: int, number: int) -> None:
    """Delete a row that the ledger records as acknowledged."""
    script = """
import asyncio, asynctnt, sys
async def main(host, port, user, password, space, number):
    c = asynctnt.Connection(host=host, port=int(port), username=user, password=password)
    await c.connect()
    await c.delete(int(space), [int(number)])
    await c.disconnect()
asyncio.run(main(*sys.argv[1:]))
"""
    host, _, port = address.rpartition(":")
    subprocess.run(
        [sys.executable, "-c", script, host, port, credentials["username"],
         credentials["password"], str(space), str(number)],
        check=True, timeout=WRITER_S,
    )  # fmt: skip


def unavailability_ms(ledger: Path, killed_at: float) -> float | None:
    """Return the time from the kill to the first acknowledged write that began after it."""
    pause = WritePause(killed_at)
    for one in read_ledger(str(ledger)).values():
        pause.add(one["outcome"], one["started"], one["ended"])
    return pause.milliseconds


def show_members(cluster: LocalCluster) -> None:
    table = Table("member", "role", "term", "index", "address", "pid")
    for member in cluster.members():
        table.add_row(
            member["name"], member["role"], str(member["term"]), str(member["signature"]),
            member["address"], str(member["pid"]),
        )  # fmt: skip
    console.print(table)


def run(cluster: LocalCluster, folder: Path) -> int:
    started = time.monotonic()
    console.print("[bold]1.[/] qsync apply -f docs/examples/three-nodes.yaml")
    cluster.apply(folder / "archive")
    console.print(f"   three members are ready after {time.monotonic() - started:.1f} s")
    show_members(cluster)
    credentials = cluster.credentials()
    addresses = [m["address"] for m in cluster.members()]
    space = space_id(credentials, addresses[0])
    ledger = folder / "ledger.jsonl"
    common = [
        "--addresses", ",".join(addresses), "--user", credentials["username"], "--space",
        str(space), "--ledger", str(ledger),
    ]  # fmt: skip
    environment = {**os.environ, "QSYNC_PASSWORD": credentials["password"]}
    console.print(f"[bold]2.[/] {WRITES:,} writes through asynctnt, over all members")
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "writer.py"), *common, "--count", str(WRITES), "--rate", "3000",
         "--workers", "32"],
        env=environment,
    )  # fmt: skip
    cluster.wait("writes", lambda: ledger.exists() and len(read_ledger(str(ledger))) > WRITES // 3)
    leader = cluster.leader()
    assert leader is not None
    console.print(f"[bold]3.[/] kill -9 {leader['pid']}: {leader['name']}, the leader")
    killed_at = time.time()
    kill(leader["pid"])
    try:
        writer.wait(WRITER_S)
    except subprocess.TimeoutExpired:
        writer.kill()
        console.print("[red]the writer did not finish[/]")
        return 1
    lost_ms = unavailability_ms(ledger, killed_at)
    cluster.wait("a new leader", lambda: cluster.leader() is not None, FAILOVER_S)
    new = cluster.leader()
    assert new is not None
    if lost_ms is None:
        console.print("[red]no write was accepted after the kill[/]")
        return 1
    console.print(f"   {new['name']} leads term {new['term']}")
    console.print(f"   writes continued after [bold]{lost_ms:.0f} ms[/]")
    cluster.wait("the old leader following", lambda: cluster.all_follow(3), CONVERGE_S)
    show_members(cluster)
    if os.environ.get("FAULT") == "lose-one":
        done = [o for o in read_ledger(str(ledger)).values() if o["outcome"] == "committed"]
        victim = done[len(done) // 2]["id"]
        console.print(f"   FAULT=lose-one: row {victim} is deleted without a record in the ledger")
        take_one_away(credentials, addresses[0], space, victim)
        time.sleep(0.5)
    console.print("[bold]4.[/] every acknowledged write, read back from every member")
    check = subprocess.run(
        [sys.executable, str(HERE / "checker.py"), *common[:6], "--ledger", str(ledger)],
        env=environment, capture_output=True, text=True, timeout=WRITER_S, check=False,
    )  # fmt: skip
    failed = report(
        check, json.loads(check.stdout) if check.stdout else {}, time.monotonic() - started
    )
    return failed or audit(cluster, ledger)


def audit(cluster: LocalCluster, ledger: Path) -> int:
    """Audit the archive, and keep the report where it outlives the cluster."""
    console.print("[bold]5.[/] qsync audit orders: proofs from the archived logs")
    try:
        said = cluster.qsync("audit", cluster.name, "--ledger", str(ledger),
                             timeout_s=AUDIT_S)  # fmt: skip
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        console.print(f"[red]FAILED[/] {str(error)[:500]}")
        return 1
    *lines, last = said.strip().splitlines()
    report_page = Path(last.removeprefix("report: "))
    shutil.rmtree(KEPT, ignore_errors=True)
    shutil.copytree(report_page.parent, KEPT)
    shutil.copy(ledger, KEPT)
    for line in (*lines, f"report: {KEPT / report_page.name}"):
        console.print(f"   {line}", markup=False, soft_wrap=True)
    return 0


def sum_of(outcomes: dict[str, int], writes: int) -> str:
    """Return the number of each outcome, so that their sum is the number of writes."""
    counts = {**outcomes, "not sent (no connection to the member)": writes - sum(outcomes.values())}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def rows_of(rows: int, outcomes: dict[str, int]) -> str:
    """Return the rows of a member, and how many of them are unknown writes that took effect."""
    unknown = rows - outcomes.get("committed", 0)
    if unknown <= 0:
        return f"{rows:,} rows"
    return f"{rows:,} rows ({unknown:,} of the unknown writes took effect)"


def report(check: "subprocess.CompletedProcess[str]", found: dict[str, Any], took_s: float) -> int:
    outcomes = found.get("outcomes", {})
    for address, member in found.get("members", {}).items():
        problems = member["problems"] or "no acknowledged write is lost or changed"
        console.print(f"   {address}: {rows_of(member['rows'], outcomes)}; {problems}")
    console.print(f"   of {WRITES:,} writes: {sum_of(outcomes, WRITES)}")
    if check.returncode or outcomes.get("committed", 0) < 10_000:
        console.print(f"[red]FAILED[/] {check.stderr.strip()[-500:]}")
        return 1
    committed = outcomes["committed"]
    console.print(
        f"[green]OK[/] every member has all {committed:,} acknowledged writes ({took_s:.0f} s)"
    )
    return 0


def main() -> int:
    with temporary_cluster(MANIFEST, "demo") as (cluster, folder):
        return run(cluster, folder)


if __name__ == "__main__":
    sys.exit(main())
