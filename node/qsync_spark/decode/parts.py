"""The input of one task: a range of a file between marks, and the state of the log at its start."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from qsync_node.archive.manifest import SNAPSHOT, FileEntry, Manifest, Mark

PART_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class FilePart:
    """Blocks of `key` at the offsets of `marks`, up to `end`; `size` is the whole file's.

    `owner` is the leader of the term at the first mark, 0 if unknown. `last_index` is the index at
    the end of the part, according to the manifest. `sha256` is the whole file's, if the part is the
    whole file; otherwise the first part has `file_sha256`.
    """

    url: str
    key: str
    kind: str
    member: str
    marks: list[Mark]
    end: int
    size: int
    sha256: str
    owner: int
    after_index: int
    last_index: int
    end_vclock: dict[int, int]  # of the log after the part, according to the manifest
    file_sha256: str
    start_vclock: dict[int, int]  # of the file's header, according to the manifest
    previous_vclock: dict[int, int] | None

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "FilePart":
        fields = json.loads(text)
        fields["marks"] = [
            Mark(offset, term, {int(k): v for k, v in vclock.items()})
            for offset, term, vclock in fields["marks"]
        ]
        for name in ("end_vclock", "start_vclock", "previous_vclock"):
            if fields[name] is not None:
                fields[name] = {int(k): v for k, v in fields[name].items()}
        return cls(**fields)

    @property
    def is_whole(self) -> bool:
        return self.end == self.size and self.after_index >= 0 and bool(self.sha256)


def owners_of(members: Iterable[Manifest]) -> dict[int, int]:
    """Return the leader of each term in the manifests; a term with two owners has none."""
    found: dict[int, set[int]] = {}
    for manifest in members:
        for entry in manifest.files:
            if entry.kind != "rollback":
                for term, owner, _ in entry.terms:
                    found.setdefault(term, set()).add(owner)
    return {term: next(iter(owners)) for term, owners in found.items() if len(owners) == 1}


def parts_of(
    url: str,
    manifest: Manifest,
    entry: FileEntry,
    owners: dict[int, int],
    part_bytes: int = PART_BYTES,
) -> Iterator[FilePart]:
    """Yield the file in pieces of about `part_bytes`, cut at marks; one piece without marks."""
    key = f"{manifest.instance_uuid}/{entry.name}"
    marks = entry.marks or [Mark(0, entry.start_term, entry.start_vclock)]
    groups: list[list[Mark]] = [[marks[0]]]
    for mark in marks[1:]:
        if mark.offset - groups[-1][0].offset >= part_bytes:
            groups.append([mark])
        else:
            groups[-1].append(mark)
    for number, group in enumerate(groups):
        is_last = number == len(groups) - 1
        end = entry.size if is_last else groups[number + 1][0].offset
        clock = entry.vclock if is_last else groups[number + 1][0].vclock
        # Every part of a snapshot has its index; each part of a log begins where another ended.
        is_at_end = is_last or entry.kind == SNAPSHOT
        last = entry.last_index if is_at_end else sum(clock.values())
        after = sum(group[0].vclock.values()) if entry.kind != SNAPSHOT else entry.after_index
        yield FilePart(
            url, key, entry.kind, manifest.instance_uuid, group, end, entry.size,
            entry.sha256 if len(groups) == 1 else "", owners.get(group[0].term, 0), after, last,
            clock, entry.sha256 if len(groups) > 1 and number == 0 else "",
            entry.start_vclock, entry.previous_vclock,
        )  # fmt: skip
