"""The documents that compactions store in an archive (pure).

    compactions/NAME/manifest.json    one compaction; written last, so it implies all other files
    compactions/NAME/...snap          the state at its index
    compactions/NAME/spaces/...       tables of that state, and of its history
    compactions/changes.json          the members' files that compactions removed or merged

Only a member writes its own manifest. Readers apply `changes.json` to it: files that end at or
before `floor` are deleted or about to be deleted, and merged files replace their sources.
`changes.json` is replaced as a whole before the first file is deleted.
"""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from qsync_node.archive.manifest import (
    SNAPSHOT,
    VERSION,
    FileEntry,
    Manifest,
    check_fields,
    check_instance,
    check_list,
    check_number,
    check_time,
    damaged,
    decode_document,
    decode_entry,
)

FOLDER = "compactions"
CHANGES_NAME = f"{FOLDER}/changes.json"
LOCK_NAME = f"{FOLDER}/lock.json"
COMPACTION_MANIFEST = "manifest.json"
_NAME = re.compile(r"[0-9]{20}-[0-9]{1,20}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A file: its path in the archive, its size in bytes and its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """One published compaction: the state at `index`. No row of the state is later than `time`.

    `verdict` is the result of the audit of its source archive, including its own snapshot.
    """

    name: str
    replicaset_uuid: str
    index: int
    time: float
    created_at: float
    verdict: str
    snapshot: FileEntry
    inputs: list[CompactedFile] = field(default_factory=list)
    outputs: list[CompactedFile] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{self.name}"

    def as_member(self) -> Manifest:
        """Return the snapshot as a member's file; `instance_uuid/name` is its path."""
        return Manifest(self.replicaset_uuid, self.folder, "compaction", [self.snapshot])


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge: `entry`, in the folder of `member`, has the contents of the files `replaces`."""

    member: str
    replaces: list[str]
    entry: FileEntry


@dataclass(slots=True)
class ChangesFile:
    """Changes of compactions to the members' files.

    Only the compaction named `compaction` still contains the data up to index `floor`.
    """

    floor: int = 0
    compaction: str = ""
    merged: list[Merged] = field(default_factory=list)

    def is_gone(self, entry: FileEntry) -> bool:
        return bool(self.compaction) and entry.last_index <= self.floor

    def over(self, manifest: Manifest) -> list[FileEntry]:
        """Return the current files of a member, in their order."""
        mine = [one for one in self.merged if one.member == manifest.instance_uuid]
        replaced = {name for one in mine for name in one.replaces}
        everything = [*manifest.files, *(one.entry for one in mine)]
        kept = [entry for entry in everything if entry.name not in replaced]
        kept.sort(key=lambda entry: (entry.after_index, entry.kind != SNAPSHOT, entry.last_index))
        return [entry for entry in kept if not self.is_gone(entry)]


def encode_compaction(made: Compaction) -> bytes:
    return json.dumps({"version": VERSION, **asdict(made)}, indent=1).encode() + b"\n"


def encode_changes(changes: ChangesFile) -> bytes:
    return json.dumps({"version": VERSION, **asdict(changes)}, separators=(",", ":")).encode()


def decode_compaction(data: bytes, where: str) -> Compaction:
    """Decode the manifest of a compaction.

    Raises:
        ManifestError: the document is invalid.
    """
    document = decode_document(data, where)
    try:
        check_fields(document, (one.name for one in fields(Compaction)))
        folder = f"{FOLDER}/{_check_name(document['name'])}"
        return Compaction(
            document["name"],
            str(document["replicaset_uuid"]),
            check_number(document["index"], "index"),
            check_time(document["time"], "time"),
            check_time(document["created_at"], "created_at"),
            str(document["verdict"]),
            decode_entry(document["snapshot"]),
            [_file(one) for one in check_list(document["inputs"], "inputs")],
            [_stored(one, folder) for one in check_list(document["outputs"], "outputs")],
            check_list(document["tables"], "tables"),
        )
    except ValueError as error:
        raise damaged(where, error) from None


def decode_changes(data: bytes, where: str) -> ChangesFile:
    """Decode `changes.json`.

    Raises:
        ManifestError: the document is invalid.
    """
    document = decode_document(data, where)
    try:
        check_fields(document, (one.name for one in fields(ChangesFile)))
        return ChangesFile(
            check_number(document["floor"], "floor"),
            str(document["compaction"]),
            [_merged(one) for one in check_list(document["merged"], "merged")],
        )
    except ValueError as error:
        raise damaged(where, error) from None


def _merged(value: object) -> Merged:
    """Return a merge. Raises ValueError."""
    given = check_fields(value, (one.name for one in fields(Merged)))
    return Merged(
        check_instance(given["member"]),
        check_list(given["replaces"], "replaces"),
        decode_entry(given["entry"]),
    )


def _check_name(value: object) -> str:
    """Return `value`, the name of a compaction's folder. Raises ValueError."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid name of a compaction")
    return value


def _file(value: object) -> CompactedFile:
    """Return a file of a manifest. Raises ValueError."""
    names = [one.name for one in fields(CompactedFile)]
    given = check_fields(value, names)
    return CompactedFile(**{name: given[name] for name in names})


def _stored(value: object, folder: str) -> CompactedFile:
    """Return a file that a compaction wrote below its own folder. Raises ValueError."""
    file = _file(value)
    path = str(file.path)
    if not path.startswith(f"{folder}/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} is outside of {folder}")
    return file
