"""Transactions against real servers: COMMIT, rollback, conflicts, and outcomes that are lost."""

from collections.abc import Callable
from typing import Any

import pytest

from qsync_client import (
    Client,
    ClientClosed,
    Committed,
    Refused,
    RolledBack,
    StatementFailed,
    TransactionLost,
    Unknown,
)
from qsync_client.link import Link
from qsync_client.protocol.constants import Type
from qsync_client.requests import ClientRequest
from qsync_testing.client_cluster import ClientBody
from qsync_testing.processes import PASSWORD, USER, ProcessCluster


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
