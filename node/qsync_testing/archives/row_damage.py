"""Select rows of an archive for a test to damage, and build rows that no engine accepts."""

from typing import Any

from qsync_node.archive.manifest import SEGMENT, SNAPSHOT
from qsync_node.consensus.decisions import Decision, effective, is_covered
from qsync_node.format.keys import DELETE, INSERT, REPLACE, UPDATE, Key, Type
from qsync_node.format.mp import pack, unpack
from qsync_node.format.row import LogRow
from qsync_testing.archives.archive_copy import Copy, is_user


def confirmed(copy: Copy) -> list[tuple[int, LogRow]]:
    """Return users' single-row INSERTs and REPLACEs with their indexes, oldest first."""
    member = copy.full_members()[0]
    found = []
    for entry in member.of_kind(SEGMENT):
        rows = copy.rows(member, entry)
        found += [
            (entry.after_index + n, row) for n, row in enumerate(rows, 1)
            if is_user(row) and row.type in (INSERT, REPLACE) and row.tsn == row.lsn
            and row.is_commit
        ]  # fmt: skip
    return found


def all_rows(copy: Copy) -> list[tuple[int, LogRow]]:
    member = copy.full_members()[0]
    return [
        (entry.after_index + n, row)
        for entry in member.of_kind(SEGMENT) for n, row in enumerate(copy.rows(member, entry), 1)
    ]  # fmt: skip


def effective_rows(copy: Copy) -> list[tuple[int, LogRow]]:
    """Return the users' rows that no decision rolled back, oldest first."""
    rows = all_rows(copy)
    decisions = []
    for index, row in rows:
        if row.type in (Type.RAFT_ROLLBACK, Type.RAFT_PROMOTE):
            first = unpack(row.body)[Key.INDEX] + (row.type == Type.RAFT_PROMOTE)
            decisions.append(Decision(first, index))
    covering = effective(decisions)
    return [one for one in rows if is_user(one[1]) and not is_covered(one[0], covering)]


def place_of(row: LogRow) -> tuple[int, Any]:
    """Return the space and the key that a statement changes."""
    body = unpack(row.body)
    return body[Key.SPACE_ID], (body.get(Key.KEY) or body[Key.TUPLE])[0]


def present_before(copy: Copy) -> set[int]:
    """Return the indexes of rows whose key had a tuple when they were written."""
    held: set[tuple[int, Any]] = set()
    found = set()
    for index, row in effective_rows(copy):
        place = place_of(row)
        if place in held:
            found.add(index)
        if row.type == DELETE:
            held.discard(place)
        elif row.type != UPDATE:
            held.add(place)
    return found


def last_snapshot(copy: Copy) -> int:
    return max(e.last_index for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT))


def impossible(row: LogRow, row_type: int) -> LogRow:
    """Return a row with the same LSN and a statement that the state does not allow.

    An INSERT keeps the row's tuple: choose a row whose key is present. Any other statement
    addresses a key that does not exist.
    """
    body: dict[int, Any] = unpack(row.body)
    fields = body.pop(int(Key.TUPLE))
    if row_type == INSERT:
        body[int(Key.TUPLE)] = fields
    else:
        body |= {int(Key.INDEX_ID): 0, int(Key.KEY): [fields[0] + 10**9]}
    if row_type == UPDATE:
        body[int(Key.TUPLE)] = [["=", 1, "new"]]
    return LogRow(row_type, row.replica_id, row.lsn, row.timestamp, pack(body), flags=row.flags)


def keyed(copy: Copy) -> list[tuple[int, LogRow]]:
    return [(index, row) for index, row in confirmed(copy) if row.idempotency is not None]


def held_rows(copy: Copy) -> list[tuple[int, LogRow]]:
    """Return the rows of `confirmed` that snapshots of two or more members hold, oldest first."""
    snapshots = [
        (e.last_index, m.member) for m in copy.manifests.values() for e in m.of_kind(SNAPSHOT)
    ]
    whole = {index for index, _ in confirmed(copy)}
    rest: dict[tuple[int, Any], int] = {}
    found = []
    for index, row in reversed(effective_rows(copy)):
        following = rest.get(place_of(row), 10**9)
        holders = {name for at, name in snapshots if index <= at < following}
        if index in whole and len(holders) > 1:
            found.append((index, row))
        rest[place_of(row)] = index
    return found[::-1]
