"""Bounds of the wanted rows of a table, given as options: `lsn` = `10..20`, `term` = `3..`.

Files without such rows, according to the manifest, are not opened. A `where` cannot do this: Spark
keeps the files that it planned for one query of a table written in Python, and reads them for the
table's next query, too, even if that query needs others.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import SNAPSHOT, FileEntry, Manifest
from qsync_node.archive.restore.point import PointError, parse_time

_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """`low <= column <= high`; None: unbounded."""

    column: str
    low: Any = None
    high: Any = None

    def may_hold(self, low: object, high: object) -> bool:
        """Return whether a file with values in `low .. high` can have a row within the bounds."""
        return not (
            (self.low is not None and high < self.low)
            or (self.high is not None and low > self.high)
        )


def bounds_of(options: Mapping[str, str]) -> list[Bounds]:
    """Return the bounds of options with lower-case names. Raises ArchiveError."""
    found = [
        _parse(column, options[column], number)
        for column, number in _PARSERS.items()
        if column in options
    ]
    if "member" in options:
        found.append(Bounds("member", options["member"], options["member"]))
    return found


def _parse(column: str, text: str, parse: Callable[[str], Any]) -> Bounds:
    low, dots, high = text.partition("..")
    try:
        ends = [parse(end.strip()) if end.strip() else None for end in (low, high if dots else low)]
    except (ValueError, PointError) as error:
        raise ArchiveError(
            f"invalid {column} {text!r}: specify a value, or a range A..B, A.. or ..B; {error}"
        ) from None
    return Bounds(column, *ends)


def _integer(text: str) -> int:
    number = int(text)
    if abs(number) > _INT64_MAX:
        raise ValueError(f"{number} exceeds 64 bits")
    return number


_PARSERS: dict[str, Callable[[str], Any]] = {
    "index": _integer, "lsn": _integer, "term": _integer, "space_id": _integer,
    "timestamp": parse_time,
}  # fmt: skip


def may_match(manifest: Manifest, entry: FileEntry, bounds: Iterable[Bounds]) -> bool:
    """Return whether, according to the manifest, `entry` may contain a wanted row."""
    lsns = list(entry.lsns.values())
    terms = [entry.start_term, entry.last_term, *(term for term, _, _ in entry.terms)]
    spans: dict[str, tuple[Any, Any]] = {
        "member": (manifest.instance_uuid, manifest.instance_uuid),
        "index": (entry.after_index + (entry.kind != SNAPSHOT), entry.last_index),
        "term": (min(terms), max(terms)),
        "timestamp": (entry.timestamp_min, entry.timestamp_max),
    }
    if lsns and entry.kind != SNAPSHOT:
        spans["lsn"] = (min(low for low, _ in lsns), max(high for _, high in lsns))
    for one in bounds:
        if one.column in spans and not one.may_hold(*spans[one.column]):
            return False
        if one.column == "space_id" and not _has_space(entry, one):
            return False
    return True


def _has_space(entry: FileEntry, bounds: Bounds) -> bool:
    """Return whether the file may have rows of these spaces; control rows have space 0."""
    return any(bounds.may_hold(space, space) for space in (0, *entry.spaces))


def rows_within(batch: pa.RecordBatch, bounds: Iterable[Bounds]) -> pa.RecordBatch:
    """Return the wanted rows, and all damage, whose rows are unknown."""
    for one in bounds:
        column = batch.column(batch.schema.get_field_index(one.column))
        for end, is_within in ((one.low, pc.greater_equal), (one.high, pc.less_equal)):
            if end is not None:
                kept = pc.fill_null(is_within(column, pa.scalar(end, column.type)), True)
                batch = batch.filter(kept)
                column = batch.column(batch.schema.get_field_index(one.column))
    return batch
