"""The client reports correct outcomes and reconnects when members die, stop or lie idle."""

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    Member,
    Outcome,
    Refused,
    StatementFailed,
    SyncClient,
    Unknown,
)
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_client.session import Session
from qsync_testing.ports import free_port
from qsync_testing.processes import (
    PASSWORD,
    USER,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw

SPACE = 512


def follows(node: NodeProcess) -> bool:
    return bool(node.status()["role"] == "follower")


def make_space(cluster: ProcessCluster) -> None:
    raw = Raw(cluster.leader().address)
    raw.log_in()
    parts = [[0, "unsigned"]]
    for space, row in (
        (SystemSpace.SPACE, [SPACE, 1, "kv", "memtx", 0, {"is_sync": True}, []]),
        (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, parts]),
    ):
        assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0


def test_a_leader_that_is_stopped_is_left_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped leader accepts connections, and other members still name it as the leader.

    The client must not try it first again.
    """
    monkeypatch.setattr("qsync_client.pool.CONNECT_S", 100.0)

    async def write(cluster: ProcessCluster) -> list[Outcome]:
        leader = cluster.leader()
        assert leader.process is not None
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            outcomes = [await client.replace(SPACE, [1, "before"])]
            os.kill(leader.process.pid, signal.SIGSTOP)
            try:
                outcomes.append(await client.replace(SPACE, [2, "meanwhile"]))
            finally:
                os.kill(leader.process.pid, signal.SIGCONT)
            outcomes.append(await client.select(SPACE, [2]))
            return outcomes

    with running_cluster(tmp_path, 3) as cluster:
        make_space(cluster)
        before, meanwhile, found = asyncio.run(write(cluster))
    assert isinstance(before, Committed)
    assert isinstance(meanwhile, Committed), "it was asked again elsewhere, under the same key"
    assert found == Committed([[2, "meanwhile"]])


def test_unreachable_member_is_an_error_and_no_outcome() -> None:
    async def write() -> None:
        client = Client([f"127.0.0.1:{free_port()}"], USER, PASSWORD, deadline_s=0.5)
        await client.replace(SPACE, [1])

    with pytest.raises(ClientClosed, match="no member answered"):
        asyncio.run(write())


def test_client_writes_on_after_the_window_of_its_first_mark(tmp_path: Path) -> None:
    async def write(cluster: ProcessCluster) -> list[Outcome]:
        async with Client(cluster.addresses, USER, PASSWORD) as idle:
            outcomes = [await idle.replace(SPACE, [1, "before"])]
            async with Client(cluster.addresses, USER, PASSWORD) as busy:
                rows = (busy.replace(SPACE, [2, number]) for number in range(1_500))
                assert all(isinstance(o, Committed) for o in await asyncio.gather(*rows))
            outcomes.append(await idle.replace(SPACE, [1, "after"]))
            # As if the cluster wrote a whole window within `MARK_AGE_S`.
            idle._session.keys.mark = 0
            idle._session.keys.renew(0, asyncio.get_running_loop().time())
            outcomes.append(await idle.replace(SPACE, [1, "at once"]))
            return outcomes

    with running_cluster(tmp_path, 3) as cluster:
        make_space(cluster)
        assert cluster.leader().post_status("/verb/set_key_window", {"rows": 1_000}) == 200
        outcomes = asyncio.run(write(cluster))
    assert [type(outcome) for outcome in outcomes] == [Committed] * 3


@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("unknown", PASSWORD)])
def test_wrong_credentials_end_the_first_request(tmp_path: Path, user: str, password: str) -> None:
    async def write(addresses: list[str]) -> None:
        await Client(addresses, user, password, deadline_s=60).replace(SPACE, [1])

    with running_cluster(tmp_path, 1) as cluster, pytest.raises(AccessDenied) as denied:
        asyncio.run(asyncio.wait_for(write(cluster.addresses), 40))
    assert denied.value.code == ErrorCode.PASSWORD_MISMATCH


def test_committed_writes_report_their_index_and_a_key_works_in_another_process(
    tmp_path: Path,
) -> None:
    async def write(cluster: ProcessCluster) -> None:
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            key = await client.new_key()
            first = await client.insert(SPACE, [1, "a"], request_key=key)
            second = await client.replace(SPACE, [2, "b"])
            async with client.transaction(2) as transaction:
                await transaction.insert(SPACE, [3, "c"])
                assert await transaction.select(SPACE, [2], iterator=6) == [[3, "c"]]
            third = transaction.outcome
            assert isinstance(first, Committed)
            assert isinstance(second, Committed)
            assert isinstance(third, Committed)
            assert 0 < first.at < second.at < third.at
            nothing = await client.delete(SPACE, [9])
            assert isinstance(nothing, Committed)
            assert nothing.tuples == []
            page = await client.select(SPACE, iterator=2, limit=2, fetch_position=True)
            assert isinstance(page, Committed)
            rest = await client.select(SPACE, iterator=2, limit=2, after=page.position)
            assert isinstance(rest, Committed)
            assert page.tuples + rest.tuples == [[1, "a"], [2, "b"], [3, "c"]]
        async with Client(cluster.addresses, USER, PASSWORD) as other:
            again = await other.insert(SPACE, [1, "a"], request_key=key)
            assert again == Committed([], first.at)
            with pytest.raises(StatementFailed) as failed:
                async with other.transaction() as transaction:
                    await transaction.insert(SPACE, [1, "twice"])
            assert isinstance(failed.value.outcome, Refused)

    with running_cluster(tmp_path, 3) as cluster:
        make_space(cluster)
        asyncio.run(write(cluster))


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_leader_killed_during_keyed_writes_loses_and_doubles_none(
    tmp_path: Path, is_synchronous: bool
) -> None:
    """Each worker adds 1 to its own row and inserts a row for each addition."""
    workers, kills, unknown_answers = 8, 3, 0

    async def work(client: Client, worker: int, stop: asyncio.Event) -> int:
        done = 0
        while not stop.is_set():
            added = await client.update(SPACE, worker, [("+", 1, 1)])
            made = await client.insert(SPACE, [1000 * (1 + worker) + done, 0])
            assert isinstance(added, Committed), added
            assert isinstance(made, Committed), made
            done += 1
            await asyncio.sleep(0.005)
        return done

    def work_in_thread(client: SyncClient, worker: int, stop: threading.Event) -> int:
        done = 0
        while not stop.is_set():
            added = client.update(SPACE, worker, [("+", 1, 1)])
            made = client.insert(SPACE, [1000 * (1 + worker) + done, 0])
            assert isinstance(added, Committed), added
            assert isinstance(made, Committed), made
            done += 1
            time.sleep(0.01)  # some writes are in flight at each kill, and few rows are made
        return done

    def kill_leaders(cluster: ProcessCluster) -> None:
        for _ in range(kills):
            time.sleep(0.7)  # the new leader serves for a moment before it is killed
            leader = cluster.leader()
            leader.kill()
            cluster.leader()
            leader.start(cluster.peers)
            wait_until("the killed member follows", partial(follows, leader))

    async def asynchronously(cluster: ProcessCluster) -> list[int]:
        stop = asyncio.Event()
        async with Client(cluster.addresses, USER, PASSWORD, pool_size=2) as client:
            tasks = [asyncio.create_task(work(client, one, stop)) for one in range(workers)]
            await asyncio.to_thread(kill_leaders, cluster)
            stop.set()
            return await asyncio.gather(*tasks)

    def in_threads(cluster: ProcessCluster) -> list[int]:
        stop = threading.Event()
        with (
            SyncClient(cluster.addresses, USER, PASSWORD) as client,
            ThreadPoolExecutor(workers) as threads,
        ):
            futures = [threads.submit(work_in_thread, client, n, stop) for n in range(workers)]
            kill_leaders(cluster)
            stop.set()
            return [future.result() for future in futures]

    attempt = Session._attempt

    async def counted(self: Session, *arguments: Any) -> Outcome:
        nonlocal unknown_answers
        outcome = await attempt(self, *arguments)
        unknown_answers += isinstance(outcome, Unknown)
        return outcome

    with running_cluster(tmp_path, 3) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Session, "_attempt", counted)
        make_space(cluster)
        with SyncClient(cluster.addresses, USER, PASSWORD) as client:
            for worker in range(workers):
                client.insert(SPACE, [worker, 0])
        done = in_threads(cluster) if is_synchronous else asyncio.run(asynchronously(cluster))
        with SyncClient(cluster.addresses, USER, PASSWORD) as client:
            sums = [client.get(SPACE, worker, linearizable=True) for worker in range(workers)]
            count = client.count(SPACE, linearizable=True)
    assert unknown_answers > 0, "the kills interrupted writes"
    assert sums == [[worker, number] for worker, number in enumerate(done)]
    assert count == workers + sum(done)
    assert min(done) > 5


def test_transactions_survive_a_killed_leader(tmp_path: Path) -> None:
    """Money moves between two rows: the sum stays, and each reported move happened once."""

    async def move(client: Client, stop: asyncio.Event) -> tuple[int, int]:
        moved = unknown = 0
        while not stop.is_set():
            try:
                async with client.transaction() as transaction:
                    await transaction.update(SPACE, 1, [("-", 1, 1)])
                    await transaction.update(SPACE, 2, [("+", 1, 1)])
            except StatementFailed:
                continue  # nothing was committed
            moved += isinstance(transaction.outcome, Committed)
            unknown += isinstance(transaction.outcome, Unknown)
        return moved, unknown

    async def run(cluster: ProcessCluster) -> None:
        stop = asyncio.Event()
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            for row in ([1, 0], [2, 0]):
                await client.insert(SPACE, row)
            task = asyncio.create_task(move(client, stop))
            for _ in range(2):
                await asyncio.sleep(1)
                leader = cluster.leader()
                leader.kill()
                await asyncio.to_thread(cluster.leader)
                leader.start(cluster.peers)
            await asyncio.sleep(1)
            stop.set()
            moved, unknown = await task
            first = await client.get(SPACE, 1, linearizable=True)
            second = await client.get(SPACE, 2, linearizable=True)
            assert unknown == 0
            assert (first, second) == ([1, -moved], [2, moved])
            assert moved > 5

    with running_cluster(tmp_path, 3) as cluster:
        make_space(cluster)
        asyncio.run(run(cluster))


def test_reads_continue_after_the_member_of_the_zone_died(tmp_path: Path) -> None:
    async def read(cluster: ProcessCluster) -> None:
        leader = cluster.leader()
        near = next(node for node in cluster.nodes if node is not leader)
        members = [Member(node.address, node.name) for node in cluster.nodes]
        async with Client(members, USER, PASSWORD, zone=near.name) as client:
            assert isinstance(await client.replace(SPACE, [1, "a"]), Committed)
            async with asyncio.timeout(30):
                while await client.get(SPACE, 1) is None:
                    await asyncio.sleep(0.01)
            near.kill()
            for _ in range(20):
                assert await client.get(SPACE, 1) == [1, "a"]
            assert client._session.pool._reader is None
            near.start(cluster.peers)
            async with asyncio.timeout(60):
                while client._session.pool._reader is None:
                    await client.get(SPACE, 1)
                    await asyncio.sleep(0.1)

    with running_cluster(tmp_path, 3) as cluster:
        make_space(cluster)
        asyncio.run(read(cluster))
