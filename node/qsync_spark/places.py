"""Files of a user, such as a ledger or a report, at a path or a URL of any store.

A place is split into the URL of its folder, below which a store is opened, and a name. Credentials
of a store come from the environment, like those of an archive.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
from obstore.exceptions import BaseError

from qsync_node.archive.location import ArchiveError, first_line, folder_of, read_range, store_of
from qsync_node.errors import QsyncError


class PlaceError(QsyncError):
    """A place cannot be read or written; the text is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of `size` bytes, `key` below `url`."""

    url: str
    key: str
    size: int


class RangeFile(io.RawIOBase):
    """A stored file that reads ranges of an object, for libraries that require seeking."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`. Raises OSError."""
        file = self._file
        data = read_range(file.url, file.key, self._at, self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def url_of(place: str) -> str:
    """Return the place as a URL without a trailing slash."""
    return (place if "://" in place else Path(place).absolute().as_uri()).rstrip("/")


def find_files(place: str, suffix: str) -> list[StoredFile]:
    """Return the file at the place, or the files of the folder whose names end with `suffix`.

    Raises:
        PlaceError: none exists.
    """
    url = url_of(place)
    above, _, quoted = url.rpartition("/")
    name = unquote(quoted)
    if folder_of(url) is not None:
        found = _local_files(above, name, suffix)
    else:
        found = _stored_files(above, name, suffix)
    if not found:
        raise PlaceError(f"cannot read {place}: not found; check the path or URL")
    return found


def _local_files(above: str, name: str, suffix: str) -> list[StoredFile]:
    folder = folder_of(above)
    assert folder is not None
    path = folder / name
    if path.is_file():
        return [StoredFile(above, name, path.stat().st_size)]
    return [
        StoredFile(above, f"{name}/{one.relative_to(path).as_posix()}", one.stat().st_size)
        for one in sorted(path.rglob(f"*{suffix}"))
    ]


def _stored_files(above: str, name: str, suffix: str) -> list[StoredFile]:
    try:
        store = store_of(above)
        try:
            return [StoredFile(above, name, int(obstore.head(store, name)["size"]))]
        except FileNotFoundError:
            listed = [one for batch in obstore.list(store, f"{name}/") for one in batch]
    except (BaseError, OSError, ArchiveError) as error:
        raise PlaceError(
            f"cannot read {above}/{name}: {first_line(error)}; check the URL and the credentials"
        ) from error
    found = [StoredFile(above, str(one["path"]), int(one["size"])) for one in listed]
    return sorted((one for one in found if one.key.endswith(suffix)), key=lambda one: one.key)


def put_files(place: str, files: dict[str, bytes]) -> None:
    """Write files into the folder, one after another. Raises PlaceError."""
    url = url_of(place)
    try:
        folder = folder_of(url)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                (folder / name).write_bytes(data)
            return
        store = store_of(url)
        for name, data in files.items():
            obstore.put(store, name, data)
    except (BaseError, OSError, ArchiveError) as error:
        raise PlaceError(
            f"cannot write {place}: {first_line(error)}; check the path or URL and the credentials"
        ) from error
