"""Rounds of `kill -9` of the leader under load: how long until the next write is accepted?

    python -m e2e.chaos.leader_kills [--rounds 50] [--members 3]

A writer in a separate process records a ledger over all members. Each round kills the leader, waits
until all members follow again, and measures the time from the kill to the first acknowledgement of
a write that began after it. At the end, every acknowledged write is read from every member. Goals:
median below 300 ms, none above 2,000 ms, nothing lost.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.progress import Progress

from e2e.demo import HERE, console, space_id, unavailability_ms
from e2e.local_cluster import LocalCluster, kill, temporary_cluster
from e2e.timeouts import CONVERGE_S, WRITER_S
from qsync_testing.paths import ROOT

MEDIAN_GOAL_MS = 300
WORST_GOAL_MS = 2000


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def run(cluster: LocalCluster, folder: Path, rounds: int) -> int:
    cluster.apply()
    credentials = cluster.credentials()
    members = cluster.members()
    addresses = [m["address"] for m in members]
    space = space_id(credentials, addresses[0])
    ledger = folder / "ledger.jsonl"
    environment = {**os.environ, "QSYNC_PASSWORD": credentials["password"]}
    common = [
        "--addresses", ",".join(addresses), "--user", credentials["username"],
        "--space", str(space), "--ledger", str(ledger),
    ]  # fmt: skip
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "writer.py"), *common, "--rate", "500",
         "--workers", "32"],
        env=environment,
    )  # fmt: skip
    kills: list[float] = []
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("kill -9 of the leader", total=rounds)
            for _ in range(rounds):
                time.sleep(0.7)
                leader = cluster.leader()
                assert leader is not None, "no leader"
                kills.append(time.time())
                kill(leader["pid"])
                time.sleep(0.3)
                cluster.wait(
                    "all members follow", lambda: cluster.all_follow(len(members)), CONVERGE_S
                )
                progress.advance(task)
        time.sleep(1)
    finally:
        writer.terminate()
        writer.wait(WRITER_S)
    return judge(ledger, kills, common, environment)


def judge(ledger: Path, kills: list[float], common: list[str], environment: dict[str, str]) -> int:
    measured = [unavailability_ms(ledger, killed_at) for killed_at in kills]
    times = [value for value in measured if value is not None]
    check = subprocess.run(
        [sys.executable, str(HERE / "checker.py"), *common],
        env=environment, capture_output=True, text=True, timeout=WRITER_S, check=False,
    )  # fmt: skip
    median, worst = percentile(times, 0.5), max(times)
    console.print(
        f"{len(kills)} rounds: next accepted write after min {min(times):.0f} ms, "
        f"median {median:.0f} ms, p90 {percentile(times, 0.9):.0f} ms, worst {worst:.0f} ms"
    )
    console.print(f"outcomes: {json.loads(check.stdout)['outcomes'] if check.stdout else '?'}")
    if check.returncode:
        console.print(f"FAILED: {check.stdout or check.stderr}")
        return 1
    console.print("every acknowledged write is on every member")
    if len(times) < len(kills) or median > MEDIAN_GOAL_MS or worst > WORST_GOAL_MS:
        console.print("FAILED: a goal was missed")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--members", type=int, choices=(3, 5), default=3)
    arguments = parser.parse_args()
    name = {3: "three-nodes", 5: "five-nodes"}[arguments.members]
    manifest = ROOT / "docs" / "examples" / f"{name}.yaml"
    with temporary_cluster(manifest, "rounds") as (cluster, folder):
        return run(cluster, folder, arguments.rounds)


if __name__ == "__main__":
    sys.exit(main())
