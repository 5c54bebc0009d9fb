"""Vector clocks: `{replica_id: lsn}` without zero components.

The signature, the sum of all components, is the log index: one leader writes at a time, so every
row increases it by one. Two clocks of one history are always comparable. Two clocks of different
histories may be comparable too (L5), so their order serves checks only, never the search for a
common point.
"""

import re
from collections.abc import Mapping

VClock = dict[int, int]

REPLICA_ID_MAX = 31
_COMPONENT = re.compile(r"\s*(\d{1,2})\s*:\s*(\d{1,19})\s*")


def parse(text: str) -> VClock:
    """Parse `{1: 12, 2: 3}`. Raises ValueError."""
    text = text.strip()
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise ValueError(f"vclock {text!r} has no braces")
    inner = text[1:-1].strip()
    vclock: VClock = {}
    for part in inner.split(",") if inner else ():
        match = _COMPONENT.fullmatch(part)
        if match is None:
            raise ValueError(f"vclock component {part!r} is not 'id: lsn'")
        replica_id, lsn = int(match[1]), int(match[2])
        if replica_id > REPLICA_ID_MAX or lsn >= 2**63 or replica_id in vclock:
            raise ValueError(f"vclock component {part!r} is out of range or repeated")
        if lsn:
            vclock[replica_id] = lsn
    return vclock


def format_vclock(vclock: Mapping[int, int]) -> str:
    parts = [f"{replica_id}: {vclock[replica_id]}" for replica_id in sorted(vclock)]
    return "{" + ", ".join(part for part in parts if not part.endswith(": 0")) + "}"


def signature(vclock: Mapping[int, int]) -> int:
    return sum(vclock.values())


def normalised(vclock: Mapping[int, int]) -> VClock:
    """Return the clock without zero components, ids ascending. Equal clocks yield equal dicts."""
    return {replica_id: vclock[replica_id] for replica_id in sorted(vclock) if vclock[replica_id]}


def is_equal(left: Mapping[int, int], right: Mapping[int, int]) -> bool:
    return normalised(left) == normalised(right)
