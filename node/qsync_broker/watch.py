"""A watch of the key space: the protocol of an anonymous replica, without I/O.

    stage       input                      next        output
    ---------   ------------------------   ---------   ---------------------------------------------
    GREETING    128 bytes                  AUTH        AUTH
    AUTH        its answer                 SNAPSHOT    FETCH_SNAPSHOT
    SNAPSHOT    rows, then the final OK    ROWS        a change with all rows; SUBSCRIBE
    ROWS        rows and heartbeats        ROWS        a change per batch of bytes; an ACK
    any         an error                   -           WatchError

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
from qsync_client.protocol.auth import scramble
from qsync_client.protocol.frame import FrameDecoder, FrameError
from qsync_client.protocol.greeting import GreetingError, decode_greeting
from qsync_node.format.journals import WATCHED_SPACES
from qsync_node.format.keys import DELETE, INSERT, NOP, REPLACE, UPDATE, Key, Type
from qsync_node.format.vclock import signature

_GREETING_BYTES = 128
_FLAG_COMMIT = 1


class WatchError(Exception):
    """The member refused the watch, or sent something unexpected; the connection must end."""


class _Stage(Enum):
    GREETING = "greeting"
    AUTH = "log-in"
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
        self._user = user
        self._password = password
        self.replicaset = replicaset
        self._uuid = str(uuid.uuid4())
        self._stage = _Stage.GREETING
        self._greeting = b""
        self._decoder = FrameDecoder()
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
        if self._stage is _Stage.GREETING:
            self._greeting += data
            if len(self._greeting) < _GREETING_BYTES:
                return [], b""
            greeting, data = self._greeting[:_GREETING_BYTES], self._greeting[_GREETING_BYTES:]
            return [], self._log_in(greeting)
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            raise WatchError(f"the watch received an invalid packet: {error}") from None
        changes: list[Watched] = []
        output = b""
        is_moved = False
        for kind, _, header, body in frames:
            if kind >= Type.ERROR:
                raise WatchError(f"the {self._stage.value} was refused: {_reason(body)}")
            if self._stage is _Stage.ROWS:
                is_moved |= self._on_row(kind, header, body)
            else:
                whole, answer = self._on_answer(kind, body)
                changes += whole
                output += answer
        if is_moved:
            changes.append(Watched(signature(self.clock), self._changes))
            self._changes = []
        if frames and self._stage is _Stage.ROWS:
            output += _packet(int(Type.OK), {int(Key.VCLOCK): self.clock})
        return changes, output

    def _log_in(self, greeting: bytes) -> bytes:
        try:
            salt = decode_greeting(greeting).salt
        except GreetingError as error:
            raise WatchError(f"the greeting was refused: {error}") from None
        self._stage = _Stage.AUTH
        proof = ["chap-sha1", scramble(self._password, salt)]
        return _packet(int(Type.AUTH), {0x23: self._user, 0x21: proof})

    def _on_answer(self, kind: int, body: bytes) -> tuple[list[Watched], bytes]:
        if self._stage is _Stage.AUTH:
            self._stage = _Stage.SNAPSHOT
            wanted = {int(Key.INSTANCE_UUID): self._uuid, int(Key.SPACES): list(WATCHED_SPACES)}
            return [], _packet(int(Type.FETCH_SNAPSHOT), wanted)
        if self._stage is _Stage.SUBSCRIBING:
            if kind == Type.OK:
                self._stage = _Stage.ROWS
                self.replicaset = str(_map(body).get(int(Key.REPLICASET_UUID), self.replicaset))
            return [], b""
        if kind != Type.OK:
            self._take_row(kind, body, self._changes)
            return [], b""
        self._snapshot_oks += 1
        if self._snapshot_oks < 2:
            return [], b""
        return self._subscribe(_map(body))

    def _subscribe(self, fields: dict[int, Any]) -> tuple[list[Watched], bytes]:
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
        return [whole], _packet(int(Type.SUBSCRIBE), request)

    def _on_row(self, kind: int, header: dict[int, Any], body: bytes) -> bool:
        """Apply a row of the log, and return whether the revision has risen."""
        lsn = header.get(int(Key.LSN), 0)
        if kind == Type.OK or not lsn:
            return False  # a heartbeat
        self.clock[header.get(int(Key.REPLICA_ID), 0)] = lsn
        if kind != NOP:
            self._take_row(kind, body, self._open)
        is_last = int(Key.TSN) not in header or header.get(int(Key.FLAGS), 0) & _FLAG_COMMIT
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
        fields = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise WatchError(f"the watch received an invalid body: {error}") from None
    if not isinstance(fields, dict):
        raise WatchError("the watch received a body that is no map")
    return fields


def _reason(body: bytes) -> str:
    return str(_map(body).get(0x31, "")) if body else ""


def _packet(kind: int, fields: dict[int, Any]) -> bytes:
    packed: bytes = msgpack.packb({0x00: kind, 0x01: 1}) + msgpack.packb(fields)
    return b"\xce" + len(packed).to_bytes(4, "big") + packed
