"""Connections to other members: attempts that are never answered, or refused."""

import asyncio
import gc
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import qsync_node.server.peers
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.format.frame import encode_ok
from qsync_node.format.mp import unpack
from qsync_node.peering.frames import EMPTY_FRAME, encode_frames
from qsync_node.peering.handshake import Established, Opening, PeerIdentity, answer_hello
from qsync_node.server.config import ConfigError, NodeConfig, load_config
from qsync_node.server.links import Links
from qsync_node.server.logs import Log
from qsync_node.server.loop import NodeServer
from qsync_node.server.peers import Dialer, Peers
from qsync_node.server.services import Newcomer
from qsync_node.server.sessions import ClientSocket, Sessions

UUID = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"


def peers_of(folder: Path, links: Links, numbers: Iterator[int], log: Log) -> Peers:
    """Return the connections of a member n1 that does not listen."""
    sessions = Sessions(numbers, 100, lambda number: None, lambda: None, log)
    config = NodeConfig(directory=folder, name="n1", replicaset_uuid=UUID, secret="a shared secret")
    return Peers(config, UUID, links, sessions, lambda item: None, log, lambda: None)


def test_attempt_without_an_answer_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process may be stopped. Resumed, it would answer all attempts at once."""
    monkeypatch.setattr(qsync_node.server.peers, "HANDSHAKE_TIMEOUT_S", 0.1)
    accepted: list[asyncio.StreamReader] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(reader)
        await reader.read()

    async def main() -> None:
        log = Log("n1", "error", io.StringIO())
        numbers = itertools.count(1)
        links = Links(asyncio.get_running_loop(), numbers)
        peers = peers_of(tmp_path, links, numbers, log)
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peers.set_addresses({"n2": f"127.0.0.1:{port}"})
        async with asyncio.timeout(20):
            while len(accepted) < 3:
                await asyncio.sleep(0.01)  # a real attempt ends by its own timer
            while sum(not reader.at_eof() for reader in accepted) > 1:
                await asyncio.sleep(0.01)  # the same
        peers.set_addresses({})
        async with asyncio.timeout(5):
            while not all(reader.at_eof() for reader in accepted):
                await asyncio.sleep(0.01)  # the same
        peers.stop()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "a..b:3301", f"{'a' * 64}.example:3301", "h\0st:3301"]
)
def test_address_that_cannot_be_dialled_is_reported_and_tried_again(
    tmp_path: Path, address: str
) -> None:
    """The system refuses it by other errors than those of connections."""

    async def main() -> None:
        log, numbers = Log("n1", "error", io.StringIO()), itertools.count(1)
        peers = peers_of(tmp_path, Links(asyncio.get_running_loop(), numbers), numbers, log)
        peers.set_addresses({"n2": address})
        async with asyncio.timeout(20):
            while peers.refused_count < 2:
                await asyncio.sleep(0.01)  # a real attempt ends by its own timer
        assert "invalid address" in str(peers.refusals.of_targets["n2"])
        peers.stop()

    asyncio.run(main())


@pytest.mark.parametrize("field", ["listen", "admin_listen", "advertise"])
def test_wrong_address_of_a_configuration_names_its_field(tmp_path: Path, field: str) -> None:
    path = tmp_path / "n1.yaml"
    lines = [f"directory: {tmp_path}", "name: n1", f"replicaset_uuid: {UUID}"]
    path.write_text("\n".join([*lines, "secret: a shared secret", f"{field}: n1:99999"]))
    with pytest.raises(ConfigError, match=rf"n1.yaml: {field}: invalid address 'n1:99999': use "):
        load_config(path)


def test_links_are_kept_alive_again_after_a_time_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end closes a connection on which it hears nothing (E12)."""
    monkeypatch.setattr(qsync_node.server.peers, "KEEPALIVE_S", 0.02)

    async def main() -> None:
        log, numbers = Log("n1", "error", io.StringIO()), itertools.count(1)
        links = Links(asyncio.get_running_loop(), numbers)
        peers = peers_of(tmp_path, links, numbers, log)

        async def keeps_alive() -> None:
            wire = ArrivedWire()
            link = peers.establish(wire, Established(OTHER, 1, b"run", {}), is_mine=True)
            async with asyncio.timeout(20):
                while EMPTY_FRAME not in wire.written:
                    await asyncio.sleep(0.01)  # a real timer sends the frames
            link.lost()

        await keeps_alive()
        assert len(links) == 0
        await asyncio.sleep(0.1)  # the timer finds no links
        await keeps_alive()
        peers.stop()

    asyncio.run(main())


def test_refusal_of_a_member_ends_with_a_link_to_it(tmp_path: Path) -> None:
    """Its address was wrong, and the status names the cause until the address is corrected."""

    def config_of(name: str) -> NodeConfig:
        return NodeConfig(
            directory=tmp_path / name, name=name, replicaset_uuid=UUID, secret="a shared secret"
        )

    async def greet_wrongly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 another server".ljust(128))
        await reader.read()
        writer.close()

    async def main() -> None:
        log = Log("n1", "error", io.StringIO())
        numbers = itertools.count(1)
        links = Links(asyncio.get_running_loop(), numbers)
        peers = peers_of(tmp_path, links, numbers, log)
        wrong = await asyncio.start_server(greet_wrongly, "127.0.0.1", 0)
        wrong_port = wrong.sockets[0].getsockname()[1]
        peers.set_addresses({"n2": f"127.0.0.1:{wrong_port}"})
        member = NodeServer(config_of("n2"), log)
        await member.listen()
        try:
            async with asyncio.timeout(20):
                while not peers.refusals.of_targets:
                    await asyncio.sleep(0.01)  # a real attempt ends by its own timer
                host, port = member.address
                peers.set_addresses({"n2": f"{host}:{port}"})
                while peers.refusals.of_targets:
                    await asyncio.sleep(0.01)  # the same
            assert len(links) == 1
            async with asyncio.timeout(20):
                peers.set_addresses({"n3": f"127.0.0.1:{wrong_port}"})
                while "n3" not in peers.refusals.of_targets:
                    await asyncio.sleep(0.01)  # the same
            peers.set_addresses({})
            assert peers.refusals.of_targets == {}, "an address that is gone needs no correction"
        finally:
            peers.stop()
            member.close(is_clean=False)
            wrong.close()

    thresholds = gc.get_threshold()
    try:
        asyncio.run(main())
    finally:
        gc.set_threshold(*thresholds)


class ArrivedWire(asyncio.Transport):
    """A connection to another member."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class Arrived:
    """A client connection that sends HELLO."""

    def __init__(self, salt: bytes) -> None:
        self.number = 0
        self.transport = ArrivedWire()
        self.connection = SimpleNamespace(salt=salt, binding=b"", is_member=False)
        self.peer: object = None

    def become_peer(self, peer: object) -> None:
        self.peer = peer


def test_connection_that_becomes_a_link_is_no_client_any_more(tmp_path: Path) -> None:
    """A flood of idle clients replaces unauthenticated ones, and must replace no link (E12)."""
    salt = bytes(32)
    opening = Opening(
        PeerIdentity(OTHER, UUID, "a shared secret", b"run", False), "n1", b"n" * 16, {}, bytes
    )
    hello, _ = opening.receive(encode_greeting(UUID, salt))
    ((_, sync, _, body),) = FrameDecoder().feed(hello)

    async def main() -> None:
        log = Log("n1", "error", io.StringIO())
        numbers = itertools.count(1)
        links = Links(asyncio.get_running_loop(), numbers)
        sessions = Sessions(numbers, 100, lambda number: None, lambda: None, log)
        config = NodeConfig(
            directory=tmp_path, name="n1", replicaset_uuid=UUID, secret="a shared secret"
        )
        peers = Peers(config, UUID, links, sessions, lambda item: None, log, lambda: None)
        arrived = Arrived(salt)
        arrived.number = sessions.add(cast(ClientSocket, arrived))
        assert sessions.unauthenticated == 1
        peers.accept(cast(Newcomer, arrived), sync, unpack(body))
        assert arrived.peer is not None
        assert sessions.unauthenticated == 0
        assert len(links) == 1
        peers.stop()

    asyncio.run(main())


def test_messages_that_arrive_with_the_answer_to_the_handshake_are_received(
    tmp_path: Path,
) -> None:
    """The other end sends as soon as it has answered, and both may arrive together."""
    salt, message = bytes(32), msg.Heartbeat(3, 1, 0, 0)
    other = PeerIdentity(OTHER, UUID, "a shared secret", b"run", False)

    async def main() -> None:
        log = Log("n1", "error", io.StringIO())
        loop, numbers = asyncio.get_running_loop(), itertools.count(1)
        links = Links(loop, numbers)
        sessions = Sessions(numbers, 100, lambda number: None, lambda: None, log)
        config = NodeConfig(
            directory=tmp_path, name="n1", replicaset_uuid=UUID, secret="a shared secret"
        )
        inputs: list[object] = []
        peers = Peers(config, UUID, links, sessions, inputs.append, log, lambda: None)
        dialer, wire = Dialer(peers, "n2", loop.create_future()), ArrivedWire()
        dialer.connection_made(wire)
        dialer.data_received(encode_greeting(OTHER, salt))
        ((_, sync, _, body),) = FrameDecoder().feed(wire.written)
        _, answer = answer_hello(other, {}, unpack(body), salt=salt, binding=b"", is_member=False)
        dialer.data_received(encode_ok(sync, 1, answer) + encode_frames([msg.encode(message)]))
        received = [one.message for one in inputs if isinstance(one, fx.Received)]
        assert received == [message]
        peers.stop()

    asyncio.run(main())
