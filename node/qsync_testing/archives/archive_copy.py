"""A copy of an archive that a test can change file by file and row by row."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from qsync_node.archive.description import describe
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    SEGMENT,
    FileEntry,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from qsync_node.format.row import LogRow, decode_rows, encode_row
from qsync_node.format.walk import space_of
from qsync_node.format.xlog import Block, decode_file_header, encode_file, read_blocks

USER_TYPES = (2, 3, 4, 5, 9)


class Copy:
    """A copy of an archive, its manifests by instance UUID, and a seeded source of choices."""

    def __init__(self, source: Path, target: Path, seed: int) -> None:
        shutil.copytree(source, target)
        self.folder = target
        self.rng = Random(seed)
        self.manifests = {
            path.parent.name: decode_manifest(path.read_bytes(), str(path))
            for path in sorted(target.glob(f"*/{MANIFEST_NAME}"))
        }

    def rows(self, manifest: Manifest, entry: FileEntry) -> list[LogRow]:
        data = (self.folder / manifest.instance_uuid / entry.name).read_bytes()
        _, offset = decode_file_header(data)
        return [
            row for item in read_blocks(data, offset) if isinstance(item, Block)
            for row in decode_rows(item.data)
        ]  # fmt: skip

    def blocks(self, manifest: Manifest, entry: FileEntry) -> list[bytes]:
        data = (self.folder / manifest.instance_uuid / entry.name).read_bytes()
        _, offset = decode_file_header(data)
        return [item.data for item in read_blocks(data, offset) if isinstance(item, Block)]

    def store(self, manifest: Manifest, entry: FileEntry, blocks: list[bytes]) -> FileEntry:
        """Replace the blocks of a file, valid or not.

        In its manifest entry, only the checksum, the size, the name and the marks change.
        """
        folder = self.folder / manifest.instance_uuid
        header, _ = decode_file_header((folder / entry.name).read_bytes())
        data = encode_file(header, blocks)
        digest = hashlib.sha256(data).hexdigest()
        name = entry.name.replace(entry.sha256, digest)
        made = replace(entry, name=name, sha256=digest, size=len(data), marks=entry.marks[:1])
        (folder / entry.name).unlink()
        (folder / name).write_bytes(data)
        manifest.files[manifest.files.index(entry)] = made
        self.save(manifest)
        return made

    def store_rows(self, manifest: Manifest, entry: FileEntry, rows: list[LogRow]) -> FileEntry:
        parts = [rows[at : at + 20] for at in range(0, len(rows), 20)]
        return self.store(manifest, entry, [b"".join(map(encode_row, part)) for part in parts])

    def rewrite(
        self, manifest: Manifest, entry: FileEntry, rows: list[LogRow], is_honest: bool = False
    ) -> str:
        """Replace the rows of a file, in blocks of about 20.

        Args:
            manifest: The member's manifest.
            entry: The file's manifest entry.
            rows: The new rows.
            is_honest: Whether the new entry states the end of the new rows; otherwise it keeps the
                last index and the vclock of the old entry.

        Returns:
            The file's new path in the archive.
        """
        path = self.folder / manifest.instance_uuid / entry.name
        header, _ = decode_file_header(path.read_bytes())
        data = encode_file(header, blocks_of(rows))
        made = describe(data, entry.kind, entry.source, entry.start_term)
        if not is_honest:
            made = replace(made, last_index=entry.last_index, vclock=entry.vclock)
        path.unlink()
        (path.parent / made.name).write_bytes(data)
        manifest.files[manifest.files.index(entry)] = made
        self.save(manifest)
        return f"{manifest.instance_uuid}/{made.name}"

    def save(self, manifest: Manifest) -> None:
        path = self.folder / manifest.instance_uuid / MANIFEST_NAME
        path.write_bytes(encode_manifest(manifest))

    def full_members(self) -> list[Manifest]:
        """Return the members with the newest archived segments, in the order of their names."""
        end = max(e.last_index for m in self.manifests.values() for e in m.of_kind(SEGMENT))
        found = [
            m for m in self.manifests.values()
            if m.of_kind(SEGMENT) and m.of_kind(SEGMENT)[-1].last_index == end
        ]  # fmt: skip
        return sorted(found, key=lambda one: one.member)

    def pick(
        self, manifest: Manifest, is_wanted: Callable[[LogRow], bool]
    ) -> tuple[FileEntry, int]:
        """Choose a wanted row that forms a transaction alone and has rows on both sides.

        Returns:
            The manifest entry of its segment, and its position there, from 0.
        """
        choices = []
        for entry in manifest.of_kind(SEGMENT):
            rows = self.rows(manifest, entry)
            choices += [
                (entry, n) for n, row in enumerate(rows)
                if 0 < n < len(rows) - 2 and is_wanted(row) and row.is_commit and row.tsn == row.lsn
                and rows[n + 1].replica_id == row.replica_id
            ]  # fmt: skip
        assert choices, "no row to damage"
        return self.rng.choice(choices)

    def everywhere(
        self, change: Callable[[LogRow], LogRow | None], replica_id: int, lsn: int
    ) -> None:
        """Apply a change to every member's copy of a row; `None` removes the row."""
        for manifest in self.manifests.values():
            for entry in list(manifest.of_kind(SEGMENT)):
                rows = self.rows(manifest, entry)
                if any((r.replica_id, r.lsn) == (replica_id, lsn) for r in rows):
                    new = [
                        change(r) if (r.replica_id, r.lsn) == (replica_id, lsn) else r for r in rows
                    ]
                    self.rewrite(manifest, entry, [r for r in new if r is not None])


def blocks_of(rows: list[LogRow]) -> list[bytes]:
    """Return blocks of 20 rows or more; a block ends with a transaction, as in a node's log."""
    blocks: list[list[LogRow]] = [[]]
    for row in rows:
        if len(blocks[-1]) >= 20 and blocks[-1][-1].is_commit:
            blocks.append([])
        blocks[-1].append(row)
    return [b"".join(map(encode_row, block)) for block in blocks if block]


def split(copy: Copy, manifest: Manifest, entry: FileEntry, at: int) -> None:
    """Split a segment into two files with the same rows; the first one ends at index `at`."""
    folder = copy.folder / manifest.instance_uuid
    rows = copy.rows(manifest, entry)
    header, _ = decode_file_header((folder / entry.name).read_bytes())
    number = at - entry.after_index
    made: list[FileEntry] = []
    for part, source in ((rows[:number], entry.source), (rows[number:], "second")):
        data = encode_file(header, [b"".join(encode_row(row) for row in part)])
        term = made[-1].last_term if made else entry.start_term
        made.append(describe(data, SEGMENT, source, term))
        (folder / made[-1].name).write_bytes(data)
        header = replace(header, vclock=made[-1].vclock, previous_vclock=header.vclock)
    (folder / entry.name).unlink()
    place = manifest.files.index(entry)
    manifest.files[place : place + 1] = made
    copy.save(manifest)


def is_user(row: LogRow) -> bool:
    return row.type in USER_TYPES and space_of(row.body) >= 512
