"""The description of a file's rows in a manifest, computed from the rows (pure).

Readers and deletions choose files by it, so a manifest that differs from the rows must be detected.
"""

from collections.abc import Iterable

import numpy as np

from qsync_node.archive.manifest import SNAPSHOT, FileEntry
from qsync_spark.decode.columns import Columns
from qsync_spark.facts.kinds import PartRead


class Described:
    """Times, spaces, and for each replica id the first and last LSN, of the rows read so far."""

    def __init__(self) -> None:
        self.times: tuple[float, float] | None = None
        self.lsns: dict[int, tuple[int, int]] = {}
        self.spaces: set[int] = set()

    def take_rows(self, rows: Columns, replica_id: int, lsn: int) -> None:
        """Add rows with consecutive LSNs from `lsn`, or rows of a snapshot, with replica id 0."""
        times, spaces = rows.timestamp, rows.space
        self._reach_times(float(times.min()), float(times.max()))
        self._reach_lsns(replica_id, lsn, lsn + rows.size - 1)
        self.spaces.update(np.unique(spaces[spaces != 0]).tolist())

    def _reach_times(self, low: float, high: float) -> None:
        times = self.times or (low, high)
        self.times = (min(times[0], low), max(times[1], high))

    def _reach_lsns(self, replica_id: int, first: int, last: int) -> None:
        if replica_id:  # otherwise a row of a snapshot
            lsns = self.lsns.get(replica_id, (first, last))
            self.lsns[replica_id] = (min(lsns[0], first), max(lsns[1], last))

    def add(self, part: PartRead) -> None:
        """Add another part of the same file."""
        if part.first_time is not None and part.last_time is not None:
            self._reach_times(part.first_time, part.last_time)
        for replica_id, first, last in part.lsns:
            self._reach_lsns(replica_id, first, last)
        self.spaces.update(part.spaces)

    def differs_from(self, entry: FileEntry) -> str:
        """Return the differing field of the manifest and its value; "" without a difference."""
        said = (entry.timestamp_min, entry.timestamp_max)
        if self.times is not None and not self._are_times_as(said, entry.kind):
            return (
                f"the rows have the times {_shown(self.times)}, but the manifest states "
                f"{_shown(said)}"
            )
        if entry.kind != SNAPSHOT and self.lsns != entry.lsns:
            return f"the rows have the LSNs {self.lsns}, but the manifest states {entry.lsns}"
        clock = self._clock_after(entry)
        if clock != entry.vclock:
            return f"the file ends at the clock {clock}, but its manifest states {entry.vclock}"
        if self.spaces != set(entry.spaces):
            return (
                f"the rows belong to spaces {sorted(self.spaces)}, but the manifest "
                f"states {entry.spaces}"
            )
        return ""

    def _clock_after(self, entry: FileEntry) -> dict[int, int]:
        """Return the clock at the end of the file: a snapshot's is that of its header."""
        clock = dict(entry.start_vclock)
        for replica_id, (_, last) in self.lsns.items():
            clock[replica_id] = max(clock.get(replica_id, 0), last)
        return clock

    def _are_times_as(self, said: tuple[float, float], kind: str) -> bool:
        """Compare times. A compaction's snapshot has the time of the log's row at its index."""
        if self.times is None or kind != SNAPSHOT:
            return self.times == said
        return said[0] <= self.times[0] and self.times[1] <= said[1]


def _shown(times: Iterable[float]) -> str:
    return " to ".join(str(time) for time in times)


def described_of(parts: Iterable[PartRead]) -> Described:
    """Merge the descriptions of a file's parts."""
    found = Described()
    for part in parts:
        found.add(part)
    return found
