"""The API over the asyncio half of the `kubernetes` package: its configuration and transport.

Its generated classes are not used: they cannot apply, and they turn manifests into something else
than what a person would read.
"""

import json
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from qsync_operator.desired.labels import MANAGER, Object
from qsync_operator.platform.kubernetes.api import RESOURCES, ApiError, name_of

DEADLINE_S = 10.0
APPLY = "application/apply-patch+yaml"


class KubernetesApi:
    """Open it with `connect`, close it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls) -> "KubernetesApi":
        """As a pod, or else as the user whom `kubectl` would be."""
        configuration = Configuration()
        try:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
        return cls(ApiClient(configuration))

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return await self._ask("GET", RESOURCES[kind].path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(self, kind: str, namespace: str, labels: str = "") -> list[Object]:
        query = [("labelSelector", labels)] if labels else []
        found = await self._ask("GET", RESOURCES[kind].path(namespace), query)
        items: list[Object] = found["items"]
        return items

    async def create(self, document: Object) -> Object:
        path = RESOURCES[document["kind"]].path(document["metadata"]["namespace"])
        return await self._ask("POST", path, [("fieldManager", MANAGER)], document)

    async def apply(self, document: Object, subresource: str = "") -> Object:
        path = RESOURCES[document["kind"]].path(
            document["metadata"]["namespace"], name_of(document), subresource
        )
        query = [("fieldManager", MANAGER), ("force", "true")]
        return await self._ask("PATCH", path, query, document, APPLY)

    async def delete(self, kind: str, namespace: str, name: str, uid: str = "") -> None:
        body = {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self._ask("DELETE", RESOURCES[kind].path(namespace, name), [], body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _ask(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=query or [],
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*request, _request_timeout=DEADLINE_S)
            text = await answer.read()  # type: ignore[no-untyped-call]
        except ApiException as error:
            raise ApiError(f"{method} {path}: {error.reason}", int(error.status or 0)) from error
        except TimeoutError as error:
            raise ApiError(f"{method} {path}: no answer within {DEADLINE_S:g} s") from error
        except OSError as error:  # aiohttp's connection errors are such
            raise ApiError(f"the API server cannot be reached: {error}") from error
        if not 200 <= answer.status <= 299:
            raise ApiError(f"{method} {path}: {_sentence(text)}", int(answer.status))
        found: Object = json.loads(text)
        return found


def _sentence(text: bytes | str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return str(text)[:200]
