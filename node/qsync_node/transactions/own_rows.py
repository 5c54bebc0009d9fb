"""Qsync's own system spaces, and the rows that carry a snapshot's metadata (S2).

`_qsync_term` (490) holds the history of terms and `_qsync_key` (491) the idempotency keys. Both
exist in snapshots only, because a running node derives them from the log. `_qsync_removed` (492)
holds the UUIDs of removed instances (M5). `_schema` holds the plan of the bootstrap, whether the
cluster is open and the window of idempotency keys (T9). In a restored cluster it also holds the
source replica set and the index up to which the cluster was restored.
"""

from typing import TYPE_CHECKING, Any, Final

from qsync_client.protocol.markers import UINT16
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus.history import TermStart
from qsync_node.consensus.membership import CLUSTER_SPACE, REMOVED_SPACE
from qsync_node.format.body import put_body, space_mark
from qsync_node.format.keys import INSERT, KEY_TUPLE, REPLACE, Key
from qsync_node.format.mp import BAD_MSGPACK, pack, pack_map_head, unpack

if TYPE_CHECKING:
    from qsync_node.engine.database import Database

TERM_SPACE: Final = int(SystemSpace.QSYNC_TERM)
KEY_SPACE: Final = int(SystemSpace.QSYNC_KEY)
PLAN_KEY = "qsync_plan"
OPEN_KEY = "qsync_open"
RESTORED_KEY = "qsync_restored"
KEY_WINDOW_KEY = "qsync_key_window"
KEY_WINDOW_ROWS = 100_000
"""Default number of log rows for which an idempotency key is remembered (T9)."""

SCHEMA_SPACE: Final = int(SystemSpace.SCHEMA)
PRIVATE_SPACES = frozenset({TERM_SPACE, KEY_SPACE, REMOVED_SPACE})
OWN_SPACES = PRIVATE_SPACES | {CLUSTER_SPACE}
"""Spaces that only the node writes: their rows determine the counted members (M2)."""

_SPACE, _INDEX = int(SystemSpace.SPACE), int(SystemSpace.INDEX)
_SCHEMA = SCHEMA_SPACE
_OWN_MARKS = (PLAN_KEY, OPEN_KEY, RESTORED_KEY, KEY_WINDOW_KEY)
_TERM_MARK = pack_map_head(2) + space_mark(TERM_SPACE)
_KEY_WINDOW_MARK: bytes = pack_map_head(2) + space_mark(SCHEMA_SPACE, UINT16) + pack(KEY_TUPLE)
_KEY_MARK = pack_map_head(2) + space_mark(KEY_SPACE)
_TUPLE_OFFSET = len(_TERM_MARK) + 1


def _insert(space: int, fields: list[Any]) -> bytes:
    return put_body(space, pack(fields))


def define_own_spaces(
    database: "Database", planned_voters: int, key_window_rows: int = KEY_WINDOW_ROWS
) -> None:
    """Add Qsync's own spaces and rows to those of Tarantool's bootstrap."""
    definitions: list[tuple[int, str, list[list[str]], list[list[Any]]]] = [
        (
            TERM_SPACE,
            SystemSpace.QSYNC_TERM.space_name,
            [["term", "unsigned"], ["owner", "unsigned"], ["first_index", "unsigned"]],
            [[0, "unsigned"]],
        ),
        (
            KEY_SPACE,
            SystemSpace.QSYNC_KEY.space_name,
            [
                ["client", "string"],
                ["number", "unsigned"],
                ["digest", "unsigned"],
                ["index", "unsigned"],
            ],
            [[0, "string"], [1, "unsigned"]],
        ),
        (
            REMOVED_SPACE,
            SystemSpace.QSYNC_REMOVED.space_name,
            [["uuid", "string"], ["id", "unsigned"]],
            [[0, "string"]],
        ),
    ]
    for space, name, fields, parts in definitions:
        layout = [{"name": field, "type": kind} for field, kind in fields]
        database.apply(INSERT, _insert(_SPACE, [space, 1, name, "memtx", 0, {}, layout]))
        database.apply(
            INSERT, _insert(_INDEX, [space, 0, "primary", "tree", {"unique": True}, parts])
        )
    database.apply(INSERT, _insert(_SCHEMA, [PLAN_KEY, planned_voters]))
    database.apply(REPLACE, body_of_key_window(key_window_rows, 0))


def rows_of(database: "Database", space_id: int) -> list[list[Any]]:
    """Return the decoded tuples of a small system space, by primary key."""
    space = database.find_space(space_id)
    if space is None:
        return []
    return [unpack(packed) for _, packed in space.indexes[0].entries()]


def schema_value(database: "Database", name: str) -> Any:
    """Return the value of `name` in `_schema`, or None."""
    for fields in rows_of(database, _SCHEMA):
        if fields[0] == name:
            return fields[1]
    return None


def body_of_key_window(rows: int, floor: int) -> bytes:
    """Return the row that sets the window to `rows` and expires marks before index `floor`."""
    packed: bytes = pack([KEY_WINDOW_KEY, rows, floor])
    return _KEY_WINDOW_MARK + packed


def read_key_window_body(body: bytes) -> tuple[int, int] | None:
    """Return (rows, floor) of a row made by `body_of_key_window`, None for any other row."""
    if not body.startswith(_KEY_WINDOW_MARK):
        return None
    fields = unpack(body[len(_KEY_WINDOW_MARK) :])
    return (fields[1], fields[2]) if fields[0] == KEY_WINDOW_KEY else None


def key_window_of(database: "Database") -> tuple[int, int]:
    """Return (rows, floor) of the window in the state."""
    for fields in rows_of(database, _SCHEMA):
        if fields[0] == KEY_WINDOW_KEY:
            return fields[1], fields[2]
    return KEY_WINDOW_ROWS, 0


def is_own_mark(body: bytes) -> bool:
    """Return whether a row of `_schema` belongs to Qsync; one that cannot be decoded may."""
    try:
        fields = unpack(body)
    except BAD_MSGPACK:
        return True
    key = fields.get(Key.TUPLE if fields.get(Key.KEY) is None else Key.KEY)
    return bool(key) and key[0] in _OWN_MARKS


def body_of_term(start: TermStart) -> bytes:
    return _insert(TERM_SPACE, list(start))


def read_term_body(body: bytes) -> TermStart | None:
    if not body.startswith(_TERM_MARK):
        return None
    return TermStart(*unpack(body[_TUPLE_OFFSET:]))


def body_of_key(key: tuple[str, int], value: tuple[int, int]) -> bytes:
    return _insert(KEY_SPACE, [*key, *value])


def read_key_body(body: bytes) -> tuple[tuple[str, int], tuple[int, int]] | None:
    if not body.startswith(_KEY_MARK):
        return None
    client, number, digest, index = unpack(body[_TUPLE_OFFSET:])
    return (client, number), (digest, index)
