"""Numbers of the protocol for the node: shared enums, flags of log rows and plain constants.

`qsync_client.protocol.constants` defines the enums. Hot paths compare with the plain module
constants at the end: an `IntEnum` member compares through Python code and costs about three times
as much as an int.
"""

from enum import IntFlag
from typing import Final

from qsync_client.protocol.constants import Iterator as Iterator  # noqa: PLC0414  # shared
from qsync_client.protocol.constants import Key as Key  # noqa: PLC0414  # shared
from qsync_client.protocol.constants import Type as Type  # noqa: PLC0414  # shared


class Flag(IntFlag):
    """Bits of `Key.FLAGS`. The last row of a transaction has the WAIT_* bits."""

    COMMIT = 1
    WAIT_SYNC = 2
    WAIT_ACK = 4


SELECT: Final = int(Type.SELECT)
INSERT: Final = int(Type.INSERT)
REPLACE: Final = int(Type.REPLACE)
UPDATE: Final = int(Type.UPDATE)
DELETE: Final = int(Type.DELETE)
UPSERT: Final = int(Type.UPSERT)
NOP: Final = int(Type.NOP)
RAFT_PROMOTE: Final = int(Type.RAFT_PROMOTE)
RAFT_DEMOTE: Final = int(Type.RAFT_DEMOTE)
RAFT_CONFIRM: Final = int(Type.RAFT_CONFIRM)
RAFT_ROLLBACK: Final = int(Type.RAFT_ROLLBACK)
PING: Final = int(Type.PING)
CALL: Final = int(Type.CALL)
CHANGES: Final = frozenset({INSERT, REPLACE, UPDATE, DELETE, UPSERT})
"""Types of the requests and rows that change a tuple."""

KEY_TYPE: Final = int(Key.REQUEST_TYPE)
KEY_SYNC: Final = int(Key.SYNC)
KEY_REPLICA_ID: Final = int(Key.REPLICA_ID)
KEY_LSN: Final = int(Key.LSN)
KEY_TIMESTAMP: Final = int(Key.TIMESTAMP)
KEY_SCHEMA_VERSION: Final = int(Key.SCHEMA_VERSION)
KEY_GROUP_ID: Final = int(Key.GROUP_ID)
KEY_TSN: Final = int(Key.TSN)
KEY_FLAGS: Final = int(Key.FLAGS)
KEY_STREAM_ID: Final = int(Key.STREAM_ID)
KEY_SPACE_ID: Final = int(Key.SPACE_ID)
KEY_INDEX_ID: Final = int(Key.INDEX_ID)
KEY_LIMIT: Final = int(Key.LIMIT)
KEY_OFFSET: Final = int(Key.OFFSET)
KEY_ITERATOR: Final = int(Key.ITERATOR)
KEY_INDEX_BASE: Final = int(Key.INDEX_BASE)
KEY_FETCH_POSITION: Final = int(Key.FETCH_POSITION)
KEY_KEY: Final = int(Key.KEY)
KEY_TUPLE: Final = int(Key.TUPLE)
KEY_FUNCTION_NAME: Final = int(Key.FUNCTION_NAME)
KEY_OPS: Final = int(Key.OPS)
KEY_TUPLE_META: Final = int(Key.TUPLE_META)
KEY_AFTER_POSITION: Final = int(Key.AFTER_POSITION)
KEY_AFTER_TUPLE: Final = int(Key.AFTER_TUPLE)
KEY_DATA: Final = int(Key.DATA)
KEY_ERROR_24: Final = int(Key.ERROR_24)
KEY_POSITION: Final = int(Key.POSITION)
KEY_ERROR: Final = int(Key.ERROR)
KEY_TIMEOUT: Final = int(Key.TIMEOUT)
KEY_TXN_ISOLATION: Final = int(Key.TXN_ISOLATION)
KEY_IDEMPOTENCY: Final = int(Key.IDEMPOTENCY)
KEY_INDEX: Final = int(Key.INDEX)

EQ: Final = int(Iterator.EQ)
REQ: Final = int(Iterator.REQ)
ALL: Final = int(Iterator.ALL)
LT: Final = int(Iterator.LT)
LE: Final = int(Iterator.LE)
GE: Final = int(Iterator.GE)
GT: Final = int(Iterator.GT)
ITERATOR_NAMES: Final = tuple(iterator.name for iterator in Iterator)

FLAG_COMMIT: Final = int(Flag.COMMIT)
FLAG_WAIT_SYNC: Final = int(Flag.WAIT_SYNC)
FLAG_WAIT_ACK: Final = int(Flag.WAIT_ACK)
SYNC_FLAGS: Final = FLAG_WAIT_SYNC | FLAG_WAIT_ACK
"""Flags of the last row of a synchronous transaction."""
