"""Idempotency keys: a retry with the same key gets the outcome of the first attempt.

A key is `[client, number, mark]`. The cluster remembers keys until its log has grown by a window,
by default 100,000 rows. The mark is an index of the log from shortly before the first attempt, so
the cluster can distinguish a new key from a forgotten one. `Keys` renews the mark: each answer to a
keyed write contains a newer index, and an idle client asks for one (`CALL qsync.mark`).
"""

import itertools
import os
from typing import NamedTuple

MARK_AGE_S = 1.0
"""Maximum age of a mark in a key, in seconds. The window is counted in rows: seconds under full
load."""


class RequestKey(NamedTuple):
    """An idempotency key: name of the client, number of the request, and mark."""

    client: str
    number: int
    mark: int


class Keys:
    """The keys of one client."""

    def __init__(self, client: str = "") -> None:
        """Create a source of keys.

        Args:
            client: name of the client, at most 64 characters. No two clients may share it, also
                not one after the other. "" draws a random name.
        """
        self.client = client or os.urandom(12).hex()
        self.mark = 0
        self._numbers = itertools.count(1)
        self._marked_s: float | None = None

    def is_stale(self, now_s: float) -> bool:
        """Return whether the next key needs a newer mark."""
        return self._marked_s is None or now_s - self._marked_s > MARK_AGE_S

    def renew(self, mark: int, asked_s: float) -> None:
        """Record a mark.

        Args:
            mark: an index of the log that the server returned.
            asked_s: time before the request that it answered.
        """
        self.mark = max(self.mark, mark)
        if self._marked_s is None or asked_s > self._marked_s:
            self._marked_s = asked_s

    def expire(self) -> None:
        """Forget the age of the mark, because the server reported that it has expired."""
        self._marked_s = None

    def next(self) -> RequestKey:
        """Return a key for one request."""
        return RequestKey(self.client, next(self._numbers), self.mark)
