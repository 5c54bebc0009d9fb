"""Bodies of log rows, without decoding them (data path), and the kinds of spaces.

The rows come from the log of a member, whose bodies are valid. `describe.space_of` also reads those
of files that may be damaged.
"""

from collections.abc import Collection
from typing import Any

from qsync_client.protocol.spaces import FIRST_USER_SPACE as FIRST_USER_SPACE  # noqa: PLC0414  # shared
from qsync_client.protocol.spaces import SPACE_ID_MAX
from qsync_node.format.keys import Key
from qsync_node.format.mp import unpack

_BODY_START = 0x10
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def space_of(body: bytes) -> int:
    """Return the space id of a row; it is the first field of nearly every body."""
    if body[1] == _BODY_START:
        head = body[2]
        if head < 0x80:  # a fixint is its own value
            return head
        width = _WIDTHS.get(head, 0)
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
