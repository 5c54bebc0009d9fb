"""A watch of the key space: the protocol of an anonymous replica, without I/O.

    stage       input                      next        output
    ---------   ------------------------   ---------   ---------------------------------------------
    OPENING     greeting, then OK          SNAPSHOT    AUTH, then FETCH_SNAPSHOT
    SNAPSHOT    rows, then the final OK    SUBSCRIBING a change with all rows; SUBSCRIBE
    SUBSCRIBING OK                         ROWS        nothing
    ROWS        rows and heartbeats        ROWS        a change per batch of bytes; an ACK
    any         an error                   -           WatchError

`ClientConnection` handles greeting, log-in and framing.

The watch lists the spaces of the key space, so that rows of other spaces arrive without their
contents (F1, F4). It passes every index of the log, and a change carries the index that it has
reached: the revision of the key space.
"""

import uuid
from enum import Enum
from typing import Any

import msgpack

from qsync_broker.events import Watched
from qsync_broker.keyspace import Deleted, RowChange, Updated, Written
from qsync_client.protocol.connection import (
    ClientConnection,
    ClientConnectionState,
    Credentials,
    Ended,
    Opened,
    StreamPacket,
)
from qsync_client.protocol.frame import FRAME_BYTES_LIMIT
from qsync_node.format.journals import WATCHED_SPACES
from qsync_node.format.keys import DELETE, FLAG_COMMIT, INSERT, NOP, REPLACE, UPDATE, Key, Type
from qsync_node.format.vclock import signature

SNAPSHOT_OKS = 2
"""Packets of type OK in the answer to FETCH_SNAPSHOT: before the rows and after them."""


class WatchError(Exception):
    """The member refused the watch, or sent something unexpected; the connection must end."""


class _Stage(Enum):
    OPENING = "log-in"
    SNAPSHOT = "snapshot"
    SUBSCRIBING = "subscription"
    ROWS = "rows"


class WatchSession:
    """One connection of a watch.

    Attributes:
        clock: position in the log, by replica id.
        replicaset: UUID of the cluster, "" before it is known.
        is_current: whether the snapshot has been received.
    """

    def __init__(self, user: str, password: str, replicaset: str) -> None:
        """Begin a session.

        Args:
            user: user with read access to the key space.
            password: its password.
            replicaset: UUID of the cluster, or "" to accept any.
        """
        self.clock: dict[int, int] = {}
        self.replicaset = replicaset
        self._uuid = str(uuid.uuid4())
        self._stage = _Stage.OPENING
        # A row of the log may be larger than an answer.
        self._connection = ClientConnection(
            Credentials(user, password), answer_max=FRAME_BYTES_LIMIT
        )
        self._snapshot_oks = 0
        self._changes: list[RowChange] = []
        self._open: list[RowChange] = []  # rows of a transaction whose last row has not arrived

    @property
    def is_current(self) -> bool:
        return self._stage is _Stage.ROWS

    def feed(self, data: bytes) -> tuple[list[Watched], bytes]:
        """Handle received bytes; return changes of the key space, and bytes to send.

        Raises:
            WatchError: the connection must end.
        """
        changes: list[Watched] = []
        is_moved = has_rows = False
        is_greeted = self._connection.state is not ClientConnectionState.GREETING
        for event in self._connection.receive(data):
            if isinstance(event, Opened):
                self._fetch()
            elif isinstance(event, Ended):
                stage = self._stage.value
                cause = f"the {stage} was refused" if is_greeted else "the greeting was refused"
                raise WatchError(f"{cause}: {event.reason}")
            elif isinstance(event, StreamPacket):
                has_rows = True
                is_moved |= self._on_packet(event, changes)
        if is_moved:
            changes.append(Watched(signature(self.clock), self._changes))
            self._changes = []
        if has_rows and self._stage is _Stage.ROWS:
            self._connection.stream(Type.OK, {int(Key.VCLOCK): self.clock})
        return changes, self._connection.take_output()

    def _on_packet(self, packet: StreamPacket, changes: list[Watched]) -> bool:
        """Handle a packet of the stream, and return whether the revision has risen."""
        if packet.kind >= Type.ERROR:
            raise WatchError(f"the {self._stage.value} was refused: {_reason(packet.body)}")
        if self._stage is _Stage.ROWS:
            return self._on_row(packet.kind, packet.header, packet.body)
        self._on_answer(packet.kind, packet.body, changes)
        return False

    def _fetch(self) -> None:
        self._stage = _Stage.SNAPSHOT
        wanted = {int(Key.INSTANCE_UUID): self._uuid, int(Key.SPACES): list(WATCHED_SPACES)}
        self._connection.stream(Type.FETCH_SNAPSHOT, wanted)

    def _on_answer(self, kind: int, body: bytes, changes: list[Watched]) -> None:
        if self._stage is _Stage.SUBSCRIBING:
            if kind == Type.OK:
                self._stage = _Stage.ROWS
                self.replicaset = str(_map(body).get(int(Key.REPLICASET_UUID), self.replicaset))
            return
        if kind != Type.OK:
            self._take_row(kind, body, self._changes)
            return
        self._snapshot_oks += 1
        if self._snapshot_oks == SNAPSHOT_OKS:
            changes.append(self._subscribe(_map(body)))

    def _subscribe(self, fields: dict[int, Any]) -> Watched:
        self.clock = dict(fields.get(int(Key.VCLOCK), {}))
        self._stage = _Stage.SUBSCRIBING
        whole = Watched(signature(self.clock), self._changes, True)
        self._changes = []
        request = {
            int(Key.INSTANCE_UUID): self._uuid,
            int(Key.VCLOCK): self.clock,
            int(Key.REPLICA_ANON): True,
            int(Key.SPACES): list(WATCHED_SPACES),
        }
        if self.replicaset:
            request[int(Key.REPLICASET_UUID)] = self.replicaset
        self._connection.stream(Type.SUBSCRIBE, request)
        return whole

    def _on_row(self, kind: int, header: dict[int, Any], body: bytes) -> bool:
        """Apply a row of the log, and return whether the revision has risen."""
        lsn = header.get(int(Key.LSN), 0)
        if kind == Type.OK or not lsn:
            return False  # a heartbeat
        self.clock[header.get(int(Key.REPLICA_ID), 0)] = lsn
        if kind != NOP:
            self._take_row(kind, body, self._open)
        is_last = int(Key.TSN) not in header or header.get(int(Key.FLAGS), 0) & FLAG_COMMIT
        if is_last:
            self._changes += self._open
            self._open = []
        return bool(is_last)

    def _take_row(self, kind: int, body: bytes, into: list[RowChange]) -> None:
        if not body:
            return
        fields = _map(body)
        space = fields.get(int(Key.SPACE_ID), 0)
        if space not in WATCHED_SPACES:
            return
        if kind in (INSERT, REPLACE):
            into.append(Written(space, fields[int(Key.TUPLE)]))
        elif kind == DELETE:
            into.append(Deleted(space, fields[int(Key.KEY)]))
        elif kind == UPDATE:
            into.append(Updated(space, fields[int(Key.KEY)], fields[int(Key.TUPLE)]))
        else:
            raise WatchError(
                f"space {space} was changed by a request of type {kind}: only INSERT, REPLACE,"
                " UPDATE and DELETE may change the key space of journals"
            )


def _map(body: bytes) -> dict[int, Any]:
    try:
        fields = msgpack.unpackb(body, strict_map_key=False)  # text of the key space is UTF-8
    except (ValueError, msgpack.UnpackException) as error:
        raise WatchError(f"the watch received an invalid body: {error}") from None
    if not isinstance(fields, dict):
        raise WatchError("the watch received a body that is no map")
    return fields


def _reason(body: bytes) -> str:
    return str(_map(body).get(int(Key.ERROR_24), "")) if body else ""
