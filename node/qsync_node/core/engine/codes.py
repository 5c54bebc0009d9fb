"""Protocol numbers the engine meets, as plain integers.

Comparing an `IntEnum` member costs several times what comparing an `int` does, and these are
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

SPACE_ID: Final = int(Key.SPACE_ID)
INDEX_ID: Final = int(Key.INDEX_ID)
LIMIT: Final = int(Key.LIMIT)
OFFSET: Final = int(Key.OFFSET)
ITERATOR: Final = int(Key.ITERATOR)
INDEX_BASE: Final = int(Key.INDEX_BASE)
FETCH_POSITION: Final = int(Key.FETCH_POSITION)
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
