"""Packets of a client connection, without its socket: which of them reach the node or a watcher."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from qsync_client.protocol.codes import ErrorCode
from qsync_client.protocol.connection import error_code
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import FrameDecoder, encode_request
from qsync_node.consensus import effects as fx
from qsync_node.format.mp import pack
from qsync_node.server.admission import RequestBytes
from qsync_node.server.bounds import ConnectionBounds
from qsync_node.server.connection import ServerConnection
from qsync_node.server.dispatch import Dispatch, Port
from qsync_node.server.login import LogIn
from qsync_node.server.requestqueue import RequestQueue
from qsync_node.server.services import Services
from qsync_node.server.timings import Timings
from qsync_node.server.watches import WATCHED_KEY_MAX, WATCHED_KEYS_MAX, Watches

UUID = "11111111-1111-4111-8111-111111111111"
SCHEMA_VERSION = 7
TOO_LONG = "k" * (WATCHED_KEY_MAX + 1)


class DispatchBench:
    """The packets of one guest.

    Attributes:
        requests: the requests that reached the node.
        watched: the keys of each WATCH that reached the watchers.
    """

    def __init__(self) -> None:
        self.requests: list[fx.Request] = []
        self.watched: list[str] = []
        self.number = 1
        self.watches = Watches()
        self.transport: asyncio.Transport | None = None
        self._output = b""
        connection = ServerConnection(1 << 20, has_guest=True)
        connection.open(UUID, bytes(32), binding=b"", is_member=False)
        services = SimpleNamespace(
            node=SimpleNamespace(schema_version=SCHEMA_VERSION),
            feed=self.requests.append,
            timings=Timings(),
            watchers=SimpleNamespace(watch=self._watch),
        )
        self._dispatch = Dispatch(
            cast(Services, services),
            connection,
            LogIn(has_guest=True),
            RequestQueue(RequestBytes(), ConnectionBounds()),
            cast(Port, self),
        )

    def _watch(self, port: object, key: str, *, is_first: bool) -> None:
        self.watched.append(key)

    def write(self, data: bytes) -> None:
        self._output += data

    def take(
        self, kind: int, fields: dict[int, object], header: dict[int, object] | None = None
    ) -> list[int]:
        """Handle a packet; return the codes of the answers to it, 0 for success."""
        ((_, sync, found, body),) = FrameDecoder().feed(encode_request(kind, 1, pack(fields)))
        self._dispatch.take((kind, sync, {**found, **(header or {})}, body))
        output, self._output = self._output, b""
        return [error_code(kind) for kind, _, _, _ in FrameDecoder().feed(output)]

    def watch(self, key: str) -> list[int]:
        return self.take(Type.WATCH, {Key.EVENT_KEY: key})


@pytest.mark.parametrize("wanted", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_request_for_another_schema_is_refused_whether_earlier_or_later(wanted: int) -> None:
    """The ids that its client has looked up may belong to other spaces now."""
    bench = DispatchBench()
    assert bench.take(Type.REPLACE, {}, {Key.SCHEMA_VERSION: wanted}) == [
        ErrorCode.WRONG_SCHEMA_VERSION
    ]
    assert not bench.requests
    for current in (0, SCHEMA_VERSION):  # 0 stands for any version
        assert not bench.take(Type.REPLACE, {}, {Key.SCHEMA_VERSION: current})
    assert len(bench.requests) == 2


def test_client_acknowledges_events_although_it_watches_the_most_keys() -> None:
    """Without an acknowledgement it gets no further event of the key."""
    bench = DispatchBench()
    for number in range(WATCHED_KEYS_MAX):
        assert not bench.watch(f"key {number}")
    assert bench.watch("another key") == [ErrorCode.TOO_MANY]
    bench.watched.clear()
    assert not bench.watch("key 0")
    assert bench.watched == ["key 0"]
    assert not bench.take(Type.UNWATCH, {Key.EVENT_KEY: "key 0"})
    assert not bench.watch("another key")


@pytest.mark.parametrize("kind", [Type.WATCH, Type.UNWATCH, Type.WATCH_ONCE])
def test_key_that_is_too_long_is_refused(kind: Type) -> None:
    """A client could otherwise let a member remember a thousand keys of any size."""
    bench = DispatchBench()
    assert not bench.watch(TOO_LONG[1:])
    assert bench.take(kind, {Key.EVENT_KEY: TOO_LONG}) == [ErrorCode.INVALID_MSGPACK]
    assert len(bench.watched) == 1
