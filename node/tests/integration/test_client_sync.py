"""The synchronous client has the verbs of the asynchronous one; the examples of both run."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qsync_client import (
    Client,
    ClientClosed,
    Committed,
    SchemaError,
    StatementFailed,
    SyncClient,
    SyncTransaction,
    Transaction,
)
from qsync_client import client as client_module
from qsync_client import sync as sync_module
from qsync_testing.client_cluster import ACCOUNTS, ClientBody
from qsync_testing.processes import PASSWORD, USER, ProcessCluster


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
