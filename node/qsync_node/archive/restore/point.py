"""The point of an archive to restore, and whether the manifests can reach it (pure)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from qsync_node.archive.manifest import SEGMENT, FileEntry, Manifest
from qsync_node.archive.reader import Archive
from qsync_node.errors import QsyncError

_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?")


class PointError(QsyncError):
    """The archive does not contain the point; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Point:
    """A time (seconds since 1970, by the leaders' clocks), an index, or the end of the archive."""

    to_time: float | None = None
    to_signature: int | None = None


def parse_time(text: str) -> float:
    """Parse `2026-01-31T12:00:00Z`, or seconds since 1970. Raises PointError."""
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise PointError(
            f"invalid time {text!r}: use the form 2026-01-31T12:00:00Z, or seconds since 1970"
        ) from None
    if moment.tzinfo is None:
        raise PointError(f"{text} has no time zone: use {text}Z for UTC")
    return moment.timestamp()


def shown(time_s: float) -> str:
    text = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def last_index(archive: Archive) -> int:
    """Return the last archived index, whether confirmed or not."""
    entries = [e for owner in archive.owners() for e in owner.files if e.kind != "rollback"]
    return max((entry.last_index for entry in entries), default=0)


def first_index(archive: Archive) -> int:
    """Return the index of the oldest snapshot, before which no state exists. Raises PointError."""
    snapshots = archive.snapshots()
    if not snapshots:
        raise PointError(
            f"archive {archive.url} contains no snapshot yet: wait until a member archives one"
        )
    return snapshots[-1][1].last_index


def check_signature(archive: Archive, index: int) -> None:
    """Raise PointError for an index that the archive cannot reach."""
    first, last = first_index(archive), last_index(archive)
    if not first <= index <= last:
        raise PointError(
            f"index {index} is outside of the archive, which contains {first} to {last}: "
            "choose another point"
        )


def late_segments(archive: Archive, time_s: float) -> list[tuple[Manifest, FileEntry]]:
    """Return the first segment of each member that contains a row later than `time_s`.

    One of these segments contains the first such row of the log.

    Raises:
        PointError: the time is outside of the archived range.
    """
    segments = archive.segments()
    if not segments:
        raise PointError(
            f"archive {archive.url} contains no log yet: wait until a member archives a segment"
        )
    begin = min(segments, key=lambda pair: pair[1].after_index)[1].timestamp_min
    end = max(entry.timestamp_max for _, entry in segments)
    if not begin <= time_s <= end:
        raise PointError(
            f"{shown(time_s)} is outside of the archive, which contains {shown(begin)} to "
            f"{shown(end)}: choose another point"
        )
    found = []
    for manifest in archive.members:
        late = [e for e in manifest.of_kind(SEGMENT) if e.timestamp_max > time_s]
        if late:
            found.append((manifest, min(late, key=lambda entry: entry.after_index)))
    return found


def next_segments(
    segments: Iterable[tuple[Manifest, FileEntry]], index: int
) -> list[tuple[Manifest, FileEntry]]:
    """Return the segments with the row after `index`, those with the highest last index first."""
    found = [(m, e) for m, e in segments if e.after_index <= index < e.last_index]
    return sorted(found, key=lambda pair: (-pair[1].last_index, pair[0].instance_uuid))
