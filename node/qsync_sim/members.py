"""Compares the confirmed rows of `_cluster` with the rules of membership (M2 to M5)."""

from typing import Final

import msgpack

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import DELETE, INSERT, KEY_KEY, KEY_SPACE_ID, KEY_TUPLE, REPLACE
from qsync_sim.cluster import Cluster
from qsync_sim.violation import InvariantViolation

CLUSTER: Final = int(SystemSpace.CLUSTER)
IDS_MAX = 31


def check(world: Cluster) -> None:
    """Replay all changes of members.

    Raises:
        Violation: a removed instance returned, an id was wasted, or an asynchronous member votes.
    """
    members = {1: next(iter(world.shells))}  # uuid by id; the first is in the first snapshot
    removed: set[str] = set()
    for index in range(1, world.confirmed_anywhere + 1):
        _, _, body, is_taken, row_type = world.ledger[index]
        if not is_taken or row_type not in (INSERT, REPLACE, DELETE):
            continue
        fields = msgpack.unpackb(body, strict_map_key=False)
        if fields[KEY_SPACE_ID] != CLUSTER:
            continue
        if row_type == DELETE:
            removed.add(members.pop(fields[KEY_KEY][0]))
            continue
        number, uuid, name, role, is_voting = fields[KEY_TUPLE][:5]
        if uuid in removed:
            raise InvariantViolation(f"M5: {name} was removed, and is registered again at {index}")
        if number not in members:
            lowest = next(n for n in range(1, IDS_MAX + 1) if n not in members)
            if number != lowest:
                raise InvariantViolation(
                    f"M5: {name} gets id {number} at {index}, but {lowest} is free"
                )
        if is_voting and role != "voter":
            raise InvariantViolation(f"M2: {name} is {role} and votes from {index} on")
        members[number] = uuid
