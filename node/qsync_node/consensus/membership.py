"""Members of the replica set: the configuration that `_cluster` rows describe.

Theory. Registering, promoting to voting and unregistering are synchronous rows in `_cluster`, one
at a time (M2). The configuration in force is the result of all `_cluster` rows in the log,
confirmed or not, that no effective decision there covers. A configuration is a value, computed from
the previous one and a row; `Limbo` derives the one in force.

A `_cluster` tuple is `[id, uuid, name, role, is_voting, level]`. The first three fields are
Tarantool's (Tarantool 2 has only the first two). The role is the intended one: `voter`, `async` or
`stock` (a Tarantool replica). The last two are whether the member counts as a voter now and the
feature level that it announced (P2): the leader replaces the row when a process of another version
connects. The UUID of a removed instance is kept in `_qsync_removed` (M5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack, unpack

CLUSTER_SPACE: Final = int(SystemSpace.CLUSTER)
REMOVED_SPACE: Final = int(SystemSpace.QSYNC_REMOVED)
REPLICAS_MAX = 31
TARANTOOL_ROLE = "stock"
"""Role of a Tarantool replica, which knows no terms: it is registered and never votes (L7)."""
LEVEL = 1
"""The feature level that this version announces (P2)."""
FIRST_LEVEL = 1
"""The feature level of a member that announces none."""
REMOVED_REASON = "the member was removed from the cluster: use another member"


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One registered replica."""

    replica_id: int
    uuid: str
    name: str
    role: str
    is_voting: bool
    level: int = FIRST_LEVEL

    def as_tuple(self) -> list[object]:
        return [self.replica_id, self.uuid, self.name, self.role, self.is_voting, self.level]

    @classmethod
    def from_tuple(cls, fields: list[object]) -> "ClusterMember":
        padded = [*fields, *["", "", "voter", True, FIRST_LEVEL][len(fields) - 1 :]]
        replica_id, uuid, name, role, is_voting, level = padded[:6]
        number = int(str(replica_id))
        if not 0 < number <= REPLICAS_MAX:
            raise ValueError(f"the replica id {number} is not between 1 and {REPLICAS_MAX}")
        return cls(number, str(uuid), str(name), str(role), bool(is_voting), int(str(level)))


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members at one position in the log.

    Attributes:
        members: registered replicas, by id.
        removed: UUIDs of removed instances (M5).
        voters: members that count for quorums.
        voter_uuids: their UUIDs.
        uuids: all members, by their UUIDs.
        level: the cluster's feature level: the lowest one that a member announced (P2). A Tarantool
            replica announces none and receives only rows that Tarantool knows, so it is left out.
    """

    members: tuple[ClusterMember, ...] = ()
    removed: frozenset[str] = frozenset()
    voters: tuple[ClusterMember, ...] = field(init=False, compare=False)
    voter_uuids: tuple[str, ...] = field(init=False, compare=False)
    uuids: Mapping[str, ClusterMember] = field(init=False, compare=False)
    level: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        voters = tuple(member for member in self.members if member.is_voting)
        object.__setattr__(self, "voters", voters)
        object.__setattr__(self, "voter_uuids", tuple(member.uuid for member in voters))
        object.__setattr__(self, "uuids", {member.uuid: member for member in self.members})
        levels = (member.level for member in self.members if member.role != TARANTOOL_ROLE)
        object.__setattr__(self, "level", min(levels, default=FIRST_LEVEL))

    def by_uuid(self, uuid: str) -> ClusterMember | None:
        return self.uuids.get(uuid)

    def free_id(self) -> int:
        """Return the lowest free id, or 0 if all are taken. A freed id is reused (M5)."""
        taken = {member.replica_id for member in self.members}
        return next((n for n in range(1, REPLICAS_MAX + 1) if n not in taken), 0)

    def with_member(self, member: ClusterMember) -> "Configuration":
        assert 0 < member.replica_id <= REPLICAS_MAX, "M5: 31 ids exist"
        rest = [other for other in self.members if other.replica_id != member.replica_id]
        ordered = sorted([*rest, member], key=lambda one: one.replica_id)
        return replace(self, members=tuple(ordered))

    def without(self, replica_id: int) -> "Configuration":
        rest = tuple(member for member in self.members if member.replica_id != replica_id)
        return replace(self, members=rest)

    def with_removed(self, uuid: str) -> "Configuration":
        return replace(self, removed=self.removed | {uuid})

    def misregistered(self, announced: Mapping[str, int]) -> ClusterMember | None:
        """Return a member whose registered feature level is outdated, or None (P2).

        Lower levels come first: no other change may raise the cluster's level above that of a
        process that runs. A process below the cluster's level has stopped, and its row remains.

        Args:
            announced: the level of each process that is known to run, by its UUID.
        """
        outdated = [
            replace(member, level=level)
            for member in self.members
            if (level := announced.get(member.uuid, member.level)) != member.level
            and level >= self.level
        ]
        return min(outdated, key=lambda member: member.level, default=None)

    def after_row(self, row_type: int, body: bytes) -> "Configuration":
        """Return the configuration after one row; rows of other spaces change nothing."""
        if not body:
            return self
        fields = unpack(body)
        space = fields.get(Key.SPACE_ID)
        if space == REMOVED_SPACE and row_type in (Type.INSERT, Type.REPLACE):
            return self.with_removed(fields[Key.TUPLE][0])
        if space != CLUSTER_SPACE:
            return self
        if row_type in (Type.INSERT, Type.REPLACE):
            return self.with_member(ClusterMember.from_tuple(fields[Key.TUPLE]))
        if row_type == Type.DELETE:
            return self.without(fields[Key.KEY][0])
        return self


def put_member(member: ClusterMember) -> tuple[int, bytes]:
    """Return the row that registers or changes `member`."""
    body: bytes = pack({int(Key.SPACE_ID): CLUSTER_SPACE, int(Key.TUPLE): member.as_tuple()})
    return int(Type.REPLACE), body


def delete_member(member: ClusterMember) -> list[tuple[int, bytes]]:
    """Return the rows that unregister `member` and record its UUID (M5)."""
    delete: bytes = pack(
        {int(Key.SPACE_ID): CLUSTER_SPACE, int(Key.INDEX_ID): 0, int(Key.KEY): [member.replica_id]}
    )
    remember: bytes = pack(
        {int(Key.SPACE_ID): REMOVED_SPACE, int(Key.TUPLE): [member.uuid, member.replica_id]}
    )
    return [(int(Type.DELETE), delete), (int(Type.REPLACE), remember)]
