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
from dataclasses import asdict, dataclass, field
from typing import Any

from qsync_node.archive.manifest import (
    SNAPSHOT,
    VERSION,
    FileEntry,
    Manifest,
    ManifestError,
    check_instance,
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
        return Compaction(
            _check_name(document["name"]),
            str(document["replicaset_uuid"]),
            int(document["index"]),
            float(document["time"]),
            float(document["created_at"]),
            str(document["verdict"]),
            decode_entry(document["snapshot"]),
            [CompactedFile(**one) for one in document["inputs"]],
            [_stored(one, f"{FOLDER}/{document['name']}") for one in document["outputs"]],
            list(document["tables"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(where, error) from None


def decode_changes(data: bytes, where: str) -> ChangesFile:
    """Decode `changes.json`.

    Raises:
        ManifestError: the document is invalid.
    """
    document = decode_document(data, where)
    try:
        return ChangesFile(
            int(document["floor"]),
            str(document["compaction"]),
            [
                Merged(
                    check_instance(one["member"]), list(one["replaces"]), decode_entry(one["entry"])
                )
                for one in document["merged"]
            ],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(where, error) from None


def _check_name(value: object) -> str:
    """Return `value`, the name of a compaction's folder. Raises ValueError."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid name of a compaction")
    return value


def _stored(fields: dict[str, Any], folder: str) -> CompactedFile:
    """Return a file that a compaction wrote below its own folder. Raises ValueError."""
    file = CompactedFile(**fields)
    if not file.path.startswith(f"{folder}/") or ".." in file.path.split("/"):
        raise ValueError(f"{file.path!r} is outside of {folder}")
    return file


def _damaged(where: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"{where} is damaged ({type(error).__name__}: {error}): restore it from a copy"
    )
