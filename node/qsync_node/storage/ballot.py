"""The file of term, vote and other facts that must survive every truncation of the log (D2).

It is separate from the log, so that no truncation, re-join, snapshot or torn tail affects it. A
directory with a log but without a readable ballot has lost its vote and counts as a lost disk (M6).

Layout: 8 bytes magic, length and CRC-32C of the contents (4 bytes each), then the contents, which
only the core interprets.
"""

from struct import Struct

from qsync_node.format.xlog import checksum
from qsync_node.storage.atomic import put_file
from qsync_node.storage.errors import CorruptionError
from qsync_node.storage.files import FileSystem, join

BALLOT_NAME = "ballot"
_MAGIC = b"QSBALLOT"
_HEAD = Struct(">8sII")


def store_ballot(fs: FileSystem, directory: str, contents: bytes) -> None:
    head = _HEAD.pack(_MAGIC, len(contents), checksum(contents))
    put_file(fs, directory, BALLOT_NAME, [head, contents])


def load_ballot(fs: FileSystem, directory: str) -> bytes:
    """Return the contents of the ballot.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    path = join(directory, BALLOT_NAME)
    if not fs.exists(path):
        raise CorruptionError(path, 0, "the file of term and vote is missing")
    stored = fs.read(path)
    if len(stored) < _HEAD.size:
        raise CorruptionError(path, 0, "the file of term and vote is truncated")
    magic, size, crc = _HEAD.unpack_from(stored)
    contents = stored[_HEAD.size :]
    if magic != _MAGIC or len(contents) != size or checksum(contents) != crc:
        raise CorruptionError(path, 0, "the checksum of the file of term and vote does not match")
    return contents
