"""The readers' view of an archive: its replica set, and each member's files.

Files that compactions removed or merged are omitted (`compaction.py`).
"""

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from qsync_node.archive.compaction import (
    CHANGES_NAME,
    COMPACTION_MANIFEST,
    FOLDER,
    ChangesFile,
    Compaction,
    decode_changes,
    decode_compaction,
)
from qsync_node.archive.location import ArchiveError, first_line, store_of
from qsync_node.archive.manifest import (
    MANIFEST_NAME,
    ROOT_NAME,
    SEGMENT,
    SNAPSHOT,
    FileEntry,
    Manifest,
    ManifestError,
    decode_manifest,
    decode_root,
)

_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Pattern of the folders of members."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The current manifests of all members; `foreign` are the files that no manifest lists."""

    url: str
    replicaset_uuid: str
    members: list[Manifest]
    foreign: list[str] = field(default_factory=list)
    compactions: list[Compaction] = field(default_factory=list)  # by index
    changes: ChangesFile = field(default_factory=ChangesFile)
    written: list[Manifest] = field(default_factory=list)  # members' own, without `changes`

    def name_of(self, uuid: str) -> str:
        return next((m.member for m in self.owners() if m.instance_uuid == uuid), uuid)

    def segments(self) -> list[tuple[Manifest, FileEntry]]:
        return [(m, entry) for m in self.members for entry in m.of_kind(SEGMENT)]

    def owners(self) -> list[Manifest]:
        """Return members, and compactions in the form of members: all owners of files."""
        return [*self.members, *(one.as_member() for one in self.compactions)]

    def snapshots(self) -> list[tuple[Manifest, FileEntry]]:
        """Return the snapshots of members and compactions, newest first."""
        found = [(owner, entry) for owner in self.owners() for entry in owner.of_kind(SNAPSHOT)]
        return sorted(found, key=lambda pair: -pair[1].last_index)

    def owners_of_files(self) -> dict[str, str]:
        """Return the instance (or compaction) that owns each file, by the file's path."""
        return {f"{m.instance_uuid}/{e.name}": m.instance_uuid for m in self.owners()
                for e in m.files}  # fmt: skip

    @property
    def rows(self) -> int:
        """Return the number of rows in all files, copies included."""
        return sum(entry.rows for one in self.owners() for entry in one.files)

    @property
    def base(self) -> Compaction | None:
        """Return the compaction that replaces all data up to the floor; None without one."""
        wanted = self.changes.compaction
        return next((one for one in self.compactions if one.name == wanted), None)


def load_archive(url: str) -> Archive:
    """Read every manifest of an archive.

    Raises:
        ArchiveError: the archive is empty, unreadable or inconsistent.
    """
    url = url.rstrip("/")
    store = store_of(url)
    try:
        listed = [str(item["path"]) for batch in obstore.list(store) for item in batch]
        if ROOT_NAME not in listed:
            raise ArchiveError(
                f"archive {url} is empty: no member has archived a file yet"
                if not listed
                else (
                    f"{url} is not an archive of Qsync: it contains {listed[0]} but no "
                    f"{ROOT_NAME}; check archive.url"
                )
            )
        return _read_all(url, store, sorted(listed))
    except ManifestError as error:
        raise ArchiveError(str(error)) from error
    except (BaseError, OSError) as error:
        raise ArchiveError(f"cannot read archive {url}: {first_line(error)}") from error


def _read_all(url: str, store: ObjectStore, listed: list[str]) -> Archive:
    """Read the changes after the manifests, and the compaction that they name if it is new."""

    def read(path: str) -> bytes:
        return bytes(obstore.get(store, path).bytes())

    owner = decode_root(read(ROOT_NAME), f"{url}/{ROOT_NAME}")
    members, compactions = [], []
    for path in listed:
        head, _, name = path.rpartition("/")
        if name == MANIFEST_NAME and _INSTANCE.fullmatch(head):
            members.append(decode_manifest(read(path), f"{url}/{path}"))
        elif name == COMPACTION_MANIFEST and head.startswith(f"{FOLDER}/") and head.count("/") == 1:
            compactions.append(decode_compaction(read(path), f"{url}/{path}"))
    changes = ChangesFile()
    with suppress(FileNotFoundError):  # the first compaction may write it after the listing
        changes = decode_changes(read(CHANGES_NAME), f"{url}/{CHANGES_NAME}")
    named = f"{FOLDER}/{changes.compaction}/{COMPACTION_MANIFEST}"
    if changes.compaction and named not in listed:
        with suppress(FileNotFoundError):  # it may have been published after the listing
            compactions.append(decode_compaction(read(named), f"{url}/{named}"))
    if not members:
        raise ArchiveError(f"archive {url} is empty: no member has archived a file yet")
    everybody: list[Manifest | Compaction] = [*members, *compactions]
    for one in everybody:
        if one.replicaset_uuid != owner:
            place = one.instance_uuid if isinstance(one, Manifest) else one.folder
            raise ArchiveError(
                f"{url}/{place} belongs to replica set {one.replicaset_uuid}, but the "
                f"archive to {owner}: move that folder to another place"
            )
    foreign = _foreign(listed, members, changes)
    compactions = [one for one in compactions if one.index >= changes.floor]
    if changes.compaction and changes.compaction not in [one.name for one in compactions]:
        raise ArchiveError(
            f"{FOLDER}/{changes.compaction} is missing from archive {url}: it contains "
            f"all rows up to index {changes.floor}; restore it from a copy"
        )
    now = [replace(manifest, files=changes.over(manifest)) for manifest in members]
    compactions.sort(key=lambda one: (one.index, one.created_at))
    return Archive(url, owner, now, foreign, compactions, changes, members)


def _foreign(listed: list[str], members: list[Manifest], changes: ChangesFile) -> list[str]:
    known = {ROOT_NAME}
    for manifest in members:
        folder = manifest.instance_uuid
        known.add(f"{folder}/{MANIFEST_NAME}")
        known.update(f"{folder}/{entry.name}" for entry in manifest.files)
        # A file that is about to be deleted may already be missing in its member's manifest.
        known.update(f"{folder}/{name}" for one in changes.merged for name in one.replaces)
        known.update(f"{folder}/{one.entry.name}" for one in changes.merged)
    own = ("audits/", f"{FOLDER}/")
    return sorted(path for path in set(listed) - known if not path.startswith(own))
