"""The index of a journal's fragments: local ones on this broker's disk, and persisted ones.

Fragments overlap where several brokers persisted the same bytes. A fragment inside of another one
is left out, so that begins and ends both rise, and a look-up is a bisection.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from qsync_broker.operations import NO_SUM, CompletedSpool


class LocalFragment(NamedTuple):
    """A completed spool on this broker's disk, all of whose bytes are visible."""

    begin: int
    end: int
    sum: bytes = NO_SUM
    codec: int = 1
    first_append: int = 0

    @classmethod
    def of(cls, spool: CompletedSpool) -> "LocalFragment":
        """Return the fragment of a completed spool."""
        return cls(spool.key.begin, spool.end, spool.sum, spool.codec, spool.first_append)


class RemoteFragment(NamedTuple):
    """A persisted fragment.

    Attributes:
        begin: offset of its first byte.
        end: offset after its last byte.
        sum: SHA-1 of its bytes.
        codec: codec that it is stored with.
        store: URL of its store.
        path: path below the store's URL.
        mod_time: Unix time of its persistence in seconds.
    """

    begin: int
    end: int
    sum: bytes
    codec: int
    store: str
    path: str
    mod_time: int

    @property
    def place(self) -> str:
        """Return the URL of the object."""
        return self.store + self.path


class RemoteIndex:
    """The persisted fragments of a journal, in ascending order."""

    def __init__(self) -> None:
        self._fragments: list[RemoteFragment] = []
        self._begins: list[int] = []

    def __len__(self) -> int:
        return len(self._fragments)

    def __iter__(self) -> Iterator[RemoteFragment]:
        return iter(self._fragments)

    @property
    def begin(self) -> int | None:
        """Return the offset of the first persisted byte, or None without any."""
        return self._begins[0] if self._begins else None

    @property
    def end(self) -> int:
        """Return the offset after the last persisted byte."""
        return self._fragments[-1].end if self._fragments else 0

    @property
    def mod_time(self) -> int:
        """Return the time at which the last bytes were persisted, or 0 without any."""
        return self._fragments[-1].mod_time if self._fragments else 0

    def replace(self, fragments: Iterable[RemoteFragment]) -> None:
        """Take a listing over."""
        kept: list[RemoteFragment] = []
        for fragment in sorted(fragments, key=lambda one: (one.begin, -one.end)):
            if fragment.end > fragment.begin and (not kept or fragment.end > kept[-1].end):
                kept.append(fragment)
        self._fragments = kept
        self._begins = [fragment.begin for fragment in kept]

    def add(self, fragment: RemoteFragment) -> None:
        """Add a fragment that was persisted after the last listing."""
        self.replace([*self._fragments, fragment])

    def find(self, offset: int) -> RemoteFragment | None:
        """Return the fragment with the greatest end that covers an offset."""
        at = bisect_right(self._begins, offset) - 1
        if at < 0 or self._fragments[at].end <= offset:
            return None
        return self._fragments[at]

    def after(self, offset: int) -> RemoteFragment | None:
        """Return the first fragment that begins after an offset."""
        at = bisect_right(self._begins, offset)
        return self._fragments[at] if at < len(self._fragments) else None

    def covers(self, begin: int, end: int) -> bool:
        """Return whether all bytes between two offsets are persisted."""
        while begin < end:
            fragment = self.find(begin)
            if fragment is None:
                return False
            begin = fragment.end
        return True
