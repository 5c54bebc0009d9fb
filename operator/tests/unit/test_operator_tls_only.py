"""Members that have proved their identity once are never believed without TLS."""

import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from qsync_operator.members.links import (
    SILENT_TIMEOUT_S,
    STATUS_TIMEOUT_S,
    LinkError,
    LinkRequest,
    NodeLinks,
)

A, B = "10.0.0.1:1", "10.0.0.2:1"


class PlainNodes(NodeLinks):
    """Links to nodes; those in `plain` answer without TLS only, and `silent` ones never."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__("secret", lambda: context)
        self.plain: set[str] = set()
        self.silent: set[str] = set()
        self.timeouts_s: list[float] = []

    async def _send(self, request: LinkRequest, context: ssl.SSLContext | None) -> tuple[int, Any]:
        self.timeouts_s.append(request.timeout_s)
        if request.address in self.silent:
            raise TimeoutError
        if context is not None and request.address in self.plain:
            refusal = ssl.SSLError(1, "no TLS")
            refusal.reason = "WRONG_VERSION_NUMBER"
            host, _, port = request.address.partition(":")
            key = ConnectionKey(host, int(port), True, True, None, None, None)
            raise aiohttp.ClientConnectorSSLError(key, refusal)
        return 200, {}

    async def answers(self, addresses: dict[str, str], *tls_only: str) -> dict[str, bool]:
        """Return whether each member is believed."""
        found = await self.statuses(addresses, tls_only)
        return {name: not isinstance(said, LinkError) for name, said in found.items()}


@pytest.mark.asyncio
async def test_member_is_asked_over_tls_only_while_its_image_is_known_to_speak_it() -> None:
    links = PlainNodes()
    links.plain = {A, B}
    assert await links.answers({"a": A, "b": B}, "a") == {"a": False, "b": True}
    assert await links.answers({"a": A, "b": B}, "b") == {"a": True, "b": False}, "rolled back"


@pytest.mark.asyncio
async def test_address_that_another_member_takes_later_may_answer_without_tls() -> None:
    links = PlainNodes()
    assert await links.answers({"a": A}) == {"a": True}
    links.plain = {A}
    assert await links.answers({"a": A}) == {"a": False}
    assert await links.answers({"b": B}) == {"b": True}
    assert await links.answers({"a": A}) == {"a": True}


@pytest.mark.asyncio
async def test_silent_member_delays_only_its_first_request_and_is_asked_again() -> None:
    links = PlainNodes()
    links.silent = {A}
    for _ in range(2):
        assert await links.answers({"a": A}) == {"a": False}
    links.silent = set()
    for _ in range(2):
        assert await links.answers({"a": A}) == {"a": True}
    assert links.timeouts_s == [
        STATUS_TIMEOUT_S,
        SILENT_TIMEOUT_S,
        SILENT_TIMEOUT_S,
        STATUS_TIMEOUT_S,
    ]
