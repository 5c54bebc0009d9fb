"""Access to the archive: an object store or folder, selected by URL.

A file is stored under a name that contains its SHA-256, and is never replaced. If other content
exists under that name, the archive was changed (`ArchiveConflictError`). Only the manifest is
replaced, as a whole: atomically in an object store, by a rename in a folder. A folder is flushed
like the log's own directory, because the local copy is removed once the manifest lists the
archived file (D1).
"""

import hashlib
import os

import obstore
from obstore.exceptions import BaseError

from qsync_node.archive.compaction import CHANGES_NAME, ChangesFile, decode_changes
from qsync_node.archive.location import ArchiveError, first_line, folder_of, open_store
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    FileEntry,
    Manifest,
    ManifestError,
    decode_manifest,
    decode_root,
    encode_manifest,
    encode_root,
)

MULTIPART_FROM_BYTES = 32 << 20


class ArchiveConflictError(ArchiveError):
    """The archive contains different content under a name of this member: a person must act."""


class ArchiveStore:
    """One member's part of an archive."""

    def __init__(self, url: str, replicaset_uuid: str, instance_uuid: str, member: str) -> None:
        self.url = url
        self._folder = folder_of(url)
        self._store = open_store(url)
        self._replicaset_uuid = replicaset_uuid
        self._uuid = instance_uuid
        self._member = member

    def load(self) -> Manifest:
        """Return this member's manifest, or a new one.

        The archive is first claimed for the replica set: two clusters never share one.

        Raises:
            ArchiveError: the archive is unavailable, or belongs to another replica set.
        """
        try:
            root = self._read(ROOT_NAME)
            if root is None:
                self._put(ROOT_NAME, encode_root(self._replicaset_uuid))
            elif (owner := decode_root(root, f"{self.url}/{ROOT_NAME}")) != self._replicaset_uuid:
                raise ArchiveConflictError(
                    f"archive {self.url} belongs to replica set {owner}, not to "
                    f"{self._replicaset_uuid}: set a separate archive.url for each cluster"
                )
            path = f"{self._uuid}/{MANIFEST_NAME}"
            data = self._read(path)
            if data is None:
                return Manifest(self._replicaset_uuid, self._uuid, self._member)
            return decode_manifest(data, f"{self.url}/{path}")
        except ManifestError as error:
            raise ArchiveConflictError(str(error)) from error

    def changes(self) -> ChangesFile:
        """Return the files that compactions removed or merged.

        Raises:
            ArchiveError: the record of compactions cannot be read.
        """
        data = self._read(CHANGES_NAME)
        try:
            return (
                ChangesFile()
                if data is None
                else decode_changes(data, f"{self.url}/{CHANGES_NAME}")
            )
        except ManifestError as error:
            raise ArchiveConflictError(str(error)) from error

    def put_file(self, entry: FileEntry, path: str) -> None:
        """Store the file at `path` durably.

        The file may already exist, uploaded before a crash. It is then read back and compared,
        because its name alone does not prove its content.

        Raises:
            ArchiveError: the archive is unavailable, or the local file was deleted.
            ArchiveConflictError: the archive contains other content under this name.
        """
        key = f"{self._uuid}/{entry.name}"
        try:
            if self._holds(key, entry):
                return
            with open(path, "rb") as file:
                is_large = entry.size >= MULTIPART_FROM_BYTES
                obstore.put(self._store, key, file, use_multipart=is_large)
        except FileNotFoundError:
            raise ArchiveError(f"{path} was deleted before it was archived") from None
        except (BaseError, OSError) as error:
            raise ArchiveError(
                f"cannot write {entry.name} to archive {self.url}: {first_line(error)}"
            ) from error
        self._flush(key)

    def _holds(self, key: str, entry: FileEntry) -> bool:
        try:
            found = obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        digest = hashlib.sha256()
        if found["size"] == entry.size:
            for chunk in obstore.get(self._store, key):
                digest.update(chunk)
        if digest.hexdigest() != entry.sha256:
            raise ArchiveConflictError(
                f"archive {self.url} already contains {key} with different contents "
                f"({found['size']} bytes instead of {entry.size}): move that file and "
                "find out what wrote it"
            )
        self._flush(key)
        return True

    def put_manifest(self, manifest: Manifest) -> None:
        try:
            self._put(f"{self._uuid}/{MANIFEST_NAME}", encode_manifest(manifest))
        except (BaseError, OSError) as error:
            raise ArchiveError(
                f"cannot write the manifest to archive {self.url}: {first_line(error)}"
            ) from error

    def _read(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise ArchiveError(f"cannot read archive {self.url}: {first_line(error)}") from error

    def _put(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data)
        except (BaseError, OSError) as error:
            raise ArchiveError(f"cannot write archive {self.url}: {first_line(error)}") from error
        self._flush(key)

    def _flush(self, key: str) -> None:
        """Flush a file in a folder, and its name. An object store flushes before it answers."""
        if self._folder is None:
            return
        path = self._folder / key
        try:
            for one in (path, path.parent, self._folder):
                descriptor = os.open(one, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise ArchiveError(f"cannot flush archive {self.url}: {error}") from error
