"""The name of the newest segment, in a file of its own.

Each segment says where the one behind it has to begin, but nothing says that there is one: a log
whose last file was taken away looks like a log that ended there, and the rows that are gone may
have been acknowledged. So the newest segment is noted once it is durable, before a row goes into
it. Where segments are removed (L6, S3), the note goes first; without one nothing is claimed.
"""

from qsync_node.log.atomic import put_file
from qsync_node.log.errors import CorruptionError
from qsync_node.log.files import FileSystem, join

NEWEST_NAME = "newest"


def note_newest(fs: FileSystem, directory: str, name: str) -> None:
    """`name` must be durable by now; nothing is written if that is what the note says."""
    path = join(directory, NEWEST_NAME)
    contents = f"{name}\n".encode()
    if not fs.exists(path) or fs.read(path) != contents:
        put_file(fs, directory, NEWEST_NAME, [contents])


def forget_newest(fs: FileSystem, directory: str) -> None:
    """The newest segment may go after this."""
    path = join(directory, NEWEST_NAME)
    if fs.exists(path):
        fs.remove(path)
        fs.sync_dir(directory)


def check_newest(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Raises CorruptionError if the noted segment is not among `names`."""
    if NEWEST_NAME not in names:
        return
    noted = fs.read(join(directory, NEWEST_NAME)).decode(errors="replace").strip()
    if noted not in names:
        raise CorruptionError(
            join(directory, noted), 0, "the newest file of the log is missing, with the rows in it"
        )
