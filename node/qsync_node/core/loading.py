"""A state that is built from the rows of a snapshot, at once or chunk by chunk.

Recovery loads all rows at once. A replica that takes another member's snapshot loads each chunk on
arrival, beside its own state, which it replaces when the transfer is complete. No step therefore
loads more than a chunk (G1), and no copy of the encoded rows is kept.
"""

import zlib
from collections.abc import Iterable

from qsync_node.core.engine.database import Database
from qsync_node.core.history import TermStart
from qsync_node.core.keys import KeyTable
from qsync_node.core.system import KEY_WINDOW_ROWS, read_key_body, read_term_body


class StateLoader:
    """Database, idempotency keys and history of terms from the rows loaded so far."""

    __slots__ = ("checksum", "database", "keys", "rows", "starts")

    def __init__(self) -> None:
        self.database = Database()
        self.keys = KeyTable(KEY_WINDOW_ROWS)  # until the window of the state is known
        self.starts: list[TermStart] = []
        self.rows = 0
        self.checksum = 0

    def add(self, bodies: Iterable[bytes]) -> None:
        """Load row bodies in the order of the snapshot.

        Raises:
            ClientError: a row does not fit the rows before it; the loader must then be discarded.
        """
        for body in bodies:
            self.checksum = zlib.crc32(body, self.checksum)
            self.rows += 1
            start = read_term_body(body)
            if start is not None:
                self.starts.append(start)
                continue
            key = read_key_body(body)
            if key is not None:
                self.keys.put(*key)
                continue
            self.database.load(body)

    def id_of_space(self, name: str) -> int | None:
        """Return the id of a loaded space, or None."""
        return self.database.id_of_space(name)
