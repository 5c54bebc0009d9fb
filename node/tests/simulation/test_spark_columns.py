"""Rows read as columns equal rows read one by one, for any contents of a file."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.archive.reader import load_archive
from qsync_node.format.keys import (
    KEY_FLAGS,
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TSN,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
)
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.walk import space_of
from qsync_node.format.xlog import decode_file_header, encode_file
from qsync_spark.audit.catalogue import KeyCatalogue
from qsync_spark.audit.events import EventParameters, log_events, snapshot_events
from qsync_spark.audit.primary_keys import definitions_in
from qsync_spark.audit.scan import parts_of_kind
from qsync_spark.audit.snapshots import oldest_requests, terms_in
from qsync_spark.decode import columns as columns_module
from qsync_spark.decode import runs as runs_module
from qsync_spark.decode.blocks import BlockRows, headers_of
from qsync_spark.decode.columns import columns_of
from qsync_spark.decode.edges import PADDING
from qsync_spark.decode.first_fields import first_fields
from qsync_spark.facts import walk as walk_module
from qsync_spark.facts.kinds import OldestRequest, PrimaryKeys, SnapshotTerms
from qsync_spark.facts.table import FactList, facts_of
from qsync_spark.report.findings import VIOLATED
from qsync_spark.source import table as walk_rows_module
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.damage import VIOLATIONS
from qsync_testing.archives.plain_audit import plain_audit

KEYS = [
    0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63, -1, -32, -33, 1.5, None, True,
    "", "a" * 31, "b" * 32, "c" * 255, "d" * 256, b"bytes", [1], {"a": 1},
]  # fmt: skip


def a_row(rng: Random) -> bytes:
    """Return a row in an encoding that some writer may use."""
    kind = rng.choice((2, 3, 3, 3, 4, 5, NOP, 31, 40, 41))
    body = b""
    if kind != NOP:
        space = rng.choice((0, 127, 128, 280, 512, 65_536, 2**32))
        fields = [rng.choice(KEYS), "v" * rng.randrange(40)]
        body = pack(
            rng.choice(
                (
                    {Key.SPACE_ID: space, Key.TUPLE: fields},
                    {Key.TUPLE: fields, Key.SPACE_ID: space},
                    {},
                )
            )
        )
    lsn = rng.choice((1, 127, 128, 70_000, 2**33))
    if rng.random() < 0.05:  # longer than necessary, or with unknown keys
        header = {0: kind, 2: 1, 3: lsn, 4: 1.0, rng.choice((1, 7, 60)): rng.choice((3, "x", [1]))}
        return bytes(pack(header)) + body
    return encode_row(
        LogRow(kind, rng.choice((0, 1, 200)), lsn, rng.choice((0.0, 1.7e9)), body,
               tsn=lsn - rng.choice((0, 0, min(lsn, 300) - 1)), is_commit=rng.random() < 0.8,
               idempotency=rng.choice((None, None, "key", "k" * 300, ["client", 7])))
    )  # fmt: skip


def expected_rows(blocks: list[BlockRows]) -> list[tuple[Any, ...]]:
    found = []
    for block in blocks:
        for header, start, middle, end in headers_of(block):
            kind = header.get(KEY_TYPE, 0)
            body = block.data[middle:end]
            space = space_of(body) if kind < RAFT_PROMOTE and kind != NOP else 0
            found.append(
                (block.offset, kind, header.get(KEY_REPLICA_ID, 0), header.get(KEY_LSN, 0),
                 header.get(KEY_TSN, -1), header.get(KEY_FLAGS, 0), header.get(KEY_TIMESTAMP, 0.0),
                 space, block.data[start:middle], body)
            )  # fmt: skip
    return found


def test_columns_are_the_rows_that_are_there() -> None:
    """Compare 3,000 blocks in batches, with rows in every form that a writer may use."""
    rng = Random(20)
    for _ in range(300):
        blocks = [
            BlockRows(100 * n, b"".join(a_row(rng) for _ in range(rng.randrange(1, 30))))
            for n in range(rng.randrange(1, 20))
        ]
        columns = columns_of(blocks)
        assert columns is not None
        heads = [
            columns.data[a:b]
            for a, b in zip(columns.starts.tolist(), columns.middles.tolist(), strict=True)
        ]
        found = zip(
            *(one.tolist() for one in (columns.offset, columns.type, columns.replica_id,
              columns.lsn, columns.distance, columns.flags, columns.timestamp, columns.space)),
            heads, columns.bodies().to_pylist(), strict=True,
        )  # fmt: skip
        assert list(found) == expected_rows(blocks)


def a_value(rng: Random, depth: int = 0) -> Any:
    """Return a value in any format of msgpack and of any length class."""
    size = rng.choice((0, 3, 31, 32, 255, 256, 70_000 if rng.random() < 0.02 else 1))
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice(KEYS), lambda: rng.choice((False, 2.5, -(2**31), -(2**63), 2**64 - 1)),
        lambda: "s" * size, lambda: b"b" * size,
        lambda: msgpack.ExtType(rng.randrange(100), b"e" * rng.choice((1, 2, 4, 8, 16, size))),
        lambda: HEADER_LIKE if rng.random() < 0.02 else None,
    ]  # fmt: skip
    if depth < 2:
        kinds.append(lambda: [a_value(rng, depth + 1) for _ in range(rng.choice((0, 2, 16)))])
        kinds.append(lambda: {k: a_value(rng, depth + 1) for k in range(rng.choice((0, 2, 17)))})
    return rng.choice(kinds)()


HEADER_LIKE = encode_row(LogRow(3, 1, 70_007, 1.7e9, b"\x80"))
"""A value that looks like a row."""


def alike(rng: Random, count: int) -> bytes:
    """Return rows of one writer, as its node encodes them."""
    rows = []
    for lsn in range(70_000, 70_000 + count):
        kind = rng.choice((2, 3, 3, 3, NOP))
        fields = [a_value(rng) for _ in range(rng.randrange(4))]
        body = b"" if kind == NOP else pack({Key.SPACE_ID: 512, Key.TUPLE: fields})
        tsn = lsn - rng.choice((0, 0, 1))
        key = rng.choice((None, None, ["client", lsn]))
        rows.append(encode_row(LogRow(kind, 1, lsn, 1.7e9, body, tsn=tsn, idempotency=key)))
    return b"".join(rows)


def test_reading_rows_at_once_finds_what_reading_them_in_turn_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The data includes changed bytes and values that look like rows."""
    rng = Random(21)
    at_once = 0
    for number in range(1000):
        data = bytearray(alike(rng, rng.randrange(1, 40)))
        if number % 2:
            for _ in range(rng.choice((1, 1, 3))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        if number % 10 == 3:
            del data[rng.randrange(1, len(data)) :]
        blocks = [BlockRows(0, bytes(data))]
        found = columns_of(blocks)
        at_once += columns_module.rows_alike(bytes(data), padded(data)) is not None
        with monkeypatch.context() as patch:
            patch.setattr(columns_module, "rows_alike", lambda *_: None)
            wanted = columns_of(blocks)
        assert (found is None) == (wanted is None), number
        if found is not None and wanted is not None:
            for one, other in zip(found[3:], wanted[3:], strict=True):
                assert one.tobytes() == other.tobytes(), number
    assert 250 < at_once < 900, "some of them have to be read in turn, most need not"


def padded(data: bytearray) -> Any:
    return np.frombuffer(bytes(data) + PADDING, np.uint8)


def test_first_fields_are_packed_as_a_replay_packs_them() -> None:
    """A key in a longer encoding than necessary is the same key."""
    long_forms = [b"\xcd\x00\x05", b"\xd9\x01a", b"\xcf" + bytes(7) + b"\x01", b"\xd1\x00\x05"]
    encoded = [pack(key) for key in KEYS] + long_forms
    bodies = [b"\x82\x10\xcd\x02\x58\x21\x92" + key + b"\x01" for key in encoded]
    bodies += [b"\x82\x10\x05\x21\xdc\x00\x11" + bytes(17), b"\x82\x10\x05\x21\x90"]
    bodies += [
        b"\x82\x21\x91\x05\x10\x05",
        b"\x81\x10\x05",
        pack({Key.SPACE_ID: 600, Key.KEY: [1]}),
    ]
    blocks = [BlockRows(0, b"".join(encode_row(LogRow(3, 1, 1, 1.0, body)) for body in bodies))]
    columns = columns_of(blocks)
    assert columns is not None
    every = columns.lsn.cumsum() - 1
    found = first_fields(columns, every, columns.lsn > 0)
    simple = 0
    for key, body in zip(found, bodies, strict=True):
        if key is not None:
            fields = msgpack.unpackb(body, strict_map_key=False)[Key.TUPLE]
            assert key == pack(fields[:1])
            simple += 1
    assert (
        simple == len([k for k in KEYS if type(k) in (int, str) and k not in (-33, "d" * 256)]) + 1
    )
    assert first_fields(columns, every, columns.lsn < 0) == [None] * len(bodies)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xc1",
        b"\x80",
        b"\x83\x00\x03\x02\x01",
        b"\x93\x00\x03\x02\x80",
        b"\xde\x00\x01\x00\x03\x80",
        b"\x81\x00\x03",
        b"\x81\x00\xcc\x0c\x80",
        b"\x82\x00\x03\x03\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x80",
        b"\x82\x00\x03\x03\xa1a\x80",
        b"\x81\x00\x03\x93\x01\x02\x03",
        b"\x81\x00\x03" + b"\x91" * 2000 + b"\x01",
    ],
)
def test_what_is_unusual_is_left_to_those_who_read_row_by_row(data: bytes) -> None:
    assert columns_of([BlockRows(0, data)]) is None
    good = encode_row(LogRow(3, 1, 1, 1.0, pack({Key.SPACE_ID: 600, Key.TUPLE: [1]})))
    assert columns_of([BlockRows(0, good), BlockRows(9, data), BlockRows(20, good)]) is None
    assert columns_of([BlockRows(0, good), BlockRows(9, good)]) is not None


def test_a_row_that_goes_over_the_end_of_its_block_is_none() -> None:
    good = encode_row(LogRow(3, 1, 1, 1.0, pack({Key.SPACE_ID: 600, Key.TUPLE: [1]})))
    assert columns_of([BlockRows(0, good + good[:5]), BlockRows(9, good[5:])]) is None


BY_BATCH = OldestRequest | PrimaryKeys | SnapshotTerms


def everything_of(folder: Path) -> list[Any]:
    """Return the output of each reader for each part of an archive."""
    said: list[Any] = []
    archive = load_archive(f"file://{folder}")
    catalogue = KeyCatalogue(keys={512: (0,), 513: (1,), 280: (0,), 288: (0, 1), 320: (0,)})
    for part in parts_of_kind(archive, "segment", "rollback", "snapshot"):
        facts = [
            fact for batch in walk_module.walk(part, b"") for fact in facts_of(batch.to_pylist())
        ]
        # The number of these facts depends on the reader: one for each batch, or for each block.
        said += [fact for fact in facts if not isinstance(fact, BY_BATCH)]
        listed = FactList(facts)
        said += [oldest_requests(listed), terms_in(listed), definitions_in(listed)]
        said.append([row for b in walk_rows_module.rows_of(part) for row in b.to_pylist()])
        if part.kind == SEGMENT:
            middle = (part.after_index + part.last_index) // 2
            chosen = {part.member: [(0, middle), (middle + 2, part.last_index)]}
            reading = EventParameters(chosen, [], catalogue)
            events = [row for b in log_events(part, reading) for row in b.to_pylist()]
            said.append(sorted(events, key=lambda one: (one["index"], one["space"])))
        if part.kind == SNAPSHOT:
            batches = snapshot_events(part, catalogue, "")
            said.append([row for b in batches for row in b.to_pylist()])
    return said


@pytest.mark.parametrize("plant", [None, *VIOLATIONS], ids=lambda one: getattr(one, "__name__", ""))
def test_whole_archives_read_the_same(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Copy], Any] | None,
) -> None:
    """Facts, rows and events are the same with both readers, for every kind of damage."""
    copy = Copy(folder, tmp_path / "copy", 7)
    if plant is not None:
        plant(copy)
    fast = everything_of(copy.folder)
    taken: list[Any] = []
    monkeypatch.setattr(runs_module, "columns_of", taken.append)
    assert everything_of(copy.folder) == fast
    assert taken


@pytest.mark.parametrize("garbage", [b"\x81\x00\x03\x93\x01\x02\x03", b"\x93\x01\x02\x03", b"\xc1"])
@pytest.mark.parametrize("kind", [SEGMENT, SNAPSHOT])
def test_a_block_of_garbage_under_right_checksums_is_no_end_of_the_audit(
    folder: Path, tmp_path: Path, kind: str, garbage: bytes
) -> None:
    """The audit reports a violation of the file whose block holds no rows, and raises nothing."""
    copy = Copy(folder, tmp_path / "copy", 3)
    member = copy.full_members()[0]
    entry = member.of_kind(kind)[0]
    path = copy.folder / member.instance_uuid / entry.name
    header, _ = decode_file_header(path.read_bytes())
    good = b"".join(encode_row(row) for row in copy.rows(member, entry))
    data = encode_file(header, [good, garbage * 3])
    digest = hashlib.sha256(data).hexdigest()
    name = entry.name.replace(entry.sha256, digest)
    changed = replace(entry, name=name, sha256=digest, size=len(data), marks=entry.marks[:1])
    path.unlink()
    (path.parent / name).write_bytes(data)
    member.files[member.files.index(entry)] = changed
    copy.save(member)
    result = plain_audit(tmp_path / "copy")
    assert result.verdict == VIOLATED
    assert [one.file.endswith(name) for one in result.violations] == [True]
    # Without the first snapshot, the replay starts with the second one.
    assert all(kind == SNAPSHOT and "the archive begins" in gap.message for gap in result.gaps)
