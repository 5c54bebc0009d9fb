"""Atomic replacement of small files: temporary name, flush, rename, flush of the directory.

A crash at any step leaves the old file or the new one, never a mixture. The next start deletes
leftover temporary files.
"""

from collections.abc import Sequence

from qsync_node.storage.errors import DiskError
from qsync_node.storage.files import FileSystem, join

IN_PROGRESS = ".inprogress"


def remove_if_there(fs: FileSystem, path: str) -> None:
    if fs.exists(path):
        fs.remove(path)


def put_file(fs: FileSystem, directory: str, name: str, parts: Sequence[bytes]) -> None:
    """Write `parts` to `directory/name` durably."""
    assert "/" not in name, "the folder that is flushed holds the file"
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
        # Frees the space on a full disk. The next start deletes any other leftover.
        remove_if_there(fs, temporary)
        raise
    fs.rename(temporary, path)
    fs.sync_dir(directory)


def remove_in_progress(fs: FileSystem, directory: str) -> None:
    """Delete the temporary files that a crash left in `directory`."""
    for name in fs.listdir(directory):
        if name.endswith(IN_PROGRESS):
            fs.remove(join(directory, name))
