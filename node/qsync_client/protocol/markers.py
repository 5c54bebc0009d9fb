"""First bytes of msgpack values: the table of the specification, section "Formats".

They are plain numbers, because decoders compare them with single bytes on the data path. A FIX*
name is the first value of a range: its low bits are the size of the value.
"""

from typing import Final

FIXINT_END: Final = 0x80
"""Smaller bytes are natural numbers themselves."""
FIXMAP: Final = 0x80
FIXMAP_MAX: Final = 0x0F
"""Most pairs of a map whose size is in its first byte."""
FIXARRAY: Final = 0x90
FIXARRAY_MAX: Final = 0x0F
FIXSTR: Final = 0xA0
FIXSTR_MAX: Final = 0x1F
NIL: Final = 0xC0
FALSE: Final = 0xC2
TRUE: Final = 0xC3
BIN8: Final = 0xC4
BIN16: Final = 0xC5
BIN32: Final = 0xC6
EXT8: Final = 0xC7
EXT16: Final = 0xC8
EXT32: Final = 0xC9
FLOAT32: Final = 0xCA
FLOAT64: Final = 0xCB
UINT8: Final = 0xCC
UINT16: Final = 0xCD
UINT32: Final = 0xCE
UINT64: Final = 0xCF
INT8: Final = 0xD0
INT16: Final = 0xD1
INT32: Final = 0xD2
INT64: Final = 0xD3
FIXEXT1: Final = 0xD4
FIXEXT2: Final = 0xD5
FIXEXT4: Final = 0xD6
FIXEXT8: Final = 0xD7
FIXEXT16: Final = 0xD8
STR8: Final = 0xD9
STR16: Final = 0xDA
STR32: Final = 0xDB
ARRAY16: Final = 0xDC
ARRAY32: Final = 0xDD
MAP16: Final = 0xDE
MAP32: Final = 0xDF
NEGATIVE_FIXINT: Final = 0xE0

UINT_WIDTHS: Final = {UINT8: 1, UINT16: 2, UINT32: 4, UINT64: 8}
"""Bytes that follow the first byte of a natural number, apart from small ones."""
EMPTY_MAP: Final = bytes((FIXMAP,))
