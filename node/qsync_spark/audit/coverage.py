"""The rows that each member's archive claims to contain, and the unknown ranges (pure).

All ranges are of log indexes, `(after, last]`. A member's range begins where it joined: with its
first snapshot, which replaces all earlier rows. A gap between two segments is covered by an
archived snapshot with exactly the index at which the log continues: the member re-joined from it
(S3). The member's own checkpoint is such a snapshot, too, but then the next file names a previous
one, which is missing. Every other gap is unknown, and so is the range between the last segment and
a snapshot.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT, FileEntry, Manifest

IndexRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class UnknownRange:
    """The rows of `member` in `(after, last]` are unknown."""

    member: str
    after: int
    last: int
    why: str
    file: str = ""
    offset: int = 0


@dataclass(slots=True)
class Coverage:
    """One member: `rows` are in its segments, `covered` by snapshots from which it joined."""

    member: str
    rows: list[IndexRange] = field(default_factory=list)
    covered: list[IndexRange] = field(default_factory=list)
    unknown: list[UnknownRange] = field(default_factory=list)
    repeats: list[tuple[FileEntry, FileEntry]] = field(default_factory=list)
    # Files that end before the next one begins, although it names them: (file, next one).
    short: list[tuple[FileEntry, FileEntry]] = field(default_factory=list)
    files: list[IndexRange] = field(
        default_factory=list
    )  # of segments, without the ranges of `short`
    end: int = 0

    def has_row(self, index: int) -> bool:
        return _is_in(self.rows, index)


def _is_in(ranges: list[IndexRange], index: int) -> bool:
    position = bisect_left(ranges, (index, 0)) - 1
    return position >= 0 and ranges[position][0] < index <= ranges[position][1]


def merge(ranges: Iterable[IndexRange]) -> list[IndexRange]:
    """Return the ranges sorted, without overlaps, adjacent ones merged."""
    result: list[IndexRange] = []
    for after, last in sorted(one for one in ranges if one[0] < one[1]):
        if result and after <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((after, last))
    return result


def without(ranges: list[IndexRange], holes: list[IndexRange]) -> list[IndexRange]:
    """Return `ranges` minus `holes`; both are sorted and merged."""
    result: list[IndexRange] = []
    for after, last in ranges:
        start = after
        for hole_after, hole_last in holes:
            if hole_last <= start or hole_after >= last:
                continue
            if hole_after > start:
                result.append((start, hole_after))
            start = max(start, hole_last)
        if start < last:
            result.append((start, last))
    return result


def cover(manifest: Manifest, damage: Iterable[UnknownRange] = (), floor: int = 0) -> Coverage:
    """Return the coverage that `manifest` claims, less the ranges of `damage`.

    A verified snapshot replaces all rows up to `floor`.
    """
    found = Coverage(manifest.instance_uuid)
    snapshots = sorted({entry.last_index for entry in manifest.of_kind(SNAPSHOT)})
    segments = sorted(manifest.of_kind(SEGMENT), key=lambda one: (one.after_index, one.last_index))
    rows: list[IndexRange] = []
    covered: list[IndexRange] = []
    previous: FileEntry | None = None
    first = segments[0] if segments else None
    if first is not None and first.after_index in snapshots and not _names_one(first, floor):
        covered.append((0, first.after_index))
    elif first is not None and first.after_index > floor:
        why = f"its archive begins at index {first.after_index + 1}, and "
        if first.after_index in snapshots:
            why += "the file before it is missing"
        else:
            why += f"the snapshot at index {first.after_index} is missing"
        found.unknown.append(UnknownRange(found.member, floor, first.after_index, why))
    for entry in segments:
        if previous is not None:
            last, after = previous.last_index, entry.after_index
            if after < last:
                found.repeats.append((previous, entry))
            elif after > last and entry.previous_vclock == previous.start_vclock:
                rows.append((last, after))  # the previous file lost its end: rows are missing
                found.short.append((previous, entry))
            elif (after > last and after <= floor) or (
                after > last and after in snapshots and not _names_one(entry, last)
            ):
                covered.append((last, after))
            elif after > last:
                found.unknown.append(
                    UnknownRange(
                        found.member, last, after, "its archive has no file with these rows"
                    )
                )
        rows.append((entry.after_index, entry.last_index))
        found.files.append((entry.after_index, entry.last_index))
        previous = entry if previous is None or entry.last_index > previous.last_index else previous
    if not segments and snapshots:
        covered.append((0, snapshots[0]))
    covered.append((0, floor))
    found.end = max(
        previous.last_index if previous is not None else min(snapshots, default=0), floor
    )
    holes = merge((one.after, one.last) for one in damage)
    found.unknown += [one for one in damage if one.last > floor]
    claimed = without(merge(rows), [(0, floor)])
    found.rows = without(claimed, holes)
    found.covered = without(merge(covered), claimed)
    return found


def _names_one(entry: FileEntry, last: int) -> bool:
    """Return whether the header of `entry` names a missing previous file that began at `last`."""
    before = entry.previous_vclock
    return before is not None and sum(before.values()) >= last


class CoverageSteps:
    """A step function of the index: bit masks of members."""

    def __init__(self, starts: list[int], masks: list[int]) -> None:
        self.starts = starts  # `masks[i]` is valid from `starts[i]` to the next start
        self.masks = masks

    def at(self, index: int) -> int:
        position = bisect_left(self.starts, index + 1) - 1
        return self.masks[position] if position >= 0 else 0

    @classmethod
    def of(cls, ranges: list[list[IndexRange]]) -> "CoverageSteps":
        """Return a function whose bit `i` is set if `ranges[i]` contains the index."""
        edges = sorted({e + 1 for one in ranges for pair in one for e in pair} | {0})
        masks = [0] * len(edges)
        for bit, one in enumerate(ranges):
            for after, last in one:
                for position in range(bisect_left(edges, after + 1), bisect_left(edges, last + 1)):
                    masks[position] |= 1 << bit
        return cls(edges, masks)

    def sql(self, column: str) -> str:
        """Return the function as a SQL expression: a balanced tree of comparisons."""

        def tree(low: int, high: int) -> str:
            if high - low == 1:
                return str(self.masks[low])
            middle = (low + high) // 2
            left, right = tree(low, middle), tree(middle, high)
            if left == right:
                return left
            return f"if({column} < {self.starts[middle]}, {left}, {right})"

        return tree(0, len(self.starts)) if self.starts else "0"
