"""Blocks, rows, numbers and manifests without a meaning, with valid checksums."""

import json
from typing import Any

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive.location import ArchiveError
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROLLBACK,
    SEGMENT,
    SNAPSHOT,
)
from qsync_node.archive.reader import load_archive
from qsync_node.format.keys import RAFT_CONFIRM, RAFT_PROMOTE, Key
from qsync_node.format.mp import pack
from qsync_node.format.xlog import decode_file_header, encode_file
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.report.findings import INCOMPLETE, VIOLATED
from qsync_spark.source.table import rows_of
from qsync_testing.archives.archive_copy import Copy, is_user
from qsync_testing.archives.plain_audit import plain_audit


@pytest.mark.parametrize("garbage", [b"\xc0\xc0", b"\x81\x00\x03\x93\x01\x02\x03", b"\xc1"])
def test_garbage_between_blocks_is_what_the_member_wrote(copy: Copy, garbage: bytes) -> None:
    """All checksums match, so the member wrote it. Others hold the later rows: none is missing."""
    member = copy.full_members()[0]
    entry = max(member.of_kind(SEGMENT), key=lambda one: one.rows)
    blocks = copy.blocks(member, entry)
    made = copy.store(member, entry, [*blocks[:1], garbage, *blocks[1:]])
    result = plain_audit(copy.folder)
    place = f"{member.instance_uuid}/{made.name}"
    assert [(one.proofs, one.file) for one in result.violations] == [([1], place)]
    assert "does not decode as rows" in result.violations[0].message
    assert not result.gaps


def test_garbage_in_a_file_that_was_changed_is_unknown(copy: Copy) -> None:
    """The file changed after it was archived, so the rows that the member wrote are unknown."""
    member = copy.full_members()[0]
    entry = max(member.of_kind(SEGMENT), key=lambda one: one.rows)
    path = copy.folder / member.instance_uuid / entry.name
    header, _ = decode_file_header(path.read_bytes())
    blocks = copy.blocks(member, entry)
    path.write_bytes(encode_file(header, [*blocks[:1], b"\xc0\xc0", *blocks[1:]]))
    result = plain_audit(copy.folder)
    assert result.verdict == INCOMPLETE
    assert not result.violations


BEYOND = {int(Key.INDEX): 10**9, int(Key.TERM): 90}
BAD_CONTROLS: list[Any] = [
    [], {}, {int(Key.INDEX): 1}, {int(Key.INDEX): float("inf"), int(Key.TERM): 1},
    {int(Key.INDEX): 2**64 - 1, int(Key.TERM): 1}, {int(Key.INDEX): 1, int(Key.TERM): -1},
    BEYOND, {int(Key.INDEX): "1", int(Key.TERM): 1},
]  # fmt: skip


# `confirm_without_quorum` covers a CONFIRM beyond the end of the log.
@pytest.mark.parametrize(
    ("row_type", "body"),
    [(RAFT_PROMOTE, one) for one in BAD_CONTROLS]
    + [(RAFT_CONFIRM, one) for one in BAD_CONTROLS if one != BEYOND],
    ids=str,
)
def test_a_control_row_that_means_nothing_is_a_violation(
    copy: Copy, row_type: int, body: object
) -> None:
    member = copy.full_members()[0]
    entry = next(
        e for e in member.of_kind(SEGMENT)
        if any(row.type == row_type for row in copy.rows(member, e))
    )  # fmt: skip
    rows = copy.rows(member, entry)
    row = next(row for row in rows if row.type == row_type)
    row.body = pack(body)
    copy.store_rows(member, entry, rows)
    result = plain_audit(copy.folder)
    assert result.verdict == VIOLATED
    assert "unreadable control row" in " ".join(one.problem for one in result.violations)


SCHEMA_ROWS: list[tuple[int, Any]] = [
    (SystemSpace.CLUSTER, {}),
    (SystemSpace.CLUSTER, {Key.TUPLE: ["x"]}),
    (SystemSpace.CLUSTER, {Key.TUPLE: [1]}),
    (SystemSpace.CLUSTER, {Key.TUPLE: 5}),
    (SystemSpace.INDEX, {Key.TUPLE: [512]}),
    (SystemSpace.INDEX, {Key.TUPLE: [512, 0, "p", "tree", {}, 7]}),
    (SystemSpace.INDEX, {Key.TUPLE: [512, 0, "p", "tree", {}, [[]]]}),
    (SystemSpace.SPACE, {Key.TUPLE: []}),
    (SystemSpace.TRUNCATE, {Key.TUPLE: []}),
    (SystemSpace.TRUNCATE, {}),
]


@pytest.mark.parametrize(("space", "body"), SCHEMA_ROWS, ids=str)
@pytest.mark.parametrize("kind", [SEGMENT, SNAPSHOT])
def test_a_row_of_a_system_space_that_is_none(
    copy: Copy, kind: str, space: int, body: dict[int, Any]
) -> None:
    member = copy.full_members()[0]
    entry = next(
        e for e in member.of_kind(kind) if any(is_user(row) for row in copy.rows(member, e))
    )
    rows = copy.rows(member, entry)
    number = next(n for n, row in enumerate(rows) if is_user(row))
    rows[number].type = 2
    rows[number].body = pack({Key.SPACE_ID: space, **body})
    copy.store_rows(member, entry, rows)
    result = plain_audit(copy.folder)
    assert result.verdict in (INCOMPLETE, VIOLATED)


LIST_AS_KEY = b"\x81\x91\x01\x02"  # a map that Python cannot represent: its key is a list


@pytest.mark.parametrize("place", ["meta", "cluster"])
def test_a_map_that_python_cannot_hold(copy: Copy, place: str) -> None:
    member = copy.full_members()[0]
    entry = max(member.of_kind(SEGMENT), key=lambda one: one.rows)
    last = copy.rows(member, entry)[-1]
    head = pack({0: 2, 2: last.replica_id, 3: last.lsn + 1, 4: 1.0})
    body = pack({Key.SPACE_ID: 600, Key.TUPLE: [1]})
    if place == "meta":
        head = b"\x85" + head[1:] + b"\x2a" + LIST_AS_KEY
    else:
        body = b"\x82\x10\xcd\x01\x40\x21" + LIST_AS_KEY
    copy.store(member, entry, [*copy.blocks(member, entry), head + body])
    assert plain_audit(copy.folder).verdict in (INCOMPLETE, VIOLATED)


HEADERS: list[dict[int, Any]] = [
    {0: 3, 2: 1, 3: 2**64 - 1, 4: 1.0}, {0: 3, 2: 2**32 + 1, 3: 5, 4: 1.0},
    {0: 3, 2: 1, 3: "5", 4: 1.0}, {0: 3, 2: 1, 3: 5, 4: "now"}, {0: 2**40, 2: 1, 3: 5},
    {0: 3, 2: 1, 3: -5}, {0: 3, 3: 5}, {0: 3, 2: 1}, {0: 3, 2: True, 3: 5},
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=str)
@pytest.mark.parametrize("kind", [SEGMENT, ROLLBACK])
def test_numbers_beyond_any_column_are_damage_of_that_block(
    copy: Copy, kind: str, header: dict[int, Any]
) -> None:
    """The audit and the table report the damage, and the table returns the other rows."""
    member, entry = next((m, e) for m in copy.full_members() for e in m.of_kind(kind))
    bad = pack(header) + pack({Key.SPACE_ID: 600, Key.TUPLE: [1]})
    made = copy.store(member, entry, [*copy.blocks(member, entry), bad])
    assert plain_audit(copy.folder).verdict in (INCOMPLETE, VIOLATED)
    part = next(
        part for part in parts_of_kind(load_archive(f"file://{copy.folder}"), kind)
        if part.key.endswith(made.name)
    )  # fmt: skip
    rows = [row for batch in rows_of(part) for row in batch.to_pylist()]
    assert len(rows) >= entry.rows
    assert any(row["damage"] for row in rows)


@pytest.mark.parametrize(
    "change",
    [
        {"size": None}, {"size": -1}, {"size": 2**70}, {"last_index": "9"}, {"after_index": -5},
        {"timestamp_max": None}, {"archived_at": "x"}, {"sha256": None}, {"sha256": "0" * 64},
        {"marks": [[-1, 0, {}]]}, {"marks": [[2**40, 0, {}]]}, {"marks": [[0, 2**70, {}]]},
        {"vclock": {"1": -3}}, {"rows": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_with_impossible_numbers_is_refused(copy: Copy, change: dict[str, Any]) -> None:
    member = copy.full_members()[0]
    path = copy.folder / member.instance_uuid / MANIFEST_NAME
    document = json.loads(path.read_text())
    document["files"][-1] |= change
    path.write_text(json.dumps(document))
    with pytest.raises(ArchiveError, match="restore it from a copy"):
        load_archive(f"file://{copy.folder}")
