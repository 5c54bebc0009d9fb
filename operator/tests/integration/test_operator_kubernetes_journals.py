"""QsyncJournals against the fake API, a real node and a broker's answers."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from qsync_broker.auth import AuthError, Authorizer, Capability
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    BROKER_SPACE,
    JOURNAL_SPACE,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    decode_row,
    encode_row,
)
from qsync_operator.api.journals import QsyncJournalSpec
from qsync_operator.api.reasons import Reason
from qsync_operator.kubernetes import journalreports, journaltokens
from qsync_operator.kubernetes import journals as keepers
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.dependents import run_of_cluster
from qsync_operator.kubernetes.journals import JournalReconciler, refuse_journal
from qsync_operator.members import keyspace as journals
from qsync_operator.members.iproto import DatabaseError, IprotoConnection
from qsync_operator.plan.actions import CreateMember
from qsync_operator.plan.observed import BrokersView, MemberView
from qsync_operator.reconcile.brokers import BrokerReconciler
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.journal_documents import document, report
from qsync_testing.operator.platforms import KEY, cluster_of, observed, opened
from qsync_testing.ports import free_port
from qsync_testing.processes import ADMIN_PASSWORD, SECRET, ProcessCluster, running_cluster


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 1) as cluster:
        yield cluster


def admin(node: ProcessCluster) -> IprotoConnection:
    return IprotoConnection(node.leader().address, "admin", ADMIN_PASSWORD, 10)


@contextlib.asynccontextmanager
async def broker(
    journals: list[dict[str, Any]], asked: list[list[str]], keys: str = ""
) -> AsyncIterator[str]:
    """Serve reports as a broker with these keys of tokens does, and yield its URL."""
    authorizer = Authorizer.of_text(keys)

    async def answer(request: web.Request) -> web.Response:
        try:
            authorizer.verify(request.headers.get("Authorization", ""), Capability.LIST)
        except AuthError:
            return web.Response(status=401)
        asked.append(request.query.getall("name", []))
        return web.json_response({"revision": 7, "journals": journals})

    app = web.Application()
    app.add_routes([web.get("/debug/journals", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def kept(api: FakeApi, *documents: dict[str, Any]) -> AsyncIterator[JournalReconciler]:
    """Yield the keeper of a cluster with these QsyncJournals."""
    cache = Cache()
    for one in documents:
        cache.note("QsyncJournal", run_of_cluster(api.put(one), "QsyncJournal"))
    keeper = JournalReconciler(api, cache, KEY, SECRET, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]  # not called
    try:
        yield keeper
    finally:
        await keeper.close()


def conditions_of(api: FakeApi, name: str) -> dict[str, tuple[str, str]]:
    found = api.named("QsyncJournal", name)["status"]["conditions"]
    return {one["type"]: (one["status"], one["reason"]) for one in found}


@pytest.mark.asyncio
async def test_a_declared_journal_is_created_and_its_status_is_the_brokers(
    node: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "NUMBERS_EVERY_S", 0.0)
    api = FakeApi()
    asked: list[list[str]] = []
    described = report(brokers=["orders-1"], replication=1)
    async with (
        broker([described], asked) as url,
        kept(api, document(replication=1)) as keeper,
    ):
        cluster, leader = cluster_of(journals={}), node.leader().address
        assert await keeper.reconcile(cluster, leader, {"orders-1": url}) == ()
        assert conditions_of(api, "orders-eu")["Writable"] == ("Unknown", "NotObserved")
        assert keeper._reports._task is not None
        await keeper._reports._task
        await keeper.reconcile(cluster, leader, {"orders-1": url})
        writes = list(api.writes)
        await keeper.reconcile(cluster, leader, {"orders-1": url})
        assert api.writes == writes, "an unchanged status was written"
    assert asked == [["orders/eu"]]
    assert conditions_of(api, "orders-eu")["Writable"] == ("True", "Writable")
    status = api.named("QsyncJournal", "orders-eu")["status"]
    assert (status["primary"], status["writeHead"], status["fragments"]) == ("orders-1", 100, 3)
    with admin(node) as database:
        (row,) = database.select(JOURNAL_SPACE, ["orders/eu"])
        assert row[1]["replication"] == 1


@pytest.mark.asyncio
async def test_brokers_with_keys_are_asked_with_a_token_of_the_secret(
    node: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaltokens, "READ_AGAIN_S", 0.0)
    monkeypatch.setattr(journalreports, "ASK_AGAIN_S", 0.0)
    api = FakeApi()
    described = report(brokers=["orders-1"], replication=1)
    cluster, leader = cluster_of(journals={"authKeysSecret": "tokens"}), node.leader().address

    def put_keys(text: str) -> None:
        data = {"keys": base64.b64encode(text.encode()).decode()}
        metadata = {"name": "tokens", "namespace": "ns"}
        api.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    async with (
        broker([described], [], "c2VjcmV0 b3RoZXI=") as url,
        kept(api, document(replication=1)) as keeper,
    ):

        async def sentences() -> list[str]:
            for _ in range(2):
                found = await keeper.reconcile(cluster, leader, {"orders-1": url})
                assert keeper._reports._task is not None
                await keeper._reports._task  # the next call asks again, and uses its answer
            await keeper.reconcile(cluster, leader, {"orders-1": url})
            assert keeper._reports._task is not None
            await keeper._reports._task
            assert all(one.reason is Reason.JOURNALS_REFUSED for one in found)
            return [one.message for one in found]

        (missing,) = await sentences()
        assert "Secret tokens of journals.authKeysSecret has no value keys" in missing
        assert conditions_of(api, "orders-eu")["Writable"][0] == "Unknown"
        put_keys("not Base64!")
        assert "is no Base64" in (await sentences())[0]
        put_keys("c2VjcmV0")
        assert await sentences() == []
        assert conditions_of(api, "orders-eu")["Writable"] == ("True", "Writable")
        put_keys("dW5rbm93bg==")
        assert await sentences() == []
        assert conditions_of(api, "orders-eu")["Writable"][0] == "Unknown"
        put_keys("b3RoZXI=")
        assert await sentences() == []
        assert conditions_of(api, "orders-eu")["Writable"] == ("True", "Writable")


@pytest.mark.asyncio
async def test_a_deleted_resource_leaves_its_journal(node: ProcessCluster) -> None:
    api = FakeApi()
    cluster, leader = cluster_of(journals={}), node.leader().address
    given = document("kept", "kept/one")
    async with kept(api, given) as keeper:
        await keeper.reconcile(cluster, leader, {})
        keeper._cache.note("QsyncJournal", run_of_cluster(given, "QsyncJournal"), is_gone=True)
        await keeper.reconcile(cluster, leader, {})
    with admin(node) as database:
        assert database.select(JOURNAL_SPACE, ["kept/one"])


@pytest.mark.asyncio
async def test_a_refused_declaration_says_why_and_others_are_declared(node: ProcessCluster) -> None:
    api = FakeApi()
    bad = document("bad", "bad/one", fragment={"flushInterval": "5s"})
    async with kept(api, bad, document("good", "good/one")) as keeper:
        await keeper.reconcile(cluster_of(journals={}), node.leader().address, {})
        assert conditions_of(api, "bad")["Consistent"] == ("Unknown", "InvalidSpec")
        await keeper.reconcile(cluster_of(), node.leader().address, {})
        assert conditions_of(api, "good")["Consistent"] == ("Unknown", "JournalsDisabled")
    with admin(node) as database:
        assert database.select(JOURNAL_SPACE, ["good/one"])
        assert not database.select(JOURNAL_SPACE, ["bad/one"])


@pytest.mark.asyncio
async def test_a_journal_without_a_cluster_says_so_once() -> None:
    api = FakeApi()
    stored = api.put(document())
    await refuse_journal(api, stored)
    assert conditions_of(api, "orders-eu")["Writable"] == ("Unknown", "NoCluster")
    await refuse_journal(api, api.named("QsyncJournal", "orders-eu"))
    assert len(api.writes) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("journals", [[{"name": "orders/eu"}], [3], None])
async def test_an_invalid_answer_of_a_broker_counts_as_none(journals: Any) -> None:
    async with broker(journals, []) as url:
        reports = journalreports.JournalReports(lambda: None, lambda: None)  # type: ignore[arg-type, return-value]  # not called
        reports.ask({"orders-0": url}, ["orders/eu"])
        assert reports._task is not None
        await reports._task
        assert reports.found == {}
        await reports.close()


@pytest.mark.asyncio
async def test_many_journals_are_asked_for_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journalreports, "NAMES_MAX", 2)
    asked: list[list[str]] = []
    async with broker([], asked) as url:
        reports = journalreports.JournalReports(lambda: None, lambda: None)  # type: ignore[arg-type, return-value]  # not called
        reports.ask({"orders-0": url, "orders-1": "http://127.0.0.1:9"}, ["a/1", "a/2", "a/3"])
        assert reports._task is not None
        await reports._task
        await reports.close()
    assert asked == [["a/1", "a/2"], ["a/3"]]


def test_a_declaration_is_one_transaction_which_a_concurrent_change_refuses(
    node: ProcessCluster,
) -> None:
    spec = QsyncJournalSpec(cluster="orders", journal="raced/one")
    with admin(node) as database, admin(node) as other:
        journals.enable(database, SECRET)
        journals.declare(database, spec)
        (row,) = database.select(JOURNAL_SPACE, ["raced/one"])

        def change_beneath() -> None:
            with database.transaction():
                database.select(JOURNAL_SPACE, ["raced/one"])
                other.update(JOURNAL_SPACE, ["raced/one"], [["=", 4, 9]])
                database.update(JOURNAL_SPACE, ["raced/one"], [["=", 1, {}]])

        with pytest.raises(DatabaseError):
            change_beneath()
        (after,) = database.select(JOURNAL_SPACE, ["raced/one"])
        assert after[1] == row[1], json.dumps(after)
        assert after[4] == 9


def broker_row(name: str, is_drained: bool = False) -> list[Any]:
    number = BrokerId(name, name)
    return encode_row(
        BrokerRow(number, f"http://{name}", name, 10, False, 60_000, "p", 1, 1, 1, is_drained)
    )


def assignment(journal: str, name: str, slot: int) -> list[Any]:
    return encode_row(AssignmentRow(journal, BrokerId(name, name), slot, 1, 1))


def test_a_broker_holds_journals_that_another_one_could_take(node: ProcessCluster) -> None:
    with admin(node) as database:
        journals.enable(database, SECRET)
        held = QsyncJournalSpec(cluster="orders", journal="held/one", replication=2)
        journals.declare(database, held)
        for name in ("orders-0", "orders-1", "orders-2"):
            database.replace(BROKER_SPACE, broker_row(name))
        for slot, name in enumerate(("orders-1", "orders-2")):
            database.replace(ASSIGNMENT_SPACE, assignment("held/one", name, slot))
        voters = ["orders-0", "orders-1", "orders-2", "orders-3"]
        view = journals.observe(database, voters)
        assert view.holding == {"orders-1", "orders-2"}
        assert view.exiting == frozenset()
        assert view.undrained == {"orders-0", "orders-1", "orders-2"}
        leaving = ["orders-2", "orders-3"]
        assert journals.observe(database, voters, leaving).undrained == set(voters)
        assert view.missing == {"orders-3"}
        journals.drain(database, "orders-2")
        view = journals.observe(database, voters)
        assert view.exiting == {"orders-2"}
        # The other brokers see the change by its revision.
        changed = decode_row(BROKER_SPACE, database.select(BROKER_SPACE, ["orders-2"] * 2)[0])
        assert changed.mod_revision > 1
        database.replace(BROKER_SPACE, broker_row("orders-0", is_drained=True))
        assert journals.observe(database, voters).undrained == {"orders-1", "orders-2"}
        for name in ("orders-0", "orders-1"):
            database.delete(BROKER_SPACE, [name, name])
        # Nothing remains that could take the journal over.
        assert journals.observe(database, voters).holding == frozenset()
        database.delete(BROKER_SPACE, ["orders-2", "orders-2"])


@pytest.mark.asyncio
async def test_the_brokers_are_read_only_for_a_restart_or_a_removal() -> None:
    api, cluster = FakeApi(), cluster_of(replicas=3, journals={})
    looks: list[list[str]] = []
    async with opened(api, cluster) as (platform, _):

        def look(leader: str, voters: list[str], leaving: list[str]) -> BrokersView:
            assert not leaving, "no member answers"
            looks.append(voters)
            return BrokersView(missing=frozenset(voters))

        platform._brokers._observe = look  # type: ignore[method-assign]  # no broker runs here
        for number in range(4):
            await platform.act(cluster, CreateMember(f"orders-{number}", "voter"))
            members = (await observed(platform, cluster)).members
            view = await platform._brokers.observe(cluster, members, "10.0.0.1:3301")
            assert bool(looks) is (number == 3)
    assert view.missing == set(looks[0]) == {f"orders-{n}" for n in range(4)}


@pytest.mark.asyncio
async def test_no_broker_counts_as_drained_while_the_key_space_cannot_be_read() -> None:
    cluster = cluster_of(replicas=1, journals={})
    brokers = BrokerReconciler(SECRET, lambda: None)
    members = [MemberView(f"orders-{number}", "voter") for number in range(2)]
    for _ in range(2):
        view = await brokers.observe(cluster, members, f"127.0.0.1:{free_port()}")
        assert view.undrained == {"orders-0", "orders-1"}
    assert await brokers.observe(cluster, members, None) == BrokersView()
    assert await brokers.observe(cluster, members[:1], "127.0.0.1:1") == BrokersView()


def test_cluster_whose_journals_were_never_enabled_has_no_brokers(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as never, admin(never) as database:
        assert journals.observe(database, ["orders-0"], ["orders-0"]) == BrokersView(
            missing=frozenset({"orders-0"})
        )
