"""The content of a persisted fragment, in pieces (data path)."""

from collections.abc import Iterator

import obstore
from obstore.exceptions import BaseError

from qsync_broker.codecs import Codec, CodecError, decompressor
from qsync_broker.index import RemoteFragment
from qsync_node.archive.location import first_line, store_of
from qsync_node.errors import QsyncError

CHUNK = 1 << 20


class StoreUnavailableError(QsyncError):
    """A store does not return a fragment; the text states the cause."""


class FragmentDamagedError(QsyncError):
    """The content of a fragment cannot be decompressed; the text states the cause."""


def pieces_of(fragment: RemoteFragment) -> Iterator[bytes]:
    """Yield the decompressed content in pieces of a few MiB at most.

    Raises:
        StoreUnavailableError: the object is missing, or the store failed.
        FragmentDamagedError: the object is no valid output of its codec.
    """
    reader = decompressor(fragment.codec)
    try:
        for data in obstore.get(store_of(fragment.store), fragment.path).stream(CHUNK):
            yield from reader.feed(bytes(data))
        reader.finish()
    except CodecError as error:
        raise FragmentDamagedError(str(error)) from None
    except (QsyncError, BaseError, OSError) as error:
        text = f"{fragment.path} in {fragment.store} cannot be read: {first_line(error)}"
        raise StoreUnavailableError(text) from None


def content_of(fragment: RemoteFragment, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a fragment between two offsets of its journal.

    Bytes outside of the range are not checked.

    Raises:
        StoreUnavailableError: the object is missing, or the store failed.
        FragmentDamagedError: the object is no valid output of its codec, or ends too early.
    """
    offset = fragment.begin
    for piece in _from(fragment, begin):
        if fragment.codec == Codec.NONE and offset == fragment.begin:
            offset = begin
        kept = piece[max(0, begin - offset) : max(0, end - offset)]
        offset += len(piece)
        if kept:
            yield kept
        if offset >= end:
            return
    if offset < end:
        raise FragmentDamagedError(f"the content ends at {offset}, and not at {end}")


def _from(fragment: RemoteFragment, begin: int) -> Iterator[bytes]:
    """Yield the content; of an uncompressed fragment, only the bytes from an offset on."""
    if fragment.codec != Codec.NONE or begin == fragment.begin:
        yield from pieces_of(fragment)
        return
    position, size = begin - fragment.begin, fragment.end - fragment.begin
    try:
        while position < size:
            end = min(position + CHUNK, size)
            yield bytes(
                obstore.get_range(store_of(fragment.store), fragment.path, start=position, end=end)
            )
            position = end
    except (QsyncError, BaseError, OSError) as error:
        text = f"{fragment.path} in {fragment.store} cannot be read: {first_line(error)}"
        raise StoreUnavailableError(text) from None
