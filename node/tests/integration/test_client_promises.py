"""The client keeps its promises when processes fork, tasks are cancelled and answers are invalid.

A fake member answers, so that each case is exact.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from qsync_client import (
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    QsyncError,
    Refused,
    RequestKey,
    RolledBack,
    StatementFailed,
    Transaction,
    TransactionLost,
    Unknown,
)
from qsync_client.keys import Keys
from qsync_client.protocol.constants import Key, Type
from qsync_client.schema import VINDEX, VSPACE
from qsync_testing.fake_member import Asked, FakeMember, MemberAnswer, committed, refused, serving

SPACE = 512
GIVEN = RequestKey("task", 1, 5)


def is_mark(asked: Asked) -> bool:
    return bool(asked.body.get(Key.FUNCTION_NAME) == "qsync.mark")


def answering(*answers: object) -> Callable[[Asked], Any]:
    """Return a function that answers requests in turn, and repeats the last answer."""
    left = list(answers)

    def answer(asked: Asked) -> Any:
        if is_mark(asked):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


# --- names of clients -----------------------------------------------------------------------------


def test_processes_after_a_fork_draw_different_names() -> None:
    keys = Keys("worker")
    before = keys.next()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, keys.next().client.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() not in ("", before.client)
    assert keys.next() == RequestKey(before.client, before.number + 1, before.mark)


def test_name_is_drawn_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first = keys.next()
    monkeypatch.setattr(os, "getpid", lambda: 2)
    second = keys.next()
    assert first.client != second.client
    assert first.number == second.number == 1


def test_two_clients_with_one_client_id_draw_different_keys() -> None:
    first, second = Keys("worker").next(), Keys("worker").next()
    assert first.client != second.client
    assert first.client.startswith("worker-")
    assert len(Keys("w" * 47).client) <= 64
    with pytest.raises(ValueError, match="47"):
        Client("127.0.0.1:1", "app", "secret", client_id="w" * 48)


def test_age_of_a_mark_is_not_reset_by_an_older_index() -> None:
    keys = Keys()
    keys.renew(10, 0.0)
    keys.renew(5, 3.0)
    assert keys.mark == 10
    assert keys.is_stale(3.5)


# --- keys of the caller ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [226, 2, 289, 0x4001, 0x4005, 62, 78])
def test_refusal_of_a_callers_key_before_its_lookup_is_unknown(code: int) -> None:
    async def main() -> None:
        member = FakeMember(answering(refused(code)))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            outcome = await client.insert(SPACE, [1], request_key=GIVEN)
            assert isinstance(outcome, Unknown), outcome
            assert "reason" in outcome.reason or not outcome.code
            await client.close()

    asyncio.run(main())


def test_refusal_of_a_callers_key_after_its_lookup_is_final() -> None:
    async def main() -> None:
        member = FakeMember(answering(refused(62), refused(3)))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)
            outcome = await client.insert(SPACE, [1], request_key=GIVEN)
            assert outcome == Refused(3, "reason")
            await client.close()

    asyncio.run(main())


def test_expired_key_is_replaced_by_one_with_a_newer_mark() -> None:
    """The mark is not old by the clock: the window of keys is counted in rows."""
    marks = [5, 900]

    def answer(asked: Asked) -> MemberAnswer:
        if is_mark(asked):
            return 0, {Key.DATA: [marks.pop(0)]}
        return refused(ErrorCode.KEY_EXPIRED) if asked.key[2] < 900 else committed(asked)

    async def main() -> None:
        member = FakeMember(answer)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.8)
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            assert member.kinds() == [Type.INSERT, Type.INSERT]
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("mark", [None, refused(226)])
def test_missing_mark_does_not_delay_a_client_that_has_an_older_one(
    monkeypatch: pytest.MonkeyPatch, mark: MemberAnswer
) -> None:
    monkeypatch.setattr("qsync_client.session.MARK_AGE_S", 0.1)

    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            await client.insert(SPACE, [1])
            client._session.keys.expire()
            member.answers_marks = False
            member.answer = lambda one: mark if is_mark(one) else committed(one)
            async with asyncio.timeout(5):
                assert isinstance(await client.insert(SPACE, [2]), Committed)
            assert [one.key[2] for one in member.asked if one.key] == [5, 7]

    asyncio.run(main())


def test_age_of_a_mark_counts_from_the_request_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer may be late, and other clients write rows meanwhile."""
    monkeypatch.setattr("qsync_client.keys.MARK_AGE_S", 0.3)

    def late(asked: Asked) -> MemberAnswer:
        # Longer than `MARK_AGE_S`, and known exactly: nothing else runs before the answer arrives.
        time.sleep(0.4 * (asked.kind == Type.INSERT))
        return committed(asked)

    async def main() -> None:
        member = FakeMember(late)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            await client.insert(SPACE, [1])
            await client.insert(SPACE, [2])
            assert [is_mark(one) for one in member.asked] == [True, False] * 2

    asyncio.run(main())


# --- transactions ---------------------------------------------------------------------------------


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


def with_names(answer: Callable[[Asked], MemberAnswer]) -> Callable[[Asked], MemberAnswer]:
    """Return a function that answers as a cluster with the space `accounts`."""
    tables = {
        VSPACE: [SPACE, 1, "accounts", "memtx", 0, {}, []],
        VINDEX: [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
    }

    def named(asked: Asked) -> MemberAnswer:
        space = asked.body.get(Key.SPACE_ID)
        return (0, {Key.DATA: [tables[space]]}) if space in tables else answer(asked)

    return named


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


def changed_schema(asked: Asked) -> MemberAnswer:
    """Answer as a cluster whose schema changed after the client had read it."""
    return refused(109) if asked.schema_version else committed(asked)


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


def test_retry_of_an_unknown_write_is_not_refused_after_a_change_of_the_schema() -> None:
    async def main() -> None:
        def answer(asked: Asked) -> MemberAnswer:
            member.answer = with_names(changed_schema)
            return refused(295)

        member = FakeMember(with_names(lambda one: answer(one) if one.key else None))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=1)
            assert isinstance(await client.insert("accounts", [1]), Committed)
            inserts = [one for one in member.asked if one.kind == Type.INSERT]
            assert [one.schema_version for one in inserts] == [1, 0]
            assert inserts[0].key == inserts[1].key
            await client.close()

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


def test_unknown_outcome_of_a_closed_client_is_returned_at_once() -> None:
    async def main() -> None:
        member = FakeMember(
            lambda asked: None if asked.kind in (Type.COMMIT, Type.INSERT) else committed(asked)
        )

        async def commit(into: list[Transaction]) -> None:
            async with client.transaction() as transaction:
                into.append(transaction)

        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret")
            into: list[Transaction] = []
            committing = asyncio.create_task(commit(into))
            writing = asyncio.create_task(client.insert(SPACE, [1]))
            await until(lambda: {Type.COMMIT, Type.INSERT} <= set(member.kinds()))
            started_s = time.monotonic()
            await client.close()
            assert isinstance(await writing, Unknown)
            await committing
            assert isinstance(into[0].outcome, Unknown)
            assert time.monotonic() - started_s < 2

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


# --- invalid answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"\xc1\xc1", b"\x93\x01\x02\x03", b"\x81\x30" + b"\x91" * 5000 + b"\x00", b"\x81\x90\x00",
     b"\x81\x30\x05", b"\x81\x30\x91\x05", b"\x82\x30\x90\x71\xa1x"],
)  # fmt: skip
def test_invalid_answer_to_a_write_is_unknown(body: bytes) -> None:
    async def main() -> None:
        member = FakeMember(answering((0, body)))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            outcome = await client.insert(SPACE, [1])
            assert isinstance(outcome, Unknown), outcome
            assert "answer" in outcome.reason
            await client.close()

    asyncio.run(main())


def test_repeated_read_looks_its_names_up_again() -> None:
    """Its first attempt had no answer, and the space has another id meanwhile."""
    ids = [SPACE]

    def answer(asked: Asked) -> MemberAnswer:
        space = asked.body.get(Key.SPACE_ID)
        if asked.kind != Type.SELECT or space == VINDEX:
            return committed(asked)
        if space == VSPACE:
            return 0, {Key.DATA: [[ids[-1], 1, "accounts", "memtx", 0, {}, []]]}
        if len(ids) == 1:
            ids.append(SPACE + 1)
            member.drop()
            return None
        if asked.schema_version and space == SPACE:
            return refused(ErrorCode.WRONG_SCHEMA_VERSION)
        return committed(asked)

    member = FakeMember(answer)

    async def main() -> None:
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            assert isinstance(await client.select("accounts", 1), Committed)
            assert member.asked[-1].body[Key.SPACE_ID] == SPACE + 1

    asyncio.run(main())


def test_row_with_invalid_utf_8_is_returned_and_can_be_written() -> None:
    row = b"\x81\x30\x91\x91\xa2\xffx"

    async def main() -> None:
        member = FakeMember(answering((0, row), refused(3)))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            written = await client.insert(SPACE, [1])
            assert isinstance(written, Committed)
            text = written.tuples[0][0]
            assert text.encode("utf-8", "surrogateescape") == b"\xffx"
            assert await client.insert(SPACE, [text]) == Refused(3, "reason")

    asyncio.run(main())


def test_second_event_loop_is_refused_before_the_write() -> None:
    client = Client("127.0.0.1:1", "app", "secret", deadline_s=0.2)

    async def write() -> None:
        await client.insert(SPACE, [1])

    with pytest.raises(ClientClosed):
        asyncio.run(write())
    with pytest.raises(QsyncError, match="create one client per loop"):
        asyncio.run(write())


def test_begin_with_an_invalid_answer_is_rolled_back() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: (0, b"\xc1") if one.kind == Type.BEGIN else committed(one))
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            with pytest.raises(StatementFailed):
                async with client.transaction():
                    pass
            await until(lambda: member.kinds() == [Type.BEGIN, Type.ROLLBACK])

    asyncio.run(main())
