"""Codecs of persisted fragments: streaming compression and decompression with bounded memory.

`GZIP` is one or several members, `GZIP_OFFLOAD_DECOMPRESSION` exactly one, `ZSTANDARD` one or
several frames, and `SNAPPY` the framed format.
"""

import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

import cramjam
import zstandard

PIECE = 256 << 10
"""Maximum number of decompressed bytes in one piece."""
_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 6


class Codec(IntEnum):
    """Codecs; the values are Gazette's."""

    NONE = 1
    GZIP = 2
    ZSTANDARD = 3
    SNAPPY = 4
    GZIP_OFFLOAD_DECOMPRESSION = 5


EXTENSIONS = {
    Codec.NONE: ".raw",
    Codec.GZIP: ".gz",
    Codec.ZSTANDARD: ".zst",
    Codec.SNAPPY: ".sz",
    Codec.GZIP_OFFLOAD_DECOMPRESSION: "",
}
_CODECS = {
    **{extension: codec for codec, extension in EXTENSIONS.items()},
    ".gzip": Codec.GZIP,
    ".zstandard": Codec.ZSTANDARD,
    ".snappy": Codec.SNAPPY,
    ".gzod": Codec.GZIP_OFFLOAD_DECOMPRESSION,
}


def codec_of_extension(extension: str) -> Codec | None:
    """Return the codec of a file's extension, in any case, or None for an unknown one."""
    return _CODECS.get(extension.lower())


class CodecError(Exception):
    """Compressed data is damaged or incomplete."""


class Compressor(Protocol):
    """A streaming compressor."""

    def feed(self, data: bytes) -> bytes:
        """Return compressed bytes that are ready."""

    def finish(self) -> bytes:
        """Return the rest."""


class _Plain:
    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


class _LibraryCompressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Wrapped:
    """A compressor of zlib or zstandard."""

    def __init__(self, compressor: _LibraryCompressor) -> None:
        self._compressor = compressor

    def feed(self, data: bytes) -> bytes:
        return self._compressor.compress(data)

    def finish(self) -> bytes:
        return self._compressor.flush()


class _Snappy:
    def __init__(self) -> None:
        self._compressor = cramjam.snappy.Compressor()

    def feed(self, data: bytes) -> bytes:
        self._compressor.compress(data)
        return bytes(self._compressor.flush())

    def finish(self) -> bytes:
        return bytes(self._compressor.finish())


def compressor(codec: int) -> Compressor:
    """Return a compressor."""
    if codec == Codec.NONE:
        return _Plain()
    if codec == Codec.ZSTANDARD:
        return _Wrapped(zstandard.ZstdCompressor(write_checksum=True).compressobj())
    if codec == Codec.SNAPPY:
        return _Snappy()
    return _Wrapped(zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP))


class Decompressor(Protocol):
    """A streaming decompressor."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return decompressed pieces of at most `PIECE` bytes. Raises CodecError."""

    def finish(self) -> None:
        """Check that the data is complete. Raises CodecError."""


class _PlainReader:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Accept any end."""


class _GzipReader:
    """Concatenated members of gzip."""

    def __init__(self) -> None:
        self._reader = zlib.decompressobj(_GZIP)
        self._is_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                self._is_begun = True
                piece = self._reader.decompress(data, PIECE)
                if piece:
                    yield piece
                if self._reader.eof:
                    data = self._reader.unused_data
                    self._reader, self._is_begun = zlib.decompressobj(_GZIP), False
                else:
                    data = self._reader.unconsumed_tail
        except zlib.error as error:
            raise CodecError(f"gzip data is damaged: {error}") from None

    def finish(self) -> None:
        if self._is_begun and not self._reader.eof:
            raise CodecError("gzip data is incomplete")


class _ZstandardReader:
    """Concatenated frames of zstandard."""

    _INPUT = 16 << 10  # of which 128 KiB blocks can be expanded at a time

    def __init__(self) -> None:
        self._reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        self._is_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                part, data = data[: self._INPUT], data[self._INPUT :]
                self._is_begun = True
                expanded = self._reader.decompress(part)
                for at in range(0, len(expanded), PIECE):
                    yield expanded[at : at + PIECE]
                if self._reader.eof:
                    data = self._reader.unused_data + data
                    self._reader = zstandard.ZstdDecompressor(
                        max_window_size=1 << 27
                    ).decompressobj()
                    self._is_begun = False
        except zstandard.ZstdError as error:
            raise CodecError(f"zstandard data is damaged: {error}") from None

    def finish(self) -> None:
        if self._is_begun:
            raise CodecError("zstandard data is incomplete")


class _SnappyReader:
    """The framed format: chunks of at most 64 KiB, each with its length in three bytes."""

    _IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= 4:
            end = position + 4 + int.from_bytes(self._buffer[position + 1 : position + 4], "little")
            if end > len(self._buffer):
                break
            piece = self._expand(self._buffer[position:end])
            if piece:
                yield piece
            position = end
        self._buffer = self._buffer[position:]

    def _expand(self, chunk: bytes) -> bytes:
        if chunk[0] == 0xFF:
            if chunk != self._IDENTIFIER:
                raise CodecError("snappy data is damaged: it has another identifier")
            return b""
        if len(chunk) > 4 + (1 << 17):
            raise CodecError(f"snappy data is damaged: a chunk has {len(chunk)} bytes")
        try:
            return bytes(cramjam.snappy.decompress(self._IDENTIFIER + chunk))
        except cramjam.DecompressionError as error:
            raise CodecError(f"snappy data is damaged: {error}") from None

    def finish(self) -> None:
        if self._buffer:
            raise CodecError("snappy data is incomplete")


def decompressor(codec: int) -> Decompressor:
    """Return a decompressor."""
    if codec == Codec.NONE:
        return _PlainReader()
    if codec == Codec.ZSTANDARD:
        return _ZstandardReader()
    if codec == Codec.SNAPPY:
        return _SnappyReader()
    return _GzipReader()
