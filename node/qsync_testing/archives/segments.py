"""Segments of one member, and their entries in its manifest."""

from qsync_node.archive.description import describe
from qsync_node.archive.manifest import (
    SEGMENT,
    FileEntry,
)
from qsync_node.format.keys import REPLACE
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.xlog import (
    XLOG,
    FileHeader,
    encode_file,
)

UUID = "11111111-1111-4111-8111-111111111111"
SET_UUID = "22222222-2222-4222-8222-222222222222"


def rows_file(first_lsn: int, count: int, replica_id: int = 1) -> bytes:
    rows = [
        encode_row(LogRow(REPLACE, replica_id, lsn, 5.0 + lsn, pack({16: 512, 33: [lsn, "v"]})))
        for lsn in range(first_lsn, first_lsn + count)
    ]
    header = FileHeader(XLOG, UUID, {replica_id: first_lsn - 1} if first_lsn > 1 else {})
    return encode_file(header, [b"".join(rows)])


def entry_of(data: bytes, source: str = "00000000000000000000.xlog") -> FileEntry:
    return describe(data, SEGMENT, source, 3)
