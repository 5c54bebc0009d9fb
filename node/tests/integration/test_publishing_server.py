"""Rows and journals after kills of real processes: each committed event appears once, in order."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import asynctnt
import pytest
from asynctnt.exceptions import TarantoolError

from qsync_client import Client, Committed
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.journals import JOURNAL_SPACE, NO_ROUTE, JournalRow, definitions, encode_row
from qsync_sim.journals.keys import SPEC
from qsync_testing.paths import ROOT
from qsync_testing.ports import free_ports
from qsync_testing.processes import PASSWORD, USER, ProcessCluster, running_cluster, wait_until
from qsync_testing.raw import Raw

JOURNAL = "orders/eu"
ACCOUNTS, EVENTS, TURNS = 600, 601, 602
NAMES = ("alice", "bob", "carol")
WRITERS = 3
KILLS = 6


class BrokerProcess:
    """A process of a broker beside one member."""

    def __init__(self, folder: Path, number: int, node: str) -> None:
        self.folder = folder / f"broker-{number}"
        self.folder.mkdir()
        http, peer = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        (self.folder / "secret").write_text("the brokers' secret\n")
        (self.folder / "password").write_text(PASSWORD + "\n")
        self.name = f"broker-{number}"
        settings = {
            "name": self.name,
            "data_dir": str(self.folder / "data"),
            "listen": f"127.0.0.1:{http}",
            "peer_listen": f"127.0.0.1:{peer}",
            "endpoint": self.url,
            "peer_address": f"127.0.0.1:{peer}",
            "node": node,
            "user": USER,
            "password_file": str(self.folder / "password"),
            "secret_file": str(self.folder / "secret"),
            "lease_ms": 1000,
        }
        (self.folder / "broker.yaml").write_text(json.dumps(settings))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qsync_broker", str(self.folder / "broker.yaml")],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def read(self) -> bytes:
        """Return the whole journal, b"" while it cannot be read."""
        try:
            with urllib.request.urlopen(f"{self.url}/{JOURNAL}", timeout=5) as answer:
                content: bytes = answer.read()
                return content
        except (urllib.error.HTTPError, OSError):
            return b""


class PublishingWorld:
    """Three members, three brokers and a journal."""

    def __init__(self, cluster: ProcessCluster, folder: Path) -> None:
        self.cluster = cluster
        self.brokers = [
            BrokerProcess(folder, number, address)
            for number, address in enumerate(cluster.addresses)
        ]

    def prepare(self) -> None:
        raw = Raw(self.cluster.leader().address)
        raw.log_in()
        rows: list[tuple[int, list[Any]]] = list(definitions())
        journal = JournalRow(JOURNAL, {"replication": 3, **SPEC}, 0, 0, 0, 0, NO_ROUTE, 1, 1)
        rows.append((JOURNAL_SPACE, encode_row(journal)))
        for space, kind in ((ACCOUNTS, "string"), (EVENTS, "string"), (TURNS, "unsigned")):
            rows.append(
                (SystemSpace.SPACE, [space, 1, f"space-{space}", "memtx", 0, {"is_sync": True}, []])
            )
            rows.append(
                (SystemSpace.INDEX, [space, 0, "primary", "tree", {"unique": True}, [[0, kind]]])
            )
        rows += [(ACCOUNTS, [name, 1000]) for name in NAMES]
        rows.append((TURNS, [0, 0]))
        for space, row in rows:
            code, body = raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})
            assert code == 0, body
        for broker in self.brokers:
            broker.start()

    def rows(self, space: int) -> list[list[Any]]:
        raw = Raw(self.cluster.leader().address)
        raw.log_in()
        body = {
            Key.SPACE_ID: space,
            Key.INDEX_ID: 0,
            Key.LIMIT: 1_000_000,
            Key.OFFSET: 0,
            Key.ITERATOR: 2,
            Key.KEY: [],
        }
        code, answer = raw.ask(Type.SELECT, body)
        assert code == 0
        found: list[list[Any]] = answer[Key.DATA]
        return found

    def primary(self) -> BrokerProcess | None:
        for _, _, suffix, slot, *_ in self.rows(495):
            if slot == 0:
                return next(broker for broker in self.brokers if broker.name == suffix)
        return None

    def close(self) -> None:
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PublishingWorld]:
    with running_cluster(tmp_path, 3) as cluster:
        found = PublishingWorld(cluster, tmp_path)
        try:
            found.prepare()
            yield found
        finally:
            found.close()


class PublishingWriter:
    """Moves amounts and publishes events; each has a row of its own, and its turn in the order."""

    def __init__(self, world: PublishingWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.count = 0
        self.committed: list[str] = []
        self.failed: list[str] = []
        self.is_stopped = False

    async def run(self) -> None:
        while not self.is_stopped:
            with contextlib.suppress(OSError, TarantoolError, TimeoutError):
                await self._run_at(self.world.cluster.addresses[self.count % 3])
            await asyncio.sleep(0.05)

    async def _run_at(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        connection = asynctnt.Connection(
            host=host,
            port=int(port),
            username=USER,
            password=PASSWORD,
            reconnect_timeout=0,
            connect_timeout=2,
            request_timeout=5,
            fetch_schema=False,
            auto_refetch_schema=False,
        )
        await connection.connect()
        try:
            while not self.is_stopped:
                await self._transfer(connection)
        finally:
            await connection.disconnect()

    async def _transfer(self, connection: asynctnt.Connection) -> None:
        self.count += 1
        event = f"w{self.number}-{self.count}"
        source, target = NAMES[self.count % 3], NAMES[(self.count + 1) % 3]
        if not connection.is_connected:  # `stream` would raise AttributeError
            raise ConnectionError("the connection is lost")
        stream = connection.stream()
        try:
            await stream.begin()
            turn = (await stream.update(TURNS, [0], [["+", 1, 1]]))[0][1]
            await stream.update(ACCOUNTS, [source], [["-", 1, 1]])
            await stream.update(ACCOUNTS, [target], [["+", 1, 1]])
            await stream.insert(EVENTS, [event, turn])
            await stream.call("qsync.publish", [JOURNAL, f"{turn} {event}\n".encode()])
            if self.count % 10 == 0:
                await stream.rollback()
                self.failed.append(event)
                return
            await stream.commit()
            self.committed.append(event)
        except TarantoolError as error:
            code = getattr(error, "code", None)
            if code == 97:  # the statement's or the commit's conflict: nothing of it was logged
                self.failed.append(event)
                with contextlib.suppress(TarantoolError):
                    await stream.rollback()
                return
            raise


async def kill_processes(world: PublishingWorld) -> None:
    """Kill the leader and the primary broker in turn, and start them again."""
    for number in range(KILLS):
        await asyncio.sleep(1.5)
        if number % 2:
            broker = await asyncio.to_thread(world.primary)
            if broker is not None:
                broker.kill()
                await asyncio.sleep(1.5)
                broker.start()
        else:
            node = await asyncio.to_thread(world.cluster.leader)
            node.kill()
            await asyncio.sleep(1.0)
            node.start(world.cluster.peers)


async def work(world: PublishingWorld) -> list[PublishingWriter]:
    writers = [PublishingWriter(world, number) for number in range(WRITERS)]
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    await kill_processes(world)
    await asyncio.sleep(2)
    for writer in writers:
        writer.is_stopped = True
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    return writers


def test_committed_events_are_in_the_journal_once_after_kills(world: PublishingWorld) -> None:
    writers = asyncio.run(work(world))
    wait_until("all publications", lambda: all(row[2] == row[3] for row in world.rows(497)))
    events = sorted(world.rows(EVENTS), key=lambda row: row[1])
    names = {name for name, _ in events}
    for writer in writers:
        assert set(writer.committed) <= names, "an acknowledged transaction is lost"
        assert not set(writer.failed) & names, "a failed transaction took effect"
    assert len(events) > 50
    assert sum(balance for _, balance in world.rows(ACCOUNTS)) == 3000
    wanted = b"".join(f"{turn} {name}\n".encode() for name, turn in events)
    wait_until("the journal's bytes", lambda: len(world.brokers[0].read()) >= len(wanted))
    for broker in world.brokers:
        assert broker.read() == wanted
    assert world.rows(496) == []
    assert world.rows(497)[0][2] == len(events)


# --- the documented example, and the client -------------------------------------------------------


def example() -> ModuleType:
    path = ROOT / "docs" / "examples" / "publish.py"
    spec = importlib.util.spec_from_file_location("publish", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _run_example(world: PublishingWorld) -> None:
    address = world.cluster.leader().address
    host, _, port = address.rpartition(":")
    async with asynctnt.Connection(
        host=host, port=int(port), username=USER, password=PASSWORD
    ) as connection:
        await example().transfer(connection, "alice", "bob", 5, {"order": 1})
        with pytest.raises(TarantoolError):
            await example().transfer(connection, "alice", "bob", "five", {"order": 2})
        found = await connection.call("qsync.publication", [JOURNAL, 1, 20])
        assert dict(found[0]) == {"state": "published", "begin": 0, "end": 13}


async def _use_client(world: PublishingWorld) -> None:
    async with Client(world.cluster.addresses, USER, PASSWORD) as client:
        outcome = await client.publish(JOURNAL, b"alone\n")
        assert isinstance(outcome, Committed)
        assert outcome.tuples == [2]
        async with client.transaction() as transaction:
            await transaction.update(ACCOUNTS, ["alice"], [["=", 1, 0]])
            await transaction.publish(JOURNAL, b"together\n")
        assert isinstance(transaction.outcome, Committed)
        assert transaction.outcome.tuples == [[JOURNAL, 3]]
        state = await client.publication(JOURNAL, 3, 20)
        assert isinstance(state, Committed)
        assert state.tuples == [{"state": "published", "begin": 19, "end": 28}]


def test_example_and_client_publish_with_rows(world: PublishingWorld) -> None:
    asyncio.run(_run_example(world))
    assert world.rows(ACCOUNTS)[:2] == [["alice", 995], ["bob", 1005]]
    asyncio.run(_use_client(world))
    began_s = time.monotonic()
    assert world.brokers[2].read() == b'{"order": 1}\nalone\ntogether\n'
    assert time.monotonic() - began_s < 5
    page = (ROOT / "docs" / "journals.md").read_text()
    assert (ROOT / "docs" / "examples" / "publish.py").read_text() in page
