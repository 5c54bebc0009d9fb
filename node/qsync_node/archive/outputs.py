"""Files of a compaction: written, read back, counted. Runs on the driver and in tasks of Spark."""

import hashlib
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from qsync_node.archive.compaction import CompactedFile
from qsync_node.archive.location import ArchiveError, first_line, folder_of, read_range, store_of

CHUNK_BYTES = 8 << 20


def put_bytes(url: str, path: str, data: bytes) -> CompactedFile:
    """Store `data`. Raises ArchiveError with a sentence, also for a full disk."""
    try:
        obstore.put(store_of(url), path, data)
    except (BaseError, OSError) as error:
        raise ArchiveError(f"cannot write {path} to archive {url}: {first_line(error)}") from error
    return CompactedFile(path, len(data), hashlib.sha256(data).hexdigest())


def put_local(url: str, path: str, source: Path) -> CompactedFile:
    """Store a file that may be large. Raises ArchiveError."""
    digest = hashlib.sha256()
    try:
        with source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        with source.open("rb") as file:
            obstore.put(store_of(url), path, file)
    except (BaseError, OSError) as error:
        raise ArchiveError(f"cannot write {path} to archive {url}: {first_line(error)}") from error
    return CompactedFile(path, source.stat().st_size, digest.hexdigest())


def verify(url: str, file: CompactedFile) -> None:
    """Read the file back. Raises ArchiveError if it differs from the written data."""
    digest = hashlib.sha256()
    try:
        for start in range(0, file.size + 1, CHUNK_BYTES):
            digest.update(read_range(url, file.path, start, start + CHUNK_BYTES))
    except OSError as error:
        raise ArchiveError(f"cannot read back {url}/{file.path}: {first_line(error)}") from error
    if digest.hexdigest() != file.sha256:
        raise ArchiveError(
            f"{url}/{file.path} differs from the written file: find out what changed it"
        )


def listed(store: ObjectStore, prefix: str) -> list[str]:
    return sorted(str(item["path"]) for batch in obstore.list(store, prefix) for item in batch)


def _leave(folder: Path, path: str) -> None:
    """Remove empty folders on a disk; an object store has none."""
    for parent in (folder / path).parents:
        if parent == folder:
            return
        try:
            parent.rmdir()
        except OSError:
            return  # not empty


def delete_all(url: str, paths: list[str]) -> int:
    """Delete the existing ones of `paths` and return their number. Raises ArchiveError."""
    deleted = 0
    folder = folder_of(url)
    for path in paths:
        try:
            obstore.delete(store_of(url), path)
            deleted += 1
            if folder is not None:
                _leave(folder, path)
        except FileNotFoundError:
            continue
        except (BaseError, OSError) as error:
            raise ArchiveError(f"cannot delete {url}/{path}: {first_line(error)}") from error
    return deleted
