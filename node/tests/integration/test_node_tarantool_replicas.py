"""A real Tarantool 2.6 follows a cluster as a replica, over Tarantool's own protocol."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgpack
import pytest
import tarantool

from qsync_client import Client, Committed, RolledBack
from qsync_client.protocol.auth import stored_hash
from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.ports import free_port
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    REPLICASET,
    NodeProcess,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw

USER, PASSWORD = "replicator", "secret"
SPACE = 700
ALL = f"return box.space[{SPACE}]:select()"
CLOCK = "return box.info.vclock"
STATUS = """
    local found = {}
    for _, one in pairs(box.info.replication) do
        if one.upstream then table.insert(found, one.upstream.status) end
    end
    return found
"""


class UnmodifiedTarantool:
    """Debian's Tarantool as a replica; its directory and port stay the same across restarts."""

    def __init__(self, folder: Path, sources: list[str], is_anonymous: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir()
        self.script = folder / "replica.lua"
        self.script.write_text(
            f"""
            box.cfg{{
                listen = '127.0.0.1:{self.port}', work_dir = '{folder}', log = '{folder}/log',
                read_only = true, replication_anon = {str(is_anonymous).lower()},
                replication = {{{", ".join(map(uri, sources))}}},
                replication_timeout = 0.3, replication_connect_quorum = 1,
            }}
            """
        )

    def start(self) -> None:
        self.process = subprocess.Popen(["tarantool", self.script], stdin=subprocess.DEVNULL)
        wait_until("the replica follows", self.follows)

    def follows(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return "follow" in self.ask(STATUS)

    def ask(self, lua: str) -> Any:
        try:
            connection = tarantool.connect("127.0.0.1", self.port, user=USER, password=PASSWORD)
        except tarantool.error.Error as error:
            raise OSError(str(error)) from error
        try:
            return connection.eval(lua)[0]
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def uri(address: str) -> str:
    return f"'{USER}:{PASSWORD}@{address}'"


@contextmanager
def replica(*arguments: Any, **settings: Any) -> Iterator[UnmodifiedTarantool]:
    made = UnmodifiedTarantool(*arguments, **settings)
    try:
        made.start()  # killed even if this fails midway
        yield made
    finally:
        made.kill()


def admin(cluster: ProcessCluster) -> Client:
    return Client(cluster.addresses, "admin", ADMIN_PASSWORD)


async def prepare(cluster: ProcessCluster) -> None:
    async with admin(cluster) as client:
        for space, row in (
            (SystemSpace.USER, [40, 1, USER, "user", {"chap-sha1": stored_hash(PASSWORD)}]),
            (SystemSpace.PRIV, [1, 40, "universe", 0, 24 | 4]),
            (SystemSpace.PRIV, [1, 40, "role", 3, 4]),
            (SystemSpace.SPACE, [SPACE, 1, "rows", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
            *((SPACE, [number, f"before {number}"]) for number in range(20)),
        ):
            assert isinstance(await client.insert(space, row), Committed)


@contextmanager
def prepared_cluster(folder: Path, **settings: object) -> Iterator[ProcessCluster]:
    with running_cluster(folder, 3, **settings) as running:
        asyncio.run(prepare(running))
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("tarantool")
    with prepared_cluster(folder, synchro_timeout="300ms", election_timeout="5s") as running:
        yield running


def same_state(cluster: ProcessCluster, follower: UnmodifiedTarantool) -> bool:
    """Return whether the replica has all rows of the leader, all of them confirmed."""
    leader = cluster.leader().status()
    clock = {key: lsn for key, lsn in follower.ask(CLOCK).items() if key}
    return bool(sum(clock.values()) == leader["confirmed_index"] == leader["last_index"])


async def change_everything(cluster: ProcessCluster) -> list[Any]:
    """Log rows of every kind; return the tuples that remain in `SPACE`."""
    async with admin(cluster) as client:
        base = 1000
        for number in range(50):
            assert isinstance(await client.replace(SPACE, [base + number, "row"]), Committed)
        assert isinstance(await client.update(SPACE, [base], [["=", 1, "updated"]]), Committed)
        assert isinstance(await client.delete(SPACE, [base + 1]), Committed)
        assert isinstance(
            await client.upsert(SPACE, [base + 2, "x"], [["=", 1, "upserted"]]), Committed
        )
        async with client.transaction() as work:
            await work.replace(SPACE, [base + 3, "in one"])
            await work.replace(SPACE, [base + 4, "transaction"])
        await client.update(SystemSpace.SPACE, [SPACE], [["=", 5, {"is_sync": False}]])
        await client.update(SystemSpace.SPACE, [SPACE], [["=", 5, {"is_sync": True}]])
        for target, row in (
            (SystemSpace.SPACE, [SPACE + 1, 1, "more", "memtx", 0, {"is_sync": True}, []]),
            (
                SystemSpace.INDEX,
                [SPACE + 1, 0, "primary", "hash", {"unique": True}, [[0, "string"]]],
            ),
            (SystemSpace.INDEX, [SPACE, 1, "name", "tree", {"unique": False}, [[1, "string"]]]),
            (SPACE + 1, ["a", 1]),
        ):
            await client.replace(target, row)
        rows = await client.select(SPACE, [], limit=10_000)
        assert isinstance(rows, Committed)
        return rows.tuples


@pytest.mark.parametrize("is_anonymous", [False, True])
def test_it_bootstraps_from_the_leader_and_follows_every_change(
    cluster: ProcessCluster, tmp_path: Path, is_anonymous: bool
) -> None:
    leader = cluster.leader()
    with replica(tmp_path / "r", [leader.address], is_anonymous=is_anonymous) as follower:
        assert [0, "before 0"] in follower.ask(ALL)
        rows = asyncio.run(change_everything(cluster))
        wait_until("the same clock", lambda: same_state(cluster, follower))
        assert follower.ask(ALL) == rows
        assert follower.ask("return box.space.more:select()") == [["a", 1]]
        assert follower.ask(f"return box.space[{SPACE}].index.name:count('row')") == 45
        assert follower.ask(f"return box.space[{SPACE}].is_sync") is False
        assert follower.ask("return box.space._space:count(490)") == 0
        status = leader.status()
        found = [one for one in status["stock"] if one["is_anonymous"] is is_anonymous]
        assert found[0]["acknowledged_index"] == status["confirmed_index"]
        replicas = [member for member in status["members"] if member["role"] == "stock"]
        assert not any(member["is_voting"] for member in replicas)
        assert status["quorum"] == 2
        own = follower.ask("return {box.info.id, box.info.uuid}")
        assert ([own[1]] == [m["uuid"] for m in replicas if m["replica_id"] == own[0]]) is not (
            is_anonymous
        )


def test_an_anonymous_replica_becomes_registered_and_a_restarted_one_resumes(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    leader = cluster.leader()
    with replica(tmp_path / "r", [leader.address], is_anonymous=True) as follower:
        follower.ask("box.cfg{replication_anon = false} return true")
        uuid = follower.ask("return box.info.uuid")
        members = {member["uuid"]: member for member in leader.status()["members"]}
        assert members[uuid]["role"] == "stock"
        wait_until("it follows", follower.follows)
        follower.kill()
        asyncio.run(change_everything(cluster))
        script = follower.script.read_text()
        follower.script.write_text(script.replace("replication_anon = true", "read_only = true"))
        follower.start()
        wait_until("the same clock", lambda: same_state(cluster, follower))


def signal_all(nodes: list[NodeProcess], number: signal.Signals) -> None:
    for node in nodes:
        assert node.process is not None
        node.process.send_signal(number)


def test_a_rolled_back_row_is_never_seen(cluster: ProcessCluster, tmp_path: Path) -> None:
    async def insert_without_quorum() -> None:
        others = [node for node in cluster.nodes if node is not leader]
        async with Client([leader.address], "admin", ADMIN_PASSWORD) as client:
            assert isinstance(await client.replace(SPACE, [1, "kept"]), Committed)
            signal_all(others, signal.SIGSTOP)
            try:
                row = [6000, "rolled back"]
                writing = asyncio.create_task(client.insert(SPACE, row, retry=False))
                while (
                    '"event": "rollback"' not in (leader.folder / f"{leader.name}.log").read_text()
                ):
                    await asyncio.sleep(0.02)
            finally:
                signal_all(others, signal.SIGCONT)
            outcome = await writing
        assert isinstance(outcome, RolledBack), outcome

    leader = cluster.leader()
    with replica(tmp_path / "r", [leader.address]) as follower:
        follower.ask(
            f"""
            seen = {{}}
            box.space[{SPACE}]:on_replace(function(_, new) if new then seen[new[1]] = true end end)
            return true
            """
        )
        asyncio.run(insert_without_quorum())
        with pytest.raises(tarantool.error.DatabaseError):
            follower.ask("box.space._schema:replace{'own', 1} return true")
        wait_until("the same clock", lambda: same_state(cluster, follower))
        assert follower.ask("return seen[1] == true and seen[6000] == nil")


def test_it_continues_with_the_next_leader(tmp_path: Path) -> None:
    """One replica is reconfigured to follow the new leader; another one knows all members."""
    with prepared_cluster(tmp_path / "cluster") as cluster:
        leader = cluster.leader()
        with (
            replica(tmp_path / "one", [leader.address]) as one,
            replica(tmp_path / "all", cluster.addresses) as all_members,
        ):
            asyncio.run(change_everything(cluster))
            leader.kill()
            following = cluster.leader()
            one.ask(f"box.cfg{{replication = {uri(following.address)}}} return true")
            rows = asyncio.run(change_everything(cluster))
            for follower in (one, all_members):
                wait_until("the same clock", partial(same_state, cluster, follower))
                assert follower.ask(ALL) == rows


def join(raw: Raw, kind: int, **fields: object) -> tuple[int, dict[int, Any]]:
    names = {
        "uuid": Key.INSTANCE_UUID,
        "replicaset": Key.REPLICASET_UUID,
        "clock": Key.VCLOCK,
        "is_anonymous": Key.REPLICA_ANON,
    }
    return raw.ask(kind, {names[name]: value for name, value in fields.items()})


def test_unknown_clients_and_wrong_identities_are_refused(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    other = next(node for node in cluster.nodes if node is not leader)
    voter, own = other.status()["uuid"], leader.status()["uuid"]
    me = str(uuid4())
    refusals: list[tuple[NodeProcess, bool, int, dict[str, Any], int]] = [
        (leader, False, 65, {"uuid": me}, 42),
        (leader, False, 66, {"replicaset": REPLICASET, "uuid": me, "clock": {}}, 42),
        (leader, False, 69, {}, 42),
        (leader, True, 65, {"uuid": own}, 117),
        (leader, True, 65, {"uuid": voter}, 59),
        (leader, True, 65, {"uuid": "nonsense"}, 20),
        (leader, True, 70, {"uuid": me, "clock": {1: "x"}}, 20),
        (other, True, 65, {"uuid": me}, 7),
        (leader, True, 66, {"replicaset": me, "uuid": me, "clock": {}}, 63),
        (leader, True, 66, {"replicaset": REPLICASET, "uuid": me, "clock": {}}, 62),
        (leader, True, 66, {"replicaset": REPLICASET, "uuid": voter, "clock": {}}, 59),
        (
            leader,
            True,
            66,
            {"replicaset": REPLICASET, "uuid": me, "clock": {9: 3}, "is_anonymous": True},
            219,
        ),
    ]
    for node, is_known, kind, fields, code in refusals:
        raw = Raw(node.address)
        if is_known:
            assert raw.log_in(PASSWORD, USER) == 0
        got, body = join(raw, kind, **fields)
        assert got == code, (kind, fields, body)
        if code == 7:
            assert leader.name in body[Key.ERROR_24]
        with pytest.raises(EOFError):
            raw.answer()
        raw.socket.close()


def test_a_position_inside_a_transaction_ends_the_stream_and_nothing_else(
    cluster: ProcessCluster,
) -> None:
    async def transact() -> None:
        async with admin(cluster) as client, client.transaction() as work:
            await work.replace(SPACE, [7000, "one"])
            await work.replace(SPACE, [7001, "two"])

    leader = cluster.leader()
    asyncio.run(transact())
    status = leader.status()
    owner = int(next(iter(status["vclock"])))
    for missing in range(1, 6):
        raw = Raw(leader.address)
        assert raw.log_in(PASSWORD, USER) == 0
        clock = {owner: status["confirmed_index"] - missing}
        fields = {"replicaset": REPLICASET, "uuid": str(uuid4()), "clock": clock}
        assert join(raw, 66, **fields, is_anonymous=True)[0] == 0
        raw.socket.close()
    asyncio.run(transact())
    assert leader.status()["confirmed_index"] > status["confirmed_index"]


def test_one_that_does_not_read_is_sent_no_more_than_the_sockets_hold(
    cluster: ProcessCluster,
) -> None:
    count, size = 1500, 20_000

    async def fill(*, is_filling: bool) -> None:
        async with admin(cluster) as client:
            for first in range(0, count, 100):
                keys = range(10_000 + first, 10_000 + first + 100)
                await asyncio.gather(
                    *(
                        client.replace(SPACE, [key, "x" * size])
                        if is_filling
                        else client.delete(SPACE, [key])
                        for key in keys
                    )
                )

    def stage() -> str:
        found: list[str] = [one["stage"] for one in leader.status()["stock"]]
        return found[0] if found else ""

    leader = cluster.leader()
    asyncio.run(fill(is_filling=True))
    raw = Raw(leader.address)
    assert raw.log_in(PASSWORD, USER) == 0
    raw.send(encode_request(Type.FETCH_SNAPSHOT, 1, b"\x80"))
    wait_until("the snapshot begins", lambda: stage() == "snapshot")
    asyncio.run(fill(is_filling=False))
    assert stage() == "snapshot", "the rest waits for the reader"
    keys = set()
    clocks = 0
    while clocks < 2:
        _, body = raw.answer()
        clocks += Key.VCLOCK in body
        if body.get(Key.SPACE_ID) == SPACE and body[Key.TUPLE][1] == "x" * size:
            keys.add(body[Key.TUPLE][0])
    raw.socket.close()
    assert keys == set(range(10_000, 10_000 + count)), "the state is that of one moment"


def test_a_vote_answers_all_waiting_requests(cluster: ProcessCluster) -> None:
    leader = cluster.leader()
    for node in cluster.nodes:
        code, body = Raw(node.address).ask(Type.VOTE, {})
        assert code == 0
        ballot = body[Key.BALLOT]
        assert ballot[1] is (node is not leader)
        assert ballot[4] is False
        assert sum(ballot[2].values()) >= sum(ballot[3].values())
    assert msgpack.packb(ballot)
