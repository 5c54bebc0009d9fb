"""Tunnels to the members of a cluster on Kubernetes, through the API server.

Each member's port is a port of this machine while a verb runs. Connections go through
`pods/portforward`, so no port of the cluster has to be open, and the audit log names the user. The
credentials come from the Secret NAME-app.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qsync_cli.failure import Failure, FailureReason, failure_of
from qsync_cli.kubernetes import session as sessions
from qsync_cli.where import Where
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.resources import labels, secrets

if TYPE_CHECKING:
    from qsync_operator.kubernetes.client import KubernetesApi, PortStream

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ForwardedPort:
    """The local ends of the tunnels, the names of their pods, and the content of the Secret."""

    addresses: list[str]
    username: str
    password: str
    tls: ssl.SSLContext | None
    names: list[str] = field(default_factory=list)
    has_archive: bool = False


@dataclass(slots=True)
class _Tunnels:
    """The tunnels of one cluster.

    Attributes:
        api: connection to the API server.
        namespace: namespace of the pods.
        errors: the last error by pod, until a connection succeeds.
    """

    api: "KubernetesApi"
    namespace: str
    errors: dict[str, str] = field(default_factory=dict)
    _servers: list[asyncio.Server] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def listen(self, pod: str, port: int) -> str:
        """Return the address of a local port whose connections reach the port of the pod."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A task of its own: asyncio logs the cancellation of those that it starts.
            task = asyncio.create_task(self._serve(pod, port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        host, local = server.sockets[0].getsockname()
        return f"{host}:{local}"

    async def _serve(
        self, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with self.api.forward(self.namespace, pod, port) as stream:
                sending = asyncio.create_task(_send(reader, stream))
                try:
                    while data := await stream.receive():
                        self.errors.pop(pod, None)
                        writer.write(data)
                        await writer.drain()
                finally:
                    sending.cancel()
        except ApiError as error:
            self.errors[pod] = str(error)
        except OSError:
            pass  # this machine's end of the connection is closed
        finally:
            writer.close()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()


async def _send(reader: asyncio.StreamReader, stream: "PortStream") -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            await stream.send(data)


@contextmanager
def forwarded(where: Where) -> Iterator[ForwardedPort]:
    """Yield tunnels to all voters of a cluster.

    Raises:
        Failure: there is no such cluster or Secret, the API server refuses, or no member answered
            and the tunnels know why.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="qsync-tunnels", daemon=True)
    thread.start()

    def run(work: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), loop).result()

    opened: list[_Tunnels] = []
    try:
        try:
            found = run(_open(where, opened.append))
        except ApiError as error:
            raise failure_of(error) from error
        try:
            yield found
        except Failure as failure:
            errors = opened[0].errors
            if failure.reason is not FailureReason.UNREACHABLE or not errors:
                raise
            text = "; ".join(sorted(set(errors.values())))
            raise Failure(FailureReason.UNREACHABLE, f"{where.cluster}: {text}") from failure
    finally:
        for tunnels in opened:
            run(tunnels.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _open(where: Where, opened: Callable[[_Tunnels], None]) -> ForwardedPort:
    session = await sessions.open_session(where)
    tunnels = _Tunnels(session.api, session.namespace)
    opened(tunnels)
    cluster = sessions.choose(await session.clusters(), where, session.namespace, None)
    name = labels.app_secret_name(str(cluster["metadata"]["name"]))
    secret = await session.api.get("Secret", session.namespace, name)
    if secret is None:
        raise Failure(
            FailureReason.NOT_READY,
            f"Secret {name} not found: the operator has not created it yet; retry when the "
            "cluster is Ready",
        )
    fields = secrets.decoded(secret)
    is_encrypted = ((cluster.get("spec") or {}).get("tls") or {}).get("clients") == "Require"
    port = int(fields["tlsPort" if is_encrypted else "port"])
    pods = [address.partition(".")[0] for address in fields["addresses"].split(",")]
    addresses = [await tunnels.listen(pod, port) for pod in pods]
    tls = _trusting(fields["ca.crt"]) if is_encrypted else None
    has_archive = bool((cluster.get("spec") or {}).get("archive"))
    return ForwardedPort(addresses, fields["username"], fields["password"], tls, pods, has_archive)


def _trusting(authorities: str) -> ssl.SSLContext:
    """Return a context for members of one cluster; names differ, because the tunnel is local."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authorities)
    return context
