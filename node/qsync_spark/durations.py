"""Durations in the format of a manifest."""

import re

GRACE_S = 24 * 3600.0
"""Default age of a merged fragment of a journal after which its sources are deleted."""
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def duration_s(text: str) -> float:
    """Return the seconds of `30d`, `12h`, `1h30m`. Raises ValueError."""
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d))+", text):
        raise ValueError(f"invalid duration {text!r}: use a form such as 30d or 12h")
    return sum(
        float(n) * _UNITS_S[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    )
