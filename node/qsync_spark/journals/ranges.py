"""Ranges of journals as rows: chunks of bytes, or lines (data path).

A line belongs to the range that has its last byte, the newline. Its beginning may be in earlier
fragments, so a task looks for it there. Ranges are offsets, and not fragments: fragments may be
merged between two attempts to read a range.
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from qsync_broker.index import RemoteFragment, RemoteIndex
from qsync_spark.journals.content import FragmentDamagedError, content_of

RAW, LINES = "raw", "lines"
BEFORE_MAX = 64
"""Greatest number of earlier fragments in which a line of a range may begin."""
LINE_MAX = 64 << 20
"""Greatest size of a line in bytes; without a limit, a range without newlines would fill memory."""
RangeRow = tuple[str, int, int, bytes]
"""Journal, begin, end, content."""


class OffsetRange(NamedTuple):
    """A range of one journal that one task reads.

    Attributes:
        journal: name of the journal.
        first: offset before which no line begins.
        begin: offset of its first byte.
        end: offset after its last byte.
        is_last: whether an incomplete last line is a line.
        fragments: the fragments that have bytes from `first` to `end`.
    """

    journal: str
    first: int
    begin: int
    end: int
    is_last: bool
    fragments: tuple[RemoteFragment, ...]

    def encode(self) -> str:
        """Return the range as text."""
        fragments = [[*one[:2], one.sum.hex(), *one[3:]] for one in self.fragments]
        return json.dumps([*self[:5], fragments])

    @classmethod
    def decode(cls, text: str) -> "OffsetRange":
        """Return the range of a text."""
        journal, first, begin, end, is_last, fragments = json.loads(text)
        return cls(
            journal,
            first,
            begin,
            end,
            is_last,
            tuple(
                RemoteFragment(begin, end, bytes.fromhex(checksum), *rest)
                for begin, end, checksum, *rest in fragments
            ),
        )


def contiguous_end(index: RemoteIndex, offset: int) -> int:
    """Return the end of the persisted bytes that follow an offset without a gap."""
    while (fragment := index.find(offset)) is not None:
        offset = fragment.end
    return offset


def ranges_of(
    journal: str, index: RemoteIndex, begin: int, end: int, *, first: int, part: int, is_end: bool
) -> Iterator[OffsetRange]:
    """Yield the ranges of contiguous bytes, cut at ends of fragments.

    Args:
        journal: name of the journal.
        index: its fragments.
        begin: offset of the first byte.
        end: offset after the last byte; fragments have all of them.
        first: offset before which no line begins.
        part: size in bytes at which a range ends with its fragment.
        is_end: whether an incomplete last line of the last range is a line.
    """
    fragments = tuple(index)
    begins, ends = [one.begin for one in fragments], [one.end for one in fragments]
    while begin < end:
        stop = begin
        while stop < end and stop - begin < part:
            fragment = index.find(stop)
            assert fragment is not None, "the caller has checked the range"
            stop = min(fragment.end, end)
        low, high = bisect_right(ends, begin), bisect_left(begins, stop)
        # Few lines begin more than a fragment earlier. A task must not get all fragments.
        low = max(low - BEFORE_MAX, bisect_right(ends, first))
        yield OffsetRange(journal, first, begin, stop, is_end and stop == end, fragments[low:high])
        begin = stop


def chunks_of(one: OffsetRange, size: int) -> Iterator[RangeRow]:
    """Yield the bytes of a range in chunks of a size. Raises as `content_of` does."""
    held, offset = bytearray(), one.begin
    for piece in _content(one, one.begin, one.end):
        held += piece
        while len(held) >= size:
            yield one.journal, offset, offset + size, bytes(held[:size])
            del held[:size]
            offset += size
    if held:
        yield one.journal, offset, offset + len(held), bytes(held)


def lines_of(one: OffsetRange) -> Iterator[RangeRow]:
    """Yield the lines that end in a range, without their newlines. Raises as `content_of` does."""
    held = bytearray(_beginning(one))
    offset = one.begin - len(held)
    searched = len(held)
    for piece in _content(one, one.begin, one.end):
        held += piece
        at = 0
        while (newline := held.find(b"\n", max(at, searched))) >= 0:
            yield one.journal, offset + at, offset + newline + 1, bytes(held[at:newline])
            at = newline + 1
        del held[:at]
        offset += at
        searched = len(held)
        _check_length(one, len(held), offset)
    if held and one.is_last:
        yield one.journal, offset, offset + len(held), bytes(held)


def _beginning(one: OffsetRange) -> bytes:
    """Return the beginning of the line that continues at the begin of a range."""
    held, end = b"", one.begin
    while end > one.first:
        fragments = [fragment for fragment in one.fragments if fragment.begin < end]
        if not fragments or fragments[-1].end < end:
            raise FragmentDamagedError(
                f"{one.journal}: the line at {one.begin} begins more than {BEFORE_MAX} fragments"
                " earlier; use framing=raw"
            )
        begin = max(fragments[-1].begin, one.first)
        tail, has_newline = _after_newline(one, begin, end)
        held = tail + held
        _check_length(one, len(held), begin)
        if has_newline:
            break
        end = begin
    return held


def _after_newline(one: OffsetRange, begin: int, end: int) -> tuple[bytes, bool]:
    """Return the bytes after the last newline between two offsets, and whether there is one."""
    tail, has_newline = bytearray(), False
    for piece in _content(one, begin, end):
        newline = piece.rfind(b"\n")
        if newline >= 0:
            tail, has_newline = bytearray(piece[newline + 1 :]), True
        else:
            tail += piece
        _check_length(one, len(tail), begin)
    return bytes(tail), has_newline


def _check_length(one: OffsetRange, size: int, offset: int) -> None:
    if size > LINE_MAX:
        raise FragmentDamagedError(
            f"{one.journal}: the line at {offset} has more than {LINE_MAX} bytes; use framing=raw"
        )


def _content(one: OffsetRange, begin: int, end: int) -> Iterator[bytes]:
    """Yield bytes of the fragments, and hold whole fragments against their names."""
    index = RemoteIndex()
    index.replace(one.fragments)
    while begin < end:
        fragment = index.find(begin)
        if fragment is None:
            raise FragmentDamagedError(f"{one.journal}: no fragment has the bytes from {begin}")
        stop = min(fragment.end, end)
        hashed = hashlib.sha1()
        for piece in content_of(fragment, begin, stop):
            hashed.update(piece)
            yield piece
        is_whole = (begin, stop) == (fragment.begin, fragment.end)
        if is_whole and hashed.digest() != fragment.sum:
            raise FragmentDamagedError(f"{fragment.place} does not have the SHA-1 of its name")
        begin = stop
