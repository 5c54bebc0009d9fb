"""Transactions of the client: each COMMIT happens once, and a broken transaction is rolled back."""

import asyncio
import contextlib
from typing import Any

import pytest

from qsync_client import (
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    QsyncError,
    RolledBack,
    StatementFailed,
    Transaction,
    TransactionLost,
    Unknown,
)
from qsync_client.protocol.constants import Key, Type
from qsync_client.schema import VINDEX, VSPACE
from qsync_testing.fake_member import (
    SPACE,
    Asked,
    FakeMember,
    MemberAnswer,
    changed_schema,
    committed,
    refused,
    serving,
    until,
    with_names,
)


def test_transaction_object_cannot_be_entered_twice() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            transaction = client.transaction()
            async with transaction:
                await transaction.insert(SPACE, [1])
            with pytest.raises(QsyncError, match=r"client\.transaction"):
                async with transaction:
                    pass
            assert member.kinds().count(Type.BEGIN) == 1

    asyncio.run(main())


def refuse_schema(asked: Asked) -> MemberAnswer:
    """Refuse reads of the schema, which the client then repeats."""
    is_schema = asked.body.get(Key.SPACE_ID) in (VSPACE, VINDEX)
    return refused(ErrorCode.READONLY) if is_schema else committed(asked)


def silent_statements(asked: Asked) -> Any:
    return None if asked.kind == Type.INSERT else committed(asked)


def test_transaction_that_lost_a_statement_never_commits() -> None:
    async def main() -> None:
        member = FakeMember(silent_statements)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            async with client.transaction() as transaction:
                with pytest.raises(TransactionLost):
                    await transaction.insert(SPACE, [1])
                with pytest.raises(ClientClosed):
                    await transaction.insert(SPACE, [2])
            assert isinstance(transaction.outcome, RolledBack)
            assert Type.COMMIT not in member.kinds()
            assert member.kinds()[-1] == Type.ROLLBACK
            await client.close()

    asyncio.run(main())


def test_transaction_with_a_cancelled_statement_never_commits() -> None:
    async def main() -> None:
        member = FakeMember(silent_statements)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(transaction.insert(SPACE, [1]), 0.05)
            assert isinstance(transaction.outcome, RolledBack)
            assert Type.COMMIT not in member.kinds()

    asyncio.run(main())


def test_transaction_with_a_statement_that_was_cancelled_unsent_never_commits() -> None:
    """It waited for the schema. The block committed the other statements without it."""

    async def main() -> None:
        member = FakeMember(refuse_schema)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(transaction.insert("accounts", [2]), 0.05)
            assert isinstance(transaction.outcome, RolledBack)
            assert Type.COMMIT not in member.kinds()

    asyncio.run(main())


def test_transaction_whose_statement_got_no_schema_never_commits() -> None:
    async def main() -> None:
        member = FakeMember(refuse_schema)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
                with pytest.raises(TransactionLost):
                    await transaction.insert("accounts", [2])
            assert isinstance(transaction.outcome, RolledBack)
            assert Type.COMMIT not in member.kinds()
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("end", [Type.COMMIT, Type.ROLLBACK])
def test_statement_that_waits_for_the_schema_is_not_sent_after_the_end(end: Type) -> None:
    """The server would commit it on its own: the stream has no transaction any more."""
    is_schema_known = False

    def answer(asked: Asked) -> MemberAnswer:
        space = asked.body.get(Key.SPACE_ID)
        if asked.kind != Type.SELECT or space not in (VSPACE, VINDEX):
            return committed(asked)
        if not is_schema_known:
            return refused(ErrorCode.READONLY)
        return 0, {Key.DATA: [[SPACE, 1, "accounts", "memtx", 0, {}, []]] * (space == VSPACE)}

    async def main() -> None:
        nonlocal is_schema_known
        member = FakeMember(answer)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            with contextlib.suppress(ZeroDivisionError):
                async with client.transaction() as transaction:
                    late = asyncio.ensure_future(transaction.insert("accounts", [1]))
                    await until(lambda: Type.SELECT in member.kinds())
                    if end is Type.ROLLBACK:
                        raise ZeroDivisionError
            is_schema_known = True
            with pytest.raises(ClientClosed):
                await late
            assert end in member.kinds()
            assert Type.INSERT not in member.kinds()

    asyncio.run(main())


def test_no_statement_is_sent_while_its_transaction_commits() -> None:
    async def main() -> None:
        member = FakeMember(lambda asked: None if asked.kind == Type.COMMIT else committed(asked))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.5)

            async def insert_late() -> None:
                await until(lambda: Type.COMMIT in member.kinds())
                await transaction.insert(SPACE, [1])

            async with client.transaction() as transaction:
                late = asyncio.ensure_future(insert_late())
            with pytest.raises(ClientClosed):
                await late
            assert Type.INSERT not in member.kinds()
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_later_committed", [False, True])
def test_rollback_of_a_repeated_commit_does_not_settle_the_first_one(
    is_later_committed: bool,
) -> None:
    """The first COMMIT may still be under way, and would then be executed."""
    commits = [refused(ErrorCode.OUTCOME_UNKNOWN), refused(ErrorCode.SYNC_QUORUM_TIMEOUT)]

    def answer(asked: Asked) -> MemberAnswer:
        if asked.kind == Type.COMMIT and (len(commits) > 1 or not is_later_committed):
            return commits.pop(0) if len(commits) > 1 else commits[0]
        return committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=1)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Committed if is_later_committed else Unknown)
            await client.close()

    asyncio.run(main())


def test_commit_renews_the_mark_of_the_next_key() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            for _ in range(2):
                async with client.transaction() as transaction:
                    await transaction.insert(SPACE, [1])
            assert [one.key[2] for one in member.asked if one.key] == [5, 7]

    asyncio.run(main())


def test_commit_that_was_not_sent_is_rolled_back_at_once() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
                link = transaction._link
                member.drop()
                assert link is not None
                await until(lambda: link.is_over)
            assert isinstance(transaction.outcome, RolledBack)

    asyncio.run(main())


def test_commit_without_a_key_is_sent_once() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: refused(295) if one.kind == Type.COMMIT else committed(one))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.5)
            async with client.transaction(retry=False) as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Unknown)
            assert member.kinds() == [Type.BEGIN, Type.INSERT, Type.COMMIT]
            await client.close()

    asyncio.run(main())


def test_commit_whose_key_has_expired_is_rolled_back_and_not_repeated() -> None:
    expired = refused(ErrorCode.KEY_EXPIRED)

    async def main() -> None:
        member = FakeMember(lambda one: expired if one.kind == Type.COMMIT else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert transaction.outcome == RolledBack("reason")
            assert member.kinds() == [Type.BEGIN, Type.INSERT, Type.COMMIT]

    asyncio.run(main())


def test_transaction_with_an_invalid_answer_never_commits() -> None:
    """The statement may have been executed, but its result is unknown."""

    async def main() -> None:
        member = FakeMember(lambda one: (0, b"\xc1") if one.kind == Type.INSERT else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                with pytest.raises(TransactionLost):
                    await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, RolledBack)
            assert member.kinds() == [Type.BEGIN, Type.INSERT, Type.ROLLBACK]

    asyncio.run(main())


def test_replay_leaves_out_a_statement_that_the_schema_refused() -> None:
    """The server did not count it, and would find another transaction under the key."""
    refusals = {Type.INSERT: refused(109), Type.COMMIT: refused(295)}

    async def main() -> None:
        answer = with_names(lambda asked: refusals.pop(Type(asked.kind), committed(asked)))
        member = FakeMember(answer)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert("accounts", [1])
            assert isinstance(transaction.outcome, Committed)
            kinds = [kind for kind in member.kinds() if kind != Type.SELECT]
            first = [Type.BEGIN, Type.INSERT, Type.INSERT, Type.COMMIT]
            assert kinds == [*first, Type.BEGIN, Type.INSERT, Type.COMMIT]

    asyncio.run(main())


def test_replay_is_not_refused_after_a_change_of_the_schema() -> None:
    async def main() -> None:
        def answer(asked: Asked) -> MemberAnswer:
            if asked.kind != Type.COMMIT or member.kinds().count(Type.COMMIT) > 1:
                return committed(asked)
            member.answer = with_names(changed_schema)
            return refused(295)

        member = FakeMember(with_names(answer))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert("accounts", [1])
            assert isinstance(transaction.outcome, Committed)
            inserts = [one.schema_version for one in member.asked if one.kind == Type.INSERT]
            assert inserts == [1, 0]

    asyncio.run(main())


def test_rows_that_a_transaction_reads_are_not_kept() -> None:
    """An unknown COMMIT needs to know only whether they are the same in the next attempt."""
    commits = 0

    def answer(asked: Asked) -> MemberAnswer:
        nonlocal commits
        commits += asked.kind == Type.COMMIT
        if asked.kind == Type.COMMIT and commits == 1:
            return refused(295)
        return (0, {Key.DATA: [["x" * 100_000]]}) if asked.kind == Type.SELECT else committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.select(SPACE)
                assert len(repr(transaction._recorded)) < 2_000
            assert isinstance(transaction.outcome, Committed)
            kinds = [Type.BEGIN, Type.SELECT, Type.COMMIT]
            assert member.kinds() == 2 * kinds, "the repeated read had the same rows"

    asyncio.run(main())


def test_begin_without_an_answer_is_rolled_back() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: None)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            with pytest.raises(StatementFailed):
                await client.transaction().__aenter__()
            await until(lambda: member.kinds() == [Type.BEGIN, Type.ROLLBACK])
            begun, ended = member.asked[-2:]
            assert begun.stream == ended.stream
            await client.close()

    asyncio.run(main())


def test_replay_with_another_result_is_rolled_back() -> None:
    inserts = 0

    def answer(asked: Asked) -> MemberAnswer:
        nonlocal inserts
        if asked.kind == Type.COMMIT:
            return refused(295)
        inserts += asked.kind == Type.INSERT
        return (0, {Key.DATA: [[inserts]]}) if asked.kind == Type.INSERT else committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=1)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Unknown)
            _, second, third, *_ = (one.stream for one in member.asked if one.kind == Type.BEGIN)
            ends = [(one.kind, one.stream) for one in member.asked]
            assert (Type.ROLLBACK, second) in ends
            assert (Type.COMMIT, second) not in ends
            assert (Type.COMMIT, third) in ends  # it only looks for the key
            await client.close()

    asyncio.run(main())


def test_commit_that_only_looks_for_its_key_follows_the_timeout_of_its_transaction() -> None:
    """Before, it would execute the statements a second time."""
    times: dict[tuple[int, int], float] = {}
    inserts = 0

    def answer(asked: Asked) -> MemberAnswer:
        nonlocal inserts
        times[asked.kind, asked.stream] = asyncio.get_running_loop().time()
        inserts += asked.kind == Type.INSERT
        if asked.kind == Type.COMMIT:
            return refused(295)
        return (0, {Key.DATA: [[inserts]]}) if asked.kind == Type.INSERT else committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=1)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            begins = [one for one in member.asked if one.kind == Type.BEGIN]
            last = next(one for one in begins if Key.TIMEOUT in one.body)
            waited_s = times[Type.COMMIT, last.stream] - times[Type.BEGIN, last.stream]
            assert waited_s > last.body[Key.TIMEOUT]
            await client.close()

    asyncio.run(main())


def test_repeated_commit_whose_key_has_expired_is_unknown_at_once() -> None:
    """The first attempt may have been logged, and nothing shows this any more."""
    commits = [refused(ErrorCode.OUTCOME_UNKNOWN), refused(ErrorCode.KEY_EXPIRED)]

    async def main() -> None:
        member = FakeMember(
            lambda one: commits.pop(0) if one.kind == Type.COMMIT else committed(one)
        )
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert transaction.outcome == Unknown("reason", int(ErrorCode.KEY_EXPIRED))

    asyncio.run(main())


def test_transaction_object_is_not_used_again_after_begin_was_refused() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: refused(1) if one.kind == Type.BEGIN else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            transaction = client.transaction()
            with pytest.raises(StatementFailed):
                await transaction.__aenter__()
            with pytest.raises(QsyncError, match=r"client\.transaction"):
                await transaction.__aenter__()
            assert member.kinds() == [Type.BEGIN]

    asyncio.run(main())


@pytest.mark.parametrize("most", [0, 1, 250])
def test_count_reads_smaller_pages_of_large_rows(most: int) -> None:
    """The member returns at most `most` of 5 rows, and no position after the last page."""
    limits: list[int] = []

    def answer(asked: Asked) -> MemberAnswer:
        if asked.kind != Type.SELECT:
            return committed(asked)
        limit, after = asked.body[Key.LIMIT], int(asked.body.get(Key.AFTER_POSITION) or 0)
        limits.append(limit)
        if limit > most:
            return refused(ErrorCode.MEMORY_ISSUE)
        end = min(after + limit, 5)
        data = {Key.DATA: [[number] for number in range(after, end)]}
        return 0, data | ({Key.POSITION: b"%d" % end} if end < 5 else {})

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with asyncio.timeout(10), client.transaction() as transaction:
                if most:
                    assert await transaction.count(SPACE) == 5
                else:
                    with pytest.raises(StatementFailed):
                        await transaction.count(SPACE)
            assert limits[-1] == max(most, 1)
            assert len(limits) < 20

    asyncio.run(main())


def test_retired_connection_closes_after_its_transaction() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
                client._session.pool._retire_writers()
                await transaction.insert(SPACE, [2])
            assert isinstance(transaction.outcome, Committed)
            await until(lambda: member.connections == 0)

    asyncio.run(main())


def test_cancelled_commit_is_unknown() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: None if one.kind == Type.COMMIT else committed(one))
        transaction: Transaction

        async def commit() -> None:
            async with transaction:
                await transaction.insert(SPACE, [1])

        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            transaction = client.transaction()
            task = asyncio.create_task(commit())
            await until(lambda: Type.COMMIT in member.kinds())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert isinstance(transaction.outcome, Unknown)

    asyncio.run(main())


def test_cancelled_begin_is_rolled_back() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: None if one.kind == Type.BEGIN else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            task = asyncio.create_task(client.transaction().__aenter__())
            await until(lambda: Type.BEGIN in member.kinds())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: member.kinds()[-1] == Type.ROLLBACK)
            begun, ended = member.asked[-2:]
            assert begun.stream == ended.stream

    asyncio.run(main())


def test_failed_replay_is_rolled_back() -> None:
    """COMMIT has no answer, so the client repeats the statements, and one has no answer."""
    inserts = 0

    def answer(asked: Asked) -> Any:
        nonlocal inserts
        inserts += asked.kind == Type.INSERT
        if asked.kind == Type.COMMIT:
            return refused(295)
        return None if asked.kind == Type.INSERT and inserts > 1 else committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.5)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Unknown)
            begun = [one.stream for one in member.asked if one.kind == Type.BEGIN]
            await until(lambda: member.asked[-1].kind == Type.ROLLBACK)
            assert member.asked[-1].stream == begun[-1]
            await client.close()

    asyncio.run(main())


def test_begin_with_an_invalid_answer_is_rolled_back() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: (0, b"\xc1") if one.kind == Type.BEGIN else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            with pytest.raises(StatementFailed):
                async with client.transaction():
                    pass
            await until(lambda: member.kinds() == [Type.BEGIN, Type.ROLLBACK])

    asyncio.run(main())
