"""The manifest entry of a log file, from one pass over its bytes.

The pass checks only the file's own framing, which reading requires. An archive records the content
of the disk, and the audit judges that content.
"""

import hashlib
from typing import Any, Final

from qsync_client.protocol.markers import UINT32
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive.manifest import SNAPSHOT, FileEntry, Mark, archived_name
from qsync_node.format.keys import (
    KEY_LSN,
    KEY_REPLICA_ID,
    KEY_TIMESTAMP,
    KEY_TUPLE,
    KEY_TYPE,
    NOP,
    RAFT_PROMOTE,
    Key,
)
from qsync_node.format.mp import unpack
from qsync_node.format.vclock import signature
from qsync_node.format.walk import MALFORMED, space_of, walk_rows
from qsync_node.format.xlog import Block, BlockDamage, XlogError, decode_file_header, read_blocks

MARK_EVERY_BYTES = 4 << 20
TERM_SPACE: Final = int(SystemSpace.QSYNC_TERM)
_TERM_MARK = bytes((UINT32,)) + TERM_SPACE.to_bytes(4, "big")


class _Walk:
    """Counts of the rows read so far."""

    def __init__(self, start_term: int, vclock: dict[int, int]) -> None:
        self.term = start_term
        self.vclock = dict(vclock)
        self.first_term = 0
        self.rows = 0
        self.terms: list[tuple[int, int, int]] = []
        self.lsns: dict[int, tuple[int, int]] = {}
        self.times: tuple[float, float] | None = None
        self.spaces: set[int] = set()

    def take(self, header: dict[int, Any], body: bytes) -> None:
        self.rows += 1
        timestamp = header.get(KEY_TIMESTAMP, 0.0)
        low, high = self.times or (timestamp, timestamp)
        self.times = (min(low, timestamp), max(high, timestamp))
        row_type = header.get(KEY_TYPE, 0)
        if row_type < RAFT_PROMOTE and row_type != NOP:
            self.spaces.add(space_of(body))
        replica_id, lsn = header.get(KEY_REPLICA_ID, 0), header.get(KEY_LSN, 0)
        if replica_id:
            first, last = self.lsns.get(replica_id, (lsn, lsn))
            self.lsns[replica_id] = (min(first, lsn), max(last, lsn))
            self.vclock[replica_id] = max(self.vclock.get(replica_id, 0), lsn)
            if row_type == RAFT_PROMOTE:
                self.term = int(unpack(body)[Key.TERM])
                self.terms.append((self.term, replica_id, signature(self.vclock)))
        elif _TERM_MARK in body[:8]:  # in a snapshot
            term, owner, index = unpack(body)[KEY_TUPLE]
            self.term = max(self.term, term)
            self.terms.append((term, owner, index))
        if self.rows == 1:
            self.first_term = self.term


def describe(data: bytes, kind: str, source: str, start_term: int) -> FileEntry:
    """Return the manifest entry of a whole file.

    Args:
        data: the contents of the file.
        kind: one of `manifest.KINDS`.
        source: the local name of the file.
        start_term: the term before the first row.

    Raises:
        XlogError: the file is damaged.
    """
    header, offset = decode_file_header(data)
    walk = _Walk(start_term, {} if kind == SNAPSHOT else header.vclock)
    marks = [Mark(offset, start_term, dict(header.vclock))]
    for item in read_blocks(data, offset):
        if isinstance(item, BlockDamage):
            raise XlogError(f"{source} is damaged at offset {item.offset}: {item.why}")
        if not isinstance(item, Block):
            continue
        if item.offset - marks[-1].offset >= MARK_EVERY_BYTES:
            marks.append(Mark(item.offset, walk.term, dict(walk.vclock)))
        try:
            for row, _, middle, end in walk_rows(item.data):
                walk.take(row, item.data[middle:end])
        except MALFORMED as error:
            raise XlogError(f"{source} is damaged at offset {item.offset}: {error}") from None
    is_snapshot = kind == SNAPSHOT
    vclock = dict(header.vclock) if is_snapshot else walk.vclock
    after_index = signature(header.vclock)
    digest = hashlib.sha256(data).hexdigest()
    first_index = after_index if is_snapshot else after_index + 1
    term = walk.term if is_snapshot else walk.first_term
    low, high = walk.times or (0.0, 0.0)
    return FileEntry(
        kind,
        archived_name(kind, first_index, term, digest),
        source,
        len(data),
        digest,
        walk.rows,
        after_index,
        after_index if is_snapshot else signature(vclock),
        start_term,
        walk.term,
        dict(header.vclock),
        vclock,
        sorted(walk.terms),
        walk.lsns,
        low,
        high,
        sorted(walk.spaces),
        marks,
        previous_vclock=None if header.previous_vclock is None else dict(header.previous_vclock),
    )
