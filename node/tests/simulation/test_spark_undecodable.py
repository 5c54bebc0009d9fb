"""Tuples that are valid msgpack and have no value: findings, and no failure of the audit."""

import pytest

from qsync_client.protocol.spaces import FIRST_USER_SPACE
from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TUPLE, REPLACE
from qsync_node.format.mp import pack, unpack
from qsync_node.format.walk import space_of
from qsync_spark.audit.events import EVENTS
from qsync_spark.audit.ledger import writes_of
from qsync_spark.decode.batches import batch_of
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.plain_audit import plain_audit

VALUES = {
    "a time of one byte": b"\xd4\xff\x00",
    "an array as the key of a map": b"\x81\x91\x01\x01",
}
TUPLES = {
    **{name: b"\x92\x01" + value for name, value in VALUES.items()},
    "deeper than the decoder": b"\x92\x01" + b"\x91" * 2000 + b"\x01",
    "a number instead of a tuple": b"\x05",
}


def body_of(space: int, fields: bytes) -> bytes:
    head: bytes = b"\x82" + pack(KEY_SPACE_ID) + pack(space) + pack(KEY_TUPLE)
    return head + fields


@pytest.mark.parametrize("fields", TUPLES.values(), ids=TUPLES)
def test_a_write_without_a_value_equals_no_value_of_a_ledger(fields: bytes) -> None:
    rows = [(512, pack([1]), 5, REPLACE, body_of(512, fields), None, 0, 0.0)]
    found = [
        row for batch in writes_of(iter([batch_of(rows, EVENTS)])) for row in batch.to_pylist()
    ]
    assert [(row["index"], row["value"], row["whole"]) for row in found] == [(5, b"", b"")]


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_tuple_of_a_snapshot_without_a_value_is_named(copy: Copy, value: bytes) -> None:
    manifest = copy.full_members()[0]
    entry = manifest.of_kind(SNAPSHOT)[-1]
    rows = copy.rows(manifest, entry)
    row = next(row for row in rows if space_of(row.body) >= FIRST_USER_SPACE)
    key = pack(unpack(row.body)[KEY_TUPLE][0])
    row.body = body_of(space_of(row.body), b"\x92" + key + value)
    path = copy.rewrite(manifest, entry, rows)
    result = plain_audit(copy.folder)
    assert [one.file for one in result.violations] == [path]
    assert not result.gaps
