"""Requests of the HTTP gateway: the append or the read that headers and query arguments describe.

Nothing here knows the broker. An invalid argument is a ValueError, whose text is the answer.
"""

from aiohttp import web

from qsync_broker.labels import LabelSelector, LabelSet, parse_selector
from qsync_broker.problems import shown
from qsync_broker.registers import registers_problem
from qsync_broker.requests import Append, Suspend
from qsync_broker.spec import name_problem

OFFSET_MAX = (1 << 63) - 1
PROXIED = "X-Qsync-Proxied"
"""Header of a request that a broker forwards: the revision at which it has resolved the journal."""
_REGISTERS_HEADERS = ("X-Registers-Check", "X-Registers-Union", "X-Registers-Subtract")
_DIGITS_MAX = 20


def target_of(request: web.Request) -> str:
    """Return path and query as the client has sent them, without the host of an absolute URL."""
    path = request.raw_path
    return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]


def journal_of(request: web.Request) -> str:
    """Return the name in the path, without the specification that a client may append to it."""
    return str(request.match_info["journal"]).partition(";")[0]


def check_name(request: web.Request) -> None:
    """Raise ValueError if the path is no name of a journal."""
    problem = name_problem(request.match_info["journal"])
    if problem:
        raise ValueError(problem)


def _registers(request: web.Request, header: str) -> LabelSet | None:
    text = request.headers.get(header)
    if text is None:
        return None
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if not all(name.strip() and separator for name, separator, _ in pairs):
        raise ValueError(f"invalid {header} {shown(text)}: use NAME=VALUE, separated by commas")
    registers = LabelSet.of((name.strip(), value.strip()) for name, _, value in pairs)
    problem = registers_problem(registers)
    if problem:
        raise ValueError(f"invalid {header}: {problem}")
    return registers


def _check_of(request: web.Request) -> LabelSelector | None:
    """Return the check of the registers. Raises ValueError."""
    unknown = {name for name in request.headers if name.title().startswith("X-Registers")}
    unknown -= {name for name in unknown if name.title() in _REGISTERS_HEADERS}
    if unknown:
        names = ", ".join(_REGISTERS_HEADERS)
        raise ValueError(f"unknown header {shown(min(unknown))}: use one of {names}")
    text = request.headers.get("X-Registers-Check")
    try:
        return parse_selector(text) if text is not None else None
    except ValueError as error:
        raise ValueError(f"invalid X-Registers-Check: {error}") from None


def append_of(request: web.Request) -> Append:
    """Return the append that a request describes. Raises ValueError for invalid arguments."""
    check_name(request)
    unknown = set(request.query)
    if unknown:
        raise ValueError(f"unknown argument {shown(min(unknown))}: appends accept none")
    suspend = request.headers.get("X-Suspend", "RESUME").upper()
    if suspend not in Suspend.__members__:
        raise ValueError(
            f"invalid X-Suspend {shown(suspend)}: use one of {', '.join(Suspend.__members__)}"
        )
    accepts_loss = request.headers.get("X-Accept-Loss", "false").lower()
    if accepts_loss not in ("true", "false"):
        raise ValueError(f"invalid X-Accept-Loss {shown(accepts_loss)}: use true or false")
    if accepts_loss == "true" and (request.method != "PUT" or request.can_read_body):
        raise ValueError("X-Accept-Loss: only an append without content may accept a loss")
    return Append(
        request.match_info["journal"],
        offset=_number(request.headers.get("X-Offset", "0"), "X-Offset"),
        check=_check_of(request),
        union=_registers(request, "X-Registers-Union"),
        subtract=_registers(request, "X-Registers-Subtract"),
        suspend=Suspend[suspend],
        may_proxy=PROXIED not in request.headers,
        min_revision=revision_of(request),
        accepts_loss=accepts_loss == "true",
    )


def read_of(request: web.Request) -> tuple[int, bool]:
    """Return offset and mode of a read. Raises ValueError for invalid arguments."""
    check_name(request)
    query = request.query
    unknown = set(query) - {"offset", "block"}
    if unknown:
        raise ValueError(f"unknown argument {shown(min(unknown))}: use offset and block")
    block = query.get("block", "false").lower()
    if block not in ("true", "false", "1", "0"):
        raise ValueError(f"invalid block {shown(block)}: use true or false")
    return _number(query.get("offset", "0"), "offset", -1), block in ("true", "1")


def revision_of(request: web.Request) -> int:
    """Return the revision at which another broker has resolved the journal, else 0.

    Raises:
        ValueError: the header is invalid.
    """
    return _number(request.headers.get(PROXIED, "0"), PROXIED)


def limit_of(request: web.Request) -> int:
    """Return how many journals an overview may list.

    Raises:
        ValueError: the argument is invalid.
    """
    text = request.query["limit"]
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        raise ValueError(f"limit {shown(text)} is invalid: use a number of journals")
    return int(text)


def _number(text: str, name: str, least: int = 0) -> int:
    is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) <= _DIGITS_MAX
    value = int(text) if is_number else least - 1
    if not least <= value <= OFFSET_MAX:
        raise ValueError(f"invalid {name} {shown(text)}: use a number of bytes")
    return value
