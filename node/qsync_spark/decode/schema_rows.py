"""Checks whether an auditor can read a row of a system space (pure).

The driver relies on rows of members, spaces and indexes, so their required content is checked when
they are read. A node writes no other rows.
"""

from typing import Any, Final

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.keys import DELETE, INSERT, REPLACE, Key

SCHEMA: Final = int(SystemSpace.SCHEMA)
SPACE: Final = int(SystemSpace.SPACE)
INDEX: Final = int(SystemSpace.INDEX)
CLUSTER: Final = int(SystemSpace.CLUSTER)
TRUNCATE: Final = int(SystemSpace.TRUNCATE)
SEQUENCE: Final = int(SystemSpace.SEQUENCE)
SEQUENCE_DATA: Final = int(SystemSpace.SEQUENCE_DATA)
PRIV: Final = int(SystemSpace.PRIV)
SPACE_SEQUENCE: Final = int(SystemSpace.SPACE_SEQUENCE)
TERMS: Final = int(SystemSpace.QSYNC_TERM)
KEYS: Final = int(SystemSpace.QSYNC_KEY)
REMOVED: Final = int(SystemSpace.QSYNC_REMOVED)
VERSIONED = (SPACE, INDEX, PRIV, SPACE_SEQUENCE)
"""Spaces whose rows increment the version of the schema."""
SCHEMA_VERSION_KEY = "qsync_schema_version"
RESTORED_KEY = "qsync_restored"
KEY_WINDOW_KEY = "qsync_key_window"


def is_readable(space: int, row_type: int, body: object) -> bool:
    """Return whether a row of `space` with the decoded `body` is valid."""
    if not isinstance(body, dict):
        return False
    if row_type in (INSERT, REPLACE) or Key.OPS in body:
        fields = body.get(Key.TUPLE)
        return isinstance(fields, list) and _is_tuple(space, fields)
    key = body.get(Key.KEY)
    if space == SCHEMA:
        return isinstance(key, list) and bool(key)
    parts = 2 if space == INDEX and row_type == DELETE else 1
    return isinstance(key, list) and len(key) >= parts and _are_ids(key[:parts])


def _is_tuple(space: int, fields: list[Any]) -> bool:
    if space == SCHEMA:
        if fields[:1] == [KEY_WINDOW_KEY]:
            return len(fields) == 3 and _are_ids(fields[1:])
        if fields[:1] != [RESTORED_KEY]:
            return bool(fields)
        point = fields[1] if len(fields) > 1 else None
        return isinstance(point, list) and len(point) > 1 and _are_ids(point[1:2])
    if space == CLUSTER:
        return len(fields) > 1 and _are_ids(fields[:1]) and isinstance(fields[1], str)
    if space == TERMS:
        return len(fields) == 3 and _are_ids(fields)
    if space == SEQUENCE:
        return len(fields) > 8 and _are_ids(fields[:1]) and _are_numbers(fields[3:6])
    if space == SPACE_SEQUENCE:
        return len(fields) > 2 and _are_ids([*fields[:2], *fields[3:4]])
    if space == INDEX:
        return len(fields) > 5 and _are_ids(fields[:2]) and _are_parts(fields[5])
    return bool(fields) and (space not in (SPACE, TRUNCATE) or _are_ids(fields[:1]))


def _are_parts(parts: object) -> bool:
    if not isinstance(parts, list):
        return False
    numbers = []
    for part in parts:
        if isinstance(part, dict):
            numbers.append(part.get("field"))
        elif isinstance(part, list) and part:
            numbers.append(part[0])
        else:
            return False
    return _are_ids(numbers)


def _are_numbers(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)
