"""Error answers of the HTTP gateway: a status, and one line of limited length."""

from collections.abc import Mapping

from aiohttp import web

TEXT_MAX = 1024
"""Maximum number of characters of an error answer: requests must not choose its size."""
SHOWN_MAX = 80
"""Number of characters of a value that an error shows."""


def refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error answer with a sentence: what failed, the cause, and what to do."""
    line = " ".join(text.split())
    if len(line) > TEXT_MAX:
        line = line[: TEXT_MAX - 3] + "..."
    # Names and header values may have bytes that are no UTF-8.
    body = f"{line}\n".encode(errors="replace")
    return web.Response(
        status=status, body=body, content_type="text/plain", charset="utf-8", headers=headers
    )


def shown(value: str) -> str:
    """Return a value of a request as an error shows it."""
    return repr(value[:SHOWN_MAX]) + ("..." if len(value) > SHOWN_MAX else "")
