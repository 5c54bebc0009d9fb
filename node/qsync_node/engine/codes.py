"""Protocol numbers that the engine uses, as plain integers.

Comparing an `IntEnum` member costs several times as much as comparing an `int`, and these are
compared for every statement.
"""

from typing import Final

from qsync_node.format.keys import Iterator, Key, Type

SELECT: Final = int(Type.SELECT)
INSERT: Final = int(Type.INSERT)
REPLACE: Final = int(Type.REPLACE)
UPDATE: Final = int(Type.UPDATE)
DELETE: Final = int(Type.DELETE)
UPSERT: Final = int(Type.UPSERT)
NOP: Final = int(Type.NOP)
CALL: Final = int(Type.CALL)

SPACE_ID: Final = int(Key.SPACE_ID)
INDEX_ID: Final = int(Key.INDEX_ID)
LIMIT: Final = int(Key.LIMIT)
OFFSET: Final = int(Key.OFFSET)
ITERATOR: Final = int(Key.ITERATOR)
INDEX_BASE: Final = int(Key.INDEX_BASE)
FETCH_POSITION: Final = int(Key.FETCH_POSITION)
TXN_ISOLATION: Final = int(Key.TXN_ISOLATION)
KEY: Final = int(Key.KEY)
TUPLE: Final = int(Key.TUPLE)
OPS: Final = int(Key.OPS)
AFTER_POSITION: Final = int(Key.AFTER_POSITION)
AFTER_TUPLE: Final = int(Key.AFTER_TUPLE)

EQ: Final = int(Iterator.EQ)
REQ: Final = int(Iterator.REQ)
ALL: Final = int(Iterator.ALL)
LT: Final = int(Iterator.LT)
LE: Final = int(Iterator.LE)
GE: Final = int(Iterator.GE)
GT: Final = int(Iterator.GT)

ITERATOR_NAMES: Final = tuple(iterator.name for iterator in Iterator)

# Error numbers of Tarantool that only the engine returns.
INDEX_PART_TYPE_MISMATCH: Final = 24
DROP_FUNCTION: Final = 53
INVALID_UUID: Final = 64
REPLICASET_UUID_IS_READ_ONLY: Final = 65
NO_SUCH_ROLE: Final = 82
ROLE_LOOP: Final = 87
GRANT: Final = 88
WRONG_INDEX_PARTS: Final = 107
WRONG_INDEX_OPTIONS: Final = 108
WRONG_SPACE_OPTIONS: Final = 111
UNSUPPORTED_INDEX_FEATURE: Final = 112
VIEW_IS_READ_ONLY: Final = 113
HASH_PARTIAL_KEY: Final = 136
TRUNCATE_SYSTEM_SPACE: Final = 137
WRONG_SPACE_FORMAT: Final = 141
CREATE_SEQUENCE: Final = 142
ALTER_SEQUENCE: Final = 143
DROP_SEQUENCE: Final = 144
NO_SUCH_SEQUENCE: Final = 145
SEQUENCE_OVERFLOW: Final = 147
DECIMAL_OVERFLOW: Final = 160
DROP_COLLATION: Final = 173
NO_SUCH_FIELD_NAME: Final = 201
ITERATOR_POSITION: Final = 251
