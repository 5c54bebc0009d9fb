"""Pure arithmetic of quorums: who is needed, what is reached, what has become impossible.

A quorum is never less than `N // 2 + 1` of the voters, whatever is configured, and never more than
`N`. The configured value is a number, `majority`, or a formula over `N` such as Tarantool's
`N/2+1`; it is parsed, never evaluated (P3).
"""

import re
from collections.abc import Iterable

_TERM = re.compile(r"\s*(N|\d{1,4})\s*")
_OPERATOR = re.compile(r"\s*([+*/-])\s*")


def parse_formula(text: str) -> list[str]:
    """Tokens of `text`, a chain of N and numbers joined by + - * /. Raises ValueError."""
    tokens: list[str] = []
    position = 0
    expected = _TERM
    while position < len(text):
        match = expected.match(text, position)
        if match is None:
            raise ValueError(
                f"quorum formula {text!r} is not a chain of N and numbers at {position}"
            )
        tokens.append(match.group(1))
        position = match.end()
        expected = _OPERATOR if expected is _TERM else _TERM
    if len(tokens) % 2 == 0:
        raise ValueError(f"quorum formula {text!r} ends too early")
    return tokens


def evaluate(text: str, voters: int) -> int:
    """Value of a formula for `voters` voters: `*` and `/` bind closer, division rounds down."""
    tokens = parse_formula(text)
    values = [voters if token == "N" else int(token) for token in tokens[::2]]
    total, factor, sign = 0, values[0], 1
    for operator, value in zip(tokens[1::2], values[1:], strict=True):
        if operator == "*":
            factor *= value
        elif operator == "/":
            if value == 0:
                raise ValueError(f"quorum formula {text!r} divides by zero")
            factor //= value
        else:
            total += sign * factor
            factor, sign = value, 1 if operator == "+" else -1
    return total + sign * factor


def needed(voters: int, configured: str | int = "majority") -> int:
    """Copies that a row needs: between the majority of `voters` and all of them."""
    majority = voters // 2 + 1
    if configured == "majority":
        return majority
    wanted = configured if isinstance(configured, int) else evaluate(configured, voters)
    return max(majority, min(wanted, voters))


def reached_index(acknowledged: Iterable[int], quorum: int) -> int:
    """The greatest index that at least `quorum` of the voters' acknowledged indexes reach."""
    ordered = sorted(acknowledged, reverse=True)
    return ordered[quorum - 1] if len(ordered) >= quorum else 0


def is_impossible(voters: int, refusals: int, quorum: int) -> bool:
    """Whether `refusals` negative answers leave too few voters for `quorum` (anti-quorum)."""
    return voters - refusals < quorum
