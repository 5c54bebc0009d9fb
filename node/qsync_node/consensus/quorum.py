"""Quorum arithmetic: the needed copies, the reached index and the impossible quorum.

A quorum is always between `N // 2 + 1` and `N` of the voters, even if another value is configured.
The configured value is a number, `majority`, or a formula over `N` such as Tarantool's `N/2+1`. The
formula is parsed and never passed to `eval` (P3).
"""

import re
from collections.abc import Iterable

_TERM = re.compile(r"\s*(N|\d{1,4})\s*")
_OPERATOR = re.compile(r"\s*([+*/-])\s*")


def parse_formula(text: str) -> list[str]:
    """Return the tokens of `text`, a chain of N and numbers joined by + - * /.

    Raises:
        ValueError: `text` is not such a chain.
    """
    tokens: list[str] = []
    position = 0
    expected = _TERM
    while position < len(text):
        match = expected.match(text, position)
        if match is None:
            raise ValueError(
                f"quorum formula {text!r} is invalid at position {position}: expected N or a number"
            )
        tokens.append(match.group(1))
        position = match.end()
        expected = _OPERATOR if expected is _TERM else _TERM
    if len(tokens) % 2 == 0:
        raise ValueError(
            f"quorum formula {text!r} is incomplete: expected N or a number at its end"
        )
    return tokens


def evaluate(text: str, voters: int) -> int:
    """Return the value of a formula for `voters` voters.

    `*` and `/` bind closer than `+` and `-`; division rounds down.

    Raises:
        ValueError: the formula is malformed or divides by zero.
    """
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
    """Return the copies that a row needs: between the majority of `voters` and all of them."""
    majority = voters // 2 + 1
    if configured == "majority":
        return majority
    wanted = configured if isinstance(configured, int) else evaluate(configured, voters)
    copies = max(majority, min(wanted, voters))
    assert 2 * copies > voters, "T2: any two quorums share a voter"
    return copies


def reached_index(acknowledged: Iterable[int], quorum: int) -> int:
    """Return the greatest index that at least `quorum` of the acknowledged indexes reach."""
    assert quorum > 0, "T2: an index that no voter holds is not reached"
    ordered = sorted(acknowledged, reverse=True)
    return ordered[quorum - 1] if len(ordered) >= quorum else 0


def is_impossible(voters: int, refusals: int, quorum: int) -> bool:
    """Return whether `refusals` negative answers leave too few voters for `quorum`.

    That is the anti-quorum.
    """
    return voters - refusals < quorum
