"""Connections to the services of other brokers, for requests that they must serve."""

from typing import Any
from urllib.parse import urlsplit

import grpc

from qsync_broker.keyspace import KeySpace
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_node.format.journals import BrokerId

OPTIONS = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
]


class Proxies:
    """One channel for each endpoint of a broker."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}

    def stub(self, keys: KeySpace, broker: BrokerId) -> Any:
        """Return the client of a broker's service; a broker that left has an address in vain."""
        row = keys.brokers.get(broker)
        target = urlsplit(row.endpoint).netloc if row is not None else "127.0.0.1:1"
        channel = self._channels.get(target)
        if channel is None:
            channel = self._channels[target] = grpc.aio.insecure_channel(target, options=OPTIONS)
        return pb_grpc.JournalStub(channel)

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
