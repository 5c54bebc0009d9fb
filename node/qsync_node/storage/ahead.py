"""A file that records how far a snapshot is ahead of the log.

A crash can leave a log that ends before the newest snapshot in two cases. It may happen during a
re-join (S3), or after other members confirmed the state before this disk had the rows (S2). In any
other case, rows that were durable, and possibly acknowledged, are missing. The index is therefore
noted before such a snapshot is renamed to its final name. The note is removed once the log reaches
that index.
"""

from qsync_node.storage.atomic import put_file
from qsync_node.storage.errors import CorruptionError
from qsync_node.storage.files import FileSystem, join

AHEAD_NAME = "ahead"


def note_ahead(fs: FileSystem, directory: str, index: int) -> None:
    assert index >= 0, "S3: the index of a snapshot"
    put_file(fs, directory, AHEAD_NAME, [f"{index}\n".encode()])


def forget_ahead(fs: FileSystem, directory: str) -> None:
    path = join(directory, AHEAD_NAME)
    if fs.exists(path):
        fs.remove(path)
        fs.sync_dir(directory)


def noted_ahead(fs: FileSystem, directory: str) -> int:
    """Return the noted index, or 0 without a note.

    Raises:
        CorruptionError: the note is not a number.
    """
    path = join(directory, AHEAD_NAME)
    if not fs.exists(path):
        return 0
    text = fs.read(path).strip()
    if not text.isdigit():
        raise CorruptionError(path, 0, "the note of a snapshot ahead of the log is not a number")
    return int(text)
