"""Requests that examine and accept the loss of acknowledged bytes, at any broker."""

import json
import ssl
from collections.abc import Mapping

import aiohttp

from qsync_broker.client import JournalError
from qsync_broker.loss import Loss

TIMEOUT_S = 90.0
"""More than the time after which a broker gives an append up."""


async def ask_loss(
    url: str,
    journal: str,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None,
    resume: int = 0,
) -> Loss | None:
    """Examine a journal, and accept the loss of its bytes if an offset is given.

    Args:
        url: URL of any broker.
        journal: name of the journal.
        headers: headers with a token that permits the request.
        context: context of a connection with TLS, or None.
        resume: offset at which the journal continues, 0 to change nothing.

    Returns:
        The loss that can be accepted, or None if there is none (any more).

    Raises:
        JournalError: the broker cannot be reached, or refuses the request.
    """
    asked = {**headers, "X-Accept-Loss": "true", "X-Offset": str(resume), "X-Suspend": "KEEP"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=5)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.put(
                f"{url.rstrip('/')}/{journal}",
                headers=asked,
                ssl=context if context is not None else True,
            ) as answer,
        ):
            text = (await answer.text()).strip()
            found = answer.headers.get("X-Loss")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        cause = str(error) or type(error).__name__
        raise JournalError(f"{journal}: the broker cannot be reached: {cause}") from None
    if found is not None:
        fields = json.loads(found)
        return Loss(fields["begin"], fields["end"], fields["resume"], tuple(fields["dead"]))
    if answer.status == 204:
        return None
    text = text or f"HTTP status {answer.status}"
    raise JournalError(text if text.startswith(journal) else f"{journal}: {text}")
