"""The folders of compactions in an archive."""

from qsync_node.archive.compaction import COMPACTION_MANIFEST, FOLDER
from qsync_node.archive.location import store_of
from qsync_node.archive.outputs import delete_all, listed
from qsync_node.archive.reader import Archive


def compaction_folders(archive: Archive) -> list[str]:
    """Return the folders of all compactions, published or not."""
    paths = (path.split("/") for path in listed(store_of(archive.url), FOLDER))
    return sorted({f"{FOLDER}/{path[1]}" for path in paths if len(path) > 2})


def delete_unfinished(archive: Archive) -> None:
    """Delete the files of unfinished compactions, which have no manifest."""
    store = store_of(archive.url)
    for folder in compaction_folders(archive):
        found = listed(store, folder)
        if f"{folder}/{COMPACTION_MANIFEST}" not in found:
            delete_all(archive.url, found)
