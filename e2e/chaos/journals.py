"""`make chaos-journals`: faults of brokers under load, and a check of every append and read.

    python -m e2e.chaos.journals [--faults 200] [--seed 1] [--only PATTERN] [--keep FOLDER]
                                 [--plant MUTANT]

Three voters, five brokers and seven journals run as processes. Writers and readers, in a process of
their own, keep a ledger of each request (`brokers.load`). One fault after another is injected
(`journal_faults`). Between most of them, all journals must accept appends again. At the end, each
journal is read from each broker and compared with the ledgers (`brokers.checker`). `--only` draws
from faults whose names match a pattern, for example "at-copy-*". `--plant` runs brokers with a bug
of `node/mutants`, which the campaign must find.

A campaign of 200 faults also fails if no broker was killed at one of the points of
`brokers.trapped`.
"""

import argparse
import asyncio
import contextlib
import fnmatch
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from e2e.chaos.journal_cluster import JOURNALS, JournalCluster, until
from e2e.chaos.journal_faults import CampaignFaults
from e2e.chaos.journal_traps import Traps
from qsync_sim.planted_bugs import DIRECTORY, apply_edits, copy_sources, read_mutant
from qsync_testing.brokers.checker import check, ends_of, read_ledgers
from qsync_testing.brokers.load import Appender, new_session, read

AVAILABLE_S = 60.0
READ_S = 30.0
"""Time in which all brokers must return all bytes of a journal after the last fault."""
STOP_S = 60.0
SHOWN = 20
FULL = 200
"""Number of faults from which on each point must have been reached."""
console = Console(highlight=False, soft_wrap=True)


class Campaign:
    """The cluster under load, and its faults."""

    def __init__(
        self, folder: Path, faults: int, seed: int, only: str, sources: Path | None
    ) -> None:
        self.cluster = JournalCluster(folder, sources)
        self.rng = random.Random(seed)
        self.count = faults
        self.seed = seed
        self.only = only
        self.ledgers = [folder / "load.jsonl", folder / "faults.jsonl"]
        self.appender = Appender("k", self.ledgers[1], seed)
        self.recoveries: dict[str, list[float]] = {}
        self.injected: dict[str, int] = {}
        self.readable_s = 0.0  # greatest time until all brokers returned a whole journal

    async def run(self) -> list[str]:
        """Run the campaign, and return the violations."""
        load: subprocess.Popen[bytes] | None = None
        async with new_session() as session:
            try:
                await self.cluster.start()
                await self._available(session)
                load = self._load()
                faults = CampaignFaults(self.cluster, self.appender, session, self.rng)
                problems: list[str] = []
                try:
                    await self._inject(faults, load)
                    await self._available(session)
                except TimeoutError as error:
                    problems.append(str(error))
                    await faults.heal()
                load.terminate()
                if code := await asyncio.to_thread(load.wait, STOP_S):
                    problems.append(f"the load ended with {code}")
                entries = read_ledgers(self.ledgers)
                contents = await self._read(entries)
                self._report(faults.traps, entries, contents)
                return problems + self._unreached(faults.traps) + check(entries, contents)
            except TimeoutError as error:
                return [str(error)]
            finally:
                if load is not None and load.poll() is None:
                    load.kill()
                await self.cluster.stop()

    def _unreached(self, traps: Traps) -> list[str]:
        """Return a sentence for each point that a whole campaign has not reached."""
        if self.count < FULL:
            return []
        drawn = [kind for kind in traps.kinds if kind in self.injected]
        return [f"no broker was killed {kind}" for kind in drawn if not traps.reached[kind]]

    def _load(self) -> subprocess.Popen[bytes]:
        urls = ",".join(broker.url for broker in self.cluster.brokers)
        arguments = [
            "--brokers", urls, "--journals", ",".join(JOURNALS), "--seed", str(self.seed),
            "--ledger", str(self.ledgers[0]),
        ]  # fmt: skip
        return subprocess.Popen([sys.executable, "-m", "qsync_testing.brokers.load", *arguments])

    async def _inject(self, faults: CampaignFaults, load: subprocess.Popen[bytes]) -> None:
        """Inject all faults: each kind once, then the same again in another order."""
        columns = (
            TextColumn("{task.description:28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        async with new_session() as session:
            kinds: list[str] = []
            order = random.Random(self.seed)  # other draws depend on timing
            with Progress(*columns, console=console, transient=True) as progress:
                task = progress.add_task("faults", total=self.count)
                for _ in range(self.count):
                    if not kinds:
                        kinds = fnmatch.filter(sorted(faults.kinds), self.only)
                        order.shuffle(kinds)
                    kind = kinds.pop()
                    progress.update(task, description=kind)
                    self.injected[kind] = self.injected.get(kind, 0) + 1
                    await faults.kinds[kind]()
                    await self._between(faults, session, kind)
                    if load.poll() is not None:
                        raise TimeoutError(f"the load ended with {load.returncode}")
                    progress.advance(task)
        await faults.heal()

    async def _between(self, faults: CampaignFaults, session: ClientSession, kind: str) -> None:
        """Wait until all journals accept appends; sometimes, let the next fault follow at once."""
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0, 0.5))
            return
        await faults.heal()
        began = time.monotonic()
        await self._available(session, kind)
        self.recoveries.setdefault(kind, []).append(time.monotonic() - began)
        await asyncio.sleep(self.rng.uniform(0, 0.5))

    async def _available(self, session: ClientSession, after: str = "the start") -> None:
        """Wait until all journals accept appends.

        Raises:
            TimeoutError: a journal does not.
        """
        for journal in JOURNALS:

            async def accepts(journal: str = journal) -> bool:
                self.cluster.restart_killed()
                url = self.rng.choice(self.cluster.brokers).url
                return await self.appender.append(session, url, journal, 50) == "acknowledged"

            await until(f"an append to {journal} after {after}", accepts, AVAILABLE_S)

    async def _read(self, entries: list[dict[str, Any]]) -> dict[str, dict[str, bytes]]:
        """Return the bytes of each journal, as each broker returns them.

        The bytes of the last append become visible at other brokers with the next message. A broker
        that joined after a fragment returns it once it is persisted or copied.
        """
        contents: dict[str, dict[str, bytes]] = {}
        ends = ends_of(entries)
        async with new_session() as session:
            for journal in JOURNALS:
                contents[journal] = versions = {broker.name: b"" for broker in self.cluster.brokers}

                async def are_whole(
                    journal: str = journal, versions: dict[str, bytes] = versions
                ) -> bool:
                    self.cluster.restart_killed()
                    for broker in self.cluster.brokers:
                        known = versions[broker.name]
                        entry = await read(session, broker.url, journal, len(known), 1 << 40)
                        if entry is not None and entry["begin"] == len(known):
                            versions[broker.name] += entry["content"]
                    lengths = {len(content) for content in versions.values()}
                    return len(lengths) == 1 and max(lengths) >= ends.get(journal, 0)

                began = time.monotonic()
                # The checker reports which bytes a broker lacks.
                with contextlib.suppress(TimeoutError):
                    await until(f"all bytes of {journal}", are_whole, READ_S)
                self.readable_s = max(self.readable_s, time.monotonic() - began)
        return contents

    def _report(
        self,
        traps: Traps,
        entries: list[dict[str, Any]],
        contents: dict[str, dict[str, bytes]],
    ) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("FAULT", "INJECTED", "REACHED", "MEDIAN", "WORST"):
            table.add_column(column, justify="left" if column == "FAULT" else "right")
        for kind, count in sorted(self.injected.items()):
            times = self.recoveries.get(kind, [])
            middle = f"{statistics.median(times):.1f} s" if times else "-"
            reached = str(traps.reached[kind]) if kind in traps.kinds else ""
            worst = f"{max(times):.1f} s" if times else "-"
            table.add_row(kind, str(count), reached, middle, worst)
        console.print(table)
        counts: dict[str, int] = {}
        for entry in entries:
            name = entry["outcome"] if entry["kind"] == "append" else "reads"
            counts[name] = counts.get(name, 0) + 1
        size = sum(len(max(versions.values(), key=len)) for versions in contents.values())
        found = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        console.print(f"{found}; {size / 1e6:.1f} MB in {len(contents)} journals")
        console.print(f"each journal was read at all brokers within {self.readable_s:.1f} s")


def _planted(folder: Path, name: str) -> Path:
    """Return a copy of the sources with a bug."""
    copy_sources(folder)
    apply_edits(read_mutant(DIRECTORY / f"{name}.txt"), folder)
    return folder


def main() -> int:
    """Run the campaign, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="draw from these faults")
    parser.add_argument("--keep", type=Path, help="folder for ledgers and logs after a violation")
    parser.add_argument("--plant", metavar="MUTANT", help="bug that brokers have")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qsync-chaos-") as name:
        folder = Path(name)
        began = time.monotonic()
        sources = _planted(folder / "sources", arguments.plant) if arguments.plant else None
        campaign = Campaign(folder, arguments.faults, arguments.seed, arguments.only, sources)
        problems = asyncio.run(campaign.run())
        if problems and arguments.keep is not None:
            shutil.copytree(folder, arguments.keep, dirs_exist_ok=True)
    for problem in problems[:SHOWN]:
        console.print(problem, markup=False)
    result = f"{len(problems)} violation(s)" if problems else "no violation"
    console.print(
        f"{arguments.faults} faults of seed {arguments.seed} in"
        f" {time.monotonic() - began:.0f} s: {result}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
