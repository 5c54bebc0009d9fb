"""A change anywhere in a member's files is reported as one violation with the file and the member.

The file is as a faulty member would write it: every checksum matches.
"""

from collections.abc import Callable
from copy import copy as copied
from pathlib import Path

import pytest

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.format.keys import Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow
from qsync_spark.report.findings import VIOLATED, AuditResult
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit

SEEDS = range(30)
BEGINS_LATE = "its first snapshot is not verified"
TYPES = {2: 3, 3: 2, 4: 5, 5: 4, 9: 3, 12: 2, 31: 40, 40: 41, 41: 40}


def assert_named(result: AuditResult, path: str, member: str) -> None:
    assert result.verdict == VIOLATED, result.gaps
    assert len(result.violations) == 1, [one.message for one in result.violations]
    assert result.violations[0].members == [member]
    assert result.violations[0].file == path
    # Without the first snapshot, the replay starts with the second one.
    assert all(BEGINS_LATE in gap.message for gap in result.gaps), result.gaps


@pytest.mark.parametrize("seed", SEEDS)
def test_any_bit_of_any_block(folder: Path, tmp_path: Path, seed: int) -> None:
    copy = Copy(folder, tmp_path / "copy", seed)
    rng = copy.rng
    manifest = rng.choice(copy.full_members())
    entry = rng.choice([one for one in manifest.files if one.kind in (SEGMENT, SNAPSHOT)])
    blocks = copy.blocks(manifest, entry)
    number = rng.randrange(len(blocks))
    changed = bytearray(blocks[number])
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    blocks[number] = bytes(changed)
    made = copy.store(manifest, entry, blocks)
    assert_named(plain_audit(copy.folder), f"{manifest.instance_uuid}/{made.name}", manifest.member)


def drop(rows: list[LogRow], number: int) -> None:
    del rows[number]


def repeat(rows: list[LogRow], number: int) -> None:
    rows.insert(number, copied(rows[number]))


def swap(rows: list[LogRow], number: int) -> None:
    rows[number - 1], rows[number] = rows[number], rows[number - 1]


def later(rows: list[LogRow], number: int) -> None:
    rows[number].timestamp += 1.0


def other_type(rows: list[LogRow], number: int) -> None:
    rows[number].type = TYPES.get(rows[number].type, 3)


def next_lsn(rows: list[LogRow], number: int) -> None:
    rows[number].lsn += 1


def last_lsn(rows: list[LogRow], number: int) -> None:
    row = rows[number]
    row.lsn -= 1
    row.tsn = min(row.tsn, row.lsn)


def other_replica(rows: list[LogRow], number: int) -> None:
    rows[number].replica_id += 1


def other_end(rows: list[LogRow], number: int) -> None:
    rows[number].is_commit = not rows[number].is_commit


CHANGES = (drop, repeat, swap, later, other_type, next_lsn, last_lsn, other_replica, other_end)


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_any_row_of_any_segment(
    folder: Path, tmp_path: Path, seed: int, change: Callable[[list[LogRow], int], None]
) -> None:
    """Odd seeds change a control row, if there is one; even seeds change a row of any type."""
    copy = Copy(folder, tmp_path / "copy", seed)
    manifest = copy.rng.choice(copy.full_members())
    entry = copy.rng.choice([one for one in manifest.of_kind(SEGMENT) if one.rows > 2])
    rows = copy.rows(manifest, entry)
    control = [n for n, row in enumerate(rows) if row.type >= 30 and 0 < n < len(rows) - 1]
    anywhere = range(1, len(rows) - 1)
    change(rows, copy.rng.choice(control if seed % 2 and control else anywhere))
    path = copy.rewrite(manifest, entry, rows)
    assert_named(plain_audit(copy.folder), path, manifest.member)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_tuple_of_any_snapshot(folder: Path, tmp_path: Path, seed: int) -> None:
    """Odd seeds remove the tuple; even seeds change its last field.

    Any snapshot may be damaged, including the one from which the replay starts.
    """
    copy = Copy(folder, tmp_path / "copy", seed)
    manifest = copy.rng.choice(copy.full_members())
    entry = copy.rng.choice(manifest.of_kind(SNAPSHOT))
    rows = copy.rows(manifest, entry)
    number = copy.rng.randrange(1, len(rows) - 1)
    if seed % 2:
        del rows[number]
    else:
        body = unpack(rows[number].body)
        last = body[Key.TUPLE][-1]
        body[Key.TUPLE][-1] = last + 1 if type(last) is int else [last]
        rows[number].body = pack(body)
    path = copy.rewrite(manifest, entry, rows)
    assert_named(plain_audit(copy.folder), path, manifest.member)
