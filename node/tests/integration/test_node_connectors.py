"""asynctnt and tarantool-python, unchanged, against a real Tarantool and against three nodes.

One script of every operation, iterator and error runs through both connectors on both systems.
Every answer, error code and error text must be the same. The script omits intended differences;
docs/compatibility.md lists them with their reasons.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asynctnt
import pytest
import tarantool
from asynctnt.exceptions import TarantoolDatabaseError

from qsync_testing.processes import (
    PASSWORD,
    USER,
    ProcessCluster,
    running_cluster,
    running_tarantool,
)

SPACE, HASHED = 700, 701
STREAM = asynctnt.Connection.stream  # a connection to Tarantool 2.6 replaces it in the class
FORMAT = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string"},
    {"name": "score", "type": "number", "is_nullable": True},
    {"name": "tags", "type": "array", "is_nullable": True},
]

ConnectorStep = tuple[str, tuple[Any, ...], dict[str, Any]]


def script() -> list[ConnectorStep]:
    """Return requests that both connectors can send, as (method, arguments, keywords)."""
    steps: list[ConnectorStep] = []

    def step(method: str, *arguments: object, **keywords: object) -> None:
        steps.append((method, arguments, keywords))

    for number in range(1, 21):
        step("insert", SPACE, [number, f"name-{number % 5}", number * 1.5, [number, "x"]])
        step("insert", HASHED, [number, f"hashed-{number}"])
    step("insert", SPACE, [1, "again", 1, []])
    step("insert", SPACE, ["one", "wrong type", 1, []])
    step("insert", SPACE, [30])
    step("insert", SPACE, [31, 5, 1, []])
    step("insert", SPACE, [32, "null score", None, None])
    step("insert", SPACE, [33, "extra", 1, [], "more", {"a": 1}])
    step("insert", 999, [1])
    step("replace", SPACE, [2, "replaced", -7, []])
    step("replace", SPACE, [34, "made by replace", 2**63, []])
    for iterator in (0, 1, 2, 3, 4, 5, 6):
        step("select", SPACE, [7], iterator=iterator, limit=5)
        step("select", SPACE, [], iterator=iterator, limit=4, offset=3)
        step("select", SPACE, ["name-3"], index=1, iterator=iterator, limit=6)
        step("select", SPACE, ["name-3", 8], index=1, iterator=iterator, limit=6)
        step("select", HASHED, [5], iterator=iterator, limit=1)
    step("select", SPACE, [1, 2, 3])
    step("select", SPACE, ["one"])
    step("select", SPACE, [1], index=9)
    step("select", 999, [1])
    step("update", SPACE, [3], [["=", 1, "updated"], ["+", 2, 10], ["!", 4, "inserted"]])
    step("update", SPACE, [3], [["#", 4, 1]])
    step("update", SPACE, [3], [[":", 1, 0, 2, "UP"]])
    step("update", SPACE, [3], [["-", 2, 0.5]])
    step("update", SPACE, [3], [["=", 0, 99]])
    step("update", SPACE, [3], [["+", 1, 1]])
    step("update", SPACE, [3], [["=", 17, 1]])
    step("update", SPACE, [4], [["=", "name", "by name"], ["+", "score", 1]])
    step("update", SPACE, [4], [["=", "unknown", 1]])
    step("update", SPACE, [777], [["=", 1, "missing"]])
    step("upsert", SPACE, [50, "upserted", 1, []], [["=", 1, "second time"]])
    step("upsert", SPACE, [50, "upserted", 1, []], [["=", 1, "second time"]])
    step("select", SPACE, [50])
    step("upsert", SPACE, [50, "upserted", 1, []], [["+", 1, 1]])
    step("select", SPACE, [50])
    step("delete", SPACE, [5])
    step("delete", SPACE, [5])
    step("delete", SPACE, [])
    step("delete", HASHED, [6])
    step("select", SPACE, [], limit=100)
    step("select", HASHED, [7])
    step("call", "undefined.procedure")
    return steps


DDL: list[tuple[int, list[Any]]] = [
    (280, [SPACE, 1, "connectors", "memtx", 0, {}, FORMAT]),
    (288, [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]),
    (288, [SPACE, 1, "by_name", "tree", {"unique": False}, [[1, "string"], [0, "unsigned"]]]),
    (280, [HASHED, 1, "hashed", "memtx", 0, {}, []]),
    (288, [HASHED, 0, "primary", "hash", {"unique": True}, [[0, "unsigned"]]]),
]


async def run_asynctnt(address: str) -> list[Any]:
    host, _, port = address.rpartition(":")
    connection = asynctnt.Connection(host=host, port=int(port), username=USER, password=PASSWORD)
    await connection.connect()
    answers: list[Any] = []
    for method, arguments, keywords in script():
        try:
            found = await getattr(connection, method)(*arguments, **keywords)
            rows = found if method == "select" else found.body
            answers.append([list(row) if not isinstance(row, str) else row for row in rows or []])
        except TarantoolDatabaseError as error:
            answers.append(("error", error.code, error.message))
        except (TypeError, KeyError) as error:
            answers.append(("refused by the connector", str(error)))
    await connection.disconnect()
    return answers


def run_tarantool_python(address: str) -> list[Any]:
    host, _, port = address.rpartition(":")
    connection = tarantool.Connection(host, int(port), user=USER, password=PASSWORD)
    answers: list[Any] = []
    for method, arguments, keywords in script():
        if method in ("upsert", "update"):
            space, key, ops = arguments
            call: Callable[..., Any] = getattr(connection, method)
            arguments = (space, key, [tuple(op) for op in ops])
        else:
            call = getattr(connection, method)
        if method == "call":
            keywords = {}
        try:
            answers.append([list(row) for row in call(*arguments, **keywords).data or []])
        except tarantool.error.DatabaseError as error:
            answers.append(("error", error.args[0], error.args[1]))
    connection.close()
    return answers


async def make_spaces(address: str) -> None:
    host, _, port = address.rpartition(":")
    connection = asynctnt.Connection(host=host, port=int(port), username=USER, password=PASSWORD)
    await connection.connect()
    for space, row in DDL:
        await connection.replace(space, row)
    for space in (SPACE, HASHED):
        for row in await connection.select(space, limit=1000):
            await connection.delete(space, [row[0]])
    await connection.disconnect()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("connectors"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def tarantool_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_tarantool(tmp_path_factory.mktemp("tarantool")) as address:
        yield address


def differences(theirs: list[Any], ours: list[Any]) -> list[str]:
    found = []
    for step, one, other in zip(script(), theirs, ours, strict=True):
        if one != other:
            found.append(f"{step}: Tarantool {one}, Qsync {other}")
    return found


@pytest.mark.parametrize("member", [0, 1, 2])
def test_asynctnt_gets_the_same_answers_from_every_member(
    cluster: ProcessCluster, tarantool_address: str, member: int
) -> None:
    address = cluster.addresses[member]
    for target in (tarantool_address, address):
        asyncio.run(make_spaces(target))
    theirs = asyncio.run(run_asynctnt(tarantool_address))
    ours = asyncio.run(run_asynctnt(address))
    assert differences(theirs, ours) == []


def test_tarantool_python_gets_the_same_answers(
    cluster: ProcessCluster, tarantool_address: str
) -> None:
    address = cluster.leader().address
    for target in (tarantool_address, address):
        asyncio.run(make_spaces(target))
    assert differences(run_tarantool_python(tarantool_address), run_tarantool_python(address)) == []


@pytest.mark.parametrize("timeout", [None, 0.0, 5.0])
@pytest.mark.parametrize("member", [0, 1, 2])
def test_asynctnt_runs_transactions_with_its_defaults(
    cluster: ProcessCluster, member: int, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynctnt.Connection, "stream", STREAM)

    async def run() -> tuple[list[Any], list[Any]]:
        await make_spaces(cluster.addresses[member])
        host, _, port = cluster.addresses[member].rpartition(":")
        connection = asynctnt.Connection(
            host=host, port=int(port), username=USER, password=PASSWORD
        )
        await connection.connect()
        if timeout is None:
            async with connection.stream() as stream:
                await stream.insert(HASHED, [1, "committed"])
                inside = list(await stream.select(HASHED, [1]))
        else:
            stream = connection.stream()
            await stream.begin(tx_timeout=timeout)
            await stream.insert(HASHED, [1, "committed"])
            inside = list(await stream.select(HASHED, [1]))
            await stream.commit()
        other = connection.stream()
        await other.begin()
        await other.insert(HASHED, [2, "rolled back"])
        await other.rollback()
        after = list(await connection.select(HASHED, limit=10))
        await connection.disconnect()
        return inside, after

    inside, after = asyncio.run(run())
    assert [list(row) for row in inside] == [[1, "committed"]]
    assert [list(row) for row in after] == [[1, "committed"]]
