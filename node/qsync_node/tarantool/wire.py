"""Bodies of Tarantool's replication requests and answers, and the core's state of a session."""

from collections.abc import Iterator
from enum import Enum
from typing import Any
from uuid import UUID

from qsync_client.protocol.frame import encode_request
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import Key
from qsync_node.format.mp import BAD_MSGPACK, pack, unpack
from qsync_node.format.vclock import VClock, normalised

OK = 0


class WireStage(Enum):
    """Stage of a connection between its requests and its rows."""

    IDLE = "idle"
    JOINING = "joining"  # waits for its registration
    VIEW = "snapshot"
    LOADING = "loading"  # has got the view, and subscribes once it has loaded it
    WAITING = "waiting"  # for rows that this member has not confirmed yet
    ROWS = "rows"


class GatewaySession:
    """One connection of a Tarantool replica."""

    __slots__ = (
        "acked_index",
        "clock",
        "heartbeat_at_ns",
        "is_anonymous",
        "is_blocked",
        "is_confined",
        "is_reading",
        "number",
        "request",
        "rows",
        "sent_index",
        "spaces",
        "stage",
        "start_index",
        "sync",
        "touched_ns",
        "until_index",
        "user",
        "uuid",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.sync = 0
        self.request = 0
        self.user = ""
        self.uuid = ""
        self.is_anonymous = False
        self.spaces: frozenset[int] = frozenset()  # wanted user spaces; empty for all
        self.is_confined = False  # nothing but the listed spaces is sent
        self.stage = WireStage.IDLE
        self.clock: VClock = {}  # of the view in transfer, or where its rows begin
        self.rows: Iterator[bytes] = iter(())
        self.start_index: int | None = None  # the position that replaces the clock (F5)
        self.sent_index = 0
        self.until_index = 0  # REGISTER: where its rows end
        self.acked_index = 0
        self.is_blocked = False
        self.is_reading = False
        self.heartbeat_at_ns = 0
        self.touched_ns = 0


def ok_packet(sync: int, clock: VClock) -> bytes:
    return encode_request(OK, sync, pack({int(Key.VCLOCK): clock}))


def _malformed() -> ClientError:
    return ClientError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")


def read_fields(body: bytes) -> dict[int, Any]:
    """Return the map of a request.

    Raises:
        ClientError: the body is malformed (error 20).
    """
    if not body:
        return {}
    try:
        fields = unpack(body, strict_map_key=False)
    except BAD_MSGPACK:
        raise _malformed() from None
    if not isinstance(fields, dict):
        raise _malformed()
    return fields


def read_uuid(fields: dict[int, Any], key: Key) -> str:
    try:
        return str(UUID(fields.get(int(key))))
    except (ValueError, TypeError, AttributeError):
        raise _malformed() from None


def read_clock(fields: dict[int, Any]) -> VClock:
    """Return the replicated part of a clock: component 0 counts the replica's private rows."""
    clock = fields.get(int(Key.VCLOCK), {})
    if not isinstance(clock, dict):
        raise _malformed()
    for replica_id, lsn in clock.items():
        if type(replica_id) is not int or type(lsn) is not int or replica_id < 0 or lsn < 0:
            raise _malformed()
    return normalised({replica_id: lsn for replica_id, lsn in clock.items() if replica_id})


def read_spaces(fields: dict[int, Any]) -> frozenset[int]:
    """Return the ids of the user spaces that a subscriber wants; empty for all (F1)."""
    listed = fields.get(int(Key.SPACES), [])
    if not isinstance(listed, list) or any(type(space) is not int for space in listed):
        raise _malformed()
    return frozenset(listed)


def read_start(fields: dict[int, Any]) -> int | None:
    """Return the index after which a subscriber wants rows, or None if its clock counts (F5)."""
    index = fields.get(int(Key.INDEX))
    if index is None:
        return None
    if type(index) is not int or index < 0:
        raise _malformed()
    return index
