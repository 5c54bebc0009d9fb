"""Tuples of snapshots: the first members of a log, and the values for proof 4 (data path)."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.archive.reader import Archive
from qsync_node.format.keys import INSERT, KEY_TUPLE
from qsync_node.format.mp import BAD_MSGPACK, unpack
from qsync_node.format.walk import space_of
from qsync_spark.audit.catalogue import SystemChange
from qsync_spark.audit.membership import member_of
from qsync_spark.audit.scan import parts_of_kind, run_on_parts
from qsync_spark.decode.batches import ROWS_MAX, batch_of, sql_of
from qsync_spark.decode.blocks import BlockRows, Hole, blocks_of, headers_of
from qsync_spark.decode.parts import FilePart
from qsync_spark.decode.schema_rows import (
    CLUSTER,
    INDEX,
    KEY_WINDOW_KEY,
    RESTORED_KEY,
    SCHEMA,
    SEQUENCE,
    SPACE,
    SPACE_SEQUENCE,
)
from qsync_spark.facts.kinds import ChangedFile, Damage, OldestRequest, SnapshotTerms
from qsync_spark.facts.table import FactList

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TUPLES = pa.schema(
    [
        pa.field("member", pa.string()),
        pa.field("file", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("space", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("damage", pa.string()),
    ]
)
TUPLES_SQL = sql_of(TUPLES)
BATCH_BYTES = 4 << 20  # of tuples: large ones fill a worker's memory before `ROWS_MAX`
READ_HERE_BYTES = 4 << 20  # a Spark job costs more than reading this much


def tuples_of(part: FilePart, spaces: frozenset[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the bodies of a snapshot's rows, of the given spaces only; damage is a row, too."""
    rows: list[tuple[Any, ...]] = []
    held = 0
    for item in blocks_of(part):
        if isinstance(item, Hole):
            rows.append((part.member, part.key, item.offset, part.last_index, 0, b"", item.why))
        elif isinstance(item, BlockRows):
            place = (part.member, part.key, item.offset, part.last_index)
            try:
                for _, _, middle, end in headers_of(item):
                    body = item.data[middle:end]
                    space = space_of(body)
                    if spaces is None or space in spaces:
                        rows.append((*place, space, body, None))
                        held += len(body)
            except BAD_MSGPACK as error:
                rows.append((*place, 0, b"", f"a block does not decode as rows: {error}"))
        if len(rows) >= ROWS_MAX or held >= BATCH_BYTES:
            yield batch_of(rows, TUPLES)
            rows, held = [], 0
    yield batch_of(rows, TUPLES)


def damaged_snapshots(listed: FactList) -> dict[str, Damage | ChangedFile]:
    """Return unreadable or changed snapshots, each with the first fact about it."""
    found: dict[str, Damage | ChangedFile] = {}
    for one in listed:
        if one.file_kind == SNAPSHOT and isinstance(one, Damage | ChangedFile):
            found.setdefault(one.file, one)
    return found


def unread_snapshots(listed: FactList) -> set[str]:
    """Return snapshots that cannot be compared with the log; a changed one can."""
    return {one.file for one in listed.of(Damage, SNAPSHOT)}


def oldest_requests(listed: FactList) -> dict[str, int]:
    """Return file -> index of the oldest request that the snapshot contains (T9)."""
    found: dict[str, int] = {}
    for one in listed.of(OldestRequest):
        found[one.file] = min(found.get(one.file, one.index), one.index)
    return found


def terms_in(listed: FactList) -> dict[str, list[tuple[int, ...]]]:
    """Return file -> `(term, owner, first index)` of each term in the snapshot."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for one in listed.of(SnapshotTerms):
        found.setdefault(one.file, []).extend(one.terms)
    return found


def first_snapshot(archive: Archive, damaged: Container[str]) -> tuple[int, str] | None:
    """Return index and file of the oldest valid snapshot: the state on which the log builds."""
    found = [
        (entry.last_index, f"{manifest.instance_uuid}/{entry.name}")
        for manifest in archive.owners()
        for entry in manifest.of_kind(SNAPSHOT)
    ]
    return min((one for one in found if one[1] not in damaged), default=None)


@dataclass(frozen=True, slots=True)
class Basis:
    """The system tuples of the first snapshot, on which the log builds."""

    members: dict[int, tuple[str, str, str, bool]] = field(default_factory=dict)  # by replica id
    indexes: dict[int, list[Any]] = field(default_factory=dict)  # parts of primary keys, by space
    changes: list[SystemChange] = field(default_factory=list)  # spaces, sequences, window of keys
    origin: int = 0  # index at which the replica set was restored from an archive, if it was
    spaces: list[tuple[str, int]] = field(default_factory=list)  # names and ids


def read_basis(spark: "SparkSession", archive: Archive, key: str) -> Basis:
    """Return the system tuples of the snapshot `key`."""
    parts = [part for part in parts_of_kind(archive, SNAPSHOT) if part.key == key]
    wanted = frozenset((SCHEMA, CLUSTER, SPACE, INDEX, SEQUENCE, SPACE_SEQUENCE))
    if sum(part.end - part.marks[0].offset for part in parts) <= READ_HERE_BYTES:
        batches = [batch for part in parts for batch in tuples_of(part, wanted)]
        found = [row for batch in batches for row in batch.to_pylist()]
    else:
        read = run_on_parts(spark, parts, lambda part: tuples_of(part, wanted), TUPLES_SQL)
        found = [row.asDict() for row in read.collect()]
    members: dict[int, tuple[str, str, str, bool]] = {}
    indexes: dict[int, list[Any]] = {}
    changes: list[SystemChange] = []
    spaces: list[tuple[str, int]] = []
    origin = 0
    for row in found:
        if row["damage"] is not None:
            continue
        fields = unpack(bytes(row["body"]))[KEY_TUPLE]
        if row["space"] == CLUSTER:
            replica_id, member = member_of(fields)
            members[replica_id] = member
        elif row["space"] == SCHEMA:
            if fields[0] == RESTORED_KEY:
                origin = int(fields[1][1])
            elif fields[0] == KEY_WINDOW_KEY:
                changes.append(_as_change(row))
        elif row["space"] in (SEQUENCE, SPACE_SEQUENCE):
            changes.append(_as_change(row))
        elif row["space"] == SPACE:
            spaces += name_of_space(fields)
            changes.append(_as_change(row))
        elif fields[1] == 0:
            indexes[fields[0]] = fields[5]
    return Basis(members, indexes, changes, origin, spaces)


def name_of_space(fields: list[Any]) -> list[tuple[str, int]]:
    """Return the name and the id in a tuple of `_space`, if it has a name."""
    return [(fields[2], fields[0])] if len(fields) > 2 and isinstance(fields[2], str) else []


def _as_change(row: dict[str, Any]) -> SystemChange:
    return SystemChange(row["index"], INSERT, row["space"], bytes(row["body"]))
