"""Helpers for tests of one data directory, on the simulated and the real disk."""

from qsync_node.format.batch import LogBatch
from qsync_node.format.row import encode_singles
from qsync_node.storage.files import FileSystem
from qsync_node.storage.storage import SegmentLimits, Storage

UUID = "70dce487-582e-5e56-a3ed-a1541ed73826"
OTHER = "2564c0a3-dd23-551f-a25c-1af767f45a81"
SMALL = SegmentLimits(segment_bytes=400, mark_bytes=100)


def batch(
    first: int, count: int = 1, replica_id: int = 1, first_lsn: int = 0, mark: int = 0
) -> LogBatch:
    """Return `count` one-row transactions; `first_lsn` 0 makes LSNs equal to indexes."""
    lsn = first_lsn or first
    rows = [
        (3, b"\x82\x10\xcd\x02\x00\x21\x92" + bytes([number % 100, mark]))
        for number in range(count)
    ]
    data = b"".join(encode_singles(rows, replica_id, lsn, 1.5, 6))
    return LogBatch(first, first + count - 1, replica_id, lsn + count - 1, data)


def body(number: int) -> bytes:
    return b"\x82\x10\xce\x00\x00\x02\x00\x21\x91\xce" + number.to_bytes(4, "big")


def filled(fs: FileSystem, directory: str, rows: int = 30) -> Storage:
    """Return a log of `rows` rows in blocks of three, in several segments."""
    storage = Storage.create(fs, directory, UUID, SMALL, b"ballot")
    for first in range(1, rows + 1, 3):
        storage.write([batch(first, 2), batch(first + 2)])
    return storage


def segments(fs: FileSystem, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in fs.listdir(directory) if name.endswith(".xlog")]


def indexes(batches: list[LogBatch]) -> list[int]:
    return [index for item in batches for index in range(item.first_index, item.last_index + 1)]


def damage(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace the contents of a file."""
    fs.remove(path)
    file = fs.create(path)
    file.append(data)
    file.sync()
    file.close()
