"""The packed state that each proposal carries: registers, and the watermark of publications.

The watermark is the sequence of the last publication that the journal contains (rule X3). It is
packed as a register without a name, which no client can read or set. A broker that does not know it
therefore keeps it.
"""

import re

import msgpack

from qsync_broker.labels import LabelSet

REGISTERS_MAX = 1024
"""Maximum number of registers: each append of their journal handles all of them."""
_NAME = re.compile(r"[\w\-+/.]{1,64}")
_VALUE = re.compile(r"[\w\-+/.=%]{0,1024}")
_WATERMARK = ""


def registers_problem(registers: LabelSet) -> str:
    """Return the defect of registers that a client wants to add or remove, or "".

    Other characters would break the headers of answers, which contain the registers.
    """
    if len(registers) > REGISTERS_MAX:
        return f"at most {REGISTERS_MAX} registers, not {len(registers)}"
    for name, value in registers:
        if _NAME.fullmatch(name) is None:
            return f"the name {name[:80]!r} must have 1 to 64 letters, digits and -_+/."
        if _VALUE.fullmatch(value) is None:
            return f"the value of {name!r} must have at most 1024 letters, digits and -_+/.=%"
    return ""


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
