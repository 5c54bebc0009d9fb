"""JSON paths into a tuple: `name`, `[1]`, `a.b[2]["c d"]`; array positions count from one."""

import re

_TOKEN = re.compile(
    r"""\.?(?P<name>[^\W\d][\w]*)|\[(?P<number>\d+)\]|\["(?P<double>[^"]*)"\]|\['(?P<single>[^']*)'\]"""
)

Step = str | int


def parse_path(path: str) -> tuple[Step, ...] | None:
    """The steps of a path, positions from zero; None if it is not a path."""
    steps: list[Step] = []
    at = 0
    while at < len(path):
        if at == 0 and path[0] == ".":
            return None
        token = _TOKEN.match(path, at)
        if token is None:
            return None
        if token["number"] is not None:
            number = int(token["number"])
            if number == 0:
                return None
            steps.append(number - 1)
        else:
            steps.append(token["name"] or token["double"] or token["single"])
            if not steps[-1] or (at > 0 and token["name"] and path[at] != "."):
                return None
        at = token.end()
    return tuple(steps) if steps else None
