"""A client of the API server over the asyncio part of the `kubernetes` package.

Only the package's configuration and transport are used. Its generated classes cannot apply, and
they convert manifests to another form than the one that users read.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.stream import WsApiClient

from qsync_operator import metrics
from qsync_operator.kubernetes.api import RESOURCES, ApiError, name_of
from qsync_operator.resources.labels import MANAGER, KubernetesObject

DEADLINE_S = 10.0
EXECUTE_S = 30.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STDOUT, STDERR, OUTCOME = 1, 2, 3
"""Channels of a command in a pod."""
PORT_DATA, PORT_ERRORS = 0, 1
"""Channels of a forwarded port."""
PORT_BYTES = 2


def kubeconfig_path() -> str:
    """Return the path of the kubeconfig. An empty variable counts as none, as for kubectl."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _found_kubeconfig() -> str:
    """Return the path of the kubeconfig.

    Raises:
        ConfigException: no file exists there. The library would log that, and then complain about
            an empty file.
    """
    paths = kubeconfig_path()
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise config.ConfigException(f"{paths} does not exist")
    return paths


class KubernetesApi:
    """The API over HTTP; open it with `connect` or `connect_as`, and close it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls) -> "KubernetesApi":
        """Connect as a pod if there is a service account, or else as the kubeconfig's user."""
        configuration = Configuration()
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException:
            await config.load_kube_config(kubeconfig_path(), client_configuration=configuration)
        return cls(ApiClient(configuration))

    @classmethod
    async def connect_as(cls, context: str | None) -> "KubernetesApi":
        """Connect as the user of the kubeconfig if there is one, otherwise as a pod.

        Args:
            context: context of the kubeconfig; None is the current one.

        Raises:
            ApiError: neither configuration exists.
        """
        configuration = Configuration()
        try:
            await config.load_kube_config(
                _found_kubeconfig(), context=context, client_configuration=configuration
            )
        except config.ConfigException as error:
            try:
                config.load_incluster_config(configuration)
            except config.ConfigException:
                raise ApiError(f"no Kubernetes cluster is configured: {error}") from error
        return cls(ApiClient(configuration))

    async def close(self) -> None:
        await self._client.close()

    async def patch(
        self, kind: str, namespace: str, name: str, change: dict[str, Any]
    ) -> KubernetesObject:
        """Send a merge patch as `kubectl-qsync`: a user changes an object of another owner."""
        path = RESOURCES[kind].path(namespace, name)
        return await self._ask("PATCH", path, [("fieldManager", "kubectl-qsync")], change, MERGE)

    async def log(
        self, namespace: str, pod: str, is_followed: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        """Yield pieces of a member's log as they arrive.

        Args:
            namespace: namespace of the pod.
            pod: name of the pod.
            is_followed: whether to wait for further output.
            tail: number of lines to begin with; None is all.

        Raises:
            ApiError: the log cannot be read.
        """
        query = [("container", "node")] + ([("follow", "true")] if is_followed else [])
        query += [("tailLines", str(tail))] if tail is not None else []
        path = RESOURCES["Pod"].path(namespace, pod, "log")
        try:
            request = await self._client.param_serialize(
                "GET", path, query_params=query, auth_settings=["BearerToken"]
            )
            patience_s = None if is_followed else EXECUTE_S
            answer = await self._client.call_api(
                *request, _request_timeout=aiohttp.ClientTimeout(total=patience_s)
            )
            if answer.status != 200:
                text = await answer.read()
                raise ApiError(f"log of {pod}: {_sentence(text)}", int(answer.status))
            async for piece in answer.response.content.iter_any():
                yield piece
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise ApiError(f"log of {pod}: {error}") from error

    async def execute(
        self, namespace: str, pod: str, command: tuple[str, ...]
    ) -> tuple[int, str, str]:
        """Run a command in a member's pod; return exit code, standard output, standard error.

        Raises:
            ApiError: the command could not be run, or did not end within `EXECUTE_S` seconds.
        """
        path = RESOURCES["Pod"].path(namespace, pod, "exec")
        query = [("container", "node"), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        client = WsApiClient(self._client.configuration)
        said = {STDOUT: b"", STDERR: b"", OUTCOME: b""}
        try:
            request = await client.param_serialize(
                "GET", path, query_params=query, auth_settings=["BearerToken"]
            )
            opened = await client.call_api(*request, _preload_content=False)
            async with asyncio.timeout(EXECUTE_S), opened.response as stream:
                async for message in stream:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data:
                        channel = message.data[0]
                        said[channel] = said.get(channel, b"") + message.data[1:]
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(f"exec in {pod}: {error.message}", error.status) from error
        except TimeoutError as error:
            raise ApiError(f"exec in {pod}: no answer within {EXECUTE_S:g} s") from error
        except (OSError, aiohttp.ClientError) as error:
            raise ApiError(_unreached(error)) from error
        finally:
            await client.close()
        out, err = (said[channel].decode(errors="replace") for channel in (STDOUT, STDERR))
        return exit_code(said[OUTCOME]), out, err

    @asynccontextmanager
    async def forward(self, namespace: str, pod: str, port: int) -> AsyncIterator["PortStream"]:
        """Connect to a port of a pod, for as long as the block runs.

        Raises:
            ApiError: the API server refuses, or cannot reach the pod.
        """
        path = RESOURCES["Pod"].path(namespace, pod, "portforward")
        client = WsApiClient(self._client.configuration)
        try:
            request = await client.param_serialize(
                "GET", path, query_params=[("ports", str(port))], auth_settings=["BearerToken"]
            )
            opened = await client.call_api(*request, _preload_content=False)
            async with opened.response as stream:
                yield PortStream(pod, stream)
        except aiohttp.WSServerHandshakeError as error:
            text = f"port-forward to {pod}: the API server answered with HTTP {error.status}"
            if error.status == 403:
                text += "; the user needs the permission to create and get pods/portforward"
            raise ApiError(text, error.status) from error
        except aiohttp.ClientError as error:
            raise ApiError(f"port-forward to {pod}: {error}") from error
        finally:
            await client.close()

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None:
        try:
            return await self._ask("GET", RESOURCES[kind].path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(
        self, kind: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[KubernetesObject]:
        query = [("labelSelector", labels)] if labels else []
        query += [("fieldSelector", fields)] if fields else []
        found = await self._ask("GET", RESOURCES[kind].path(namespace), query)
        items: list[KubernetesObject] = found["items"]
        return items

    async def has_kind(self, kind: str) -> bool:
        try:
            found = await self._ask("GET", f"/apis/{RESOURCES[kind].api_version}")
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        return any(resource["kind"] == kind for resource in found["resources"])

    async def create(self, document: KubernetesObject) -> KubernetesObject:
        path = RESOURCES[document["kind"]].path(document["metadata"]["namespace"])
        return await self._ask("POST", path, [("fieldManager", MANAGER)], document)

    async def apply(self, document: KubernetesObject, subresource: str = "") -> KubernetesObject:
        path = RESOURCES[document["kind"]].path(
            document["metadata"]["namespace"], name_of(document), subresource
        )
        query = [("fieldManager", MANAGER), ("force", "true")]
        return await self._ask("PATCH", path, query, document, APPLY)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        body: KubernetesObject = {"preconditions": {"uid": uid}} if uid else {}
        if keeps_pods:
            body["propagationPolicy"] = "Orphan"
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
        body: object = None,
        content_type: str = "application/json",
    ) -> KubernetesObject:
        status = 0
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
            text = await answer.read()
            status = int(answer.status)
        except ApiException as error:
            status = int(error.status or 0)
            raise ApiError(f"{method} {path}: {error.reason}", int(error.status or 0)) from error
        except TimeoutError as error:
            raise ApiError(f"{method} {path}: no answer within {DEADLINE_S:g} s") from error
        except (OSError, aiohttp.ClientError) as error:
            raise ApiError(_unreached(error)) from error
        finally:
            metrics.REQUESTS.labels(method, str(status)).inc()
        if not 200 <= answer.status <= 299:
            raise ApiError(f"{method} {path}: {_sentence(text)}", int(answer.status))
        try:
            found: KubernetesObject = json.loads(text)
        except ValueError as error:
            raise ApiError(f"{method} {path}: the response is not JSON") from error
        return found


class PortStream:
    """A connection to a port of a pod. Each channel begins with a message that names the port."""

    def __init__(self, pod: str, stream: aiohttp.ClientWebSocketResponse) -> None:
        self._pod = pod
        self._stream = stream
        self._named: set[int] = set()

    async def receive(self) -> bytes:
        """Return the next bytes, or nothing at the end.

        Raises:
            ApiError: the pod cannot be reached.
        """
        async for message in self._stream:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in self._named:
                self._named.add(channel)
                data = data[PORT_BYTES:]
            if data and channel == PORT_ERRORS:
                raise ApiError(f"port-forward to {self._pod}: {data.decode(errors='replace')}")
            if data:
                return bytes(data)
        return b""

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await self._stream.send_bytes(bytes([PORT_DATA]) + data)


def current_namespace(context: str | None) -> str:
    """Return the namespace of a context of the kubeconfig, or of the current context for None.

    Raises:
        ApiError: the context does not exist.
    """
    try:
        contexts, active = config.list_kube_config_contexts(_found_kubeconfig())
    except config.ConfigException as error:
        if context is None:
            return "default"  # inside a pod
        raise ApiError(f"unknown context {context}: {error}") from error
    found = active if context is None else next((c for c in contexts if c["name"] == context), None)
    if found is None:
        raise ApiError(f"context {context} not found in the kubeconfig")
    return str(found["context"].get("namespace") or "default")


def exit_code(outcome: bytes) -> int:
    """Return the exit code in a command's outcome message, or 1 if the message is incomplete."""
    try:
        said = json.loads(outcome)
        if said.get("status") == "Success":
            return 0
        return int(said["details"]["causes"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        return 1


def _unreached(error: Exception) -> str:
    return (
        f"cannot connect to the API server: {error}; check that it runs, and that its address is "
        "the right one"
    )


def _sentence(text: bytes | str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return str(text)[:200]
