"""Comparison of manifests with the content of their files (pure).

Readers choose files by their manifest, the audit states by it how far it read, and a clock or a
term in it decides whether a missing file is noticed. Each field that describes content is therefore
compared with the content. Header and start of a file are compared while it is read (blocks.py).
"""

from collections.abc import Iterable

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT, FileEntry
from qsync_node.archive.reader import Archive
from qsync_node.format.vclock import signature
from qsync_spark.facts.described import described_of
from qsync_spark.facts.kinds import (
    ChangedFile,
    Damage,
    FileFact,
    MislabelledRow,
    MisnumberedSnapshot,
    MissingRows,
    PartRead,
    PromoteRow,
    ReorderedRow,
    RepeatedRow,
    SnapshotTerms,
    UnreadableRow,
)
from qsync_spark.facts.table import FactList

_MADE_ANOMALOUS = (
    Damage, ChangedFile, MissingRows, ReorderedRow, RepeatedRow, MislabelledRow,
    MisnumberedSnapshot,
)  # fmt: skip
TermOpening = tuple[int, int, int]
"""A term, the replica id of its leader, and the index of its PROMOTE."""


def misdescribed(archive: Archive, listed: FactList) -> list[ChangedFile]:
    """Return a fact for each valid file whose manifest describes other rows.

    Of files with a reported anomaly, only the fields of the manifest are compared with each other.
    """
    parts: dict[str, list[PartRead]] = {}
    for one in listed.of(PartRead):
        parts.setdefault(one.file, []).append(one)
    anomalous = {one.file for one in listed if isinstance(one, _MADE_ANOMALOUS)}
    terms = _terms_by_file(listed)
    # A control row without a term is a finding of its own.
    unreadable = {one.file for one in listed.of(UnreadableRow)}
    found: list[ChangedFile] = []
    for manifest in archive.owners():
        for entry in manifest.files:
            key = f"{manifest.instance_uuid}/{entry.name}"
            if key not in parts:
                continue
            text = ""
            if key not in anomalous:
                text = _contradiction_to_rows(entry, parts[key])
            if not text and key not in anomalous and key not in unreadable:
                text = _contradiction_to_terms(entry, terms.get(key, []))
            text = text or contradiction_in(entry)
            if text:
                text += ": one of them was modified"
                found.append(ChangedFile(manifest.instance_uuid, entry.kind, key, text))
    return found


def stated_end(entry: FileEntry) -> int:
    """Return the index up to which the file may be read: a false last index does not extend it."""
    if entry.kind != SEGMENT:
        return entry.last_index
    return max(entry.after_index, min(entry.last_index, signature(entry.vclock)))


def end_read(archive: Archive, listed: FactList) -> int:
    """Return the greatest index whose row, or the state at which, some file contains."""
    reached: dict[str, dict[int, int]] = {}
    for one in listed.of(PartRead, SEGMENT):
        clock = reached.setdefault(one.file, {})
        for replica_id, _, last in one.lsns:
            clock[replica_id] = max(clock.get(replica_id, 0), last)
    unread = {one.file for one in listed.of(Damage) if not one.offset}  # its header is not known
    ends = [archive.changes.floor]
    for manifest in archive.owners():
        for entry in manifest.files:
            key = f"{manifest.instance_uuid}/{entry.name}"
            if key not in unread and entry.kind in (SEGMENT, SNAPSHOT):
                ends.append(signature({**entry.start_vclock, **reached.get(key, {})}))
    return max(ends)


def contradiction_in(entry: FileEntry) -> str:
    """Return how the indexes of an entry contradict its clocks; "" if they do not."""
    pairs = (
        ("start", "after", entry.start_vclock, entry.after_index),
        ("end", "last", entry.vclock, entry.last_index),
    )
    for name, field, clock, index in pairs:
        if signature(clock) != index:
            return (
                f"its manifest states the {field} index {index}, but the clock {clock} at its"
                f" {name}, which is index {signature(clock)}"
            )
    return ""


def _contradiction_to_rows(entry: FileEntry, parts: list[PartRead]) -> str:
    rows = sum(one.rows for one in parts)
    if rows != entry.rows:
        return f"the file has {rows} rows, but its manifest states {entry.rows}"
    if entry.kind == SEGMENT and entry.after_index + rows != entry.last_index:
        return (
            f"the file ends with index {entry.after_index + rows}, but its manifest states"
            f" {entry.last_index}"
        )
    return described_of(parts).differs_from(entry)


def _contradiction_to_terms(entry: FileEntry, found: list[TermOpening]) -> str:
    """Compare terms. `found` are those of the content, in its order."""
    if sorted(found) != sorted(entry.terms):
        return f"the file has the terms {_shown(found)}, but its manifest {_shown(entry.terms)}"
    if entry.kind == SNAPSHOT:
        last = max([entry.start_term, *(term for term, _, _ in found)])
    else:
        last = max(found, key=lambda one: one[2])[0] if found else entry.start_term
    if last != entry.last_term:
        return f"the file ends in term {last}, but its manifest states term {entry.last_term}"
    return ""


def _shown(terms: Iterable[TermOpening]) -> str:
    return ", ".join(f"{term} from index {index}" for term, _, index in sorted(terms)) or "none"


def _terms_by_file(listed: Iterable[FileFact]) -> dict[str, list[TermOpening]]:
    found: dict[str, list[TermOpening]] = {}
    for one in listed:
        if isinstance(one, PromoteRow):
            found.setdefault(one.file, []).append((one.opened_term, one.replica_id, one.index))
        elif isinstance(one, SnapshotTerms):
            starts = ((term, owner, index) for term, owner, index in one.terms)
            found.setdefault(one.file, []).extend(starts)
    return found
