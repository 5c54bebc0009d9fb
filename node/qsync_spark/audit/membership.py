"""The voters at each index, from `_cluster` rows (pure).

A row counts from the index at which it is written (M2). A confirmed decision that covers it
restores the earlier configuration, from the decision on. `_cluster` tuples are
`[id, uuid, name, role, is_voting, level]`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import unpack
from qsync_spark.decode.schema_rows import CLUSTER


class MembershipChange(NamedTuple):
    """A row of `_cluster`; a decision at `until` rolls it back, 0 without one."""

    at: int
    type: int
    body: bytes
    until: int = 0


@dataclass(frozen=True, slots=True)
class AuditedConfiguration:
    """Members by replica id from `index` on: (uuid, name, role, is_voting)."""

    index: int
    members: dict[int, tuple[str, str, str, bool]]

    def voters(self) -> list[str]:
        return [uuid for uuid, _, _, is_voting in self.members.values() if is_voting]


def member_of(fields: list[Any]) -> tuple[int, tuple[str, str, str, bool]]:
    padded = [*fields, *["", "", "", "voter", True][len(fields) :]]
    return int(padded[0]), (str(padded[1]), str(padded[2]), str(padded[3]), bool(padded[4]))


def configurations(
    start: int, first: dict[int, tuple[str, str, str, bool]], changes: Iterable[MembershipChange]
) -> list[AuditedConfiguration]:
    """Return one configuration per index at which the members change, the first at `start`."""
    ordered = sorted(changes)
    edges = sorted({c.at for c in ordered} | {c.until for c in ordered if c.until})
    result = [AuditedConfiguration(start, first)]
    for edge in edges:
        members = dict(first)
        for change in ordered:
            if change.at <= edge and (not change.until or edge < change.until):
                _apply(members, change)
        result.append(AuditedConfiguration(edge, members))
    return result


def _apply(members: dict[int, tuple[str, str, str, bool]], change: MembershipChange) -> None:
    fields = unpack(change.body)
    if fields.get(Key.SPACE_ID) != CLUSTER:
        return
    if change.type in (Type.INSERT, Type.REPLACE):
        replica_id, member = member_of(fields[Key.TUPLE])
        members[replica_id] = member
    elif change.type == Type.DELETE:
        members.pop(fields[Key.KEY][0], None)


def memberships(
    found: list[AuditedConfiguration], last: int
) -> dict[str, tuple[str, list[tuple[int, int]]]]:
    """Return for each uuid its name and the index ranges of its registration."""
    result: dict[str, tuple[str, list[tuple[int, int]]]] = {}
    for number, configuration in enumerate(found):
        end = found[number + 1].index - 1 if number + 1 < len(found) else last
        start = configuration.index - 1 if number else configuration.index
        for uuid, name, role, _ in configuration.members.values():
            if role == "stock":
                continue  # a Tarantool replica, which has no archive
            _, ranges = result.setdefault(uuid, (name, []))
            ranges.append((start, max(end, start)))
    return result
