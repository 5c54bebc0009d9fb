"""Rows of a part with their positions in the log; damage is a separate item (data path).

A row's index is the signature of the clock after it, so that a missing row does not shift later
ones. After damage, reading resumes at the next mark, where the manifest records the position of the
log.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from qsync_node.archive.compaction import FOLDER
from qsync_node.archive.location import read_range
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
from qsync_node.format.walk import space_of, walk_rows
from qsync_node.format.xlog import (
    EOF_MARKER,
    HEADER_BYTES_MAX,
    Block,
    BlockDamage,
    XlogError,
    decode_file_header,
    read_blocks,
)
from qsync_spark.decode.parts import FilePart

HASH_BYTES = 16
SECRET_BYTES = 64  # one block of SHA-256: it is hashed once for all rows
RANGE_BYTES = 8 << 20
CHANGED = "its SHA-256 differs from the one in its name: the file was changed"
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
LIMITS = {
    KEY_TYPE: INT32_MAX, KEY_REPLICA_ID: INT32_MAX, KEY_LSN: INT64_MAX, KEY_TSN: INT64_MAX,
    KEY_FLAGS: INT32_MAX,
}  # fmt: skip
"""The greatest number that a column of the table `qsync.wal` can hold, by header key."""


class BlockRows(NamedTuple):
    """One valid block at `offset` of the file, decompressed."""

    offset: int
    data: bytes


class Hole(NamedTuple):
    """Unreadable data from `offset` to the next mark."""

    offset: int
    why: str
    mark: int  # number of the mark whose range contains it


class RestartMark(NamedTuple):
    """Reading (re)starts at this mark."""

    mark: int


def blocks_of(part: FilePart) -> Iterator[BlockRows | Hole | RestartMark]:
    """Yield all readable data of a part. Errors of the file are items, not exceptions."""
    digest = hashlib.sha256() if part.sha256 else None
    is_sound = True
    for number, mark in enumerate(part.marks):
        yield RestartMark(number)
        stop = part.marks[number + 1].offset if number + 1 < len(part.marks) else part.end
        hole: Hole | None = None
        try:
            start = 0 if number == 0 and digest is not None else mark.offset
            data = read_range(part.url, part.key, start, stop)
            if digest is not None:
                digest.update(data)
                if number == 0:
                    data = data[mark.offset :]
            if number == 0 and (why := _refuse_header(part)):
                raise XlogError(why)
        except FileNotFoundError:
            hole = Hole(0, "the file is not in the archive", number)
        except (OSError, XlogError) as error:
            hole = Hole(0, str(error), number)
        if hole is None:
            for item in _blocks(data, mark.offset, stop, part):
                if isinstance(item, Hole):
                    hole = item._replace(mark=number)
                    break
                yield item
        if hole is not None:
            is_sound = False
            yield hole
    if is_sound and digest is not None and digest.hexdigest() != part.sha256:
        yield Hole(-1, CHANGED, -1)


def is_file_changed(part: FilePart) -> bool:
    """Return whether a file of several parts deviates from its name.

    The part that contains unreadable blocks reports those.
    """
    digest = hashlib.sha256()
    try:
        for start in range(0, part.size, RANGE_BYTES):
            digest.update(
                read_range(part.url, part.key, start, min(start + RANGE_BYTES, part.size))
            )
    except OSError:
        return False
    return digest.hexdigest() != part.file_sha256


def _refuse_header(part: FilePart) -> str:
    """Return why the file's header contradicts the manifest; "" if it does not."""
    head = read_range(part.url, part.key, 0, HEADER_BYTES_MAX)
    header, end = decode_file_header(head)
    is_members = not part.member.startswith(f"{FOLDER}/")
    if is_members and header.instance_uuid != part.member:
        return f"the file belongs to instance {header.instance_uuid}"
    if end != part.marks[0].offset:  # the part begins after the first mark of the file
        return ""
    for name, found, stated in (
        ("vclock", header.vclock, part.marks[0].vclock),
        ("vclock", header.vclock, part.start_vclock),
        ("the previous vclock", header.previous_vclock, part.previous_vclock),
    ):
        if found != stated:
            return f"its header states {name} {found}, but the manifest {stated}"
    return ""


def _blocks(data: bytes, base: int, stop: int, part: FilePart) -> Iterator[BlockRows | Hole]:
    is_end = stop == part.size
    position = 0
    for item in read_blocks(data, 0, base):
        if isinstance(item, Block):
            position = item.end
            yield BlockRows(base + item.offset, item.data)
        elif isinstance(item, BlockDamage):
            yield Hole(base + item.offset, item.why, 0)
            return
        else:
            position = item.offset + len(EOF_MARKER)
    if base + position != stop:
        why = f"the file ends at offset {base + len(data)}, but the manifest states {stop}"
        yield Hole(base + position, why if is_end else "a block is truncated", 0)


class RowHash:
    """The hash of a row's content: header and body, as the leader encoded them.

    It is SHA-256 with a key that each audit draws for itself. Chunks combine such hashes by
    exclusive or, which is independent of the files over which a chunk is spread. Without the key a
    forger cannot choose rows whose changes cancel. For an unkeyed hash, linear algebra finds them
    among 129 candidates.
    """

    def __init__(self, secret: bytes) -> None:
        self._keyed = hashlib.sha256(secret)

    def __call__(self, row: bytes) -> bytes:
        digest = self._keyed.copy()
        digest.update(row)
        return digest.digest()[:HASH_BYTES]

    def of_run(self, data: bytes, edges: list[int]) -> list[bytes]:
        """Return the hash of each row between two edges; one call per block costs half."""
        fresh = self._keyed.copy
        found = []
        start = edges[0]
        for end in edges[1:]:
            digest = fresh()
            digest.update(data[start:end])
            found.append(digest.digest()[:HASH_BYTES])
            start = end
        return found


def new_secret() -> bytes:
    """Return the key of one audit, drawn after the whole archive was written."""
    return os.urandom(SECRET_BYTES)


def checked_rows(rows: BlockRows) -> list[tuple[dict[int, Any], int, int, int]]:
    """Return the items of `headers_of` after a check: numbers fit their columns, spaces decode.

    Raises:
        BAD_MSGPACK: before any row of the block is used.
    """
    found = list(headers_of(rows))
    for header, _, middle, end in found:
        for key, limit in LIMITS.items():
            value = header.get(key, 0)
            if type(value) is not int or not 0 <= value <= limit:
                raise ValueError(f"header key {key} has the invalid value {value!r}")
        time = header.get(KEY_TIMESTAMP, 0.0)
        if type(time) not in (int, float):
            raise ValueError(f"a row has the invalid time {time!r}")
        row_type = header.get(KEY_TYPE, 0)
        if row_type < RAFT_PROMOTE and row_type != NOP:
            space = space_of(rows.data[middle:end])
            if not 0 <= space <= INT64_MAX:
                raise ValueError(f"a row has the invalid space {space}")
    return found


def headers_of(rows: BlockRows) -> Iterator[tuple[dict[int, Any], int, int, int]]:
    """Yield the same items as `walk_rows`."""
    return walk_rows(rows.data)
