"""The watch of the key space, and its transactions, against real members."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from qsync_broker.combining import GROUP_MAX, next_group
from qsync_broker.coordination import GROUPS_MAX, Coordination
from qsync_broker.events import Watched
from qsync_broker.keyspace import Absent, KeyChange, KeySpace, absent
from qsync_broker.watch import WatchError, WatchSession
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_client.transaction import Transaction
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import (
    ASSIGNMENT_SPACE,
    JOURNAL_SPACE,
    KEY_SPACES,
    NO_ROUTE,
    WATCHED_SPACES,
    AssignmentRow,
    BrokerId,
    BrokerRow,
    JournalRow,
    definitions,
    encode_row,
)
from qsync_node.format.keys import NOP, Key, Type
from qsync_node.format.mp import pack, unpack
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    PASSWORD,
    REPLICASET,
    USER,
    ProcessCluster,
    running_cluster,
)
from qsync_testing.raw import Raw

A = BrokerId("zone", "broker-a")
JOURNAL = JournalRow("a/journal", {"replication": 3}, 0, 0, 0, 0, NO_ROUTE, 2, 2)
BROKER = BrokerRow(A, "http://a", "a:1", 9, False, 60_000, "process", 1, 1, 1)
NO_JOURNAL = Absent(JOURNAL_SPACE, ("a/journal",))


@pytest.fixture(autouse=True)
def causes(caplog: pytest.LogCaptureFixture) -> None:
    """Show why a transaction is not known to be committed, if a test fails."""
    caplog.set_level(logging.DEBUG, "qsync.broker")


def enable(cluster: ProcessCluster) -> Raw:
    raw = Raw(cluster.leader().address)
    raw.log_in()
    for space, fields in definitions():
        assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: fields})[0] == 0
    return raw


class KeyWatcher:
    """A key space that follows the watch of one member."""

    def __init__(self) -> None:
        self.keys = KeySpace()
        self.snapshots = 0

    def deliver(self, change: Watched) -> None:
        if change.is_whole:
            self.keys.clear()
            self.snapshots += 1
        for row in change.changes:
            self.keys.apply(row)
        assert change.revision >= self.keys.revision or change.is_whole
        self.keys.revision = change.revision

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition():
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def watching(address: str) -> AsyncIterator[tuple[Coordination, KeyWatcher]]:
    coordination, watcher = Coordination(address, USER, PASSWORD), KeyWatcher()
    task = asyncio.ensure_future(coordination.watch(watcher.deliver))
    try:
        await watcher.until(lambda: watcher.snapshots > 0)
        yield coordination, watcher
    finally:
        task.cancel()
        await coordination.close()


async def carry_out(
    cluster: ProcessCluster,
    log: pytest.LogCaptureFixture,
    pair: tuple[Coordination, KeyWatcher],
    change: KeyChange,
    is_shown: Callable[[KeySpace], bool],
) -> None:
    """Carry out a change, again if the leader changed or was cut off meanwhile.

    Args:
        cluster: Its members may elect a leader, or connect again, at any time: a busy machine
            stops their processes.
        log: The log of the coordination.
        pair: A coordination and the watcher that follows it.
        change: The change that is to be committed.
        is_shown: Whether a key space contains the change.
    """
    coordination, watcher = pair
    while True:
        term = await asyncio.to_thread(term_of, cluster)
        if await coordination.transact(change):
            break
        is_elected = await asyncio.to_thread(term_of, cluster) > term
        assert is_elected or "its leader was cut off" in log.text, "refused without a cause"
        await asyncio.sleep(1)
        if is_shown(watcher.keys):
            break  # the outcome was unknown
    await watcher.until(lambda: is_shown(watcher.keys))


def term_of(cluster: ProcessCluster) -> int:
    return int(cluster.leader().status()["term"])


def test_transactions_reach_the_watch_of_every_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        enable(cluster)
        asyncio.run(_transact(cluster, caplog))


async def _transact(cluster: ProcessCluster, log: pytest.LogCaptureFixture) -> None:
    async with contextlib.AsyncExitStack() as stack:
        pairs = [
            await stack.enter_async_context(watching(address)) for address in cluster.addresses
        ]
        last = pairs[-1]
        first = last[0]
        creation = KeyChange((NO_JOURNAL,), (JOURNAL, BROKER))
        await carry_out(cluster, log, last, creation, lambda keys: "a/journal" in keys.journals)
        assert not await first.transact(KeyChange((NO_JOURNAL,), (JOURNAL,)))
        for _, watcher in pairs:
            await watcher.until(lambda: "a/journal" in watcher.keys.journals)  # noqa: B023
            assert watcher.keys.journals["a/journal"] == JOURNAL
            assert watcher.keys.brokers == {A: BROKER}
        changed = JOURNAL._replace(ballot=9)
        added = AssignmentRow("a/journal", A, 0, 5, 5)
        unassigned = Absent(ASSIGNMENT_SPACE, ("a/journal", *A))
        assignment = KeyChange((JOURNAL, unassigned), (changed, added))
        await carry_out(
            cluster, log, last, assignment, lambda keys: bool(keys.route("a/journal").members)
        )
        assert not await first.transact(KeyChange((JOURNAL,), (JOURNAL,)))
        for _, watcher in pairs:
            await watcher.until(lambda: watcher.keys.journals["a/journal"].ballot == 9)  # noqa: B023
            assert watcher.keys.route("a/journal").members == (A,)
        removal = KeyChange((), (), (absent(added), absent(changed)))
        await carry_out(cluster, log, last, removal, lambda keys: not keys.journals)
        for _, watcher in pairs:
            await watcher.until(lambda: not watcher.keys.journals)  # noqa: B023


def test_group_has_no_two_changes_of_a_row() -> None:
    def change(name: str, *expected: str) -> KeyChange:
        absences = tuple(Absent(JOURNAL_SPACE, (key,)) for key in expected)
        return KeyChange(absences, (JOURNAL._replace(name=name),))

    changes = [change("a"), change("b", "c"), change("a"), change("c"), change("d"), change("b")]
    waiting = dict(enumerate(changes))
    groups = []
    while waiting:
        group = next_group(waiting.items())
        groups.append(group)
        for number in group:
            del waiting[number]
    assert groups == [[0, 1, 4], [2, 3, 5]]
    many = [(number, change(f"{number}")) for number in range(2 * GROUP_MAX)]
    assert next_group(many) == list(range(GROUP_MAX))


def test_renewal_of_the_lease_waits_for_no_other_transaction(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        enable(cluster)
        asyncio.run(_renew_under_load(cluster))


async def _renew_under_load(cluster: ProcessCluster) -> None:
    async with watching(cluster.addresses[0]) as (coordination, _):
        others = [
            asyncio.ensure_future(
                coordination.transact(KeyChange((), (JOURNAL._replace(name=f"a/{number}"),)))
            )
            for number in range(400)
        ]
        await asyncio.sleep(0)
        assert await coordination.transact(KeyChange((), (BROKER,)))
        assert sum(one.done() for one in others) < 200
        await asyncio.gather(*others)


def test_changes_that_wait_are_carried_out_together(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        enable(cluster)
        asyncio.run(_change_together(cluster))


async def _change_together(cluster: ProcessCluster) -> None:
    journals = [JOURNAL._replace(name=f"a/{number:03}") for number in range(200)]
    absences = [Absent(JOURNAL_SPACE, (journal.name,)) for journal in journals]
    async with watching(cluster.addresses[0]) as (coordination, watcher):
        assert await coordination.transact(KeyChange((absences[7],), (journals[7],)))
        began = watcher.keys.revision
        found = await asyncio.gather(
            *(
                coordination.transact(KeyChange((gone,), (journal._replace(ballot=8),)))
                for gone, journal in zip(absences, journals, strict=True)
            )
        )
        assert found == [number != 7 for number in range(200)]
        await watcher.until(lambda: len(watcher.keys.journals) == 200)
        assert [one.name for one in watcher.keys.journals.values() if one.ballot != 8] == ["a/007"]
        # Each transaction is confirmed by a row of its own, at most.
        assert watcher.keys.revision - began <= 199 + GROUPS_MAX + 200 / GROUP_MAX + 1


def test_change_whose_caller_has_gone_is_not_carried_out_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that broke off may have learned that nothing has changed, and rely on it."""
    asyncio.run(_break_off(monkeypatch))


async def _break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    coordination, may_end = Coordination("127.0.0.1:1", "", ""), asyncio.Event()
    names: list[str] = []

    async def carry_out(changes: list[KeyChange]) -> list[bool]:
        await may_end.wait()
        names.extend(str(row.key[0]) for change in changes for row in change.written)
        return [True] * len(changes)

    monkeypatch.setattr(coordination, "_carry_out", carry_out)

    async def transact(name: str) -> bool:
        return await coordination.transact(KeyChange((), (JOURNAL._replace(name=name),)))

    first = []
    for number in range(GROUPS_MAX):
        first.append(asyncio.ensure_future(transact(f"a/{number}")))
        await asyncio.sleep(0)
    gone = asyncio.ensure_future(transact("a/gone"))
    await asyncio.sleep(0)
    gone.cancel()
    may_end.set()
    await asyncio.gather(*first)
    assert await transact("a/later")
    assert names == [*(f"a/{number}" for number in range(GROUPS_MAX)), "a/later"]
    await coordination.close()


def test_conflict_at_the_commit_concerns_only_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        raw = enable(cluster)
        asyncio.run(_conflict_at_the_commit(cluster, raw, monkeypatch))


async def _conflict_at_the_commit(
    cluster: ProcessCluster, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = [JOURNAL._replace(name=f"a/{number:03}") for number in range(20)]
    replace = Transaction.replace
    async with watching(cluster.addresses[0]) as (coordination, watcher):
        monkeypatch.setattr(coordination, "_turn", asyncio.Semaphore(1))
        for journal in journals:
            assert await coordination.transact(KeyChange((), (journal,)))

        async def replace_late(self: Transaction, space: int, fields: Any) -> Any:
            found = await replace(self, space, fields)
            if fields[0] == "a/005" and not disturbed:
                disturbed.append(fields)
                changed = [*encode_row(journals[5])]
                changed[4] = 99
                assert (
                    raw.ask(Type.REPLACE, {Key.SPACE_ID: JOURNAL_SPACE, Key.TUPLE: changed})[0] == 0
                )
            return found

        disturbed: list[Any] = []
        monkeypatch.setattr(Transaction, "replace", replace_late)
        found = await asyncio.gather(
            *(
                coordination.transact(KeyChange((journal,), (journal._replace(epoch=7),)))
                for journal in journals
            )
        )
        assert disturbed
        assert found == [number != 5 for number in range(20)]
        await watcher.until(
            lambda: sum(one.epoch == 7 for one in watcher.keys.journals.values()) == 19
        )


def test_revision_passes_writes_to_other_spaces(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        raw = enable(cluster)
        asyncio.run(_pass_writes(cluster, raw))


async def _pass_writes(cluster: ProcessCluster, raw: Raw) -> None:
    parts = [[0, "unsigned"]]
    async with watching(cluster.addresses[0]) as (_, watcher):
        before = watcher.keys.revision
        rows = [(280, [600, 1, "kv", "memtx", 0, {"is_sync": True}, []])]
        rows.append((SystemSpace.INDEX, [600, 0, "primary", "tree", {"unique": True}, parts]))
        rows += [(600, [number]) for number in range(100)]
        for space, row in rows:
            assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        await watcher.until(lambda: watcher.keys.revision >= before + 102)
        assert not watcher.keys.journals


def test_watch_starts_again_after_a_restart_of_its_member(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        enable(cluster)
        asyncio.run(_restart(cluster))


async def _restart(cluster: ProcessCluster) -> None:
    async with watching(cluster.addresses[0]) as (coordination, watcher):
        assert await coordination.transact(KeyChange((NO_JOURNAL,), (JOURNAL,)))
        await watcher.until(lambda: bool(watcher.keys.journals))
        node = cluster.leader()
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start, cluster.peers)
        # The snapshot may be older than the row: the member confirms its log again when it leads.
        await watcher.until(
            lambda: watcher.snapshots == 2 and watcher.keys.journals == {"a/journal": JOURNAL}
        )


def test_update_of_a_specification_reaches_the_watch(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        raw = enable(cluster)
        asyncio.run(_update(cluster, raw))


async def _update(cluster: ProcessCluster, raw: Raw) -> None:
    async with watching(cluster.addresses[0]) as (coordination, watcher):
        assert await coordination.transact(KeyChange((NO_JOURNAL,), (JOURNAL,)))
        operations = [["=", 1, {"replication": 2}], ["=", 8, 44]]
        body = {
            Key.SPACE_ID: JOURNAL_SPACE,
            Key.INDEX_ID: 0,
            Key.KEY: ["a/journal"],
            Key.TUPLE: operations,
        }
        assert raw.ask(Type.UPDATE, body)[0] == 0
        await watcher.until(lambda: watcher.keys.journals["a/journal"].mod_revision == 44)
        assert watcher.keys.journals["a/journal"].spec == {"replication": 2}


# --- a user with the key space only ---------------------------------------------------------------

BROKER_USER = "qsync_broker"


def enable_with_account(cluster: ProcessCluster) -> Raw:
    """Create the key space, and a user that can log in, and read and write the key space."""
    enable(cluster)
    raw = Raw(cluster.leader().address)
    raw.log_in(ADMIN_PASSWORD, "admin")
    password = {"chap-sha1": stored_hash("secret")}
    rows = [(304, [40, 1, BROKER_USER, "user", password]), (312, [1, 40, "universe", 0, 8 | 16])]
    rows += [(312, [1, 40, "space", space, 1 | 2]) for space in WATCHED_SPACES]
    for space, row in rows:
        assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
    return raw


def test_user_of_the_key_space_watches_and_changes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        enable_with_account(cluster)
        asyncio.run(_use_account(cluster, caplog))


async def _use_account(cluster: ProcessCluster, log: pytest.LogCaptureFixture) -> None:
    for address in cluster.addresses:
        coordination, watcher = Coordination(address, BROKER_USER, "secret"), KeyWatcher()
        task = asyncio.ensure_future(coordination.watch(watcher.deliver))
        try:
            await watcher.until(lambda: watcher.snapshots > 0)  # noqa: B023
            pair = coordination, watcher
            creation = KeyChange((NO_JOURNAL,), (JOURNAL,))
            await carry_out(cluster, log, pair, creation, lambda keys: bool(keys.journals))
            removal = KeyChange((JOURNAL,), (), (absent(JOURNAL),))
            await carry_out(cluster, log, pair, removal, lambda keys: not keys.journals)
            assert coordination.cluster == REPLICASET
        finally:
            task.cancel()
            await coordination.close()


def rows_of(raw: Raw, fields: dict[int, Any], kind: int, until: int) -> list[tuple[int, int]]:
    """Return type and space of the rows that answer a replication request.

    Args:
        raw: the connection.
        fields: body of the request.
        kind: its type.
        until: number of answers without a space after which to stop.
    """
    raw.send(encode_request(kind, 1, pack(fields)))
    found = []
    while until:
        row, _, header, body = raw.frame()
        assert row < 0x8000, unpack(body)
        contents = unpack(body) if body else {}
        if Key.SPACE_ID in contents:
            found.append((row, contents[Key.SPACE_ID]))
        elif row == NOP:
            found.append((row, 0))
        elif kind == Type.FETCH_SNAPSHOT or header.get(int(Key.LSN), 0) == 0:
            until -= 1
    return found


def test_user_of_the_key_space_receives_no_other_row(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        admin = enable_with_account(cluster)
        rows = [(280, [600, 1, "kv", "memtx", 0, {"is_sync": True}, []])]
        rows.append(
            (SystemSpace.INDEX, [600, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]])
        )
        rows.append((600, [1, "private"]))
        for space, row in rows:
            assert admin.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        listed = {int(Key.INSTANCE_UUID): str(uuid4()), int(Key.SPACES): list(KEY_SPACES)}
        raw = Raw(cluster.addresses[0])
        assert raw.log_in("secret", BROKER_USER) == 0
        assert not rows_of(raw, listed, Type.FETCH_SNAPSHOT, 2)
        subscription = {**listed, int(Key.VCLOCK): {}, int(Key.REPLICA_ANON): True}
        found = rows_of(raw, subscription, Type.SUBSCRIBE, 3)
        assert found
        assert {row for row, _ in found} == {NOP}


@pytest.mark.parametrize(
    ("kind", "spaces"),
    [
        (Type.FETCH_SNAPSHOT, []),
        (Type.FETCH_SNAPSHOT, [280]),
        (Type.FETCH_SNAPSHOT, [*KEY_SPACES, 600]),
        (Type.SUBSCRIBE, [304]),
        (Type.SUBSCRIBE, []),
        (Type.JOIN, [*KEY_SPACES]),
        (Type.REGISTER, [*KEY_SPACES]),
    ],
)
def test_user_of_the_key_space_cannot_subscribe_to_more(
    shared_cluster: ProcessCluster, kind: Type, spaces: list[int]
) -> None:
    raw = Raw(shared_cluster.addresses[0])
    assert raw.log_in("secret", BROKER_USER) == 0
    fields: dict[int, Any] = {int(Key.INSTANCE_UUID): str(uuid4()), int(Key.REPLICA_ANON): True}
    fields |= {int(Key.VCLOCK): {}, int(Key.REPLICASET_UUID): REPLICASET}
    if spaces:
        fields[int(Key.SPACES)] = spaces
    assert raw.ask(int(kind), fields)[0] == ErrorCode.ACCESS_DENIED


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("shared"), 1) as cluster:
        enable_with_account(cluster)
        yield cluster


# --- without a member -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [bytes(128), b"x" * 128, b"HTTP/1.1 400 Bad Request\r\n" * 10])
def test_greeting_of_another_server_is_refused(data: bytes) -> None:
    with pytest.raises(WatchError, match="the greeting was refused"):
        WatchSession("user", "password", "uuid").feed(data)
