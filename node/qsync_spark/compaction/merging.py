"""Merges small segments of one member into one file: the same blocks, byte for byte.

An idle cluster seals a segment every minute; 10,000 of them cost a reader more than their rows. A
merged file is in the member's folder under a name of the same form, and `changes.json` lists the
files that it replaces: the member's own manifest stays unchanged.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from qsync_node.archive.compaction import Merged
from qsync_node.archive.description import describe
from qsync_node.archive.location import ArchiveError, read_range
from qsync_node.archive.manifest import SEGMENT, FileEntry, Manifest
from qsync_node.archive.outputs import put_bytes, verify
from qsync_node.archive.reader import Archive
from qsync_node.format.xlog import EOF_MARKER, Block, BlockDamage, decode_file_header, read_blocks

SMALL_BYTES = 8 << 20
MERGED_BYTES = 32 << 20


def groups_of(
    manifest: Manifest, up_to_index: int, small_bytes: int = SMALL_BYTES
) -> list[list[FileEntry]]:
    """Return runs of small, consecutive segments up to an index (pure)."""
    groups: list[list[FileEntry]] = [[]]
    size = 0
    for entry in sorted(manifest.of_kind(SEGMENT), key=lambda one: one.after_index):
        last = groups[-1][-1] if groups[-1] else None
        follows = last is None or last.last_index == entry.after_index
        is_small = entry.size < small_bytes and entry.last_index <= up_to_index
        if last is not None and not (follows and is_small and size + entry.size <= MERGED_BYTES):
            groups.append([])
            size = 0
        if is_small:
            groups[-1].append(entry)
            size += entry.size
    return [group for group in groups if len(group) > 1]


def merge(url: str, member: str, group: list[FileEntry]) -> Merged:
    """Store the merged file and read it back. Raises ArchiveError."""
    parts: list[bytes] = []
    for number, entry in enumerate(group):
        key = f"{member}/{entry.name}"
        try:
            data = read_range(url, key, 0, entry.size + 1)
        except OSError as error:
            raise ArchiveError(f"cannot read {url}/{key}: {error}") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ArchiveError(f"{url}/{key} does not match its name: audit the archive first")
        _, start = decode_file_header(data)
        if number == 0:
            parts.append(data[:start])
        parts.append(data[start : _end_of_blocks(data, start, key)])
    whole = b"".join((*parts, EOF_MARKER))
    made = describe(whole, SEGMENT, group[0].source, group[0].start_term)
    if (made.after_index, made.last_index, made.rows) != (
        group[0].after_index, group[-1].last_index, sum(entry.rows for entry in group)
    ):  # fmt: skip
        raise ArchiveError(
            f"segments of {member} do not continue each other: audit the archive first"
        )
    verify(url, put_bytes(url, f"{member}/{made.name}", whole))
    archived = max(entry.archived_at for entry in group)
    return Merged(member, [entry.name for entry in group], replace(made, archived_at=archived))


def _end_of_blocks(data: bytes, start: int, key: str) -> int:
    end = start
    for item in read_blocks(data, start):
        if isinstance(item, BlockDamage):
            raise ArchiveError(f"{key} is damaged at offset {item.offset}: audit the archive first")
        if isinstance(item, Block):
            end = item.end
    return end


def work_of(archive: Archive, up_to_index: int) -> Iterable[tuple[str, list[FileEntry]]]:
    """Yield (member, group) for all files to merge."""
    for manifest in archive.members:
        for group in groups_of(manifest, up_to_index):
            yield manifest.instance_uuid, group
