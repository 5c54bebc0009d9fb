"""An archive of three members' logs of any size, made without a cluster: the rows that a leader
would write, in blocks, segments and manifests of the form that members archive."""

import hashlib
import shutil
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from random import Random

from qsync_node.core.entries import control_body
from qsync_node.core.membership import Member
from qsync_node.core.node import Node
from qsync_node.format.describe import describe
from qsync_node.format.keys import INSERT, RAFT_CONFIRM, RAFT_PROMOTE, REPLACE
from qsync_node.format.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
    encode_manifest,
    encode_root,
)
from qsync_node.format.mp import pack
from qsync_node.format.row import Row, encode_row, encode_singles
from qsync_node.format.xlog import SNAP, XLOG, FileHeader, encode_file

SET = "22222222-2222-4222-8222-222222222222"
MEMBERS = [f"{number}1111111-1111-4111-8111-111111111111" for number in (1, 2, 3)]
BLOCK_ROWS = 200
SPACE = 600
VALUE_BYTES = 100
NOISE_BYTES = 16 << 20
KEYS_SHARE = 10  # a key is written ten times
STARTED = 1_700_000_000.0


def snapshot() -> bytes:
    """The first one, with three voters and a space."""
    bodies = Node.bootstrap_bodies(MEMBERS[0], "bench-0", SET, 3)
    for number, uuid in enumerate(MEMBERS[1:], 2):
        member = Member(number, uuid, f"bench-{number - 1}", "voter", True)
        bodies.append(pack({0x10: 320, 0x21: member.as_tuple()}))
    layout = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "string"}]
    bodies.append(pack({0x10: 280, 0x21: [SPACE, 1, "bench", "memtx", 0, {}, layout]}))
    bodies.append(
        pack({0x10: 288, 0x21: [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]})
    )
    bodies.sort(key=lambda body: body[2:8] if body[2] == 0xCE else b"\x00" * 2 + body[3:5])
    rows = b"".join(encode_row(Row(INSERT, 0, n, 0.0, b)) for n, b in enumerate(bodies))
    return encode_file(FileHeader(SNAP, MEMBERS[0], {}), [rows])


def blocks(
    first_lsn: int, count: int, is_skewed: bool, value_bytes: int = VALUE_BYTES
) -> list[bytes]:
    """`count` rows of one leader; each block ends with the CONFIRM of the one before.

    Long values are of random letters, which do not become a few bytes in a file.
    """
    found = []
    is_long = value_bytes > VALUE_BYTES
    noise = b64encode(Random(1).randbytes(NOISE_BYTES)).decode() if is_long else ""
    lsn, end = first_lsn, first_lsn + count
    keys = max(count // KEYS_SHARE, 1)
    while lsn < end:
        size = min(BLOCK_ROWS, end - lsn)
        time_s = STARTED + lsn / 10_000
        parts: list[bytes] = []
        body_lsn = lsn
        if lsn == 1:
            parts.append(encode_row(Row(RAFT_PROMOTE, 1, 1, time_s, control_body(1, 1, 0, 0, 0))))
            body_lsn, size = 2, size - 1
        bodies = []
        for n in range(body_lsn, body_lsn + size - 1):
            start = n * 7919 % max(len(noise) - value_bytes, 1)
            value = noise[start : start + value_bytes] or "v" * value_bytes
            key = 7 if is_skewed else n * 7919 % keys
            bodies.append((REPLACE, pack({0x10: SPACE, 0x21: [key, value]})))
        parts += encode_singles(bodies, 1, body_lsn, time_s, 6)
        last = body_lsn + size - 1
        body = control_body(1, 1, last - 1, last - 1, 1)
        parts.append(encode_row(Row(RAFT_CONFIRM, 1, last, time_s, body)))
        found.append(b"".join(parts))
        lsn = last + 1
    return found


def make_archive(
    folder: Path,
    rows: int,
    segment_rows: int,
    is_skewed: bool = False,
    value_bytes: int = VALUE_BYTES,
) -> int:
    """Three members with the same log; returns its bytes, of one member."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ROOT_NAME).write_bytes(encode_root(SET))
    data = snapshot()
    entries: list[FileEntry] = [describe(data, SNAPSHOT, f"{0:020d}.snap", 0)]
    for uuid in MEMBERS:
        (folder / uuid).mkdir()
        (folder / uuid / entries[0].name).write_bytes(data)
    size = 0
    for first in range(1, rows + 1, segment_rows):
        count = min(segment_rows, rows + 1 - first)
        clock = {1: first - 1} if first > 1 else {}
        data = encode_file(
            FileHeader(XLOG, MEMBERS[0], clock), blocks(first, count, is_skewed, value_bytes)
        )
        entry = describe(data, SEGMENT, f"{first - 1:020d}.xlog", 1 if first > 1 else 0)
        assert hashlib.sha256(data).hexdigest() == entry.sha256
        entries.append(entry)
        size += len(data)
        original = folder / MEMBERS[0] / entry.name
        original.write_bytes(data)
        for uuid in MEMBERS[1:]:
            (folder / uuid / entry.name).hardlink_to(original)
    for number, uuid in enumerate(MEMBERS):
        files = [replace(one, archived_at=one.timestamp_max) for one in entries]
        manifest = Manifest(SET, uuid, f"bench-{number}", files)
        (folder / uuid / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return size
