"""An archive of three members' logs of any size, made without a cluster: the rows that a leader
would write, in blocks, segments and manifests of the form that members archive, and each member's
snapshots of the beginning and of the end."""

import hashlib
import shutil
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random

from qsync_client.protocol.constants import Key
from qsync_client.protocol.markers import UINT32
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.archive.description import TERM_SPACE, describe
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
    encode_manifest,
    encode_root,
)
from qsync_node.consensus.entries import control_body
from qsync_node.consensus.membership import ClusterMember
from qsync_node.format.keys import INSERT, RAFT_CONFIRM, RAFT_PROMOTE, REPLACE
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow, encode_row, encode_singles
from qsync_node.format.xlog import SNAP, XLOG, FileHeader, encode_file, file_name
from qsync_node.node import Node

SET = "22222222-2222-4222-8222-222222222222"
MEMBERS = [f"{number}1111111-1111-4111-8111-111111111111" for number in (1, 2, 3)]
BLOCK_ROWS = 200
SNAPSHOT_BLOCK_ROWS = 500
SPACE = 600
VALUE_BYTES = 100
NOISE_BYTES = 16 << 20
KEYS_SHARE = 10  # a key is written ten times
STARTED = 1_700_000_000.0


@dataclass
class Writes:
    """The leader's rows; `last` holds the LSN of each key's last write."""

    keys: int
    value_bytes: int
    last: dict[int, int] = field(default_factory=dict)
    noise: str = ""

    def __post_init__(self) -> None:
        if self.value_bytes > VALUE_BYTES:  # of random letters: they stay long in a file
            self.noise = b64encode(Random(1).randbytes(NOISE_BYTES)).decode()

    def value(self, lsn: int) -> str:
        start = lsn * 7919 % max(len(self.noise) - self.value_bytes, 1)
        return self.noise[start : start + self.value_bytes] or "v" * self.value_bytes

    def body(self, lsn: int) -> bytes:
        key = lsn * 7919 % self.keys
        self.last[key] = lsn
        body: bytes = pack({Key.SPACE_ID: SPACE, Key.TUPLE: [key, self.value(lsn)]})
        return body


def first_bodies() -> list[bytes]:
    """Return the rows of the first snapshot: three voters and a space."""
    bodies = Node.bootstrap_bodies(MEMBERS[0], "bench-0", SET, 3)
    for number, uuid in enumerate(MEMBERS[1:], 2):
        member = ClusterMember(number, uuid, f"bench-{number - 1}", "voter", True)
        bodies.append(pack({Key.SPACE_ID: SystemSpace.CLUSTER, Key.TUPLE: member.as_tuple()}))
    layout = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "string"}]
    bodies.append(
        pack(
            {
                Key.SPACE_ID: SystemSpace.SPACE,
                Key.TUPLE: [SPACE, 1, "bench", "memtx", 0, {}, layout],
            }
        )
    )
    bodies.append(
        pack(
            {
                Key.SPACE_ID: SystemSpace.INDEX,
                Key.TUPLE: [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
            }
        )
    )
    bodies.sort(key=lambda body: body[2:8] if body[2] == UINT32 else b"\x00" * 2 + body[3:5])
    return bodies


def last_bodies(writes: Writes) -> Iterator[bytes]:
    """Yield the tuples of the state after the last row."""
    yield from first_bodies()
    yield b"\x82\x10\xce" + TERM_SPACE.to_bytes(4, "big") + b"\x21" + pack([1, 1, 1])
    for key, lsn in sorted(writes.last.items()):
        yield pack({Key.SPACE_ID: SPACE, Key.TUPLE: [key, writes.value(lsn)]})


def snapshot(bodies: Iterable[bytes], clock: dict[int, int]) -> bytes:
    rows = (encode_row(LogRow(INSERT, 0, n, 0.0, body)) for n, body in enumerate(bodies))
    blocks = iter(lambda: b"".join(islice(rows, SNAPSHOT_BLOCK_ROWS)), b"")
    return encode_file(FileHeader(SNAP, MEMBERS[0], clock), blocks)


def blocks(first_lsn: int, count: int, writes: Writes) -> Iterator[bytes]:
    """Yield blocks with `count` rows in all; each ends with the CONFIRM of the previous block."""
    lsn, end = first_lsn, first_lsn + count
    while lsn < end:
        size = min(BLOCK_ROWS, end - lsn)
        time_s = STARTED + lsn / 10_000
        parts: list[bytes] = []
        body_lsn = lsn
        if lsn == 1:
            parts.append(
                encode_row(LogRow(RAFT_PROMOTE, 1, 1, time_s, control_body(1, 1, 0, 0, 0)))
            )
            body_lsn, size = 2, size - 1
        bodies = [(REPLACE, writes.body(n)) for n in range(body_lsn, body_lsn + size - 1)]
        parts += encode_singles(bodies, 1, body_lsn, time_s, 6)
        last = body_lsn + size - 1
        body = control_body(1, 1, last - 1, last - 1, 1)
        parts.append(encode_row(LogRow(RAFT_CONFIRM, 1, last, time_s, body)))
        yield b"".join(parts)
        lsn = last + 1


def make_archive(
    folder: Path,
    rows: int,
    segment_rows: int,
    is_skewed: bool = False,
    value_bytes: int = VALUE_BYTES,
) -> int:
    """Write the archive of three members with equal logs; return the size of one log in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ROOT_NAME).write_bytes(encode_root(SET))
    for uuid in MEMBERS:
        (folder / uuid).mkdir()
    entries: dict[str, list[FileEntry]] = {uuid: [] for uuid in MEMBERS}

    def put(data: bytes, entry: FileEntry) -> None:
        """Store a file for each member, with that member's header."""
        for uuid in MEMBERS:
            mine = data.replace(MEMBERS[0].encode(), uuid.encode(), 1)
            digest = hashlib.sha256(mine).hexdigest()
            name = entry.name.replace(entry.sha256, digest)
            (folder / uuid / name).write_bytes(mine)
            entries[uuid].append(replace(entry, name=name, sha256=digest))

    data = snapshot(first_bodies(), {})
    put(data, describe(data, SNAPSHOT, file_name(0, "snap"), 0))
    writes = Writes(1 if is_skewed else max(rows // KEYS_SHARE, 1), value_bytes)
    size = 0
    for first in range(1, rows + 1, segment_rows):
        count = min(segment_rows, rows + 1 - first)
        clock = {1: first - 1} if first > 1 else {}
        data = encode_file(FileHeader(XLOG, MEMBERS[0], clock), blocks(first, count, writes))
        put(data, describe(data, SEGMENT, file_name(first - 1, "xlog"), 1 if first > 1 else 0))
        size += len(data)
    data = snapshot(last_bodies(writes), {1: rows})
    put(data, describe(data, SNAPSHOT, file_name(rows, "snap"), 1))
    for number, uuid in enumerate(MEMBERS):
        files = [replace(one, archived_at=one.timestamp_max) for one in entries[uuid]]
        manifest = Manifest(SET, uuid, f"bench-{number}", files)
        (folder / uuid / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return size
