"""Idempotency keys: a retry with the same key gets the outcome of the first attempt.

A key is `[client, number, mark]`. The cluster remembers keys until its log has grown by a window,
by default 100,000 rows. The mark is an index of the log from shortly before the first attempt, so
the cluster can distinguish a new key from a forgotten one. `Keys` renews the mark: each answer to a
keyed write contains a newer index, and an idle client asks for one (`CALL qsync.mark`).
"""

import itertools
import os
from typing import NamedTuple

from qsync_client.errors import InvalidArgument
from qsync_client.protocol.constants import CLIENT_BYTES_MAX

MARK_AGE_S = 1.0
"""Maximum age of a mark in a key, in seconds. The window is counted in rows: seconds under full
load."""
_SUFFIX_BYTES = 8
CLIENT_ID_MAX = CLIENT_BYTES_MAX - len("-") - 2 * _SUFFIX_BYTES
"""Maximum length of `client_id`, which a random suffix follows."""


class RequestKey(NamedTuple):
    """An idempotency key: name of the client, number of the request, and mark."""

    client: str
    number: int
    mark: int


class FirstUse(NamedTuple):
    """A key that no attempt has used, neither of this process nor of another one.

    A write with it is known to be refused if its first attempt is.

    Attributes:
        key: the key, drawn by `new_key`. Repeat the write with the key alone.
    """

    key: RequestKey


GivenKey = RequestKey | FirstUse


def checked_key(key: RequestKey) -> RequestKey:
    """Return a key of the caller.

    Raises:
        InvalidArgument: the server would not accept it.
    """
    try:
        client, number, mark = key
        is_valid = isinstance(client, str) and len(client.encode()) > 0
        is_valid = is_valid and len(client) <= CLIENT_BYTES_MAX
        is_valid = is_valid and all(
            type(one) is int and 0 <= one < 1 << 64 for one in (number, mark)
        )
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InvalidArgument("request_key is invalid: use a RequestKey that new_key() returned")
    return RequestKey(client, number, mark)


class Keys:
    """The keys of one client.

    A name is drawn at its first use, and again in each process: two processes that share a client
    by fork must not draw the same keys.
    """

    def __init__(self, client: str = "") -> None:
        """Create a source of keys.

        Args:
            client: first part of the name, at most `CLIENT_ID_MAX` characters. A random suffix
                follows, so that a restarted client does not draw the keys of its predecessor.

        Raises:
            InvalidArgument: `client` is too long.
        """
        if len(client) > CLIENT_ID_MAX:
            raise InvalidArgument(
                f"client_id has {len(client)} characters: use at most {CLIENT_ID_MAX}, "
                "because a random suffix follows"
            )
        self._prefix = f"{client}-" if client else ""
        self._name = ""
        self._process = 0
        self.mark = 0
        self._numbers = itertools.count(1)
        self._marked_s: float | None = None
        self._may_fall = False

    @property
    def client(self) -> str:
        """Return the name of the client in this process."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._name = self._prefix + os.urandom(_SUFFIX_BYTES).hex()
            self._numbers = itertools.count(1)
        return self._name

    def is_stale(self, now_s: float) -> bool:
        """Return whether the next key needs a newer mark."""
        return self._marked_s is None or now_s - self._marked_s > MARK_AGE_S

    def renew(self, mark: int, asked_s: float) -> None:
        """Record a mark.

        Args:
            mark: an index of the log that the server returned.
            asked_s: time before the request that it answered.
        """
        if mark < self.mark and not self._may_fall:
            return  # a late answer does not show that the mark is recent
        self.mark = mark
        self._may_fall = False
        if self._marked_s is None or asked_s > self._marked_s:
            self._marked_s = asked_s

    def expire(self) -> None:
        """Forget the age of the mark, because the server reported that it has expired."""
        self._marked_s = None

    def distrust(self) -> None:
        """Take the next mark even if it is lower: it may be of another cluster."""
        self._marked_s = None
        self._may_fall = True

    def next(self) -> RequestKey:
        """Return a key for one request."""
        client = self.client  # a new name restarts the numbers
        return RequestKey(client, next(self._numbers), self.mark)
