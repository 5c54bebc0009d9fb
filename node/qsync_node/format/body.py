"""Bodies of log rows, without decoding them (data path).

The rows come from the log of a member, whose bodies are valid. `describe.space_of` also reads those
of files that may be damaged.
"""

from typing import Any

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
