"""The recorded answers of Tarantool 2.6 to all requests."""

import zlib
from typing import Any

import msgpack

from qsync_testing.paths import ROOT

ANSWERS = ROOT / "node" / "tests" / "engine_answers" / "answers.bin"


def read_answers() -> list[Any]:
    """Return the scenarios: [name, [[user, type, body, answer, is_ok], ...]]."""
    packed = zlib.decompress(ANSWERS.read_bytes())
    scenarios: list[Any] = msgpack.unpackb(packed, unicode_errors="surrogateescape")
    return scenarios
