"""Queries nodes through the API server, by running a command in the pod of each member.

This serves users whose machines cannot reach pods; `pods/exec` is the only right that it needs. An
address is the name of a pod.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from qsync_operator.kubernetes.api import ApiError
from qsync_operator.members.links import LinkError, ask_each

ASK = ("python", "-m", "qsync_operator.pod_ask")


class PodApi(Protocol):
    """The API server's calls used here; they raise ApiError."""

    async def execute(
        self, namespace: str, pod: str, command: tuple[str, ...]
    ) -> tuple[int, str, str]:
        """Run a command, and return exit code, standard output and standard error."""

    async def close(self) -> None: ...


class PodLinks:
    """Links to the nodes of one namespace; the API connection is opened on first use."""

    def __init__(self, connect: Callable[[], Awaitable[PodApi]], namespace: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._api: PodApi | None = None

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    async def status(self, address: str) -> dict[str, Any]:
        """Return the status of a node.

        Raises:
            LinkError: the node cannot be queried, or its status is not a JSON object.
        """
        answer = await self._ask(address, "ask", "GET", "/status")
        if not isinstance(answer, dict):
            raise LinkError(f"unexpected response from {address}: /status is not a JSON object")
        return answer

    async def post(self, address: str, path: str, fields: dict[str, Any]) -> Any:
        """Send an order, and return the `result` of the answer.

        Raises:
            LinkError: the node cannot be reached, or refused the order.
        """
        answer = await self._ask(address, "ask", "POST", path, json.dumps(fields))
        return answer.get("result") if isinstance(answer, dict) else None

    async def rollbacks(self, address: str) -> Any:
        """Return the rows that the member rolled back, by file.

        Raises:
            LinkError: the node cannot be queried.
        """
        return await self._ask(address, "rollbacks")

    async def broker_metrics(self, address: str, port: int, has_tls: bool) -> str:
        """Return the metrics of the broker in a pod.

        Args:
            address: name of the pod.
            port: port of the broker's clients.
            has_tls: whether the broker uses TLS.

        Raises:
            LinkError: the broker cannot be queried; an image of an earlier version has no query.
        """
        security = "tls" if has_tls else "plain"
        return str(await self._ask(address, "broker", str(port), security))

    async def statuses(self, addresses: dict[str, str]) -> dict[str, dict[str, Any] | LinkError]:
        """Query all nodes concurrently, and return a status or an error for each."""
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
            raise LinkError(f"cannot query {pod}: {error}") from error
        try:
            said = json.loads(out)
            status, answer = int(said["status"]), said["answer"]
        except (ValueError, KeyError, TypeError) as error:
            why = (err or out).strip().splitlines()
            raise LinkError(
                f"cannot query {pod}: {why[-1] if why else f'exit code {code}'}"
            ) from error
        if status >= 400:
            text = answer.get("error") if isinstance(answer, dict) else str(answer)
            raise LinkError(str(text or f"HTTP {status}"), is_refusal=True)
        return answer
