"""Segments of one member, their entries in its manifest, and small archives of them."""

from collections.abc import Mapping
from pathlib import Path

from qsync_node.archive.description import describe
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    FileEntry,
    Manifest,
    encode_manifest,
    encode_root,
)
from qsync_node.archive.reader import Archive, load_archive
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


def write_archive(folder: Path, members: Mapping[str, Mapping[str, bytes]]) -> Archive:
    """Write an archive in which each member has one file of some kinds.

    Args:
        folder: the folder of the archive.
        members: kind and contents of the files of each instance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ROOT_NAME).write_bytes(encode_root(SET_UUID))
    for number, (uuid, files) in enumerate(members.items()):
        manifest = Manifest(SET_UUID, uuid, f"n{number}")
        (folder / uuid).mkdir()
        for kind, data in files.items():
            entry = describe(data, kind, "file", 1)
            (folder / uuid / entry.name).write_bytes(data)
            manifest.files.append(entry)
        (folder / uuid / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return load_archive(f"file://{folder}")
