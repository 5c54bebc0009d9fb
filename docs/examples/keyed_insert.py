"""Insert one row exactly once through an unmodified connector (tarantool-python).

python keyed_insert.py USER PASSWORD HOST:PORT...
"""

import sys
import time
import uuid
from typing import Any

import tarantool
from tarantool.error import DatabaseError, NetworkError
from tarantool.request import RequestInsert

KEY, INDEX = 0x70, 0x71
REPEAT = {7, 116, 226, 295}  # read-only, loading, no leader, and unknown
WRONG_PASSWORD = 47  # tarantool-python raises it as the cause of a NetworkError


class KeyedInsert(RequestInsert):
    """An INSERT whose header contains an idempotency key."""

    key: list[Any]

    def header(self, length: int) -> bytes:
        self._sync = self.conn.generate_sync()
        header = self._dumps({0x00: self.request_type, 0x01: self._sync, KEY: self.key})
        return self._dumps(length + len(header)) + header


def insert_once(
    addresses: list[str], user: str, password: str, space: str, row: list[Any], deadline_s: float
) -> int:
    """Insert a row, and return the log index of the write, or 0 if the outcome stays unknown."""
    key: list[Any] = []
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        for address in addresses:
            host, port = address.rsplit(":", 1)
            try:
                connection = tarantool.Connection(
                    host, int(port), user=user, password=password,
                    reconnect_max_attempts=0, socket_timeout=2,
                )  # fmt: skip
                if not key:  # once for this write: each retry repeats all three parts
                    key = [uuid.uuid4().hex, 1, connection.call("qsync.mark")[0]]
                sid = connection.schema.get_space(space).sid
                request = KeyedInsert(connection, sid, row)
                request.key = key
                return int(connection._send_request(request)._body[INDEX])
            except NetworkError as error:
                if getattr(error.__cause__, "code", None) == WRONG_PASSWORD:
                    raise  # otherwise unknown: the next attempt has the same key
            except DatabaseError as error:
                if error.code not in REPEAT:
                    raise
        time.sleep(0.1)  # an election takes longer than a refused attempt
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: keyed_insert.py USER PASSWORD HOST:PORT...")
    user, password, *addresses = sys.argv[1:]
    try:
        at = insert_once(addresses, user, password, "accounts", [1, 100], 30)
    except (DatabaseError, NetworkError) as error:
        sys.exit(f"the insert failed: {error}")
    if not at:
        sys.exit("still unknown")
    print(f"committed at {at}")
