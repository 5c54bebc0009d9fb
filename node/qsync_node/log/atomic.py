"""Small files that are replaced as a whole: temporary name, flush, rename, flush of the directory.

A crash at any step leaves the old file or the new one, never a mixture; a temporary file that is
left over is deleted at the next start.
"""

from collections.abc import Sequence

from qsync_node.log.errors import DiskError
from qsync_node.log.files import FileSystem, join

IN_PROGRESS = ".inprogress"


def remove_if_there(fs: FileSystem, path: str) -> None:
    if fs.exists(path):
        fs.remove(path)


def put_file(fs: FileSystem, directory: str, name: str, parts: Sequence[bytes]) -> None:
    """`directory/name` holds `parts`, durably, when this returns."""
    path = join(directory, name)
    temporary = path + IN_PROGRESS
    remove_if_there(fs, temporary)
    try:
        file = fs.create(temporary)
        try:
            file.append(parts)
            file.sync()
        finally:
            file.close()
    except DiskError:
        # Gives the space back on a full disk; what is left otherwise goes at the next start.
        remove_if_there(fs, temporary)
        raise
    fs.rename(temporary, path)
    fs.sync_dir(directory)


def remove_in_progress(fs: FileSystem, directory: str) -> None:
    """What a crash left half done in `directory`."""
    for name in fs.listdir(directory):
        if name.endswith(IN_PROGRESS):
            fs.remove(join(directory, name))
