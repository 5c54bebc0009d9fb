"""Durations as Go and Gazette write them: `5m`, `1h30m`, `300ms`, `0s`."""

import re

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d)")
_MAX_NS = (1 << 63) - 1


def parse_duration(text: str) -> int:
    """Return a duration in nanoseconds.

    Args:
        text: numbers with units, for example `1h30m`; `0` needs no unit. Besides Go's units, `d`
            stands for 24 hours.

    Raises:
        ValueError: the text is no duration, or longer than 292 years.
    """
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None:
            break
        whole, _, fraction = found[1].partition(".")
        unit = _UNITS_NS[found[2]]
        total += int(whole or 0) * unit
        total += int(fraction or 0) * unit // 10 ** len(fraction)
        at = found.end()
    if not rest or at < len(rest) or total > _MAX_NS:
        raise ValueError(f"invalid duration {text!r}: use for example 90s, 5m or 1h30m")
    return sign * total


def format_duration(duration_ns: int) -> str:
    """Return a duration as text, as Go does: `1h0m0s`, `1.5s`, `300ms`."""
    if duration_ns < 0:
        return "-" + format_duration(-duration_ns)
    if not duration_ns:
        return "0s"
    for unit in ("ns", "µs", "ms"):
        if duration_ns < _UNITS_NS[unit] * 1_000:
            return _decimal(duration_ns, _UNITS_NS[unit]) + unit
    minutes, left = divmod(duration_ns, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return text + _decimal(left, _UNITS_NS["s"]) + "s"


def _decimal(value: int, unit: int) -> str:
    whole, left = divmod(value, unit)
    if not left:
        return str(whole)
    digits = str(left).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}"
