"""How far a snapshot may be ahead of the log, in a file of its own.

A log that ends before the newest snapshot is what a crash leaves in two cases: in the middle of a
re-join (S3), and where the state was confirmed by others before the own disk had the rows (S2). In
any other case rows are missing that were durable once and may have been acknowledged. So the index
is noted before such a snapshot gets its name, and the note goes once the log has come so far.
"""

from qsync_node.log.atomic import put_file
from qsync_node.log.errors import CorruptionError
from qsync_node.log.files import FileSystem, join

AHEAD_NAME = "ahead"


def note_ahead(fs: FileSystem, directory: str, index: int) -> None:
    put_file(fs, directory, AHEAD_NAME, [f"{index}\n".encode()])


def forget_ahead(fs: FileSystem, directory: str) -> None:
    path = join(directory, AHEAD_NAME)
    if fs.exists(path):
        fs.remove(path)
        fs.sync_dir(directory)


def noted_ahead(fs: FileSystem, directory: str) -> int:
    """0 if nothing is noted. Raises CorruptionError for a note that is no number."""
    path = join(directory, AHEAD_NAME)
    if not fs.exists(path):
        return 0
    text = fs.read(path).strip()
    if not text.isdigit():
        raise CorruptionError(path, 0, "the index to which a snapshot is ahead is not a number")
    return int(text)
