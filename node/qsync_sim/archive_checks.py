"""Checks of the archives of a schedule (`archiving.py`).

S5  a row that an archive reported as archived is in stored files that the manifest names,
    whatever happened since; before the first segment, and at gaps, a snapshot has the state;
S6  archived rows are those of the order; without faults, archives reach the confirmed index.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT, FileEntry, Manifest, decode_manifest
from qsync_node.consensus.settings import SECOND
from qsync_node.format.row import decode_rows
from qsync_node.format.xlog import Block, decode_file_header, read_blocks
from qsync_sim.cluster import Cluster
from qsync_sim.shell import Shell
from qsync_sim.violation import InvariantViolation

CATCH_UP_NS = 40 * SECOND
"""Time in which an archive reaches the confirmed index: more than its longest pause."""


class _Row(NamedTuple):
    replica_id: int
    lsn: int
    body: bytes
    row_type: int


def check_progress(world: Cluster, members: "Sequence[Shell]") -> None:
    """Check that the archives of all members reach the confirmed index (S6)."""
    archive = world.archive
    if archive is None:
        return
    goal = world.confirmed_anywhere
    # A file with a damaged block cannot be described, and status reports that.
    archivers = [one for one in members if one.archiver is not None and not one.is_damaged]

    def is_done() -> bool:
        return all(one.archiver is None or one.archiver.archived_index >= goal for one in archivers)

    if not world.run_for(CATCH_UP_NS, is_done):
        ends = {one.name: one.archiver and one.archiver.archived_index for one in archivers}
        raise InvariantViolation(f"S6: archives do not reach {goal} without faults: {ends}")
    world.count("archives complete")


def check(world: Cluster) -> None:
    """Check the content of the archives (S5, S6)."""
    archive = world.archive
    if archive is None:
        return
    for uuid, data in archive.manifests.items():
        shell = world.shells[uuid]
        manifest = decode_manifest(data, shell.name)
        for entry in manifest.files:
            content = archive.files.get((uuid, entry.name))
            if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
                raise InvariantViolation(
                    f"S5: {shell.name}: the manifest names {entry.name}, not stored"
                )
        if shell.is_damaged:
            continue  # a bit changed at rest; audits find such rows
        _check_coverage(shell.name, manifest, archive.reported.get(uuid, 0))
        for entry in manifest.files:
            if entry.kind == SEGMENT:
                _check_rows(world, shell, entry, archive.files[uuid, entry.name])


def _check_coverage(name: str, manifest: Manifest, reported: int) -> None:
    """Check that nothing up to `reported` is missing."""
    segments = sorted(
        (entry for entry in manifest.files if entry.kind == SEGMENT),
        key=lambda entry: entry.after_index,
    )
    states = {entry.last_index for entry in manifest.files if entry.kind == SNAPSHOT} | {0}
    for before, after in pairwise(segments):
        if after.after_index > before.last_index and after.after_index not in states:
            raise InvariantViolation(
                f"S5: {name}: rows {before.last_index + 1}..{after.after_index} are not archived"
            )
    if segments and segments[0].after_index not in states:
        raise InvariantViolation(f"S5: {name}: no archived state at {segments[0].after_index}")
    end = max([entry.last_index for entry in segments] + list(states))
    if end < reported:
        raise InvariantViolation(f"S5: {name}: {reported} was archived, the manifest ends at {end}")


def _check_rows(world: Cluster, shell: Shell, entry: FileEntry, content: bytes) -> None:
    """Compare archived rows with the order of confirmed rows."""
    index = entry.after_index
    for row in _rows(content):
        index += 1
        expected = world.ledger.get(index)
        if expected is None:
            raise InvariantViolation(
                f"S6: {shell.name} archived row {index}, which is not confirmed"
            )
        replica_id, lsn, body, _, row_type = expected
        if row != _Row(replica_id, lsn, body, row_type) and not shell.settings.spaces:
            raise InvariantViolation(f"S6: {shell.name} archived another row at {index}: {row}")
    if index != entry.last_index:
        raise InvariantViolation(f"S6: {shell.name}: {entry.name} ends at {index}")
    world.count("archived segments checked")


def _rows(content: bytes) -> Iterator[_Row]:
    _, offset = decode_file_header(content)
    for block in read_blocks(content, offset):
        if isinstance(block, Block):
            for row in decode_rows(block.data):
                yield _Row(row.replica_id, row.lsn, row.body, row.type)
