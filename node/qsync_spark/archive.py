"""An archive as the jobs see it: whose it is, each member's manifest, and ranges of files.

Files are read in ranges, by executors too, so everything that says where a file is can be pickled.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from qsync_node.format.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    FileEntry,
    Manifest,
    ManifestError,
    decode_manifest,
    decode_root,
)


class ArchiveError(Exception):
    """The archive cannot be read; the text is one sentence for a person."""


@lru_cache(maxsize=8)
def store_of(url: str) -> Any:
    """The object store below `url`; one for each process. Raises ArchiveError."""
    if urlsplit(url).scheme == "file" and not Path(unquote(urlsplit(url).path)).is_dir():
        raise ArchiveError(f"archive {url} is not there: check archive.url")
    try:
        return from_url(url)
    except (BaseError, OSError, ValueError) as error:
        raise ArchiveError(f"archive {url} cannot be opened: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]


def read_range(url: str, key: str, start: int, end: int) -> bytes:
    """Bytes `start .. end` of a file, fewer where it ends before.

    Raises FileNotFoundError, and OSError for whatever else an object store says.
    """
    folder = urlsplit(url)
    if folder.scheme == "file":
        with open(f"{unquote(folder.path)}/{key}", "rb") as file:
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


@dataclass(frozen=True, slots=True)
class Archive:
    """Manifests of all members, by uuid; `foreign` are files that no manifest names."""

    url: str
    replicaset_uuid: str
    members: list[Manifest]
    foreign: list[str] = field(default_factory=list)

    def name_of(self, uuid: str) -> str:
        return next((m.member for m in self.members if m.instance_uuid == uuid), uuid)

    def segments(self) -> list[tuple[Manifest, FileEntry]]:
        return [(m, entry) for m in self.members for entry in m.of_kind(SEGMENT)]


def load_archive(url: str) -> Archive:
    """Reads every manifest. Raises ArchiveError with one sentence."""
    url = url.rstrip("/")
    store = store_of(url)
    try:
        listed = [str(item["path"]) for batch in obstore.list(store) for item in batch]
        if ROOT_NAME not in listed:
            raise ArchiveError(
                f"archive {url} is empty: no member has archived anything there"
                if not listed
                else f"{url} holds {listed[0]} but no {ROOT_NAME}: it is no archive of Qsync"
            )
        owner = decode_root(bytes(obstore.get(store, ROOT_NAME).bytes()), f"{url}/{ROOT_NAME}")
        members = []
        for path in sorted(listed):
            if path.endswith(f"/{MANIFEST_NAME}") and path.count("/") == 1:
                data = bytes(obstore.get(store, path).bytes())
                members.append(decode_manifest(data, f"{url}/{path}"))
    except ManifestError as error:
        raise ArchiveError(str(error)) from error
    except (BaseError, OSError) as error:
        raise ArchiveError(f"archive {url} cannot be read: {first_line(error)}") from error
    if not members:
        raise ArchiveError(f"archive {url} is empty: no member has archived anything there")
    for manifest in members:
        if manifest.replicaset_uuid != owner:
            raise ArchiveError(
                f"{url}/{manifest.instance_uuid} is of replica set {manifest.replicaset_uuid}, the"
                f" archive of {owner}: move that folder away"
            )
    return Archive(url, owner, members, _foreign(listed, members))


def _foreign(listed: list[str], members: list[Manifest]) -> list[str]:
    known = {ROOT_NAME}
    for manifest in members:
        folder = manifest.instance_uuid
        known.add(f"{folder}/{MANIFEST_NAME}")
        known.update(f"{folder}/{entry.name}" for entry in manifest.files)
    own = ("audits/", "compactions/")
    return sorted(path for path in set(listed) - known if not path.startswith(own))
