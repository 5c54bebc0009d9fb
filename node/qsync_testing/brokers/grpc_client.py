"""A client of one broker's gRPC interface."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_testing.brokers.servers import BrokerNode

JOURNAL = "a/journal"
LOST = "Internal error from Core"
"""gRPC may replace the error of a call that the broker ends while the client still writes."""


class GrpcClient:
    """A client of one broker."""

    def __init__(self, node: BrokerNode, token: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(node.url.removeprefix("http://"))
        self.stub: Any = pb_grpc.JournalStub(self.channel)
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    async def __aenter__(self) -> "GrpcClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def append(self, *contents: bytes, is_committed: bool = True, **fields: Any) -> Any:
        """Append contents, and return the answer."""
        fields.setdefault("journal", JOURNAL)

        async def requests() -> AsyncIterator[pb.AppendRequest]:
            yield pb.AppendRequest(**fields)
            for content in contents:
                yield pb.AppendRequest(content=content)
            if is_committed:
                yield pb.AppendRequest()

        for _ in range(5):
            try:
                return await self.stub.Append(requests(), metadata=self.metadata)
            except grpc.aio.AioRpcError as error:
                if error.details() != LOST:
                    raise
        raise AssertionError("gRPC lost the broker's error five times")

    async def read(self, **fields: Any) -> list[Any]:
        """Return the messages of a read."""
        request = pb.ReadRequest(**{"journal": JOURNAL, **fields})
        return [message async for message in self.stub.Read(request, metadata=self.metadata)]

    async def content(self, **fields: object) -> bytes:
        return b"".join(message.content for message in await self.read(**fields))

    async def list(self, **fields: Any) -> list[Any]:
        """Return the listed journals."""
        listed = self.stub.List(pb.ListRequest(**fields), metadata=self.metadata)
        return [journal async for message in listed for journal in message.journals]

    async def apply(self, *changes: Any) -> Any:
        request = pb.ApplyRequest(changes=changes)
        return await self.stub.Apply(request, metadata=self.metadata)
