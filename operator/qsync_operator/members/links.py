"""A client for the nodes' admin HTTP: it reuses connections and raises one sentence per failure.

With a context, every request uses TLS. A node of an earlier version speaks plain HTTP: the operator
still reads its status, but sends it no orders. A man in the middle can pretend to be such a node.
Therefore plain HTTP is never used for an address that answered over TLS, or for an image that did.
Orders are signed (`format/proofs.py`): no request contains the secret.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import aiohttp

from qsync_node.format.proofs import CHALLENGE_PATH, sign_order

STATUS_TIMEOUT_S = 1.0
SILENT_TIMEOUT_S = 0.2
VERB_TIMEOUT_S = 15.0
ANSWER_BYTES_MAX = 16 << 20
"""Size of an answer that is read: another program may have the address of a member."""
PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


class LinkError(Exception):
    """A failed request; `is_refusal` if the node answered with the reason."""

    def __init__(self, sentence: str, is_refusal: bool = False) -> None:
        super().__init__(sentence)
        self.is_refusal = is_refusal


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """One request to one node."""

    method: str
    address: str
    path: str
    timeout_s: float
    body: bytes | None
    headers: dict[str, str] | None


class NodeLinks:
    """Connections to the nodes of one cluster. The caller must close it."""

    def __init__(
        self, secret: str, context: Callable[[], ssl.SSLContext | None] = lambda: None
    ) -> None:
        """Prepare the links.

        Args:
            secret: the cluster's secret, which signs orders.
            context: returns the TLS context of each request, because trusted authorities may
                change.
        """
        self._secret = secret
        self._context = context
        # Addresses that answered over TLS; their answers without TLS are no longer trusted.
        self._secure: set[str] = set()
        self._tls_only: set[str] = set()
        self._session: aiohttp.ClientSession | None = None
        self._silent: set[str] = set()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def status(self, address: str) -> dict[str, Any]:
        """Return /status.

        The next request to a silent member has a shorter timeout, so that a hanging member does not
        slow the controller down.

        Raises:
            LinkError: the node does not answer, or not with an object.
        """
        timeout_s = SILENT_TIMEOUT_S if address in self._silent else STATUS_TIMEOUT_S
        self._silent.discard(address)
        return await self._object(address, "/status", timeout_s)

    async def spaces(self, address: str) -> dict[str, Any]:
        """Return /spaces: the largest spaces of a node.

        Raises:
            LinkError: the node does not answer, or its version has no such path.
        """
        return await self._object(address, "/spaces", STATUS_TIMEOUT_S)

    async def _object(self, address: str, path: str, timeout_s: float) -> dict[str, Any]:
        answer = await self._ask("GET", address, path, timeout_s)
        if not isinstance(answer, dict):
            raise LinkError(
                f"unexpected response from {address}: {path} is not a JSON object; check the "
                "address"
            )
        return answer

    async def text(self, address: str, path: str) -> str:
        """Return a text, such as the metrics of a node.

        Raises:
            LinkError: the node does not answer.
        """
        return str(await self._ask("GET", address, path, STATUS_TIMEOUT_S))

    async def post(
        self, address: str, path: str, fields: dict[str, Any], instance: str = ""
    ) -> Any:
        """Send an order and return its `result`.

        Args:
            address: admin address of the node.
            path: path of the order.
            fields: body of the order.
            instance: uuid of the instance that must receive it; "" if unknown.

        Raises:
            LinkError: the order was not sent, was refused or was not answered.
        """
        given = await self._ask("GET", address, CHALLENGE_PATH, STATUS_TIMEOUT_S)
        if not isinstance(given, dict) or not isinstance(given.get("challenge"), str):
            raise LinkError(
                f"no order was sent to {address}: it returned no challenge to sign; check the "
                "address and the version of the node",
                True,
            )
        target = str(given.get("instance"))
        if instance not in ("", target):
            raise LinkError(
                f"no order was sent to {address}: it is instance {target}, not {instance}", True
            )
        body = json.dumps(fields).encode()
        signed = sign_order(self._secret, given["challenge"], target, "POST", path, body)
        headers = {"Authorization": signed, "Content-Type": "application/json"}
        answer = await self._ask("POST", address, path, VERB_TIMEOUT_S, body, headers)
        return answer.get("result") if isinstance(answer, dict) else None

    async def _ask(
        self,
        method: str,
        address: str,
        path: str,
        timeout_s: float,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        context = self._context()
        request = LinkRequest(method, address, path, timeout_s, body, headers)
        try:
            try:
                status, answer = await self._send(request, context)
                if context is not None:
                    self._secure.add(address)
            except aiohttp.ClientConnectorSSLError as error:
                if not _speaks_plain(error) or address in self._secure | self._tls_only:
                    raise
                if path != "/status":
                    raise LinkError(
                        f"{path} was not sent to {address}: its version has no TLS on the "
                        "admin port; update the image of the member",
                        is_refusal=True,
                    ) from error
                status, answer = await self._send(request, None)
        except TimeoutError as error:
            self._silent.add(address)
            raise LinkError(f"{address} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise LinkError(f"cannot connect to {address}: {_reason(error)}") from error
        if status >= 400:
            said = answer.get("error") if isinstance(answer, dict) else str(answer)
            raise LinkError(str(said or f"HTTP {status}"), is_refusal=True)
        return answer

    async def _send(
        self, request: "LinkRequest", context: ssl.SSLContext | None
    ) -> tuple[int, Any]:
        async with self._opened().request(
            request.method,
            f"{'http' if context is None else 'https'}://{request.address}{request.path}",
            data=request.body,
            headers=request.headers,
            ssl=context if context is not None else True,
            timeout=aiohttp.ClientTimeout(total=request.timeout_s),
        ) as response:
            body = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise OSError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            text = body.decode()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text

    def is_proven(self, address: str) -> bool:
        """Return whether the node proved its membership; without a context every answer counts."""
        return self._context() is None or address in self._secure

    async def statuses(
        self, addresses: dict[str, str], tls_only: Collection[str] = ()
    ) -> dict[str, dict[str, Any] | LinkError]:
        """Return the status of each named node, queried concurrently.

        Nodes in `tls_only` are never queried without TLS.
        """
        self._secure &= set(addresses.values())
        self._tls_only = {addresses[name] for name in tls_only if name in addresses}
        return await ask_each(self.status, addresses)


async def ask_each(
    ask: Callable[[str], Awaitable[dict[str, Any]]], addresses: dict[str, str]
) -> dict[str, dict[str, Any] | LinkError]:
    """Return the answer or the error of each named address, queried concurrently."""
    answers = await asyncio.gather(*map(ask, addresses.values()), return_exceptions=True)
    found: dict[str, dict[str, Any] | LinkError] = {}
    for name, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, LinkError):
            raise answer
        found[name] = answer
    return found


def _speaks_plain(error: aiohttp.ClientConnectorSSLError) -> bool:
    """Return whether the answer to the handshake was not TLS."""
    cause = error.os_error
    return isinstance(cause, ssl.SSLError) and cause.reason in PLAIN_REASONS


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "strerror", None) or error or type(error).__name__)
