"""Measure the storage in a directory: `python -m qsync_broker.storage.bench DIR`."""

import hashlib
import sys
import time
from typing import NamedTuple

from qsync_broker.operations import (
    NO_SUM,
    CommitAppend,
    Drop,
    SpoolKey,
    SpoolOperation,
    SpoolState,
    WriteContent,
)
from qsync_broker.storage.storage import SpoolStorage

SECONDS = 3.0


class BenchResult(NamedTuple):
    """Appends and bytes per second of wall time, and CPU seconds per MiB."""

    appends: float
    mib: float
    cpu_per_mib: float

    def __str__(self) -> str:
        return (
            f"{self.appends:10.0f} appends/s {self.mib:8.1f} MiB/s "
            f"{self.cpu_per_mib * 1000:8.2f} ms CPU/MiB"
        )


class _BenchJournal:
    """A journal that is appended to, and its next commit."""

    def __init__(self, number: int) -> None:
        key = SpoolKey(f"bench/journal-{number:05d}", 1, 0)
        self.state = SpoolState(key, 1, 0, NO_SUM, b"", 0, 1, 0)
        self._digest = hashlib.sha1(usedforsecurity=False)

    def append(self, data: bytes) -> list[SpoolOperation]:
        former = self.state
        self._digest.update(data)
        self.state = former._replace(
            end=former.end + len(data), sum=self._digest.digest(), confirmed=former.end
        )
        return [WriteContent(former.key, former.end, data), CommitAppend(self.state)]


def measure(directory: str, journals: int, size: int, seconds: float = SECONDS) -> BenchResult:
    """Append `size` bytes to each journal in each batch.

    The journals are deleted afterwards.
    """
    storage = SpoolStorage.open(directory)
    try:
        all_journals = [_BenchJournal(number) for number in range(journals)]
        storage.apply([CommitAppend(journal.state) for journal in all_journals])
        data = bytes(range(256)) * (size // 256)
        start, cpu_start = time.monotonic(), time.process_time()
        appends = 0
        while (elapsed := time.monotonic() - start) < seconds:
            storage.apply([one for journal in all_journals for one in journal.append(data)])
            appends += journals
        cpu = time.process_time() - cpu_start
        storage.apply([Drop(journal.state.key) for journal in all_journals])
    finally:
        storage.close()
    mib = appends * size / (1 << 20)
    return BenchResult(appends / elapsed, mib / elapsed, cpu / mib)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m qsync_broker.storage.bench DIR")
    for journals, size in ((1, 1 << 10), (100, 1 << 10), (1, 1 << 20), (8, 1 << 20)):
        result = measure(sys.argv[1], journals, size)
        print(f"{journals:4d} journals, {size >> 10:5d} KiB: {result}")  # noqa: T201  # a report for a person


if __name__ == "__main__":
    main()
