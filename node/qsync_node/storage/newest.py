"""A file that names the newest segment.

Each segment records where its successor must begin, but not whether a successor exists. A log
without its last file looks like a log that ended earlier, although the missing rows may have been
acknowledged. The newest segment is therefore noted once it is durable, before it receives a row.
The note is deleted before the newest segment is removed (L6, S3). Without a note, recovery does not
check.
"""

from qsync_node.storage.atomic import put_file
from qsync_node.storage.errors import CorruptionError
from qsync_node.storage.files import FileSystem, join

NEWEST_NAME = "newest"


def note_newest(fs: FileSystem, directory: str, name: str) -> None:
    """Note `name`, whose file must already be durable, unless the note already has this name."""
    path = join(directory, NEWEST_NAME)
    assert fs.exists(join(directory, name)), "D7: the noted segment is durable"
    contents = f"{name}\n".encode()
    if not fs.exists(path) or fs.read(path) != contents:
        put_file(fs, directory, NEWEST_NAME, [contents])


def forget_newest(fs: FileSystem, directory: str) -> None:
    """Delete the note, so that the newest segment may be removed."""
    path = join(directory, NEWEST_NAME)
    if fs.exists(path):
        fs.remove(path)
        fs.sync_dir(directory)


def check_newest(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Raise CorruptionError if the noted segment is not among `names`."""
    if NEWEST_NAME not in names:
        return
    noted = fs.read(join(directory, NEWEST_NAME)).decode(errors="replace").strip()
    if noted not in names:
        raise CorruptionError(
            join(directory, noted), 0, "the newest file of the log is missing with its rows"
        )
