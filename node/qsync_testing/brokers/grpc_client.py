"""A client of one broker's gRPC interface."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest

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


def spec(name: str, **fields: Any) -> pb.JournalSpec:
    """Return a specification with one replica."""
    fragment = pb.JournalSpec.Fragment(length=1 << 20, compression_codec=pb.SNAPPY)
    fragment.refresh_interval.seconds = 60
    return pb.JournalSpec(**{"name": name, "replication": 1, "fragment": fragment, **fields})


def selector(**labels: str) -> pb.LabelSelector:
    include = [pb.Label(name=name, value=value) for name, value in labels.items()]
    return pb.LabelSelector(include=pb.LabelSet(labels=include))


def label_set(**labels: str) -> pb.LabelSet:
    return pb.LabelSet(labels=[pb.Label(name=name, value=labels[name]) for name in labels])


def sum_bytes(message: pb.SHA1Sum) -> bytes:
    parts = ((message.part1, 8), (message.part2, 8), (message.part3, 4))
    return b"".join(part.to_bytes(size, "big") for part, size in parts)


async def error_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """Return the code and the text of the error with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())
