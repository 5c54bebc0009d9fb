"""Reads an archive for a restore: returns the content of each row that most copies have.

If a file is missing, truncated or changed, another member's copy is used. Valid files are compared.
Checksums and manifests prove that a file is unchanged since its member wrote it, but not that the
member wrote the leader's rows. If the copies of a row differ, the content of more than half of them
is used. Without such a majority the archive does not reveal the correct copy, and the restore fails
with files and index. A row that only one member archived cannot be compared; such rows are counted.

One file per member is in memory at a time.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from qsync_node.archive.compaction import FOLDER
from qsync_node.archive.location import read_range
from qsync_node.archive.manifest import FileEntry, Manifest
from qsync_node.archive.reader import Archive
from qsync_node.archive.restore.point import PointError, late_segments, next_segments
from qsync_node.errors import QsyncError
from qsync_node.format.batch import LogBatch, drop_rows_up_to, split_batches
from qsync_node.format.keys import KEY_LSN, KEY_REPLICA_ID, KEY_TIMESTAMP
from qsync_node.format.row import RowError, decode_rows, scan_rows
from qsync_node.format.vclock import signature
from qsync_node.format.walk import walk_rows
from qsync_node.format.xlog import Block, BlockDamage, XlogError, decode_file_header, read_blocks


class SourceError(QsyncError):
    """The archive lacks required data; the text is one sentence."""


class _UnsoundError(Exception):
    """This copy cannot be used."""


@dataclass(slots=True)
class Comparison:
    """Counts of the compared and the uncompared rows of a restore.

    Copies of the instance `forced`, if any, are used without comparison.
    """

    forced: str = ""
    compared_rows: int = 0
    single_rows: int = 0  # archived by one member only
    forced_rows: int = 0
    snapshot_copies: int = 0
    passed: list[str] = field(default_factory=list)  # unused files with their reasons

    def pass_over(self, file: str, why: object) -> None:
        self.passed.append(f"{file}: {why}")


def instance_of(archive: Archive, name: str) -> str:
    """Return the uuid of the instance with the name or uuid `name`.

    Raises:
        SourceError: no instance, or more than one, has this name.
    """
    uuids = [m.instance_uuid for m in archive.members if name in (m.member, m.instance_uuid)]
    if not uuids:
        names = ", ".join(sorted(one.member for one in archive.members))
        raise SourceError(
            f"member {name} not found in archive {archive.url}: choose one of its members ({names})"
        )
    if len(uuids) > 1:
        raise SourceError(
            f"member {name} has {len(uuids)} instances in archive {archive.url}: choose "
            f"one of them ({', '.join(sorted(uuids))})"
        )
    return uuids[0]


def _name(owner: Manifest, entry: FileEntry) -> str:
    return f"{owner.instance_uuid}/{entry.name}"


# --- snapshots ------------------------------------------------------------------------------------


def snapshot_at_or_before(
    archive: Archive, index: int | None, comparison: Comparison
) -> tuple[FileEntry, str, list[bytes]]:
    """Return the newest usable snapshot at or before `index`: its entry, its file, its rows.

    The copies of one index are compared. If they differ and none has a majority, an older snapshot
    is used, and the log replaces the newer one. Snapshots of the instance `comparison.forced` come
    first.

    Raises:
        SourceError: no snapshot is usable.
    """
    by_index: dict[int, list[tuple[Manifest, FileEntry]]] = {}
    for owner, entry in archive.snapshots():
        if index is None or entry.last_index <= index:
            by_index.setdefault(entry.last_index, []).append((owner, entry))
    newest_first = sorted(by_index.items(), reverse=True)
    mine = [(at, [one for one in of if one[0].instance_uuid == comparison.forced])
            for at, of in newest_first]  # fmt: skip
    for _, copies in [*(one for one in mine if one[1]), *newest_first]:
        found = _agreed_snapshot(archive, copies, comparison)
        if found is not None:
            return found
    why = f" ({comparison.passed[-1]})" if comparison.passed else ""
    raise SourceError(
        f"archive {archive.url} has no valid snapshot at or before the requested point{why}"
    )


def _agreed_snapshot(
    archive: Archive, copies: list[tuple[Manifest, FileEntry]], comparison: Comparison
) -> tuple[FileEntry, str, list[bytes]] | None:
    """Return the snapshot that most of the readable copies agree on; None without a majority."""
    by_content: dict[bytes, list[tuple[Manifest, FileEntry]]] = {}
    bodies: dict[bytes, list[bytes]] = {}
    for owner, entry in copies:
        try:
            data = _whole(archive, owner, entry)
            rows = [row.body for block in _blocks(data) for row in decode_rows(block.data)]
        except (_UnsoundError, XlogError, RowError) as error:
            comparison.pass_over(_name(owner, entry), error)
            continue
        content = _content_of(rows)
        by_content.setdefault(content, []).append((owner, entry))
        bodies.setdefault(content, rows)
    total = sum(len(of) for of in by_content.values())
    ranked = sorted(by_content.items(), key=lambda one: -len(one[1]))
    if not ranked:
        return None
    content, holders = ranked[0]
    verified = [o for o, _ in holders if o.instance_uuid.startswith(f"{FOLDER}/")]
    for _, others in ranked[1:] if 2 * len(holders) > total else ranked:
        for owner, entry in others:
            comparison.pass_over(
                _name(owner, entry),
                f"the snapshot at index {entry.last_index} differs from the one of another member",
            )
    if 2 * len(holders) <= total:
        return None
    comparison.snapshot_copies = len(holders)
    owner, entry = next(
        (one for one in holders if one[0] in verified), holders[0]
    )  # an audit compared the snapshot of a compaction with the log
    return entry, _name(owner, entry), bodies[content]


def _content_of(bodies: list[bytes]) -> bytes:
    """Return a digest of the tuples that ignores their order, which differs between members."""
    digests = sorted(hashlib.sha256(body).digest() for body in bodies)
    return hashlib.sha256(b"".join(digests)).digest()


# --- the log --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _JournalCopy:
    """The rows of one member after some index, up to the end of one of its files."""

    owner: Manifest
    entry: FileEntry
    batches: list[LogBatch]

    @property
    def file(self) -> str:
        return _name(self.owner, self.entry)

    def data(self, stop: int) -> bytes:
        """Return the rows up to index `stop`, concatenated."""
        whole = b"".join(batch.data for batch in self.batches if batch.last_index <= stop)
        for batch in self.batches:
            if batch.first_index <= stop < batch.last_index:
                ends = [end for _, _, end, _ in scan_rows(batch.data)]
                whole += batch.data[: ends[stop - batch.first_index]]
        return whole


def batches_behind(archive: Archive, index: int, comparison: Comparison) -> Iterator[LogBatch]:
    """Yield the rows after `index`, up to the first gap or the end of the archive.

    Raises:
        SourceError: copies of a row differ, and none has a majority.
    """
    segments = archive.segments()
    held: dict[str, _JournalCopy] = {}
    while copies := _copies_behind(archive, segments, index, held, comparison):
        copies = [c for c in copies if c.owner.instance_uuid == comparison.forced] or copies
        # Files begin and end between transactions, where the set of copies changes.
        edges = [copy.entry.last_index for copy in copies]
        edges += [entry.after_index for _, entry in segments if entry.after_index > index]
        stop = min(edges)
        found = _agreed_rows(copies, index, stop, comparison)
        yield from found
        index = stop


def _copies_behind(
    archive: Archive, segments: list[tuple[Manifest, FileEntry]], index: int,
    held: dict[str, _JournalCopy], comparison: Comparison,
) -> list[_JournalCopy]:  # fmt: skip
    """Return one valid copy of the row after `index` of each member that has one."""
    copies: dict[str, _JournalCopy] = {}
    for owner, entry in next_segments(segments, index):
        uuid = owner.instance_uuid
        if uuid in copies:
            continue
        copy = held.get(uuid)
        if copy is None or copy.entry is not entry:
            try:
                copy = _JournalCopy(owner, entry, _batches(_whole(archive, owner, entry), entry))
            except (_UnsoundError, XlogError, RowError) as error:
                text = f"{_name(owner, entry)}: {error}"
                if text not in comparison.passed:
                    comparison.passed.append(text)
                continue
        try:
            copies[uuid] = replace(copy, batches=drop_rows_up_to(copy.batches, index))
        except RowError as error:  # its transactions end at other indexes
            comparison.pass_over(copy.file, error)
    held.clear()
    held.update(copies)
    return list(copies.values())


def _agreed_rows(
    copies: list[_JournalCopy], index: int, stop: int, comparison: Comparison
) -> list[LogBatch]:
    """Return the rows `index + 1 .. stop` of the majority of copies. Raises SourceError."""
    count = stop - index
    if copies[0].owner.instance_uuid == comparison.forced:
        comparison.forced_rows += count
    elif len(copies) == 1:
        comparison.single_rows += count
    else:
        comparison.compared_rows += count
    data = [copy.data(stop) for copy in copies]
    if all(one == data[0] for one in data[1:]):
        agreed = data[0]
    else:
        agreed = b"".join(_agreed_content(copies, data, index, stop, comparison))
    try:
        return split_batches(agreed, index)
    except RowError as error:
        raise SourceError(
            f"cannot restore the rows {index + 1} to {stop}: {error}; audit the archive, "
            "then choose a copy with --member NAME"
        ) from error


def _agreed_content(
    copies: list[_JournalCopy], data: list[bytes], index: int, stop: int, comparison: Comparison
) -> list[bytes]:
    """Return the content of each row that more than half of the copies have. Raises SourceError."""
    rows = [_rows_of(one) for one in data]
    agreed: list[bytes] = []
    wrong: set[str] = set()
    for number in range(stop - index):
        versions = [of[number] for of in rows]
        content, holders = Counter(versions).most_common(1)[0]
        if 2 * holders <= len(copies):
            files = ", ".join(f"{copy.owner.member} ({copy.file})" for copy in copies)
            raise SourceError(
                f"cannot restore the row at index {index + 1 + number}: its copies differ "
                f"and no content has a majority ({files}); audit the archive, then choose "
                "a copy with --member NAME, or restore to an earlier index"
            )
        agreed.append(content)
        for copy, version in zip(copies, versions, strict=True):
            if version != content and copy.file not in wrong:
                wrong.add(copy.file)
                comparison.pass_over(
                    copy.file,
                    f"the row at index {index + 1 + number} differs from the copies of"
                    f" {holders} of {len(copies)} members",
                )
    return agreed


def _rows_of(data: bytes) -> list[bytes]:
    ends = [end for _, _, end, _ in scan_rows(data)]
    return [data[start:end] for start, end in pairwise([0, *ends])]


# --- points in time -------------------------------------------------------------------------------


def first_row_later(archive: Archive, time_s: float, forced: str = "") -> int | None:
    """Return the index of the first row of the log that is later than `time_s`; None without one.

    The members that have the row decide by majority, unless `forced` is one of them.

    Raises:
        PointError, SourceError: the archive does not contain the point or required data.
    """
    found: dict[str, int] = {}
    unsound = ""
    for owner, entry in late_segments(archive, time_s):
        try:
            for index in _first_later(_whole(archive, owner, entry), entry, time_s):
                found[owner.instance_uuid] = index
        except (_UnsoundError, XlogError, ValueError, KeyError) as error:
            unsound = f"{_name(owner, entry)}: {error}"
    if unsound and not found:
        raise SourceError(f"cannot read the log at the requested time: {unsound}")
    if forced in found:
        return found[forced]
    for index in sorted(set(found.values())):
        holders = {
            owner.instance_uuid for owner, entry in archive.segments()
            if owner.instance_uuid in found and entry.after_index < index <= entry.last_index
        }  # fmt: skip
        agreeing = sum(found[uuid] == index for uuid in holders)
        # A copy disagrees if this row is not later in it, or if an earlier row is.
        if 2 * agreeing > len(holders):
            return index
        if 2 * agreeing == len(holders):
            files = ", ".join(sorted(holders))
            raise SourceError(
                f"cannot determine the time of the row at index {index}: the copies of "
                f"{files} differ; choose a copy with --member NAME, or an index with "
                "--to-signature"
            )
    if found:
        raise SourceError(
            "cannot read the log at the requested time: the copies of its members "
            "differ; choose a copy with --member NAME, or an index with --to-signature"
        )
    return None


def index_at(archive: Archive, time_s: float, forced: str = "") -> int | None:
    """Return the last index before the first row that is later than `time_s`.

    Returns:
        None if no row is later.

    Raises:
        PointError, SourceError: the archive does not contain the point or required data.
    """
    later = first_row_later(archive, time_s, forced)
    if later is None:
        return None
    begin = min((entry.after_index for _, entry in archive.segments()), default=0)
    if later <= begin + 1:
        raise PointError(
            "the archive has no row at or before the requested time: choose a later point"
        )
    return later - 1


def _whole(archive: Archive, owner: Manifest, entry: FileEntry) -> bytes:
    key = f"{owner.instance_uuid}/{entry.name}"
    try:
        data = read_range(archive.url, key, 0, entry.size + 1)
    except FileNotFoundError:
        raise _UnsoundError("the file is missing") from None
    except OSError as error:
        raise SourceError(f"cannot read {archive.url}/{key}: {error}") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _UnsoundError("its SHA-256 differs from the one in its name")
    return data


def _blocks(data: bytes) -> Iterator[Block]:
    _, offset = decode_file_header(data)
    for item in read_blocks(data, offset):
        if isinstance(item, BlockDamage):
            raise XlogError(item.why)
        if isinstance(item, Block):
            yield item


def _batches(data: bytes, entry: FileEntry) -> list[LogBatch]:
    index = entry.after_index
    found: list[LogBatch] = []
    for block in _blocks(data):
        found += split_batches(block.data, index)
        index = found[-1].last_index
    if index != entry.last_index:
        raise _UnsoundError(f"it ends at index {index}, but its manifest states {entry.last_index}")
    return found


def _first_later(data: bytes, entry: FileEntry, time_s: float) -> list[int]:
    clock = dict(entry.start_vclock)
    for block in _blocks(data):
        for header, _, _, _ in walk_rows(block.data):
            clock[header[KEY_REPLICA_ID]] = header[KEY_LSN]
            if header.get(KEY_TIMESTAMP, 0.0) > time_s:
                return [signature(clock)]
    return []
