"""Connections to the services of other brokers, for requests that they must serve.

A broker serves at most `serving.STREAMS_MAX` requests on one connection, and gRPC lets further ones
wait without a limit. Reads may wait for bytes without a limit, too. Each method therefore has
channels of its own, and another channel before one is full.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import grpc

from qsync_broker.keyspace import KeySpace
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.channels import CHANNEL_OPTIONS
from qsync_node.format.journals import BrokerId

if TYPE_CHECKING:
    from qsync_broker.tls import BrokerTls

CALLS_MAX = 512
"""Maximum number of requests under way on one channel."""
_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS,
    # By default, channels to one address share their connection.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(eq=False, slots=True)
class _ProxyChannel:
    """A channel, and the number of requests under way on it."""

    channel: Any
    target: str
    generation: int
    calls: int = 0


class Proxies:
    """Channels to the endpoints of brokers, for each method."""

    def __init__(self, tls: "BrokerTls | None") -> None:
        self._tls = tls
        self._channels: dict[str, list[_ProxyChannel]] = {}

    def call(
        self, keys: KeySpace, broker: BrokerId, method: str, *request: object, **options: object
    ) -> Any:
        """Send a request to a broker; one that left has an address in vain.

        Args:
            keys: the key space.
            broker: the broker.
            method: method of the service.
            request: the message, if the request has only one.
            options: options of the call, such as `metadata`.

        Returns:
            The call of gRPC.
        """
        row = keys.brokers.get(broker)
        url = urlsplit(row.endpoint if row is not None else "http://127.0.0.1:1")
        used = self._with_room(keys, url, method)
        call = getattr(pb_grpc.JournalStub(used.channel), method)(*request, **options)
        used.calls += 1

        def end(_: object) -> None:
            used.calls -= 1

        call.add_done_callback(end)
        return call

    def _with_room(self, keys: KeySpace, url: SplitResult, method: str) -> _ProxyChannel:
        """Return a channel that takes one more request."""
        # A channel with an earlier certificate stays: requests under way may use it.
        generation = self._tls.generation if self._tls is not None else 0
        key = f"{method} {url.scheme}://{url.netloc}"
        for one in self._channels.get(key, ()):
            if one.generation == generation and one.calls < CALLS_MAX:
                return one
        self._forget_unused(keys, generation)
        added = _ProxyChannel(self._open(url.scheme, url.netloc), url.netloc, generation)
        self._channels.setdefault(key, []).append(added)
        return added

    def _forget_unused(self, keys: KeySpace, generation: int) -> None:
        """Forget channels without requests that no request will use; gRPC then closes them."""
        targets = {urlsplit(row.endpoint).netloc for row in keys.brokers.values()}
        kept = {
            key: [
                one
                for one in channels
                if one.calls or (one.generation == generation and one.target in targets)
            ]
            for key, channels in self._channels.items()
        }
        self._channels = {key: channels for key, channels in kept.items() if channels}

    def _open(self, scheme: str, target: str) -> Any:
        if scheme != "https" or self._tls is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        credentials, options = self._tls.credentials()
        return grpc.aio.secure_channel(target, credentials, options=[*_OPTIONS, *options])

    async def close(self) -> None:
        """Close all channels."""
        for channels in self._channels.values():
            for one in channels:
                await one.channel.close()
        self._channels.clear()
