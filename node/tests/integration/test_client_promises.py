"""The client keeps its promises when processes fork, tasks are cancelled and answers are invalid.

A fake member answers, so that each case is exact.
"""

import asyncio
import os
import time

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    QsyncError,
    Refused,
    RequestKey,
    Transaction,
    Unknown,
)
from qsync_client.keys import Keys
from qsync_client.protocol.constants import Key, Type
from qsync_client.schema import VINDEX, VSPACE
from qsync_testing.fake_member import (
    SPACE,
    Asked,
    FakeMember,
    MemberAnswer,
    answering,
    changed_schema,
    committed,
    is_mark,
    refused,
    serving,
    until,
    with_names,
)

GIVEN = RequestKey("task", 1, 5)


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
            client = Client(addresses, "app", "secret", deadline_s=1.0)
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


def test_refused_log_in_after_a_lost_answer_leaves_the_write_unknown() -> None:
    """`AccessDenied` would state that nothing was logged."""

    def answer(asked: Asked) -> MemberAnswer:
        if asked.kind == Type.INSERT:
            member.denied = ErrorCode.PASSWORD_MISMATCH
            member.drop()
            return None
        return committed(asked)

    async def main() -> None:
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=2)
            assert isinstance(await client.insert(SPACE, [1]), Unknown)
            assert member.kinds() == [Type.INSERT]
            await client.close()

    member = FakeMember(answer)
    asyncio.run(main())


@pytest.mark.parametrize("is_call", [False, True])
def test_request_without_a_key_is_sent_once(is_call: bool) -> None:
    """Its first attempt may have been executed, and the cluster would execute a second one."""

    def answer(asked: Asked) -> MemberAnswer:
        if asked.kind in (Type.INSERT, Type.CALL) and not is_mark(asked):
            member.drop()
            return None
        return committed(asked)

    async def main() -> None:
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            outcome = await (
                client.call("increment") if is_call else client.insert(SPACE, [1], retry=False)
            )
            assert isinstance(outcome, Unknown)
            assert member.kinds() == [Type.CALL if is_call else Type.INSERT]

    member = FakeMember(answer)
    asyncio.run(main())


def test_schema_is_read_again_if_the_client_met_another_member_meanwhile() -> None:
    """It may be the schema of another cluster, whose spaces have other ids."""
    tables: list[int] = []

    async def main() -> None:
        def answer(asked: Asked) -> MemberAnswer:
            if asked.kind == Type.SELECT:
                tables.append(asked.body[Key.SPACE_ID])
                if len(tables) == 1:
                    client._session.pool.met += 1
            return names(asked)

        names = with_names(committed)
        async with serving(FakeMember(answer)) as addresses:
            client = Client(addresses, "app", "secret")
            assert isinstance(await client.insert("accounts", [1]), Committed)
            await client.close()
        assert tables == [VSPACE, VINDEX] * 2

    asyncio.run(main())


def test_refused_schema_raises_at_once() -> None:
    async def main() -> None:
        member = FakeMember(lambda _: refused(ErrorCode.ACCESS_DENIED))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=2)
            with pytest.raises(AccessDenied):
                await client.select("accounts")
            assert member.kinds() == [Type.SELECT]
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
            client = Client(addresses, "app", "secret", deadline_s=1.0)
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
    asyncio.run(client.close())  # its loop has closed the connections
