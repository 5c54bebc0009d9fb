"""The client against real servers: names, reads, transactions, watches, rights, pool and zones."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    Member,
    Refused,
    RequestFailed,
    RolledBack,
    SchemaError,
    StatementFailed,
    SyncClient,
    SyncTransaction,
    Transaction,
    TransactionLost,
    Unknown,
)
from qsync_client import client as client_module
from qsync_client import sync as sync_module
from qsync_client.link import Link
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.constants import Type
from qsync_client.protocol.spaces import SystemSpace
from qsync_client.requests import ClientRequest
from qsync_testing.ports import free_port
from qsync_testing.processes import ADMIN_PASSWORD, PASSWORD, USER, ProcessCluster, running_cluster

ACCOUNTS, COUNTERS = 512, 513
FORMAT = [
    {"name": "id", "type": "unsigned"},
    {"name": "balance", "type": "integer"},
    {"name": "owner", "type": "string", "is_nullable": True},
]


async def define(cluster: ProcessCluster) -> None:
    by_owner = [{"field": 2, "type": "string", "is_nullable": True}]
    async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as client:
        for space, row in (
            (SystemSpace.SPACE, [ACCOUNTS, 1, "accounts", "memtx", 0, {"is_sync": True}, FORMAT]),
            (
                SystemSpace.INDEX,
                [ACCOUNTS, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
            ),
            (SystemSpace.INDEX, [ACCOUNTS, 1, "by_owner", "tree", {"unique": False}, by_owner]),
            (
                SystemSpace.SPACE,
                [COUNTERS, 1, "counters", "memtx", 0, {"is_sync": True}, FORMAT[:2]],
            ),
            (
                SystemSpace.INDEX,
                [COUNTERS, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
            ),
            (SystemSpace.USER, [60, 1, "clerk", "user", {"chap-sha1": stored_hash("clerk")}]),
            (SystemSpace.PRIV, [1, 60, "universe", 0, 24]),
            (SystemSpace.PRIV, [1, 60, "role", 2, 4]),
            (SystemSpace.PRIV, [1, 60, "space", ACCOUNTS, 3]),
        ):
            assert isinstance(await client.insert(space, row), Committed), row


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("client"), 3) as running:
        asyncio.run(define(running))
        yield running


ClientBody = Callable[[Client], Awaitable[None]]


@pytest.fixture
def with_client(cluster: ProcessCluster) -> Callable[[ClientBody], None]:
    """Return a function that runs a coroutine with a connected client and empty spaces."""

    async def run(body: ClientBody) -> None:
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            for space in ("accounts", "counters"):
                async for row in client.scan(space):
                    await client.delete(space, row[0])
            await body(client)

    return lambda body: asyncio.run(run(body))


# --- names, writes and reads ----------------------------------------------------------------------


def test_writes_and_reads_use_names(with_client: Callable[[ClientBody], None]) -> None:
    async def body(client: Client) -> None:
        made = await client.insert("accounts", {"id": 1, "balance": 100, "owner": "ann"})
        assert isinstance(made, Committed)
        assert made.at > 0
        assert made.tuples[0].as_dict() == {"id": 1, "balance": 100, "owner": "ann"}
        changed = await client.update("accounts", 1, [("+", "balance", 5)])
        assert isinstance(changed, Committed)
        assert changed.tuples == [[1, 105, "ann"]]
        await client.upsert("accounts", [2, 10, "bob"], [("+", "balance", 1)])
        await client.upsert("accounts", [2, 10, "bob"], [("+", "balance", 1)])
        await client.replace("accounts", {"id": 3, "balance": 7})
        found = await client.get("accounts", 2)
        assert found is not None
        assert found.as_dict()["balance"] == 11
        assert await client.get("accounts", 9) is None
        assert await client.count("accounts") == 3
        assert await client.count("accounts", "bob", index="by_owner") == 1
        deleted = await client.delete("accounts", 1)
        assert isinstance(deleted, Committed)
        assert deleted.tuples == [[1, 105, "ann"]]
        with pytest.raises(RequestFailed) as failed:
            await client.get("accounts", "no number")
        assert isinstance(failed.value.outcome, Refused)

    with_client(body)


def test_select_takes_index_iterator_limit_and_position(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        for number in range(1, 7):
            await client.insert("accounts", [number, 0, "ann" if number % 2 else "bob"])

        async def ids(*key: Any, **options: Any) -> list[int]:
            found = await client.select("accounts", key, **options)
            assert isinstance(found, Committed)
            return [row[0] for row in found.tuples]

        assert await ids("bob", index="by_owner") == [2, 4, 6]
        assert await ids(4, iterator="GT") == [5, 6]
        assert await ids(4, iterator="le", limit=2) == [4, 3]
        assert await ids(iterator="ALL", after=[4, 0, "bob"]) == [5, 6]
        page = await client.select("accounts", limit=4, iterator="ALL", fetch_position=True)
        assert isinstance(page, Committed)
        assert await ids(iterator="ALL", after=page.position) == [5, 6]
        assert await ids(3, linearizable=True) == [3]

    with_client(body)


def test_scan_and_count_continue_after_each_page(
    with_client: Callable[[ClientBody], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE_ROWS", 3)
    monkeypatch.setattr("qsync_client.transaction.PAGE_ROWS", 3)

    async def body(client: Client) -> None:
        for number in range(7):
            await client.insert("accounts", [number, 0])
        assert [row[0] async for row in client.scan("accounts")] == list(range(7))
        assert await client.count("accounts", 2, iterator="GE") == 5
        async with client.transaction() as transaction:
            await transaction.insert("accounts", [7, 0])
            assert await transaction.count("accounts") == 8

    with_client(body)


def test_scan_and_count_take_smaller_pages_of_large_rows(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        large = "x" * 1_000_000  # an answer has at most 16 MiB
        for number in range(18):
            await client.insert("accounts", [number, 0, large])
        assert [row[0] async for row in client.scan("accounts")] == list(range(18))
        async with client.transaction() as transaction:
            await transaction.insert("accounts", [18, 0])
            assert await transaction.count("accounts") == 19

    with_client(body)


def test_schema_is_read_again_after_a_change(
    cluster: ProcessCluster, with_client: Callable[[ClientBody], None]
) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", {"id": 1, "balance": 1})
        more = [*FORMAT, {"name": "city", "type": "string", "is_nullable": True}]
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.update(SystemSpace.SPACE, ACCOUNTS, [("=", 6, more)])
        # The client has not seen this change, and the server refuses the old version once.
        found = await client.select("accounts", 1)
        assert isinstance(found, Committed)
        row = found.tuples[0]
        assert row.as_dict()["city"] is None
        made = await client.insert("accounts", {"id": 2, "balance": 1, "city": "Rome"})
        assert isinstance(made, Committed)
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.insert(
                SystemSpace.SPACE, [600, 1, "late", "memtx", 0, {"is_sync": True}, []]
            )
            await other.insert(
                SystemSpace.INDEX, [600, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]]
            )
        assert isinstance(await client.insert("late", [1]), Committed), "a name unknown so far"
        async with Client(cluster.addresses, "admin", ADMIN_PASSWORD) as other:
            await other.update(SystemSpace.SPACE, ACCOUNTS, [("=", 6, FORMAT)])
        async with client.transaction() as transaction:
            await transaction.update("accounts", 1, [("+", "balance", 1)])
            rows = await transaction.select("accounts", 1)
        assert isinstance(transaction.outcome, Committed)
        assert rows[0].as_dict() == {"id": 1, "balance": 2, "owner": None}

    with_client(body)


# --- transactions ---------------------------------------------------------------------------------


def test_transaction_has_all_verbs_and_commits_once(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        async with client.transaction() as transaction:
            await transaction.insert("accounts", {"id": 1, "balance": 10})
            await transaction.upsert("accounts", [2, 5], [("+", "balance", 1)])
            await transaction.update("accounts", 1, [("-", "balance", 4)])
            await transaction.replace("accounts", [3, 1])
            await transaction.delete("accounts", 3)
            row = await transaction.get("accounts", 1)
            assert row is not None
            assert row.as_dict()["balance"] == 6
            assert await client.count("accounts") == 0, "others see nothing before COMMIT"
        assert isinstance(transaction.outcome, Committed)
        assert transaction.outcome.at > 0
        assert await client.count("accounts") == 2
        with pytest.raises(ClientClosed):
            await transaction.insert("accounts", [9, 9])

    with_client(body)


def test_error_in_the_block_rolls_the_transaction_back(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", [1, 0])

        async def transact() -> None:
            async with client.transaction() as transaction:
                await transaction.update("accounts", 1, [("+", "balance", 5)])
                await transaction.insert("accounts", [1, 0])

        with pytest.raises(StatementFailed) as failed:
            await transact()
        assert isinstance(failed.value.outcome, Refused)
        assert failed.value.outcome.code == 3
        assert await client.get("accounts", 1) == [1, 0]

    with_client(body)


def test_conflicting_transaction_is_refused(with_client: Callable[[ClientBody], None]) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", [1, 0])
        async with client.transaction() as transaction:
            await transaction.update("accounts", 1, [("+", "balance", 1)])
            await client.update("accounts", 1, [("+", "balance", 10)])
        assert isinstance(transaction.outcome, Refused)
        assert transaction.outcome.code == 97
        assert await client.get("accounts", 1) == [1, 10]

    with_client(body)


class CommitLoss:
    """Loses the next COMMIT before it is sent, or its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool) -> None:
        ask = Link.ask
        self.is_due = True

        async def ask_and_lose(link: Link, request: ClientRequest, **options: Any) -> Any:
            if request.kind == Type.COMMIT and self.is_due:
                self.is_due = False
                if is_sent:
                    await ask(link, request, **options)
                link.close()
                raise ConnectionError("lost by the test")
            return await ask(link, request, **options)

        monkeypatch.setattr(Link, "ask", ask_and_lose)


@pytest.mark.parametrize("is_sent", [True, False])
def test_unknown_commit_is_resolved_under_its_key(
    with_client: Callable[[ClientBody], None], monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", [1, 0])
        loss = CommitLoss(monkeypatch, is_sent=is_sent)
        async with client.transaction() as transaction:
            await transaction.update("accounts", 1, [("+", "balance", 1)])
            await transaction.insert("accounts", [2, 0])
        assert not loss.is_due
        assert isinstance(transaction.outcome, Committed)
        assert transaction.outcome.at > 0
        assert await client.get("accounts", 1) == [1, 1], "it was executed once"

    with_client(body)


def test_unknown_commit_is_not_executed_over_changed_rows(
    with_client: Callable[[ClientBody], None],
    monkeypatch: pytest.MonkeyPatch,
    cluster: ProcessCluster,
) -> None:
    async def body(client: Client) -> None:
        await client.insert("accounts", [1, 0])
        async with Client(cluster.addresses, USER, PASSWORD, deadline_s=4) as hasty:
            transaction = hasty.transaction()
            async with transaction:
                await transaction.update("accounts", 1, [("+", "balance", 1)])
                await client.update("accounts", 1, [("+", "balance", 10)])
                CommitLoss(monkeypatch, is_sent=False)
        assert isinstance(transaction.outcome, Unknown)
        assert await client.get("accounts", 1) == [1, 10]

    with_client(body)


def test_lost_connection_rolls_a_transaction_back(
    with_client: Callable[[ClientBody], None],
) -> None:
    async def body(client: Client) -> None:
        async def transact() -> None:
            async with client.transaction() as transaction:
                await transaction.insert("accounts", [1, 0])
                assert transaction._link is not None
                transaction._link.close()
                await transaction.insert("accounts", [2, 0])

        with pytest.raises(TransactionLost) as lost:
            await transact()
        assert isinstance(lost.value.outcome, RolledBack)
        assert await client.count("accounts") == 0

    with_client(body)


# --- errors that no retry heals -------------------------------------------------------------------


def test_errors_that_cannot_heal_raise_at_once(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD, deadline_s=60) as client:
            for attempt in (
                client.insert("missing", [1]),
                client.insert(9999, [1]),
                client.select("accounts", index="missing"),
                client.select(ACCOUNTS, index=9),
                client.insert("accounts", {"missing": 1}),
            ):
                with pytest.raises(SchemaError):
                    await attempt
        async with Client(cluster.addresses, "clerk", "clerk", deadline_s=60) as clerk:
            for attempt in (
                clerk.select(COUNTERS),
                clerk.insert(COUNTERS, [1, 1], retry=False),
                clerk.call("box.ctl.promote"),
            ):
                with pytest.raises(AccessDenied):
                    await attempt

    started = time.monotonic()
    asyncio.run(body())
    assert time.monotonic() - started < 30, "nothing was retried until the deadline of 60 s"


def test_user_with_rights_on_one_space_writes_with_keys(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, "clerk", "clerk") as clerk:
            key = await clerk.new_key()
            first = await clerk.replace("accounts", [901, 1], request_key=key)
            assert isinstance(first, Committed)
            again = await clerk.replace("accounts", [901, 1], request_key=key)
            assert isinstance(again, Committed)
            assert again.at == first.at
            async with clerk.transaction() as transaction:
                await transaction.delete("accounts", 901)
            assert isinstance(transaction.outcome, Committed)
            assert transaction.outcome.at > first.at > 0

    asyncio.run(body())


# --- leader, pool, zones, watches -----------------------------------------------------------------


def writer_of(client: Client) -> str:
    return client._session.pool._writers[0].address


def test_watch_and_writes_follow_a_new_leader(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD) as client:
            seen: list[Any] = []
            watch = client.watch("box.election")
            seen.append(await anext(watch))
            leader = cluster.leader()
            assert writer_of(client) == leader.address
            other = next(node for node in cluster.nodes if node is not leader)
            await asyncio.to_thread(
                leader.post, "/verb/switchover", {"target": other.status()["uuid"]}
            )
            async with asyncio.timeout(30):
                while seen[-1]["leader_uuid"] != other.status()["uuid"]:
                    seen.append(await anext(watch))
                while writer_of(client) != other.address:
                    await asyncio.sleep(0.05)
            assert isinstance(await client.replace("accounts", [1, 1]), Committed)
            await watch.aclose()

    asyncio.run(body())


@pytest.mark.parametrize("first", range(3))
def test_client_finds_the_leader_from_any_member(cluster: ProcessCluster, first: int) -> None:
    async def body() -> None:
        leader = cluster.leader().address
        addresses = cluster.addresses[first:] + cluster.addresses[:first]
        async with Client(addresses, USER, PASSWORD) as client:
            assert writer_of(client) == leader
        async with Client(addresses, "clerk", "clerk") as clerk:
            assert writer_of(clerk) == leader, "this needs no right to execute procedures"

    asyncio.run(body())


def test_pool_opens_connections_for_concurrent_requests(cluster: ProcessCluster) -> None:
    async def body() -> None:
        async with Client(cluster.addresses, USER, PASSWORD, pool_size=4) as client:
            writes = (client.replace("accounts", [number, 0]) for number in range(200))
            assert all(isinstance(one, Committed) for one in await asyncio.gather(*writes))
            links = client._session.pool._writers
            assert 1 < len(links) <= 4
            assert {link.address for link in links} == {cluster.leader().address}

    asyncio.run(body())


def test_reads_go_to_the_zone_and_elsewhere_without_it(cluster: ProcessCluster) -> None:
    leader = cluster.leader().address
    follower = next(one for one in cluster.addresses if one != leader)
    gone = f"127.0.0.1:{free_port()}"

    async def reader_in(near: str) -> str:
        members = [Member(one, "far") for one in cluster.addresses if one != near]
        async with Client([*members, Member(near, "near")], USER, PASSWORD, zone="near") as client:
            written = await client.replace("accounts", [5, 5])
            assert isinstance(written, Committed)
            assert await client.get("accounts", 5, linearizable=True) == [5, 5]
            async with asyncio.timeout(30):
                while await client.get("accounts", 5) != [5, 5]:
                    await asyncio.sleep(0.01)
            link = await client._session.pool.reader(asyncio.get_running_loop().time() + 5)
            return link.address

    assert asyncio.run(reader_in(follower)) == follower
    assert asyncio.run(reader_in(gone)) == leader


def test_closed_client_raises_at_once(cluster: ProcessCluster) -> None:
    async def body() -> None:
        client = Client(cluster.addresses, USER, PASSWORD)
        assert isinstance(await client.replace("accounts", [1, 1]), Committed)
        await client.close()
        with pytest.raises(ClientClosed):
            await client.replace("accounts", [1, 1])

    asyncio.run(body())


def test_address_that_leads_to_another_member_is_not_taken_for_the_leader(
    cluster: ProcessCluster,
) -> None:
    """A balancer may connect the address of the leader to another member."""
    leader = cluster.leader()
    follower = next(one for one in cluster.addresses if one != leader.address)

    async def body() -> None:
        async with Client([follower], USER, PASSWORD) as client:
            pool = client._session.pool
            pool._uuids[leader.status()["uuid"]] = follower
            assert await pool._connect_to_leader(leader.status()["uuid"], 5) is None
            assert leader.status()["uuid"] not in pool._uuids
            assert isinstance(await client.replace("accounts", [1, 1]), Committed)

    asyncio.run(body())


# --- the synchronous client -----------------------------------------------------------------------


def test_synchronous_client_has_the_same_verbs(cluster: ProcessCluster) -> None:
    with SyncClient(cluster.addresses, USER, PASSWORD) as client:
        for row in list(client.scan("accounts")):
            client.delete("accounts", row[0])
        match client.insert("accounts", {"id": 1, "balance": 2}):
            case Committed([row], at=index):
                assert row.as_dict()["balance"] == 2
                assert index > 0
            case other:
                raise AssertionError(other)
        client.update("accounts", 1, [("+", "balance", 5)])
        client.upsert("accounts", [2, 1], [("+", "balance", 5)])
        client.replace("accounts", [3, 1])
        assert client.get("accounts", 1) == [1, 7]
        assert client.count("accounts") == 3
        with client.transaction() as transaction:
            transaction.update("accounts", 1, [("-", "balance", 7)])
            transaction.delete("accounts", 3)
            assert transaction.count("accounts") == 2
        assert isinstance(transaction.outcome, Committed)
        assert isinstance(client.call("qsync.mark"), Committed)
        assert client.schema().space("accounts").id == ACCOUNTS
        election = next(iter(client.watch("box.election")))
        assert election["leader_uuid"]
        with pytest.raises(SchemaError):
            client.insert("missing", [1])
        with pytest.raises(StatementFailed), client.transaction() as failing:
            failing.insert("accounts", [1, 1])
    with pytest.raises(ClientClosed):
        client.get("accounts", 1)
    client.close()


def test_threads_share_a_synchronous_client(cluster: ProcessCluster) -> None:
    with SyncClient(cluster.addresses, USER, PASSWORD, pool_size=2) as client:
        client.replace("counters", [1, 0])

        def work() -> None:
            for _ in range(50):
                client.update("counters", 1, [("+", "balance", 1)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("counters", 1) == [1, 200]


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"), [(Client, SyncClient), (Transaction, SyncTransaction)]
)
def test_both_interfaces_have_the_same_signatures(asynchronous: type, synchronous: type) -> None:
    def verbs(of: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(one.name, one.default) for one in inspect.signature(value).parameters.values()]
            for name, value in vars(of).items()
            if callable(value) and not name.startswith("_")
        }

    assert verbs(asynchronous) == verbs(synchronous)
    for of in (asynchronous, synchronous):
        for name in verbs(of):
            assert (inspect.getdoc(getattr(of, name)) or "").strip(), name


# --- documented examples --------------------------------------------------------------------------


def example_of(module: object) -> str:
    lines = (module.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if not line or line.startswith("    "))


def test_documented_example_of_the_client_runs(
    cluster: ProcessCluster,
    capsys: pytest.CaptureFixture[str],
    with_client: Callable[[ClientBody], None],
) -> None:
    async def nothing(_: Client) -> None:
        pass

    with_client(nothing)
    source = "async def main(addresses, password):\n" + example_of(client_module)
    names: dict[str, Any] = {name: getattr(__import__("qsync_client"), name) for name in (
        "Client", "Committed", "RolledBack", "Unknown", "Refused")}  # fmt: skip
    exec(compile(source, "docstring", "exec"), names)  # noqa: S102  # runs the documented example
    asyncio.run(names["main"](cluster.addresses, PASSWORD))
    printed = capsys.readouterr().out
    assert "a quorum holds it: [[1, 100]]" in printed
    assert "{'id': 1, 'balance': 105, 'owner': None}" in printed
    assert "Committed(tuples=" in printed


def test_documented_example_of_the_synchronous_client_runs(
    cluster: ProcessCluster, with_client: Callable[[ClientBody], None]
) -> None:
    async def prepare(client: Client) -> None:
        await client.insert("accounts", [1, 0])

    with_client(prepare)
    source = "if True:\n" + example_of(sync_module)
    names = {"SyncClient": SyncClient, "addresses": cluster.addresses, "password": PASSWORD}
    source = source.replace('"password"', "password")
    exec(compile(source, "docstring", "exec"), names)  # noqa: S102  # runs the documented example
    assert isinstance(names["outcome"], Committed)
    with SyncClient(cluster.addresses, USER, PASSWORD) as client:
        assert client.count("accounts") == 2
