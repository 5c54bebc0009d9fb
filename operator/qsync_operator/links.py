"""Talks to nodes over their admin HTTP: one client, kept connections, one sentence per failure."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

STATUS_TIMEOUT_S = 1.0
SILENT_TIMEOUT_S = 0.2
VERB_TIMEOUT_S = 15.0


class LinkError(Exception):
    """The node did not do it; `is_refusal` when it answered and said why."""

    def __init__(self, sentence: str, is_refusal: bool = False) -> None:
        super().__init__(sentence)
        self.is_refusal = is_refusal


class NodeLinks:
    """A session for all nodes of one cluster; close it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._session: aiohttp.ClientSession | None = None
        self._silent: set[str] = set()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._secret}"}, trust_env=False
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def status(self, address: str) -> dict[str, Any]:
        """Raises LinkError. Who was silent is waited for less the next time: one member that
        hangs must not make the controller slow for the others."""
        timeout_s = SILENT_TIMEOUT_S if address in self._silent else STATUS_TIMEOUT_S
        self._silent.discard(address)
        answer = await self._ask("GET", address, "/status", None, timeout_s)
        if not isinstance(answer, dict):
            raise LinkError(f"{address} is not a node: its status is no object")
        return answer

    async def text(self, address: str, path: str) -> str:
        """What a node says in words of its own, such as its metrics. Raises LinkError."""
        return str(await self._ask("GET", address, path, None, STATUS_TIMEOUT_S))

    async def post(self, address: str, path: str, fields: dict[str, Any]) -> Any:
        """The `result` of an order. Raises LinkError."""
        answer = await self._ask("POST", address, path, fields, VERB_TIMEOUT_S)
        return answer.get("result") if isinstance(answer, dict) else None

    async def _ask(
        self, method: str, address: str, path: str, fields: dict[str, Any] | None, timeout_s: float
    ) -> Any:
        try:
            async with self._opened().request(
                method,
                f"http://{address}{path}",
                json=fields,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                text = await response.text()
                is_json = response.content_type == "application/json"
                answer = await response.json() if is_json else text
        except TimeoutError as error:
            self._silent.add(address)
            raise LinkError(f"{address} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise LinkError(f"{address} cannot be reached: {_reason(error)}") from error
        if response.status >= 400:
            said = answer.get("error") if isinstance(answer, dict) else str(answer)
            raise LinkError(str(said or f"HTTP {response.status}"), is_refusal=True)
        return answer

    async def statuses(self, addresses: dict[str, str]) -> dict[str, dict[str, Any] | LinkError]:
        """What each named node says, asked at the same time."""
        return await ask_each(self.status, addresses)


async def ask_each(
    ask: Callable[[str], Awaitable[dict[str, Any]]], addresses: dict[str, str]
) -> dict[str, dict[str, Any] | LinkError]:
    """The answer of each named address, or why there is none, asked at the same time."""
    answers = await asyncio.gather(*map(ask, addresses.values()), return_exceptions=True)
    found: dict[str, dict[str, Any] | LinkError] = {}
    for name, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, LinkError):
            raise answer
        found[name] = answer
    return found


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "strerror", None) or error or type(error).__name__)
