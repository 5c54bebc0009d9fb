"""Writes docs/kubernetes-failover.md: the measured pauses of writes."""

import json
import os
import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from e2e.clients import RATE, ROUTES
from e2e.scenario import Pauses
from qsync_testing.paths import ROOT

PAGE = ROOT / "docs" / "kubernetes-failover.md"
FIGURES = ROOT / "artifacts" / "e2e" / "figures"


def keep(scenario: str, figures: dict[str, list[Pauses]]) -> None:
    """Keep the figures of a scenario that passed, in place of earlier ones."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    shown = {what: [asdict(one) for one in pauses] for what, pauses in figures.items()}
    (FIGURES / f"{scenario}.json").write_text(json.dumps(shown, indent=1))


def write_page() -> Path:
    """Write the page. It has rows for measured scenarios only."""
    figures: dict[str, list[Pauses]] = {}
    for path in sorted(FIGURES.glob("*.json")):
        for what, pauses in json.loads(path.read_text()).items():
            figures[what] = [Pauses(**one) for one in pauses]
    rows = [_row(what, pauses) for what, pauses in figures.items()]
    PAGE.write_text(_HEAD.format(
        day=datetime.now(UTC).date(), cores=os.cpu_count(), rate=RATE, rows="\n".join(rows)
    ))  # fmt: skip
    return PAGE


def _row(what: str, pauses: list[Pauses]) -> str:
    cells = [what, str(len(pauses))]
    cells += [_span([p.by_route[route] for p in pauses]) for route in ROUTES]
    failovers = [p for p in pauses if p.leaderless_ms > 0]
    cells.append(_span([p.leaderless_ms for p in failovers]) if failovers else "-")
    cells.append(str(sum(p.failed for p in pauses)))
    return f"| {' | '.join(cells)} |"


def _span(pauses_ms: list[float]) -> str:
    found = sorted(pauses_ms)
    return f"{found[0]:.0f} / **{statistics.median(found):.0f}** / {found[-1]:.0f}"


_HEAD = """# How long writes pause on Kubernetes

Written by `make e2e-write`, which runs every scenario and fails rather than leave a bad round
out. {day}, a kind cluster of three machines on one computer of {cores} cores, on which everything
runs: the Kubernetes cluster, three members, the operator, and a client of eight workers that
writes {rate} rows a second, half of them by the Service `orders-leader`, half by the members'
names. A pause is the longest time between two acknowledgements, in milliseconds: least /
**median** / worst.

| what | rounds | by the Service | by names | no leader | failed requests |
| --- | --- | --- | --- | --- | --- |
{rows}

"No leader" is the operator's own figure, `status.lastFailover.unavailableMilliseconds`. A failed
request is one that the client reported as unknown, refused or rolled back after its own retries.
After each scenario every acknowledged write is read back from every member by a
third-party connector.

By the Service a pause is longer where a pod ends without a warning: each machine's proxy follows
a change of endpoints after a second or so. A client that is given all addresses of the Secret
(`addresses`) does not wait for that.
"""
