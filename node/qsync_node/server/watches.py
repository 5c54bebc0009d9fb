"""The keys that one client watches, without input and output.

    state of a key   event                                              next state
    unwatched        WATCH: the value is sent                           NOTIFIED
    NOTIFIED         WATCH, which acknowledges the event; the value     CURRENT
                     has not changed since
    NOTIFIED         WATCH; a newer value is sent                       NOTIFIED
    CURRENT          the value changes: it is sent                      NOTIFIED
    any              UNWATCH                                            unwatched

A slow client therefore has at most one event per key in its buffers.
"""

from enum import Enum, auto

from qsync_client.protocol.constants import Key, Type
from qsync_node.format.frame import encode_answer
from qsync_node.format.mp import pack, pack_map_head

WATCHED_KEY_MAX = 256
WATCHED_KEYS_MAX = 1024
_EVENT_KEY, _EVENT_DATA = int(Key.EVENT_KEY), int(Key.EVENT_DATA)


class KeyState(Enum):
    """States of a watched key."""

    CURRENT = auto()
    NOTIFIED = auto()


class Watches:
    """The keys that one client watches."""

    def __init__(self) -> None:
        self._states: dict[str, KeyState] = {}
        self._syncs: dict[str, int] = {}  # of the last WATCH of each key; its event carries it
        self._sent: dict[str, bytes | None] = {}  # the last value of each key that was sent

    def __contains__(self, key: str) -> bool:
        return key in self._states

    def is_full(self) -> bool:
        """Return whether no further key may be watched."""
        return len(self._states) >= WATCHED_KEYS_MAX

    def watch(self, key: str, sync: int) -> None:
        """Note a WATCH, which also acknowledges the last event of the key."""
        self._states[key] = KeyState.CURRENT
        self._syncs[key] = sync

    def unwatch(self, key: str) -> None:
        self._states.pop(key, None)
        self._syncs.pop(key, None)
        self._sent.pop(key, None)

    def has_received(self, key: str, value: bytes) -> bool:
        """Return whether a value of a key is the last one that was sent."""
        return self._sent.get(key) == value

    def may_notify(self, key: str) -> bool:
        """Return whether the client watches the key and has acknowledged its last event."""
        return self._states.get(key) is KeyState.CURRENT

    def event(self, key: str, value: bytes | None, schema_version: int) -> bytes:
        """Return the packet with a value; the next one waits for the client's acknowledgement.

        Args:
            key: a key that may be notified.
            value: the value as msgpack, or None if the key does not exist.
            schema_version: version of the schema, for the header.
        """
        assert self._states[key] is KeyState.CURRENT, f"the last event of {key} is unacknowledged"
        self._states[key] = KeyState.NOTIFIED
        self._sent[key] = value
        parts = [pack_map_head(1 if value is None else 2), pack(_EVENT_KEY), pack(key)]
        if value is not None:
            parts += (pack(_EVENT_DATA), value)
        return encode_answer(int(Type.EVENT), self._syncs[key], schema_version, b"".join(parts))
