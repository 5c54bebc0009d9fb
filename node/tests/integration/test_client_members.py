"""The client finds working members, leaves others, and closes all of its connections."""

import asyncio
import time
from collections.abc import Callable

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    Refused,
    Unknown,
)
from qsync_client.link import Link
from qsync_client.pool import Member, Pool
from qsync_client.protocol.constants import Key, Type
from qsync_client.schema import VINDEX, VSPACE
from qsync_testing.fake_member import (
    FIRST,
    SECOND,
    SPACE,
    Asked,
    FakeMember,
    MemberAnswer,
    client_of_two,
    committed,
    refused,
    serving,
    until,
)


def test_silent_address_does_not_delay_the_connection_to_the_leader() -> None:
    async def main() -> None:
        silent = FakeMember(committed, is_silent=True)
        follower = FakeMember(committed, uuid=FIRST, leader=SECOND)
        leader = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(silent, follower, leader) as (first, second, third):
            client = Client([second, first, third], "app", "secret", deadline_s=0.8)
            started_s = time.monotonic()
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            assert time.monotonic() - started_s < 0.5
            assert leader.kinds() == [Type.INSERT]
            await until(lambda: silent.connections == follower.connections == 0)
            assert leader.connections == 1
            await client.close()

    asyncio.run(main())


def test_unreachable_leader_does_not_delay_the_request() -> None:
    async def main() -> None:
        silent = FakeMember(committed, is_silent=True)
        follower = FakeMember(committed, uuid=FIRST, leader=SECOND)
        async with serving(silent, follower) as (first, second):
            client = Client([first, second], "app", "secret", deadline_s=0.8)
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            await client.close()
            await until(lambda: silent.connections == follower.connections == 0)

    asyncio.run(main())


def test_error_names_the_silent_address() -> None:
    async def main() -> None:
        silent = FakeMember(committed, is_silent=True)
        async with serving(silent) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.3)
            with pytest.raises(ClientClosed, match=addresses[0]) as failed:
                await client.insert(SPACE, [1])
            assert "no answer" in str(failed.value)
            await until(lambda: silent.connections == 0)

    asyncio.run(main())


@pytest.mark.parametrize("code", [226, 116, 62])
def test_isolated_member_is_left_for_another_one(code: int) -> None:
    def isolated_answer(asked: Asked) -> MemberAnswer:
        return refused(code) if asked.kind == Type.INSERT else committed(asked)

    async def main() -> None:
        isolated = FakeMember(isolated_answer)
        other = FakeMember(committed, leader=SECOND)
        async with client_of_two(isolated, other) as client:
            key = await client.new_key()
            outcome = await client.insert(SPACE, [1], request_key=key)
            assert isinstance(outcome, Committed), outcome
            assert other.kinds() == [Type.INSERT]

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Type.BEGIN, Type.CALL])
def test_member_that_refuses_transactions_or_marks_is_left_for_another_one(
    monkeypatch: pytest.MonkeyPatch, kind: Type
) -> None:
    monkeypatch.setattr("qsync_client.pool.REFUSED_S", 0.1)

    def isolated_answer(asked: Asked) -> MemberAnswer:
        return refused(226) if asked.kind == kind else committed(asked)

    async def main() -> None:
        isolated = FakeMember(isolated_answer)
        other = FakeMember(committed, leader=SECOND)
        async with client_of_two(isolated, other) as client:
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Committed)
            assert other.kinds() == [Type.BEGIN, Type.INSERT, Type.COMMIT]

    asyncio.run(main())


def test_member_that_executes_requests_in_between_is_not_left() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            await client.insert(SPACE, [1])
            pool = client._session.pool
            (link,) = pool._writers
            pool.observe(link, Refused(226, "no leader"))
            link.refused_s[False] = -3600.0
            pool.observe(link, Committed([]))
            pool.observe(link, Refused(226, "no leader"))
            assert pool._writers == [link]

    asyncio.run(main())


def test_late_refusal_of_a_former_connection_does_not_end_its_successor() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            await client.insert(SPACE, [1])
            pool = client._session.pool
            (former,) = pool._writers
            pool._retire_writers()
            await client.insert(SPACE, [2])
            successors = [*pool._writers]
            former.refused_s[False] = -3600.0
            pool.observe(former, Refused(226, "no leader"))
            assert pool._writers == successors != []

    asyncio.run(main())


def test_former_connection_does_not_replace_its_successor() -> None:
    """Its member names a leader after the client has left that member."""

    async def main() -> None:
        first = FakeMember(committed, uuid=FIRST, leader=FIRST)
        second = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(first, second) as (address, other):
            async with Client([address, other], "app", "secret") as client:
                await client.insert(SPACE, [1])
                pool = client._session.pool
                (former,) = pool._writers
                pool._retire_writers()
                await client.insert(SPACE, [2])
                successors = [*pool._writers]
                assert await pool._move(former, SECOND)
                assert pool._writers == successors != []
            assert second.kinds() == []

    asyncio.run(main())


def test_member_that_does_not_know_the_user_yet_is_left_for_another_one() -> None:
    async def main() -> None:
        lagging = FakeMember(committed, denied=45)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(lagging, other) as addresses:
            async with Client(addresses, "app", "secret") as client:
                assert isinstance(await client.insert(SPACE, [1]), Committed)
                assert client.addresses == addresses[::-1]
            other.denied = 45
            client = Client(addresses, "app", "secret", deadline_s=5)
            with pytest.raises(AccessDenied):
                await client.insert(SPACE, [1])
            await client.close()

    asyncio.run(main())


def test_close_ends_connections_that_were_retired() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: None if one.kind == Type.INSERT else committed(one))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret")
            writing = asyncio.create_task(client.insert(SPACE, [1]))
            await until(lambda: member.kinds() == [Type.INSERT])
            client._session.pool._retire_writers()
            assert member.connections == 1
            await client.close()
            async with asyncio.timeout(2):
                assert isinstance(await writing, Unknown)
            await until(lambda: member.connections == 0)

    asyncio.run(main())


def test_connection_to_an_address_that_another_member_has_now_is_closed() -> None:
    async def main() -> None:
        member = FakeMember(committed, uuid=FIRST, leader=SECOND)
        async with serving(member) as (address,), Client(address, "app", "secret") as client:
            pool = client._session.pool
            pool._uuids[SECOND] = address
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            await until(lambda: SECOND not in pool._uuids)
            await until(lambda: member.connections == 1)

    asyncio.run(main())


class BusyMember(FakeMember):
    """A member that accepts a log-in late."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await super().serve(reader, writer)


def test_busy_member_gets_more_time_in_each_round() -> None:
    async def main() -> None:
        async with serving(BusyMember(committed)) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=10)
            client._session.pool.connect_s = 0.1
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            await client.close()

    asyncio.run(main())


def test_time_limit_of_an_address_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, one unavailable machine delays each later round by minutes."""
    monkeypatch.setattr("qsync_client.pool.CONNECT_MAX_S", 0.35)
    limits: list[float] = []

    async def connect(_: Pool, address: str, patience_s: float) -> Link:
        limits.append(patience_s)
        if len(limits) == 5:
            raise AccessDenied(ErrorCode.ACCESS_DENIED, address)
        raise TimeoutError

    monkeypatch.setattr(Pool, "_connect", connect)

    async def main() -> None:
        client = Client("127.0.0.1:1", "app", "secret", deadline_s=20)
        client._session.pool.connect_s = 0.1
        with pytest.raises(AccessDenied):
            await client.insert(SPACE, [1])

    asyncio.run(main())
    assert limits == [0.1, 0.2, 0.35, 0.35, 0.35]


def test_tasks_that_need_the_schema_share_one_read() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            first, second = await asyncio.gather(client.schema(), client.schema())
            assert first is second
            assert member.kinds() == [Type.SELECT, Type.SELECT]

    asyncio.run(main())


def test_member_that_refuses_the_schema_is_left() -> None:
    def loading_answer(asked: Asked) -> MemberAnswer:
        return refused(ErrorCode.LOADING) if asked.kind == Type.SELECT else committed(asked)

    async def main() -> None:
        loading = FakeMember(loading_answer)
        other = FakeMember(committed, leader=SECOND)
        async with client_of_two(loading, other) as client:
            await client.schema()
            assert other.kinds() == [Type.SELECT, Type.SELECT]

    asyncio.run(main())


def test_reads_do_not_keep_a_member_that_refuses_all_else() -> None:
    def isolated_answer(asked: Asked) -> MemberAnswer:
        return refused(ErrorCode.NOT_LEADER) if asked.kind == Type.INSERT else committed(asked)

    async def main() -> None:
        isolated = FakeMember(isolated_answer)
        other = FakeMember(committed, leader=SECOND)
        async with client_of_two(isolated, other) as client:

            async def reading() -> None:
                while True:
                    await client.select(SPACE)
                    await asyncio.sleep(0.1)

            read = asyncio.create_task(reading())
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            read.cancel()

    asyncio.run(main())


def cluster_of(first: str, second: str, mark: int) -> Callable[[Asked], MemberAnswer]:
    """Return the answers of a cluster with two spaces, 512 and 513."""

    def answer(asked: Asked) -> MemberAnswer:
        space = asked.body.get(Key.SPACE_ID)
        if asked.body.get(Key.FUNCTION_NAME) == "qsync.mark":
            return 0, {Key.DATA: [mark]}
        if asked.kind != Type.SELECT or space not in (VSPACE, VINDEX):
            return committed(asked)
        rows = [[SPACE, 1, first, "memtx", 0, {}, []], [SPACE + 1, 1, second, "memtx", 0, {}, []]]
        return 0, {Key.DATA: rows if space == VSPACE else []}

    return answer


@pytest.mark.parametrize("retry", [False, True])
def test_names_and_marks_of_a_former_cluster_are_forgotten(retry: bool) -> None:
    """A new cluster has the same address. Its schema has the same version."""

    async def main() -> None:
        member = FakeMember(cluster_of("accounts", "orders", mark=5000))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)
            pool = client._session.pool
            await client.insert("orders", [1], retry=retry)
            assert member.asked[-1].body[Key.SPACE_ID] == SPACE + 1
            member.answer = cluster_of("orders", "accounts", mark=50)
            member.uuid = member.leader = SECOND
            (link,) = pool._writers
            member.drop()
            await until(lambda: link.is_over)
            for _ in range(2):
                assert isinstance(await client.insert("orders", [1], retry=retry), Committed)
                assert member.asked[-1].body[Key.SPACE_ID] == SPACE
                if retry:
                    assert member.asked[-1].key[2] <= 50
            await client.close()

    asyncio.run(main())


def test_names_of_a_former_cluster_are_not_used_if_those_of_the_new_one_are_invalid() -> None:
    def invalid(asked: Asked) -> MemberAnswer:
        return (0, {Key.DATA: [[SPACE]]}) if asked.kind == Type.SELECT else committed(asked)

    async def main() -> None:
        member = FakeMember(cluster_of("accounts", "orders", mark=5000))
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.4)
            await client.insert("orders", [1])
            member.answer = invalid
            member.uuid = member.leader = SECOND
            (link,) = client._session.pool._writers
            member.drop()
            await until(lambda: link.is_over)
            member.asked.clear()
            for _ in range(2):
                with pytest.raises(ClientClosed, match="schema"):
                    await client.insert("orders", [1])
            assert Type.INSERT not in member.kinds()
            await client.close()

    asyncio.run(main())


def test_pool_follows_the_leader_after_its_first_connection_ended() -> None:
    """Each connection watches the leader: another one than the first may be the last."""

    async def main() -> None:
        is_held = True

        def answer(asked: Asked) -> MemberAnswer:
            return None if asked.kind == Type.INSERT and is_held else committed(asked)

        first = FakeMember(answer)
        second = FakeMember(committed, leader=SECOND)
        async with client_of_two(first, second, deadline_s=10, pool_size=2) as client:
            pool = client._session.pool
            held = asyncio.create_task(client.insert(SPACE, [1]))
            await until(lambda: Type.INSERT in first.kinds())
            is_held = False
            await client.insert(SPACE, [2])
            first_link, _ = pool._writers
            first_link.close()
            assert isinstance(await held, Committed)
            first.report_leader(SECOND)
            await until(lambda: [link.uuid for link in pool._writers] == [SECOND])

    asyncio.run(main())


def test_member_that_accepts_no_further_connection_is_not_asked_by_each_request() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: None if one.body.get(Key.TUPLE) == [0] else committed(one))
        attempts = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                await member.serve(reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = Client(address, "app", "secret", deadline_s=5, pool_size=2)
        held = asyncio.create_task(client.insert(SPACE, [0]))
        await until(lambda: Type.INSERT in member.kinds())
        for number in range(1, 11):
            assert isinstance(await client.insert(SPACE, [number]), Committed)
        assert attempts == 2
        held.cancel()
        await client.close()
        server.close()

    asyncio.run(main())


def test_watch_leaves_a_member_that_answers_no_more() -> None:
    """A machine that loses its power sends nothing, so its connection stays open."""

    async def main() -> None:
        first = FakeMember(committed)
        second = FakeMember(committed, leader=SECOND)
        async with client_of_two(first, second, deadline_s=2) as client:
            client._session.pool.silence_s = 0.1
            watching = client.watch("box.election")
            assert (await anext(watching))["leader_uuid"] == FIRST
            first.is_silent = True
            async with asyncio.timeout(10):
                assert (await anext(watching))["leader_uuid"] == SECOND

    asyncio.run(main())


def test_close_during_a_connect_leaves_no_connection() -> None:
    async def main(zone: str, answers: bool) -> None:
        member = FakeMember(committed, is_silent=not answers)
        async with serving(member) as (address,):
            client = Client([Member(address, "here")], "app", "secret", zone=zone, deadline_s=20)
            client._session.pool.connect_s = 20  # only `close` ends the attempt before
            reading = asyncio.create_task(client.select(SPACE))
            await until(lambda: member.connections == 1)
            await client.close()
            async with asyncio.timeout(2):
                (result,) = await asyncio.gather(reading, return_exceptions=True)
            assert isinstance(result, ClientClosed if not answers else ClientClosed | Unknown)
            await until(lambda: member.connections == 0)

    asyncio.run(main("", False))
    asyncio.run(main("", True))
    asyncio.run(main("here", False))


def test_retries_of_a_refused_request_become_rarer() -> None:
    async def main() -> None:
        member = FakeMember(lambda one: refused(226) if one.kind == Type.INSERT else None)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.9)
            await client.insert(SPACE, [1])
            assert 3 <= len(member.kinds()) <= 20
            await client.close()

    asyncio.run(main())


def test_close_after_an_expired_deadline_succeeds() -> None:
    """A request whose deadline passes in the same step of the event loop is not woken twice."""

    async def main() -> None:
        async with serving(FakeMember(committed, is_silent=True)) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=0.1)
            writing = asyncio.create_task(client.insert(SPACE, [1]))
            await asyncio.sleep(0.05)
            pool = client._session.pool
            (waiting,) = pool._waiting
            waiting._on_timeout()  # type: ignore[attr-defined]  # CPython's timer of a timeout
            await client.close()
            with pytest.raises(ClientClosed):
                await writing

    asyncio.run(main())
