"""The accepted loss of all whole copies of a journal: its offsets never get other bytes."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qsync_broker.auth import Authorizer, Capability
from qsync_broker.copier import Copier
from qsync_broker.keyspace import Deleted, KeyChange, KeySpace, Written, absent
from qsync_broker.loss import STEP, resumption_offset
from qsync_broker.recall import possible_holders
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    BrokerId,
    BrokerRow,
    JournalRow,
    Route,
    encode_row,
    space_of,
)
from qsync_sim.journals.keys import SimKeySpace
from qsync_testing.brokers.servers import BrokerNode, brokers, create, start_broker
from qsync_testing.ports import free_ports

JOURNAL = "a/journal"
ACCEPT = {"X-Accept-Loss": "true"}
LossAnswer = tuple[int, dict[str, Any], bytes]


class LossCluster:
    """Brokers of a test, which it can stop for good, with or without their disks."""

    def __init__(self, folder: Path, count: int, replication: int) -> None:
        self.keys = SimKeySpace()
        self.folder = folder
        self.ports = free_ports(2 * count)
        self.nodes: dict[int, BrokerNode] = {}
        create(self.keys, JOURNAL, replication)

    async def start(self, number: int) -> None:
        ports = self.ports[2 * number : 2 * number + 2]
        self.nodes[number] = await start_broker(self.folder, f"broker-{number}", ports, self.keys)

    async def stop(
        self, number: int, *, keeps_disk: bool = False, keeps_lease: bool = True
    ) -> None:
        node = self.nodes.pop(number)
        await node.stop()
        if not keeps_disk:
            shutil.rmtree(self.folder / f"broker-{number}")
        if not keeps_lease:
            row = next(
                row for row in self.keyspace.brokers.values() if row.id == node.server.core.me
            )
            assert self.keys.transact(KeyChange((), (), (absent(row),)))

    @property
    def keyspace(self) -> KeySpace:
        return next(iter(self.nodes.values())).server.core.keys

    @property
    def row(self) -> JournalRow:
        return self.keyspace.journals[JOURNAL]

    async def until(self, is_done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_done():
                await asyncio.sleep(0.02)

    async def until_routed(self, *names: str) -> None:
        await self.until(
            lambda: [one.suffix for one in self.keyspace.route(JOURNAL).members] == [*names]
        )

    async def ask(
        self, method: str, query: str = "", data: bytes = b"", **headers: str | int
    ) -> LossAnswer:
        """Send a request to any broker, again while the journal has too few brokers."""
        node = next(iter(self.nodes.values()))
        url, given = f"{node.url}/{JOURNAL}{query}", {k: str(v) for k, v in headers.items()}
        async with aiohttp.ClientSession() as http, asyncio.timeout(20):
            while True:
                async with http.request(method, url, data=data or None, headers=given) as answer:
                    body = await answer.read()
                    if answer.status not in (500, 502, 503):
                        return answer.status, dict(answer.headers), body
                await asyncio.sleep(0.05)

    async def append(self, data: bytes, **headers: Any) -> LossAnswer:
        return await self.ask("PUT", data=data, **headers)

    async def accept(self, offset: int = 0) -> LossAnswer:
        accepted: dict[str, Any] = {**ACCEPT, "X-Offset": offset}
        return await self.ask("PUT", **accepted)


def suspend_copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no broker copy fragments until the returned function is called."""
    monkeypatch.setattr(Copier, "tick", lambda _: None)
    return monkeypatch.undo


@asynccontextmanager
async def running(folder: Path, count: int, replication: int) -> AsyncIterator[LossCluster]:
    cluster = LossCluster(folder, count, replication)
    try:
        for number in range(count):
            await cluster.start(number)
        await cluster.until(lambda: len(cluster.keyspace.route(JOURNAL).members) == replication)
        yield cluster
    finally:
        for node in cluster.nodes.values():
            await node.stop()


def loss_of(answer: LossAnswer) -> tuple[int, int, int, list[str]]:
    found = json.loads(answer[1]["X-Loss"])
    return found["begin"], found["end"], found["resume"], found["dead"]


@pytest.mark.asyncio
async def test_lost_disk_of_the_only_broker_is_accepted_and_its_offsets_stay_unused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 1, 1) as cluster:
        for number in (1, 2):
            assert (await cluster.append(b"first"))[0] == 204
            await cluster.stop(0)
            await cluster.start(0)
            await cluster.until_routed("broker-0")
            status, _, body = await cluster.append(b"second")
            assert status == 409
            cause = b"a/journal: INDEX_HAS_GREATER_OFFSET: no broker of the journal has all "
            assert body.startswith(cause)
            for offset in (1, 5, STEP - 1, number * STEP + 1, (number + 1) * STEP):
                answer = await cluster.append(b"second", **{"X-Offset": offset})
                assert answer[0] == 409, "the append itself accepts no loss"
                answer = await cluster.accept(offset)
                assert answer[0] == 412
            answer = await cluster.accept()
            assert answer[0] == 412
            assert loss_of(answer) == (0, number * STEP, number * STEP, [])
            assert (await cluster.append(b"second"))[0] == 409
            status, headers, _ = await cluster.accept(number * STEP)
            assert (status, headers["X-Commit-End"]) == (204, str(number * STEP))
            status, headers, _ = await cluster.append(b"third")
            assert (status, headers["X-Commit-Begin"]) == (204, str(number * STEP))
            for offset in (0, 3, number * STEP):  # reads pass over the lost bytes
                status, headers, body = await cluster.ask("GET", f"?offset={offset}")
                assert (status, body) == (206, b"third")
                assert headers["Content-Range"].startswith(f"bytes {number * STEP}-")
            await cluster.stop(0, keeps_disk=True)
            await cluster.start(0)
            await cluster.until_routed("broker-0")
            status, headers, _ = await cluster.append(b"fourth")
            assert (status, headers["X-Commit-Begin"]) == (204, str(number * STEP + 5))


@pytest.mark.asyncio
async def test_loss_is_refused_while_a_whole_copy_is_reachable(tmp_path: Path) -> None:
    async with running(tmp_path, 2, 2) as cluster:
        assert (await cluster.append(b"first"))[0] == 204
        assert (await cluster.accept(STEP))[0] == 412
        await cluster.stop(0)
        await cluster.start(0)
        await cluster.until_routed("broker-0", "broker-1")
        answer = await cluster.accept(STEP)
        assert answer[0] == 412
        assert "X-Loss" not in answer[1]
        assert (await cluster.accept())[0] == 204  # nothing is lost, and nothing changes
        status, headers, _ = await cluster.append(b"second")
        assert (status, headers["X-Commit-Begin"]) == (204, "5")
        await cluster.until(lambda: not cluster.row.partial)
        assert (await cluster.ask("GET"))[2] == b"firstsecond"


@pytest.mark.asyncio
async def test_broker_that_returns_after_the_loss_keeps_its_bytes_at_their_offsets(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, 2, 1) as cluster:
        assert (await cluster.append(b"first"))[0] == 204
        (holder,) = cluster.keyspace.route(JOURNAL).members
        number = int(holder.suffix[-1])
        await cluster.stop(number, keeps_disk=True, keeps_lease=False)
        await cluster.until_routed(f"broker-{1 - number}")
        assert (await cluster.append(b"second"))[0] == 409
        assert loss_of(await cluster.accept()) == (0, STEP, STEP, [holder.suffix])
        assert (await cluster.accept(STEP))[0] == 204
        assert [one.suffix for one in cluster.keyspace.assignments(JOURNAL)] == [
            f"broker-{1 - number}"
        ]
        assert (await cluster.append(b"second"))[0] == 204
        await cluster.start(number)
        await cluster.until(lambda: len(cluster.keyspace.brokers) == 2)
        status, headers, _ = await cluster.append(b"third")
        assert (status, headers["X-Commit-Begin"]) == (204, str(STEP + 6))
        assert (await cluster.ask("GET", f"?offset={STEP}"))[2] == b"secondthird"


@pytest.mark.asyncio
async def test_broker_with_the_only_copy_is_assigned_again_when_it_returns(tmp_path: Path) -> None:
    """Another broker has its place, and the third one lost its disk meanwhile."""
    async with running(tmp_path, 3, 2) as cluster:
        assert (await cluster.append(b"first"))[0] == 204
        members = [int(one.suffix[-1]) for one in cluster.keyspace.route(JOURNAL).members]
        holder, emptied = members
        (third,) = {0, 1, 2} - set(members)
        row = next(
            one for one in cluster.keyspace.brokers.values() if one.id.suffix == f"broker-{holder}"
        )
        await cluster.stop(holder, keeps_disk=True)
        await cluster.stop(emptied)
        await cluster.start(emptied)
        assert cluster.keys.transact(KeyChange((), (), (absent(row),)))
        await cluster.until_routed(*(f"broker-{one}" for one in sorted((emptied, third))))
        assert (await cluster.append(b"second"))[0] == 409
        await cluster.start(holder)
        await cluster.until(lambda: len(cluster.keyspace.brokers) == 3)
        async with asyncio.timeout(20):
            while (answer := await cluster.append(b"second"))[0] != 204:
                assert answer[0] in (409, 421)
        assert answer[1]["X-Commit-Begin"] == "5"
        assert (await cluster.ask("GET"))[2] == b"firstsecond"
        await cluster.until(lambda: len(cluster.keyspace.assignments(JOURNAL)) == 2)


@pytest.mark.asyncio
async def test_appends_continue_while_a_new_broker_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a large journal takes long, and the journal has one broker more meanwhile."""
    async with running(tmp_path, 3, 2) as cluster:
        assert (await cluster.append(b"first"))[0] == 204
        resume_copies = suspend_copies(monkeypatch)
        leaving = cluster.keyspace.route(JOURNAL).members[0]
        cluster.nodes[int(leaving.suffix[-1])].server.core.exit()
        await cluster.until(lambda: len(cluster.keyspace.route(JOURNAL).members) == 3)
        async with asyncio.timeout(10):
            for number in range(5):
                status, headers, _ = await cluster.append(b"again")
                assert (status, headers["X-Commit-Begin"]) == (204, str(5 * number + 5))
        assert len(cluster.row.partial) == 1
        resume_copies()
        await cluster.until(lambda: len(cluster.keyspace.route(JOURNAL).members) == 2)
        assert leaving not in cluster.keyspace.route(JOURNAL).members
        assert (await cluster.ask("GET"))[2] == b"first" + 5 * b"again"


@pytest.mark.asyncio
async def test_partial_brokers_stop_waiting_for_a_lost_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal accepts appends, and its first bytes were on one disk only."""
    async with running(tmp_path, 3, 1) as cluster:
        assert (await cluster.append(b"first"))[0] == 204
        (holder,) = cluster.keyspace.route(JOURNAL).members
        resume_copies = suspend_copies(monkeypatch)
        row = cluster.row
        changed = row._replace(spec={**row.spec, "replication": 2})
        assert cluster.keys.transact(KeyChange((), (changed,)))
        await cluster.until(lambda: len(cluster.keyspace.route(JOURNAL).members) == 2)
        assert (await cluster.append(b"second"))[0] == 204
        assert len(cluster.row.partial) == 1
        await cluster.stop(int(holder.suffix[-1]), keeps_lease=False)
        await cluster.until(lambda: len(cluster.keyspace.route(JOURNAL).members) == 2)
        assert (await cluster.append(b"third"))[0] == 204
        resume_copies()
        assert len(cluster.keyspace.assignments(JOURNAL)) == 3
        answer = await cluster.accept()
        begin, end, resume, dead = loss_of(answer)
        assert (begin, resume, dead) == (0, 16, [holder.suffix])
        assert 5 <= end <= 11
        assert (await cluster.accept(resume))[0] == 204
        await cluster.until(lambda: not cluster.row.partial)
        assert holder not in cluster.keyspace.assignments(JOURNAL)
        status, headers, _ = await cluster.append(b"fourth")
        assert (status, headers["X-Commit-Begin"]) == (204, "16")
        assert (await cluster.ask("GET", "?offset=0"))[2].endswith(b"thirdfourth")


@pytest.mark.asyncio
async def test_acceptance_needs_the_token_of_a_change_of_journals(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("c2VjcmV0" * 6)
    authorizer = Authorizer.of_text(keys.read_text())
    async with (
        brokers(tmp_path, 1, auth_keys_file=keys) as nodes,
        aiohttp.ClientSession() as http,
    ):
        for capability, status in (
            (Capability.APPEND, 401),
            (Capability.APPLY, 401),
            (Capability.APPEND | Capability.APPLY, 204),
        ):
            token = {"Authorization": f"Bearer {authorizer.sign(capability, {}, 60)}"}
            answer = await http.put(f"{nodes[0].url}/{JOURNAL}", headers={**ACCEPT, **token})
            assert answer.status == status, await answer.text()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "data", "value"),
    [("PUT", b"content", "true"), ("POST", b"", "true"), ("PUT", b"", "perhaps")],
)
async def test_invalid_acceptance_is_refused(
    tmp_path: Path, method: str, data: bytes, value: str
) -> None:
    async with running(tmp_path, 1, 1) as cluster:
        answer = await cluster.ask(
            method, data=data or b"x" * (method == "POST"), **{"X-Accept-Loss": value}
        )
        assert answer[0] == 400
        assert b"X-Accept-Loss" in answer[2]


# --- decisions ------------------------------------------------------------------------------------

A, B, C = (BrokerId("zone", f"broker-{number}") for number in range(3))


def row_of(suspend_offset: int = 0) -> JournalRow:
    return JournalRow(JOURNAL, {}, 0, suspend_offset, 7, 7, Route((A, B), 0), 2, 2)


@pytest.mark.parametrize(
    ("end", "floor", "resume"),
    [
        (0, 0, STEP),
        (STEP - 1, 0, STEP),
        (STEP, 0, 2 * STEP),
        (0, STEP, 2 * STEP),
        (STEP + 1, 3 * STEP + 5, 4 * STEP),
    ],
)
def test_resumption_is_after_all_offsets_that_can_be_lost(
    end: int, floor: int, resume: int
) -> None:
    assert resumption_offset(row_of(floor), end) == resume


def test_live_broker_that_was_not_asked_may_have_all_bytes() -> None:
    keys = KeySpace()
    for broker in (A, B, C):
        row = BrokerRow(broker, "http://h:1", "h:2", 9, False, 10, "p", 5, 3, 3)
        keys.apply(Written(space_of(row), encode_row(row)))
    assert possible_holders(keys, row_of(), {B}) == [A]
    assert possible_holders(keys, row_of(), {A, B}) == []
    keys.apply(Deleted(space_of(row), [*A]))
    assert possible_holders(keys, row_of(), {B}) == []
    assert space_of(row_of()) == JOURNAL_SPACE
