"""Bodies of log rows, without decoding them (data path), and the kinds of spaces.

The rows come from the log of a member, whose bodies are valid. `describe.space_of` also reads those
of files that may be damaged.
"""

from collections.abc import Collection
from typing import Any, Final

from qsync_client.protocol.markers import FIXINT_END, FIXMAP, UINT32, UINT_WIDTHS
from qsync_client.protocol.spaces import FIRST_USER_SPACE as FIRST_USER_SPACE  # noqa: PLC0414  # shared
from qsync_client.protocol.spaces import SPACE_ID_MAX
from qsync_node.format.keys import KEY_SPACE_ID, KEY_TUPLE, Key
from qsync_node.format.mp import unpack

_BODY_START: Final = KEY_SPACE_ID
_PUT_HEAD = bytes((FIXMAP | 2, KEY_SPACE_ID, UINT32))
_PUT_TUPLE = bytes((KEY_TUPLE,))


def space_of(body: bytes) -> int:
    """Return the space id of a row; it is the first field of nearly every body."""
    if body[1] == _BODY_START:
        head = body[2]
        if head < FIXINT_END:  # a fixint is its own value
            return head
        width = UINT_WIDTHS.get(head, 0)
        if width:
            return int.from_bytes(body[3 : 3 + width], "big")
    fields: dict[int, Any] = unpack(body)
    space: int = fields[Key.SPACE_ID]
    return space


def is_user_space(space_id: int) -> bool:
    return FIRST_USER_SPACE <= space_id <= SPACE_ID_MAX


def is_kept(space_id: int, spaces: Collection[int]) -> bool:
    """Return whether rows of a space are sent for the list `spaces`; an empty list means all."""
    return not spaces or space_id < FIRST_USER_SPACE or space_id in spaces


def space_mark(space_id: int, marker: int = UINT32) -> bytes:
    """Return the encoded field SPACE_ID, with the space in the form `marker`: UINT16 or UINT32."""
    return bytes((KEY_SPACE_ID, marker)) + space_id.to_bytes(UINT_WIDTHS[marker], "big")


def put_body(space_id: int, packed: bytes) -> bytes:
    """Return the body of INSERT and REPLACE in snapshots: a five-byte space id, then the tuple."""
    return _PUT_HEAD + space_id.to_bytes(4, "big") + _PUT_TUPLE + packed
