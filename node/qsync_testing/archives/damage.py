"""Functions that damage an archive at a place chosen by a seed.

A violation (`VIOLATIONS`) looks like the work of a faulty member: the checksums, the name and the
manifest entry of a file agree with its contents. A loss (`LOSSES`) truncates or removes files.
Each function returns the result that an audit must report.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from qsync_node.archive.description import describe
from qsync_node.archive.manifest import ROLLBACK, SEGMENT, SNAPSHOT, FileEntry, Manifest
from qsync_node.format.keys import NOP, RAFT_CONFIRM, RAFT_PROMOTE, RAFT_ROLLBACK, UPDATE, Key
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow, encode_row
from qsync_node.format.walk import space_of
from qsync_node.format.xlog import decode_file_header, encode_file
from qsync_spark.decode.schema_rows import CLUSTER, KEYS, PRIV, SCHEMA, SCHEMA_VERSION_KEY, TERMS
from qsync_testing.archives.archive_copy import Copy, is_user

FUNCTION = 296


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted defect: the proofs, members (names), LSN, file and verdict to be reported."""

    proofs: list[int]
    members: list[str]
    lsn: int
    file: str
    verdict: str = "Violated"


def missing_row(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    entry, number = copy.pick(member, is_user)
    rows = copy.rows(member, entry)
    gone = rows.pop(number)
    return Planted([1], [member.member], gone.lsn, copy.rewrite(member, entry, rows))


def reordered_rows(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    entry, number = copy.pick(member, is_user)
    rows = copy.rows(member, entry)
    first = rows[number].lsn
    rows[number], rows[number + 1] = rows[number + 1], rows[number]
    return Planted([1], [member.member], first, copy.rewrite(member, entry, rows))


def changed_byte(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    entry, number = copy.pick(member, is_user)
    rows = copy.rows(member, entry)
    row = rows[number]
    row.timestamp += 1.0
    return Planted([1], [member.member], row.lsn, copy.rewrite(member, entry, rows))


def repeated_lsn(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    entry, number = copy.pick(member, is_user)
    rows = copy.rows(member, entry)
    rows.insert(number + 1, rows[number])
    return Planted([2], [member.member], rows[number].lsn, copy.rewrite(member, entry, rows))


def lost_everywhere(copy: Copy) -> Planted:
    entry, number = copy.pick(copy.full_members()[0], is_user)
    row = copy.rows(copy.full_members()[0], entry)[number]
    holders = sorted(
        m.member for m in copy.manifests.values()
        if any(e.lsns.get(row.replica_id, (1, 0))[0] <= row.lsn
               <= e.lsns.get(row.replica_id, (1, 0))[1] for e in m.of_kind(SEGMENT))
    )  # fmt: skip
    copy.everywhere(lambda _: None, row.replica_id, row.lsn)
    return Planted([2], holders, row.lsn, "")


def term_going_back(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    choices = [
        (entry, n, row)
        for entry in member.of_kind(SEGMENT)
        for n, row in enumerate(copy.rows(member, entry))
        if row.type == RAFT_PROMOTE and unpack(row.body)[Key.TERM] > 2
    ]
    entry, number, row = copy.rng.choice(choices)
    fields = unpack(row.body)
    fields[int(Key.TERM)] = 1
    rows = copy.rows(member, entry)
    rows[number].body = pack(fields)
    return Planted([1, 2], [member.member], row.lsn, copy.rewrite(member, entry, rows))


def confirm_without_quorum(copy: Copy) -> Planted:
    """Make a CONFIRM in every log name an index that no member can hold."""
    member = copy.full_members()[0]
    entry, number = copy.pick(member, lambda row: row.type == RAFT_CONFIRM)
    row = copy.rows(member, entry)[number]
    fields = unpack(row.body)
    fields[int(Key.INDEX)] += 1000

    def change(one: LogRow) -> LogRow:
        one.body = pack(fields)
        return one

    copy.everywhere(change, row.replica_id, row.lsn)
    return Planted([3], [], row.lsn, "")


def _other_term(copy: Copy, row_type: int, key: Key) -> Planted:
    """Make a decision in every log name an older term than it should.

    Args:
        copy: The archive to damage.
        row_type: The type of the decision.
        key: `Key.TERM` for the decision's own term, `Key.INDEX_TERM` for that of the row it names.
    """
    member = copy.full_members()[0]
    choices = [
        row for entry in member.of_kind(SEGMENT) for row in copy.rows(member, entry)
        if row.type == row_type and unpack(row.body)[key] > 1
    ]  # fmt: skip
    row = copy.rng.choice(choices)
    body = pack(unpack(row.body) | {int(key): unpack(row.body)[key] - 1})

    def change(one: LogRow) -> LogRow:
        one.body = body
        return one

    copy.everywhere(change, row.replica_id, row.lsn)
    return Planted([3], [], row.lsn, "")


def confirm_of_another_term(copy: Copy) -> Planted:
    return _other_term(copy, RAFT_CONFIRM, Key.TERM)


def confirm_of_a_row_of_another_term(copy: Copy) -> Planted:
    return _other_term(copy, RAFT_CONFIRM, Key.INDEX_TERM)


def promote_behind_a_row_of_another_term(copy: Copy) -> Planted:
    return _other_term(copy, RAFT_PROMOTE, Key.INDEX_TERM)


def confirm_in_a_cut_tail(copy: Copy) -> Planted:
    """Append to a truncated tail a CONFIRM with which the deposed leader confirmed that tail."""
    choices = [(m, e) for m in copy.manifests.values() for e in m.of_kind(ROLLBACK) if e.rows]
    member, entry = copy.rng.choice(choices)
    rows = copy.rows(member, entry)
    last = rows[-1]
    body = pack(
        {2: last.replica_id, 3: last.lsn, int(Key.TERM): 1, int(Key.INDEX): entry.last_index,
         int(Key.INDEX_TERM): 1}
    )  # fmt: skip
    rows.append(LogRow(RAFT_CONFIRM, last.replica_id, last.lsn + 1, last.timestamp, body))
    file = copy.rewrite(member, entry, rows)
    return Planted([3], [member.member], last.lsn + 1, file)


def confirmed_then_rolled_back(copy: Copy) -> Planted:
    """Replace a CONFIRM in every log with a ROLLBACK of rows that an earlier CONFIRM names."""
    member = copy.full_members()[0]
    entry, number = copy.pick(member, lambda row: row.type == RAFT_CONFIRM)
    row = copy.rows(member, entry)[number]
    index = entry.after_index + number + 1
    fields = unpack(row.body)

    def change(one: LogRow) -> LogRow:
        return LogRow(RAFT_ROLLBACK, one.replica_id, one.lsn, one.timestamp, pack(
            fields | {int(Key.INDEX): _a_confirmed(copy, member, index)}))  # fmt: skip

    copy.everywhere(change, row.replica_id, row.lsn)
    return Planted([3], [], row.lsn, "")


def _a_confirmed(copy: Copy, member: Manifest, before: int) -> int:
    """Return the highest index that a CONFIRM before index `before` confirms."""
    found = 0
    for entry in member.of_kind(SEGMENT):
        for number, row in enumerate(copy.rows(member, entry)):
            if row.type == RAFT_CONFIRM and entry.after_index + number + 1 < before:
                found = max(found, unpack(row.body)[Key.INDEX])
    return found


def _snapshot_off(
    copy: Copy, is_wanted: Callable[[FileEntry, LogRow], bool], is_lacking: bool
) -> Planted:
    """Remove a wanted row from a snapshot, or change the last field of its tuple.

    Args:
        copy: The archive to damage.
        is_wanted: Selects the rows that may be damaged.
        is_lacking: Whether to remove the row.
    """
    choices = [
        (m, e) for m in copy.full_members() for e in m.of_kind(SNAPSHOT)
        if any(is_wanted(e, row) for row in copy.rows(m, e))
    ]  # fmt: skip
    member, entry = copy.rng.choice(choices)
    rows = copy.rows(member, entry)
    number = copy.rng.choice([n for n, row in enumerate(rows) if is_wanted(entry, row)])
    if is_lacking:
        del rows[number]
    else:
        body = unpack(rows[number].body)
        last = body[Key.TUPLE][-1]
        body[Key.TUPLE][-1] = last + 1 if isinstance(last, int) else [last]
        rows[number].body = pack(body)
    return Planted([4], [member.member], 0, copy.rewrite(member, entry, rows))


def snapshot_off_by_one(copy: Copy) -> Planted:
    return _snapshot_off(copy, lambda entry, row: entry.last_index > 0 and is_user(row), True)


def system_tuple_off(copy: Copy) -> Planted:
    """Change a system tuple in a snapshot.

    `_cluster` is excluded: the audit determines the voters before it compares snapshots.
    """
    return _snapshot_off(
        copy,
        lambda entry, row: (
            entry.last_index > 0 and space_of(row.body) < 512
            and space_of(row.body) not in (KEYS, CLUSTER)
        ),
        False,
    )  # fmt: skip


def term_in_a_snapshot_off(copy: Copy) -> Planted:
    return _snapshot_off(copy, lambda _, row: space_of(row.body) == TERMS, False)


def schema_version_off(copy: Copy) -> Planted:
    def is_version(entry: FileEntry, row: LogRow) -> bool:
        if not entry.last_index or space_of(row.body) != SCHEMA:
            return False
        return bool(unpack(row.body)[Key.TUPLE][0] == SCHEMA_VERSION_KEY)

    return _snapshot_off(copy, is_version, False)


def first_snapshot_off_by_one(copy: Copy) -> Planted:
    """Damage a snapshot of index 0, from which the replay starts.

    The snapshots of the other members show that this one is wrong.
    """
    return _snapshot_off(
        copy,
        lambda entry, row: entry.last_index == 0 and space_of(row.body) in (FUNCTION, PRIV),
        bool(copy.rng.randrange(2)),
    )


def _requests_off(copy: Copy, change: Callable[[list[LogRow], int], object]) -> Planted:
    """Apply `change` to the newest idempotency key in a snapshot."""
    choices = [
        (m, e) for m in copy.full_members() for e in m.of_kind(SNAPSHOT)
        if e.last_index and any(space_of(row.body) == KEYS for row in copy.rows(m, e))
    ]  # fmt: skip
    member, entry = copy.rng.choice(choices)
    rows = copy.rows(member, entry)
    change(rows, max(n for n, row in enumerate(rows) if space_of(row.body) == KEYS))
    return Planted([4], [member.member], 0, copy.rewrite(member, entry, rows))


def request_forgotten(copy: Copy) -> Planted:
    return _requests_off(copy, lambda rows, number: rows.pop(number))


def request_of_another_index(copy: Copy) -> Planted:
    def change(rows: list[LogRow], number: int) -> None:
        body = unpack(rows[number].body)
        body[Key.TUPLE][3] += 1
        rows[number].body = pack(body)

    return _requests_off(copy, change)


def truncated_file(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    entry = copy.rng.choice(member.of_kind(SEGMENT))
    path = copy.folder / member.instance_uuid / entry.name
    size = copy.rng.randrange(entry.size // 2, entry.size - 30)
    path.write_bytes(path.read_bytes()[:size])
    file = f"{member.instance_uuid}/{entry.name}"
    return Planted([], [member.member], 0, file, "Incomplete")


def archive_lost(copy: Copy) -> Planted:
    member = copy.rng.choice(copy.full_members())
    shutil.rmtree(copy.folder / member.instance_uuid)
    return Planted([], [member.member], 0, "", "Incomplete")


def segment_lost(copy: Copy) -> Planted:
    """Remove a segment and its manifest entry, so that only the gap remains."""
    member = copy.rng.choice(copy.full_members())
    entry = copy.rng.choice(member.of_kind(SEGMENT)[1:-1] or member.of_kind(SEGMENT)[:1])
    (copy.folder / member.instance_uuid / entry.name).unlink()
    member.files.remove(entry)
    copy.save(member)
    return Planted([], [member.member], 0, "", "Incomplete")


def acknowledged_writes(copy: Copy) -> list[LogRow]:
    """Return the rows after the newest snapshot of transactions with one row."""
    member = copy.full_members()[0]
    newest = max(e.last_index for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT))
    entry = member.of_kind(SEGMENT)[-1]
    rows = copy.rows(member, entry)
    return [
        row for n, row in enumerate(rows)
        if entry.after_index + n + 1 > newest and is_user(row) and row.tsn == row.lsn
        and row.type in (2, 3) and row.is_commit
    ]  # fmt: skip


def nop_everywhere(copy: Copy) -> tuple[Planted, LogRow]:
    """Replace an acknowledged write with a NOP in every log; only a ledger can reveal it."""
    row = copy.rng.choice(acknowledged_writes(copy))

    def change(one: LogRow) -> LogRow:
        return LogRow(NOP, one.replica_id, one.lsn, one.timestamp, b"", flags=one.flags)

    copy.everywhere(change, row.replica_id, row.lsn)
    return Planted([6], [], 0, ""), row


def changed_by_another_index(copy: Copy) -> tuple[int, int]:
    """Turn a user's row in every log into an UPDATE through a secondary index.

    Returns:
        The space's ID and the row's index in the log.
    """
    member = copy.full_members()[0]
    entry, number = copy.pick(member, lambda row: row.type in (2, 3) and is_user(row))
    row = copy.rows(member, entry)[number]
    body = unpack(row.body)
    space = body[Key.SPACE_ID]
    row.type = UPDATE
    row.body = pack(
        {Key.SPACE_ID: space, Key.INDEX_ID: 1, Key.KEY: [body[Key.TUPLE][1]],
         Key.TUPLE: [["=", 1, "changed"]]}
    )  # fmt: skip
    copy.everywhere(lambda _: row, row.replica_id, row.lsn)
    return space, entry.after_index + number + 1


def ledger_line(row: LogRow) -> str:
    """Return the ledger line of a client whose write of `row` was acknowledged."""
    fields = unpack(row.body)[Key.TUPLE]
    return json.dumps(
        {"id": fields[0], "value": fields[1], "outcome": "committed", "started": 0.0, "ended": 0.1}
    )


def second_file(copy: Copy, is_changed: bool) -> tuple[str, str, int]:
    """Add a file with the first rows of a segment, and its entry, to a member's manifest.

    Args:
        copy: The archive to damage.
        is_changed: Whether one row differs between the two files.

    Returns:
        The member's name, the path of the second file, and the LSN of the row that differs (0 if
        none does).
    """
    member = copy.rng.choice(copy.full_members())
    entry, number = copy.pick(member, is_user)
    folder = copy.folder / member.instance_uuid
    original = (folder / entry.name).read_bytes()
    rows = copy.rows(member, entry)[: number + 1]
    if is_changed:
        rows[number].timestamp += 1.0
    header, _ = decode_file_header(original)
    data = encode_file(header, [b"".join(encode_row(row) for row in rows)])
    made = describe(data, entry.kind, entry.source, entry.start_term)
    (folder / made.name).write_bytes(data)
    member.files.insert(member.files.index(entry), made)
    copy.save(member)
    return (
        member.member,
        f"{member.instance_uuid}/{made.name}",
        rows[number].lsn if is_changed else 0,
    )


VIOLATIONS = (
    missing_row, reordered_rows, changed_byte, repeated_lsn, lost_everywhere, term_going_back,
    confirm_without_quorum, confirm_in_a_cut_tail, confirmed_then_rolled_back, snapshot_off_by_one,
    request_forgotten, request_of_another_index, system_tuple_off, term_in_a_snapshot_off,
    schema_version_off, first_snapshot_off_by_one, confirm_of_another_term,
    confirm_of_a_row_of_another_term, promote_behind_a_row_of_another_term,
)  # fmt: skip
LOSSES = (truncated_file, archive_lost, segment_lost)


CLOCKS_AND_TERMS = ("vclock", "terms", "last_term", "previous_vclock", "start_vclock")
"""Fields of a manifest's entry by which readers find missing files and the terms of rows."""


def false_manifest(copy: Copy, manifest: Manifest, entry: FileEntry, field: str) -> str:
    """Change one field of a file's manifest entry, and return the path of the file."""
    replica_id = max(entry.lsns or entry.vclock)
    lsn, before = entry.vclock[replica_id], entry.start_vclock.get(replica_id, 0)
    lies: dict[str, dict[str, Any]] = {
        "timestamp_max": {"timestamp_max": entry.timestamp_max + 1},
        "lsns": {"lsns": {**entry.lsns, replica_id: (lsn, lsn + 1)}},
        "spaces": {"spaces": [*entry.spaces, 777]},
        "vclock": {"vclock": {**entry.vclock, replica_id: lsn - 1}},
        "terms": {"terms": [*entry.terms, (entry.last_term, replica_id, entry.after_index)]},
        "last_term": {"last_term": entry.last_term + 1},
        "previous_vclock": {"previous_vclock": {replica_id: 1}},
        "start_vclock": {"start_vclock": {**entry.start_vclock, replica_id: before + 1}},
    }
    changed = replace(entry, **lies[field])
    assert changed != entry
    manifest.files[manifest.files.index(entry)] = changed
    copy.save(manifest)
    return f"{manifest.instance_uuid}/{entry.name}"
