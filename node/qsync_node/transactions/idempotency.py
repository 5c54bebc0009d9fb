"""Idempotency keys: a retry gets the outcome of the first attempt and never runs twice (T9).

A key is `[client, number, mark]`: the client, the number of its request, and a mark. The mark is an
index of the log that the server issued before the first attempt; each retry repeats it. In the log
the key's row carries `[client, number, mark, digest]`. The digest is that of the request. For a
COMMIT it covers every request of its transaction, because COMMIT itself has no body that could
distinguish two transactions. The state remembers a key with its index until the log has grown by
the window. A request with a mark from before the window cannot be answered either way: it is
*unknown* and never runs.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from qsync_client.protocol.constants import CLIENT_BYTES_MAX
from qsync_node.errors import ClientError, ErrorCode

EXPIRED_MAX = 16
"""Keys that expire with one new key. More than one, so that a smaller window takes effect soon."""


def digest_of(body: bytes) -> int:
    """Return the digest of a request that is a transaction of its own."""
    return zlib.crc32(body)


def digest_of_next(digest: int, kind: int, body: bytes) -> int:
    """Return the digest of a transaction's requests so far and one more, of type `kind`."""
    return zlib.crc32(body, zlib.crc32(b"%d %d " % (kind, len(body)), digest))


def check_key(key: object) -> Sequence[Any]:
    """Return a valid key: the client, its number and its mark.

    Raises:
        ClientError: `key` is something else.
    """
    well_formed = (
        isinstance(key, (list, tuple))
        and len(key) == 3
        and isinstance(key[0], str)
        and len(key[0]) <= CLIENT_BYTES_MAX
        and all(type(part) is int and 0 <= part < 1 << 64 for part in key[1:])
    )
    if not well_formed or not isinstance(key, list | tuple):
        raise ClientError(
            ErrorCode.ILLEGAL_PARAMS,
            "the idempotency key is invalid: it must be [client, number, mark]",
        )
    return key


KeyEntry: TypeAlias = tuple[tuple[str, int], tuple[int, int]]
"""A client and its number, with the digest of the request and the index of its row."""
CHUNK_KEYS = 4_096


class KeyTable:
    """Keys of confirmed transactions, oldest first.

    The order is kept in chunks. A view shares all of them except the first and the last, so it
    costs little even if the window has millions of rows (G1). For that reason a chunk never
    changes once another one follows: a key that is remembered again leaves by a copy of its chunk.
    """

    def __init__(self, window_rows: int, floor: int = 0) -> None:
        """Begin with the window of the replicated state, never with a local setting."""
        self.window_rows = window_rows
        self.floor = floor  # marks before it stay expired even if the window grows
        self._by_key: dict[tuple[str, int], tuple[int, int]] = {}
        self._chunks: list[list[KeyEntry]] = [[]]
        self._expired = 0  # keys at the beginning of the first chunk that have expired

    def __len__(self) -> int:
        return len(self._by_key)

    def row_key(self, key: Sequence[Any], digest: int) -> list[Any]:
        """Return the form of the key that a row carries."""
        return [key[0], key[1], key[2], digest]

    def remember(self, row_key: Any, index: int) -> None:
        """Record the key of a transaction confirmed at `index`, and expire some of the oldest."""
        client, number, _, digest = row_key
        assert index > 0, "T9: a key is remembered with the index of its row"
        self.put((client, number), (digest, index))
        oldest = index - self.window_rows
        for _ in range(EXPIRED_MAX):
            if not self._expire_first(oldest):
                break

    def put(self, key: tuple[str, int], value: tuple[int, int]) -> None:
        """Record a key whose row comes after those of all others."""
        if key in self._by_key:
            self._remove(key, self._by_key[key][1])
        self._by_key[key] = value
        if len(self._chunks[-1]) >= CHUNK_KEYS:
            self._chunks.append([])
        self._chunks[-1].append((key, value))

    def _remove(self, key: tuple[str, int], index: int) -> None:
        place = max(bisect_right(self._chunks, index, key=_first_index) - 1, 0)
        first = self._expired if place == 0 else 0
        self._chunks[place] = [one for one in self._chunks[place][first:] if one[0] != key]
        if place == 0:
            self._expired = 0
        self._drop_empty(place)

    def _expire_first(self, oldest: int) -> bool:
        """Forget the first key if its row is before `oldest`, and return whether it was."""
        chunk = self._chunks[0]
        if self._expired == len(chunk) or chunk[self._expired][1][1] >= oldest:
            return False
        del self._by_key[chunk[self._expired][0]]
        self._expired += 1
        if self._expired == len(chunk) and len(self._chunks) > 1:
            del self._chunks[0]
            self._expired = 0
        return True

    def _drop_empty(self, place: int) -> None:
        if not self._chunks[place] and len(self._chunks) > 1:
            del self._chunks[place]

    def set_window(self, rows: int, floor: int) -> None:
        """Apply a confirmed change of the window; its start only moves forward."""
        assert rows > 0, "T9: the window has rows"
        self.window_rows = rows
        self.floor = max(self.floor, floor)

    def start_of_window(self, index: int) -> int:
        """Return the first mark that is not expired when the log ends at `index`."""
        return max(self.floor, index - self.window_rows)

    def items(self) -> Iterator[KeyEntry]:
        """Yield all keys, oldest first, as they are now."""
        for chunk in self.view():
            yield from chunk

    def view(self) -> list[Iterable[KeyEntry]]:
        """Return all keys, oldest first, in chunks that never change."""
        view: list[Iterable[KeyEntry]] = [*self._chunks]
        view[-1] = self._chunks[-1].copy()
        view[0] = self._chunks[0][self._expired :]
        return view

    def find(self, key: Sequence[Any], wanted: int, confirmed_index: int) -> int | None:
        """Return the index of the confirmed first attempt with digest `wanted`, or None.

        Raises:
            ClientError: the key is reused, or its mark is from before the window.
        """
        found = self._by_key.get((key[0], key[1]))
        if found is not None:
            digest, index = found
            if digest != wanted:
                raise ClientError(
                    ErrorCode.KEY_REUSED,
                    "the idempotency key was already used for another request: use a new number",
                )
            return index
        if key[2] < self.start_of_window(confirmed_index):
            raise ClientError(
                ErrorCode.KEY_EXPIRED,
                "the outcome is unknown: the idempotency key is older than the window; "
                "read the data before you retry with a new mark",
            )
        return None


def _first_index(chunk: list[KeyEntry]) -> int:
    return chunk[0][1][1]
