"""JSON paths into a tuple: `name`, `[1]`, `a.b[2]["c d"]`; array positions count from one."""

import re

_TOKEN = re.compile(
    r"""\.?(?P<name>[^\W\d][\w]*)|\[(?P<number>\d+)\]|\["(?P<double>[^"]*)"\]|\['(?P<single>[^']*)'\]"""
)

Step = str | int


class PathError(ValueError):
    """Not a path; `position` is where, from one, as Tarantool counts."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def parse_path(path: str) -> tuple[Step, ...]:
    """The steps of a path, positions from zero."""
    steps: list[Step] = []
    at = 0
    while at < len(path):
        token = _TOKEN.match(path, at)
        if token is None:
            raise PathError(_error_position(path, at))
        if token["number"] is not None:
            number = int(token["number"])
            if number == 0:
                raise PathError(at + 2)
            steps.append(number - 1)
        else:
            steps.append(token["name"] or token["double"] or token["single"] or "")
            if not steps[-1] or (at > 0 and token["name"] and path[at] != "."):
                raise PathError(at + 1)
        at = token.end()
    if not steps:
        raise PathError(1)
    return tuple(steps)


def _error_position(path: str, at: int) -> int:
    """Behind what still looked like a path."""
    if path[at] == "[":
        at += 1
        while at < len(path) and path[at].isdigit():
            at += 1
    elif path[at] == ".":
        at += 1
    return at + 1
