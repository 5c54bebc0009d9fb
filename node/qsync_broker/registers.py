"""The packed state that each proposal carries: registers, and the watermark of publications.

The watermark is the sequence of the last publication that the journal contains (rule X3). It is
packed as a register without a name, which no client can read or set. A broker that does not know it
therefore keeps it.
"""

import msgpack

from qsync_broker.labels import LabelSet

_WATERMARK = ""


def pack_registers(registers: LabelSet, published: int = 0) -> bytes:
    """Return registers and watermark as peers and storage keep them.

    Args:
        registers: the registers.
        published: sequence of the last publication in the journal, 0 for none.
    """
    pairs = [list(pair) for pair in registers if pair[0] != _WATERMARK]
    if published:
        pairs.append([_WATERMARK, str(published)])
    packed: bytes = msgpack.packb(pairs) if pairs else b""
    return packed


def unpack_registers(packed: bytes) -> LabelSet:
    """Return the registers of `pack_registers`."""
    pairs = msgpack.unpackb(packed) if packed else []
    return LabelSet.of((name, value) for name, value in pairs if name != _WATERMARK)


def published_in(packed: bytes) -> int:
    """Return the watermark of `pack_registers`."""
    pairs = msgpack.unpackb(packed) if packed else []
    return next((int(value) for name, value in pairs if name == _WATERMARK), 0)
