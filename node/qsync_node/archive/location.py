"""Object stores and folders by URL: of the archive, and of fragments of journals.

Executors of Spark also read files, in ranges, so a file's place is a URL and a key, which can be
pickled.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from qsync_node.errors import QsyncError

SCHEMES = ("file", "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")


class ArchiveError(QsyncError):
    """The archive is unavailable or cannot be read; the text is one sentence for the user."""


def first_line(error: BaseException) -> str:
    """Return the first line of the library's message, without its type and nested quotes."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]


def folder_of(url: str) -> Path | None:
    """Return the local folder of a `file://` URL; None for any other store."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def open_store(url: str) -> ObjectStore:
    """Return an obstore store for all keys below `url`. A missing folder is created.

    Raises:
        ArchiveError: the URL is invalid, or the store cannot be opened.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ArchiveError(
            f"archive {url!r} has an unknown scheme: use file:///folder, s3://bucket/folder,"
            " gs:// or az://"
        )
    folder = folder_of(url)
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return from_url(url)
        return from_url(url, retry_config=_retry())
    except (BaseError, OSError, ValueError) as error:
        raise ArchiveError(f"cannot open archive {url}: {first_line(error)}") from error


def _retry() -> Any:
    from datetime import timedelta  # noqa: PLC0415  # only for stores in a network

    return {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}


@lru_cache(maxsize=8)
def store_of(url: str) -> ObjectStore:
    """Return the object store below `url`, cached per process.

    Raises:
        ArchiveError: the folder does not exist, or the store cannot be opened.
    """
    folder = folder_of(url)
    if folder is not None and not folder.is_dir():
        raise ArchiveError(f"archive {url} does not exist: check archive.url")
    try:
        return from_url(url)
    except (BaseError, OSError, ValueError) as error:
        raise ArchiveError(f"cannot open archive {url}: {first_line(error)}") from error


def read_range(url: str, key: str, start: int, end: int) -> bytes:
    """Return the bytes from `start` to before `end`, or fewer at the end of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        OSError: the object store failed.
    """
    folder = folder_of(url)
    if folder is not None:
        with (folder / key).open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    try:
        size = int(obstore.head(store_of(url), key)["size"])
        end = min(end, size)
        if start >= end:
            return b""
        return bytes(obstore.get_range(store_of(url), key, start=start, end=end))
    except FileNotFoundError:
        raise
    except BaseError as error:
        raise OSError(first_line(error)) from error
