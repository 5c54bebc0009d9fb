"""The manifest of one member's archive: its files and their contents.

An archive is a folder of an object store that belongs to one replica set:

    archive.json                                 the replica set that owns the archive
    INSTANCE/manifest.json                       the member's archived files, replaced as a whole
    INSTANCE/INDEX-TERM-SHA256.xlog              sealed, confirmed segments
    INSTANCE/INDEX-TERM-SHA256.snap              snapshots
    INSTANCE/INDEX-TERM-SHA256.rollback.xlog     rows truncated from its log (L6)

INDEX is the index of the first row (of the state, for a snapshot), and TERM the term of that row. A
name identifies the contents, so a file is never replaced. Readers use the manifest and never a
listing: a file that no manifest lists does not exist yet.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from math import isfinite
from typing import Any, NamedTuple

VERSION = 1
SEGMENT, SNAPSHOT, ROLLBACK = "segment", "snapshot", "rollback"
KINDS = (SEGMENT, SNAPSHOT, ROLLBACK)
ROOT_NAME = "archive.json"
MANIFEST_NAME = "manifest.json"
_SHOWN_CHARACTERS = 80
_SUFFIXES = {SEGMENT: "xlog", SNAPSHOT: "snap", ROLLBACK: "rollback.xlog"}


class ManifestError(ValueError):
    """An invalid manifest; the text states the cause and the remedy."""


class Mark(NamedTuple):
    """A block at which reading may begin: at `offset`, the log is at `vclock`, in `term`."""

    offset: int
    term: int
    vclock: dict[int, int]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One archived file. Times are seconds since 1970, by the leaders' clocks.

    A segment contains the rows after `after_index` up to `last_index`; a snapshot the state at
    `last_index`, which equals its `after_index`. `start_term` is the term before the first row.
    `lsns` maps each replica id to its first and last LSN. `source` is the local name of the file.
    `previous_vclock` is the start of the previous segment, if the header records it.
    """

    kind: str
    name: str
    source: str
    size: int
    sha256: str
    rows: int
    after_index: int
    last_index: int
    start_term: int
    last_term: int
    start_vclock: dict[int, int]
    vclock: dict[int, int]
    terms: list[tuple[int, int, int]] = field(default_factory=list)
    lsns: dict[int, tuple[int, int]] = field(default_factory=dict)
    timestamp_min: float = 0.0
    timestamp_max: float = 0.0
    spaces: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    archived_at: float = 0.0
    previous_vclock: dict[int, int] | None = None


@dataclass(slots=True)
class Manifest:
    """The archived files of one instance, oldest first within each kind."""

    replicaset_uuid: str
    instance_uuid: str
    member: str
    files: list[FileEntry] = field(default_factory=list)
    updated_at: float = 0.0

    def of_kind(self, kind: str) -> list[FileEntry]:
        return [entry for entry in self.files if entry.kind == kind]


_SHA256 = re.compile(r"[0-9a-f]{64}")
_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Exactly the form of `archived_name`: a name never points outside of its member's folder.
_NAME = re.compile(r"[0-9]{20}-[0-9]{1,20}-[0-9a-f]{64}\.[a-z]+(\.[a-z]+)?")


def archived_name(kind: str, index: int, term: int, sha256: str) -> str:
    """Return the name of a file inside its member's folder."""
    return f"{index:020d}-{term}-{sha256}.{_SUFFIXES[kind]}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON.

    It is encoded file by file, because each call of the encoder holds the interpreter lock (G1):
    a manifest has an entry for each segment since the last compaction.
    """
    files = f"[{','.join(_json(asdict(entry)) for entry in manifest.files)}]"
    fields: dict[str, object] = {"version": VERSION, **asdict(replace(manifest, files=[]))}
    parts = (
        f"{_json(name)}:{files if name == 'files' else _json(value)}"
        for name, value in fields.items()
    )
    return f"{{{','.join(parts)}}}".encode()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def encode_root(replicaset_uuid: str) -> bytes:
    return json.dumps({"version": VERSION, "replicaset_uuid": replicaset_uuid}).encode() + b"\n"


def decode_document(data: bytes, where: str) -> dict[str, Any]:
    """Decode a JSON object of a supported version.

    Raises:
        ManifestError: the document is invalid or has another version.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise ManifestError(
            f"{where} is not a valid manifest ({error}): restore it from a copy, or "
            "remove the folder"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        raise ManifestError(
            f"{where} is not a valid manifest: the version is missing; restore it from a copy"
        )
    if document["version"] > VERSION:
        raise ManifestError(
            f"cannot read {where}: it has version {document['version']}, and this Qsync "
            f"supports versions up to {VERSION}; use a newer Qsync"
        )
    return document


def decode_root(data: bytes, where: str) -> str:
    """Return the replica set that owns an archive.

    Raises:
        ManifestError: the document is invalid.
    """
    uuid = decode_document(data, where).get("replicaset_uuid")
    if not isinstance(uuid, str):
        raise ManifestError(
            f"{where} is not valid: the replica set is missing; restore it from a copy"
        )
    return uuid


def _clock(value: dict[str, int]) -> dict[int, int]:
    return {int(key): int(lsn) for key, lsn in value.items()}


_NUMBERS = ("size", "rows", "after_index", "last_index", "start_term", "last_term")
_TIMES = ("timestamp_min", "timestamp_max", "archived_at")
NUMBER_MAX = (1 << 63) - 1


def check_number(value: object, what: str) -> int:
    """Return `value`, a natural number below 2**63. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{what} has the invalid value {value!r}")
    return value


def check_time(value: object, what: str) -> float:
    """Return `value`, seconds since 1970. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{what} has the invalid value {value!r}")
    return value


def check_fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return `value`, a JSON object with at least these fields. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:_SHOWN_CHARACTERS]} is not a JSON object")
    for name in names:
        if name not in value:
            raise ValueError(f"the field {name} is missing")
    return value


def check_list(value: object, what: str) -> list[Any]:
    """Return `value`, a JSON array. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is not an array")
    return value


def damaged(where: str, error: Exception) -> ManifestError:
    """Return the error of a document with an invalid field."""
    return ManifestError(
        f"cannot read {where}: it is damaged, because {error}; restore it from a copy"
    )


def check_instance(value: object) -> str:
    """Return `value`, the uuid that names a member's folder. Raises ValueError."""
    if not isinstance(value, str) or not _INSTANCE.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid instance uuid")
    return value


def _check_entry(entry: FileEntry) -> None:
    """Raise ValueError for an entry that no archiver writes and that readers cannot handle."""
    for name in _NUMBERS:
        check_number(getattr(entry, name), name)
    for name in _TIMES:
        check_time(getattr(entry, name), name)
    clocks = [entry.start_vclock, entry.vclock, entry.previous_vclock or {}]
    clocks += [mark.vclock for mark in entry.marks]
    for number in (n for clock in clocks for n in (*clock, *clock.values())):
        check_number(number, "a number of a vclock")
    for number in (n for three in entry.terms for n in three):
        check_number(number, "the number of a term")
    offsets = [mark.offset for mark in entry.marks]
    if offsets != sorted(set(offsets)) or any(not 0 <= one <= entry.size for one in offsets):
        raise ValueError(f"the marks at offsets {offsets} do not fit a file of {entry.size} bytes")
    for mark in entry.marks:
        check_number(mark.term, "the term of a mark")
    if entry.last_index < entry.after_index:
        raise ValueError(
            f"its last index {entry.last_index} is before its first index {entry.after_index}"
        )
    if not isinstance(entry.sha256, str) or not _SHA256.fullmatch(entry.sha256):
        raise ValueError(f"{entry.sha256!r} is not a valid SHA-256")
    if not isinstance(entry.name, str) or not _NAME.fullmatch(entry.name):
        raise ValueError(f"the name {entry.name!r} does not have the form that the archiver writes")
    if f"-{entry.sha256}." not in entry.name:
        raise ValueError(f"the name {entry.name!r} does not match the SHA-256 {entry.sha256!r}")


def decode_entry(fields: object) -> FileEntry:
    """Decode an entry. Raises ValueError if it is invalid."""
    given = check_fields(fields, _REQUIRED)
    known: dict[str, Any] = {
        name: _decode_field(name, given[name]) for name in _ALL if name in given
    }
    if known["kind"] not in KINDS:
        raise ValueError(f"kind {known['kind']!r} is unknown")
    entry = FileEntry(**known)
    _check_entry(entry)
    return entry


_ALL = [one.name for one in dataclass_fields(FileEntry)]
_REQUIRED = [
    one.name
    for one in dataclass_fields(FileEntry)
    if one.default is MISSING and one.default_factory is MISSING
]
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "start_vclock": _clock,
    "vclock": _clock,
    "previous_vclock": lambda value: None if value is None else _clock(value),
    "terms": lambda value: [(int(a), int(b), int(c)) for a, b, c in value],
    "lsns": lambda value: {int(key): (int(a), int(b)) for key, (a, b) in value.items()},
    "spaces": lambda value: [check_number(one, "a space") for one in value],
    "marks": lambda value: [Mark(int(o), int(t), _clock(v)) for o, t, v in value],
}


def _decode_field(name: str, value: object) -> object:
    """Return the value of a field. Raises ValueError."""
    decode = _DECODERS.get(name)
    try:
        return value if decode is None else decode(value)
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{name} has the invalid value {str(value)[:_SHOWN_CHARACTERS]}") from None


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a member's manifest.

    Raises:
        ManifestError: the document is invalid.
    """
    document = decode_document(data, where)
    try:
        check_fields(document, (one.name for one in dataclass_fields(Manifest)))
        return Manifest(
            str(document["replicaset_uuid"]),
            check_instance(document["instance_uuid"]),
            str(document["member"]),
            [decode_entry(entry) for entry in check_list(document["files"], "files")],
            float(check_time(document["updated_at"], "updated_at")),
        )
    except ValueError as error:
        raise damaged(where, error) from None
