"""Talks to nodes through the API server: each question is a command in the member's pod.

For people, whose machines reach no pod: `pods/exec` is the only right that it takes. An address is
the name of a pod.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from qsync_operator.links import LinkError, ask_each
from qsync_operator.platform.kubernetes.api import ApiError

ASK = ("python", "-m", "qsync_operator.pod_ask")


class PodApi(Protocol):
    """The part of the API server's client that is used here; calls raise ApiError."""

    async def execute(
        self, namespace: str, pod: str, command: tuple[str, ...]
    ) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""

    async def close(self) -> None: ...


class PodLinks:
    """Of one namespace; the connection is made when it is first needed."""

    def __init__(self, connect: Callable[[], Awaitable[PodApi]], namespace: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._api: PodApi | None = None

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    async def status(self, address: str) -> dict[str, Any]:
        """Raises LinkError."""
        answer = await self._ask(address, "ask", "GET", "/status")
        if not isinstance(answer, dict):
            raise LinkError(f"{address} is not a node: its status is no object")
        return answer

    async def post(self, address: str, path: str, fields: dict[str, Any]) -> Any:
        """The `result` of an order. Raises LinkError."""
        answer = await self._ask(address, "ask", "POST", path, json.dumps(fields))
        return answer.get("result") if isinstance(answer, dict) else None

    async def rollbacks(self, address: str) -> Any:
        """Rows that the member had to give up, by file. Raises LinkError."""
        return await self._ask(address, "rollbacks")

    async def statuses(self, addresses: dict[str, str]) -> dict[str, dict[str, Any] | LinkError]:
        """What each named node says, asked at the same time."""
        if self._api is None:
            try:
                self._api = await self._connect()
            except ApiError as error:
                return dict.fromkeys(addresses, LinkError(str(error)))
        return await ask_each(self.status, addresses)

    async def _ask(self, pod: str, *arguments: str) -> Any:
        try:
            if self._api is None:
                self._api = await self._connect()
            code, out, err = await self._api.execute(self._namespace, pod, (*ASK, *arguments))
        except ApiError as error:
            raise LinkError(f"{pod} cannot be asked: {error}") from error
        try:
            said = json.loads(out)
            status, answer = int(said["status"]), said["answer"]
        except (ValueError, KeyError, TypeError) as error:
            why = (err or out).strip().splitlines()
            raise LinkError(
                f"{pod} cannot be asked: {why[-1] if why else f'exit code {code}'}"
            ) from error
        if status >= 400:
            text = answer.get("error") if isinstance(answer, dict) else str(answer)
            raise LinkError(str(text or f"HTTP {status}"), is_refusal=True)
        return answer
