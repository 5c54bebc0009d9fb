"""The primary keys of the first snapshot, held against those of the other snapshots (pure).

The replay finds each tuple by its primary key. A changed definition in the first snapshot would
make every tuple of that space a finding. If the other snapshots agree on another definition that no
row of the log made, the replay takes theirs: only the changed tuple of `_index` is a finding then.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from qsync_node.archive.manifest import SEGMENT
from qsync_node.archive.reader import Archive
from qsync_node.format.keys import Key
from qsync_node.format.mp import pack, unpack
from qsync_spark.decode.schema_rows import INDEX
from qsync_spark.facts.kinds import PrimaryKeys, SchemaRow
from qsync_spark.facts.table import FactList

Definitions = Mapping[int, list[Any]]
"""The parts of primary keys by space."""


def trusted_keys(
    archive: Archive,
    listed: FactList,
    base: tuple[int, str],
    indexes: Definitions,
    damaged: Container[str],
) -> dict[int, list[Any]]:
    """Return the parts of the primary key of each space at the first snapshot.

    Args:
        archive: the archive.
        listed: the facts of the scan.
        base: index and file of the first snapshot.
        indexes: the definitions in it.
        damaged: snapshots that are unreadable or changed.
    """
    redefined = _redefined(listed, base[0])
    votes: dict[int, list[tuple[str, bytes]]] = {}
    for at, file, stated in _others(archive, listed, base, damaged):
        for space in {*indexes, *stated}:
            if redefined.get(space, at + 1) > at:
                votes.setdefault(space, []).append((file, pack(stated.get(space))))
    found = dict(indexes)
    for space, files in votes.items():
        parts = unpack(_most(files, pack(indexes.get(space))))
        if parts is None:
            found.pop(space, None)
        else:
            found[space] = parts
    return found


def definitions_in(listed: FactList) -> dict[str, dict[int, list[Any]]]:
    """Return file -> parts of the primary key of each space in the snapshot."""
    found: dict[str, dict[int, list[Any]]] = {}
    for one in listed.of(PrimaryKeys):
        found.setdefault(one.file, {}).update(unpack(one.definitions))
    return found


def _others(
    archive: Archive, listed: FactList, base: tuple[int, str], damaged: Container[str]
) -> Iterable[tuple[int, str, Definitions]]:
    """Yield index, file and definitions of each sound snapshot except the first one."""
    stated = definitions_in(listed)
    for owner, entry in archive.snapshots():
        file = f"{owner.instance_uuid}/{entry.name}"
        if file != base[1] and file in stated and file not in damaged:
            yield entry.last_index, file, stated[file]


def _redefined(listed: FactList, after: int) -> dict[int, int]:
    """Return for each space the index of the first row after `after` that may change its key."""
    found: dict[int, int] = {}
    for row in listed.of(SchemaRow, SEGMENT):
        if row.space == INDEX and row.index > after:
            body = unpack(row.body)
            space = (body.get(Key.KEY) or body[Key.TUPLE])[0]
            found[space] = min(row.index, found.get(space, row.index))
    return found


def _most(files: list[tuple[str, bytes]], first: bytes) -> bytes:
    """Return the definition of most members; that of the first snapshot unless two differ alike."""
    groups: dict[bytes, list[str]] = {}
    for file, parts in files:
        groups.setdefault(parts, []).append(file)
    agreeing = _members(groups.pop(first, []))
    parts, others = max(groups.items(), key=lambda one: _members(one[1]), default=(first, []))
    return parts if len(others) > 1 and _members(others) > agreeing else first


def _members(files: Iterable[str]) -> int:
    return len({file.partition("/")[0] for file in files})
