"""Numbers of the protocol for the node: shared enums, flags of log rows and plain constants.

`qsync_client.protocol.constants` defines the enums. Hot paths compare with the plain module
constants at the end: an `IntEnum` member compares through Python code and costs about three times
as much as an int.
"""

from enum import IntFlag

from qsync_client.protocol.constants import Iterator as Iterator  # noqa: PLC0414  # shared
from qsync_client.protocol.constants import Key as Key  # noqa: PLC0414  # shared
from qsync_client.protocol.constants import Type as Type  # noqa: PLC0414  # shared


class Flag(IntFlag):
    """Bits of `Key.FLAGS`. The last row of a transaction has the WAIT_* bits."""

    COMMIT = 1
    WAIT_SYNC = 2
    WAIT_ACK = 4


SELECT = 1
INSERT = 2
REPLACE = 3
UPDATE = 4
DELETE = 5
UPSERT = 9
NOP = 12
RAFT_PROMOTE = 31
RAFT_DEMOTE = 32
RAFT_CONFIRM = 40
RAFT_ROLLBACK = 41
PING = 64

KEY_TYPE = 0x00
KEY_SYNC = 0x01
KEY_REPLICA_ID = 0x02
KEY_LSN = 0x03
KEY_TIMESTAMP = 0x04
KEY_SCHEMA_VERSION = 0x05
KEY_GROUP_ID = 0x07
KEY_TSN = 0x08
KEY_FLAGS = 0x09
KEY_STREAM_ID = 0x0A
KEY_SPACE_ID = 0x10
KEY_TUPLE = 0x21
KEY_DATA = 0x30
KEY_ERROR_24 = 0x31
KEY_ERROR = 0x52
KEY_TUPLE_META = 0x2A
KEY_IDEMPOTENCY = 0x70

FLAG_COMMIT = 1
FLAG_WAIT_SYNC = 2
FLAG_WAIT_ACK = 4
