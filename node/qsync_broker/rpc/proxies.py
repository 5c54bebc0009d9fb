"""Connections to the services of other brokers, for requests that they must serve."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc

from qsync_broker.keyspace import KeySpace
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.channels import CHANNEL_OPTIONS
from qsync_node.format.journals import BrokerId

if TYPE_CHECKING:
    from qsync_broker.tls import BrokerTls


class Proxies:
    """One channel for each endpoint of a broker."""

    def __init__(self, tls: "BrokerTls | None") -> None:
        self._tls = tls
        self._channels: dict[str, Any] = {}

    def stub(self, keys: KeySpace, broker: BrokerId) -> Any:
        """Return the client of a broker's service; a broker that left has an address in vain."""
        row = keys.brokers.get(broker)
        url = urlsplit(row.endpoint if row is not None else "http://127.0.0.1:1")
        # A channel with an earlier certificate stays: requests under way may use it.
        generation = self._tls.generation if self._tls is not None else 0
        key = f"{url.scheme}://{url.netloc}#{generation}"
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._open(url.scheme, url.netloc)
        return pb_grpc.JournalStub(channel)

    def _open(self, scheme: str, target: str) -> Any:
        if scheme != "https" or self._tls is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        credentials, options = self._tls.credentials()
        return grpc.aio.secure_channel(target, credentials, options=[*CHANNEL_OPTIONS, *options])

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
