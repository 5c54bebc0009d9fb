"""Confirmed rows of a cluster over one connection, without input and output (sans-IO).

A feed is an anonymous replica without data: it either follows the log from an index (`changes`), or
receives the rows of spaces at one confirmed index (`snapshot`). The member never sends an
unconfirmed row, and sends as fast as the caller reads.

    state     input                                 output                       next state
    OPENING   the log-in succeeds                   SUBSCRIBE or FETCH_SNAPSHOT  ASKED
    ASKED     OK                                    Started                      ROWS
    ROWS      a row of the log, of the snapshot     Changed, Stored              ROWS
    ROWS      a heartbeat                           nothing                      ROWS
    ROWS      OK, in a snapshot                     Finished                     ENDED
    any       an error, invalid bytes               raises FeedRefused           ENDED

`ClientConnection` handles greeting, log-in and framing.
`index` counts the rows of the log, because a stream omits none: rows of other spaces are NOPs.
To continue after a lost connection, open a feed of changes after the last `index`, at any member.
"""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from qsync_client.errors import QsyncError
from qsync_client.protocol.connection import (
    ClientConnection,
    ConnectionEvent,
    Credentials,
    Ended,
    Opened,
    StreamPacket,
    error_code,
    error_reason,
)
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.packing import INVALID, unpack

ROW_BYTES_MAX = 64 << 20
_BASE = int(Key.INDEX_BASE)
_TSN, _TIME = int(Key.TSN), int(Key.TIMESTAMP)
_SPACE, _TUPLE, _KEY, _OPS = int(Key.SPACE_ID), int(Key.TUPLE), int(Key.KEY), int(Key.OPS)


class FeedRefused(QsyncError):  # noqa: N818  # named like RequestFailed
    """The member refused the feed with an `ErrorCode`, or sent invalid bytes (code 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Started:
    """The member sends rows from here on.

    Attributes:
        confirmed: confirmed index of the member at this time.
        replicaset: UUID of the cluster, "" in a snapshot.
    """

    confirmed: int
    replicaset: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A confirmed row of the log.

    Attributes:
        index: its index in the log.
        transaction: index of the first row of its transaction.
        time_s: time at the leader that wrote it, in seconds since 1970.
        kind: INSERT, REPLACE, UPDATE, DELETE or UPSERT.
        space: id of the space.
        row: the tuple, or None.
        key: primary key of an update or deletion, or None.
        operations: operations of an update or upsert, or None.
    """

    index: int
    transaction: int
    time_s: float
    kind: Type
    space: int
    row: list[Any] | None
    key: list[Any] | None
    operations: list[Any] | None


@dataclass(frozen=True, slots=True)
class SnapshotTuple:
    """A row of a snapshot."""

    space: int
    row: list[Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """All rows of a snapshot have arrived; `index` is the confirmed index that it shows."""

    index: int


FeedEvent = Started | Changed | SnapshotTuple | Finished


class _State(Enum):
    OPENING = auto()
    ASKED = auto()
    ROWS = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class _WantedSpace:
    kind: Type
    spaces: tuple[int, ...]
    after: int | None
    replicaset: str


class Feed:
    """One connection of a feed.

    Attributes:
        index: index of the last row whose event was returned, or that has none; at first, the index
            after which the feed begins.
    """

    def __init__(self, user: str, password: str, wanted: _WantedSpace) -> None:
        self.index = wanted.after or 0
        self._wanted = wanted
        self._state = _State.OPENING
        self._refused: FeedRefused | None = None
        self._connection = ClientConnection(Credentials(user, password), answer_max=ROW_BYTES_MAX)

    @classmethod
    def changes(
        cls, user: str, password: str, *, after: int, spaces: Collection[int], replicaset: str = ""
    ) -> "Feed":
        """Return a feed of the rows after an index.

        Args:
            user: a user that may read the spaces.
            password: its password.
            after: index of the last row that the caller has, 0 for none.
            spaces: ids of the spaces; none for all, if the user may read the universe.
            replicaset: UUID of the cluster that must answer, "" for any.
        """
        wanted = _WantedSpace(Type.SUBSCRIBE, tuple(sorted(spaces)), after, replicaset)
        return cls(user, password, wanted)

    @classmethod
    def snapshot(cls, user: str, password: str, *, spaces: Collection[int]) -> "Feed":
        """Return a feed of the rows of spaces at the confirmed index of the member."""
        wanted = _WantedSpace(Type.FETCH_SNAPSHOT, tuple(sorted(spaces)), None, "")
        return cls(user, password, wanted)

    def take_output(self) -> bytes:
        """Return the bytes to send, and forget them."""
        return self._connection.take_output()

    def receive(self, data: bytes) -> list[FeedEvent]:
        """Return the events of received bytes.

        An error that follows events is raised by the next call, which may be without bytes.

        Raises:
            FeedRefused: the member refused the feed, or the bytes are invalid.
        """
        if self._refused is not None:
            raise self._refused
        events: list[FeedEvent] = []
        try:
            for packet in self._connection.receive(data) if data else ():
                event = self._event_of(packet)
                if event is not None:
                    events.append(event)
        except FeedRefused as error:
            self._refused = error
        except INVALID as error:
            self._refused = FeedRefused(0, f"the member sent invalid bytes: {error}")
            self._refused.__cause__ = error
        if self._refused is not None:
            self._state = _State.ENDED
            if not events:
                raise self._refused
        return events

    def _event_of(self, packet: ConnectionEvent) -> FeedEvent | None:
        if isinstance(packet, Opened):
            self._state = _State.ASKED
            self._ask()
        elif isinstance(packet, Ended):
            raise FeedRefused(packet.code, packet.reason)
        elif isinstance(packet, StreamPacket):
            return self._take(packet)
        return None

    def _take(self, packet: StreamPacket) -> FeedEvent | None:
        kind, header, body = packet
        if kind & Type.ERROR:
            raise FeedRefused(error_code(kind), error_reason(body))
        if kind == Type.OK:
            return self._answer(body)
        return self._row(kind, header, body) if self._state is _State.ROWS else None

    def _answer(self, body: bytes) -> FeedEvent | None:
        fields = unpack(body) if body else {}
        is_snapshot = self._wanted.kind is Type.FETCH_SNAPSHOT
        confirmed = sum(fields.get(int(Key.VCLOCK), {}).values())
        if self._state is _State.ASKED:
            if not is_snapshot and fields.get(int(Key.INDEX)) != self._wanted.after:
                raise FeedRefused(
                    0, "the member cannot follow from an index: its version is too old"
                )
            self._state = _State.ROWS
            return Started(confirmed, str(fields.get(int(Key.REPLICASET_UUID), "")))
        if is_snapshot and self._state is _State.ROWS:
            self._state = _State.ENDED
            self.index = confirmed
            return Finished(confirmed)
        return None

    def _ask(self) -> None:
        wanted = self._wanted
        fields: dict[int, Any] = {int(Key.INSTANCE_UUID): str(uuid.uuid4())}
        if wanted.spaces:
            fields[int(Key.SPACES)] = list(wanted.spaces)
        if wanted.replicaset:
            fields[int(Key.REPLICASET_UUID)] = wanted.replicaset
        if wanted.kind is Type.SUBSCRIBE:
            fields |= {int(Key.REPLICA_ANON): True, int(Key.INDEX): wanted.after}
        self._connection.stream(wanted.kind, fields)

    def _row(self, kind: int, header: dict[int, Any], body: bytes) -> FeedEvent | None:
        fields = unpack(body) if body else {}
        if self._wanted.kind is Type.FETCH_SNAPSHOT:
            return SnapshotTuple(fields[_SPACE], fields[_TUPLE])
        index = self.index + 1
        if kind == Type.NOP:
            self.index = index
            return None
        changed, operations = fields.get(_TUPLE), fields.get(_OPS)
        if kind == Type.UPDATE:
            changed, operations = None, changed
        base = fields.get(_BASE, 0)
        if base and operations:
            operations = [_from_zero(operation, base) for operation in operations]
        event = Changed(
            index,
            index - header.get(_TSN, 0),
            header.get(_TIME, 0.0),
            Type(kind),
            fields[_SPACE],
            changed,
            fields.get(_KEY),
            operations,
        )
        self.index = index  # an invalid row is not counted
        return event


def _from_zero(operation: list[Any], base: int) -> list[Any]:
    """Return an operation whose field counts from 0; a negative number counts from the end."""
    operator, field, *arguments = operation
    is_counted = isinstance(field, int) and field >= base
    return [operator, field - base if is_counted else field, *arguments]
