"""A loaded cluster is scaled 3 -> 5 -> 3 and switched over; no request fails, nothing is lost.

    python -m e2e.scale_under_load

The writer waits for each answer, as an application would. Switching over and scaling are planned:
every write is answered *committed*, at the price of a pause that is printed.
"""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.checker import read_ledger
from e2e.demo import HERE, MANIFEST, console, space_id
from e2e.local_cluster import LocalCluster, temporary_cluster
from e2e.timeouts import CONVERGE_S, READY_S, WRITER_S


def voters(cluster: LocalCluster) -> int:
    return sum(1 for m in cluster.members() if m["role"] in ("leader", "follower"))


def longest_pause_ms(ledger: Path, since: float) -> float:
    """Return the longest time without an acknowledgement after `since`."""
    ends = sorted(
        o["ended"]
        for o in read_ledger(str(ledger)).values()
        if o["outcome"] == "committed" and o["ended"] > since
    )
    return max((b - a for a, b in pairwise(ends)), default=0.0) * 1000


def scale(cluster: LocalCluster, ledger: Path, count: int) -> None:
    since = time.time()
    cluster.qsync("local", "scale", cluster.name, "--replicas", str(count), timeout_s=READY_S)
    cluster.wait(f"{count} voters", lambda: voters(cluster) == count, CONVERGE_S)
    time.sleep(1)  # a pause that begins at the end of the change is part of it
    console.print(f"scaled to {count}: longest pause {longest_pause_ms(ledger, since):.0f} ms")


def switch_over(cluster: LocalCluster, ledger: Path) -> None:
    members = cluster.members()
    target = next(m["name"] for m in members if m["role"] == "follower")
    since = time.time()
    cluster.qsync("switchover", target, "--local", cluster.name)

    def leads() -> bool:
        leader = cluster.leader()
        return leader is not None and leader["name"] == target

    cluster.wait(f"{target} leading", leads, CONVERGE_S)
    time.sleep(1)  # the same
    pause_ms = longest_pause_ms(ledger, since)
    console.print(f"switched over to {target}: longest pause {pause_ms:.0f} ms")


def run(cluster: LocalCluster, folder: Path) -> int:
    cluster.apply()
    credentials = cluster.credentials()
    addresses = [m["address"] for m in cluster.members()]
    ledger = folder / "ledger.jsonl"
    common = [
        "--addresses", ",".join(addresses), "--user", credentials["username"],
        "--space", str(space_id(credentials, addresses[0])), "--ledger", str(ledger),
    ]  # fmt: skip
    environment = {**os.environ, "QSYNC_PASSWORD": credentials["password"]}
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "writer.py"), *common, "--rate", "800", "--workers", "16"],
        env=environment,
    )  # fmt: skip
    try:
        time.sleep(2)  # load before the first change, to compare with
        scale(cluster, ledger, 5)
        switch_over(cluster, ledger)
        switch_over(cluster, ledger)
        scale(cluster, ledger, 3)
    finally:
        writer.terminate()
        writer.wait(WRITER_S)
    cluster.wait("all members following", lambda: cluster.all_follow(3), CONVERGE_S)
    return judge(cluster, ledger, credentials, common, environment)


def judge(
    cluster: LocalCluster,
    ledger: Path,
    credentials: dict[str, Any],
    common: list[str],
    environment: dict[str, str],
) -> int:
    common = ["--addresses", ",".join(m["address"] for m in cluster.members()), *common[2:]]
    check = subprocess.run(
        [sys.executable, str(HERE / "checker.py"), *common],
        env=environment, capture_output=True, text=True, timeout=WRITER_S, check=False,
    )  # fmt: skip
    failed = [o for o in read_ledger(str(ledger)).values() if o["outcome"] != "committed"]
    console.print(check.stdout or check.stderr)
    for operation in failed[:5]:
        console.print(f"failed: {operation}")
    if check.returncode or failed:
        console.print(f"FAILED: {len(failed)} requests failed")
        return 1
    console.print("OK: no request failed, every acknowledged write is on every member")
    return 0


def main() -> int:
    with temporary_cluster(MANIFEST, "scale") as (cluster, folder):
        return run(cluster, folder)


if __name__ == "__main__":
    sys.exit(main())
