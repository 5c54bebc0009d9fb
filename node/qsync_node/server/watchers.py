"""Keys that clients watch: `box.id`, `box.status`, `box.election`, `box.schema`."""

from collections.abc import Callable
from typing import Any

from qsync_node.format.mp import pack
from qsync_node.node import Node
from qsync_node.server.sessions import ClientSocket, Sessions

TURNS_PER_CHECK = 16


class Watchers:
    """Sends changed values to watchers."""

    def __init__(
        self, node: Node, status: Callable[[], dict[str, Any]], sessions: Sessions
    ) -> None:
        """Begin without watchers.

        Args:
            node: the node.
            status: returns the status of the member.
            sessions: the sessions that may watch.
        """
        self._node = node
        self._status = status
        self._sessions = sessions
        self._values: dict[str, bytes] = {}  # of watched keys, at the last comparison
        self._leaderships = 0

    def value_of(self, key: str) -> bytes | None:
        """Return the value of `key` as msgpack, or None for an unknown key."""
        now = self._status()
        election = self._node.replica.election
        values: dict[str, Any] = {
            "box.id": {
                "id": now["replica_id"],
                "instance_uuid": now["uuid"],
                "replicaset_uuid": now["replicaset_uuid"],
            },
            "box.status": {
                "is_ro": not now["is_writable"],
                "is_ro_cfg": False,
                "status": "running" if self._node.context.has_origin else "loading",
            },
            "box.election": {
                "term": now["term"],
                "role": election.role.value,
                "is_ro": not now["is_writable"],
                "leader": now["leader_id"],
                "leader_uuid": now["leader_uuid"],
                "leader_name": now["leader_name"],
            },
            "box.schema": {"version": self._node.schema_version},
        }
        if key not in values:
            return None
        packed: bytes = pack(values[key])
        return packed

    def watch(self, session: ClientSocket, key: str, *, is_first: bool) -> None:
        """Send the value of a key that a client begins to watch, or a newer one than it knows."""
        value = self.value_of(key)
        if value is not None:
            self._values.setdefault(key, value)
        if is_first or (value is not None and not session.watches.has_received(key, value)):
            session.notify(key, value)

    def notify(self, turn: int, leaderships: int) -> None:
        """Notify watchers of changed keys.

        Args:
            turn: the number of the turn; every 16th compares the values.
            leaderships: how often this member became leader; a new leadership is reported at once.
        """
        if not self._values:
            return
        if turn % TURNS_PER_CHECK and leaderships == self._leaderships:
            return
        self._leaderships = leaderships
        for key in list(self._values):
            value = self.value_of(key)
            if value is None or value == self._values[key]:
                continue
            self._values[key] = value
            for session in list(self._sessions.by_number.values()):
                watches = session.watches
                if watches.may_notify(key) and not watches.has_received(key, value):
                    session.notify(key, value)
