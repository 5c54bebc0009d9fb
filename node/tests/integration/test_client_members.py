"""The client finds working members, leaves others, and closes all of its connections."""

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from qsync_client import (
    AccessDenied,
    Client,
    ClientClosed,
    Committed,
    ErrorCode,
    Outcome,
    QsyncError,
    Refused,
    RolledBack,
    SyncClient,
    Transaction,
    Unknown,
)
from qsync_client.pool import Member
from qsync_client.protocol.constants import Key, Type
from qsync_client.schema import VINDEX, VSPACE
from qsync_client.sync import _Loop
from qsync_testing.fake_member import (
    FIRST,
    SECOND,
    Asked,
    FakeMember,
    MemberAnswer,
    committed,
    refused,
    serving,
)

SPACE = 512


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


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
        isolated = FakeMember(isolated_answer, uuid=FIRST, leader=FIRST)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(isolated, other) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)
            key = await client.new_key()
            outcome = await client.insert(SPACE, [1], request_key=key)
            assert isinstance(outcome, Committed), outcome
            assert other.kinds() == [Type.INSERT]
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Type.BEGIN, Type.CALL])
def test_member_that_refuses_transactions_or_marks_is_left_for_another_one(
    monkeypatch: pytest.MonkeyPatch, kind: Type
) -> None:
    monkeypatch.setattr("qsync_client.pool.REFUSED_S", 0.1)

    def isolated_answer(asked: Asked) -> MemberAnswer:
        return refused(226) if asked.kind == kind else committed(asked)

    async def main() -> None:
        isolated = FakeMember(isolated_answer, uuid=FIRST, leader=FIRST)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(isolated, other) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)
            async with client.transaction() as transaction:
                await transaction.insert(SPACE, [1])
            assert isinstance(transaction.outcome, Committed)
            assert other.kinds() == [Type.BEGIN, Type.INSERT, Type.COMMIT]
            await client.close()

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


@pytest.mark.parametrize("near", [0, 1, 2])
def test_member_that_refuses_each_read_is_left(near: int) -> None:
    """Another member of the zone answers, or the member that takes writes."""

    def loading_answer(asked: Asked) -> MemberAnswer:
        return refused(ErrorCode.LOADING) if asked.kind == Type.SELECT else committed(asked)

    async def main() -> None:
        loading = FakeMember(loading_answer, uuid=FIRST, leader=FIRST if near == 0 else SECOND)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(loading, other) as addresses:
            zone = "near" if near else ""
            members = [Member(one, zone) for one in addresses]
            client = Client(members, "app", "secret", deadline_s=10, zone=zone)
            pool = client._session.pool
            pool._near = list(addresses[:near])
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            # Other requests than reads are executed, which does not keep the client there.
            write = asyncio.create_task(writing(client))
            assert isinstance(await client.select(SPACE), Committed)
            write.cancel()
            assert Type.SELECT in other.kinds()
            await client.close()
            await until(lambda: loading.connections == other.connections == 0)

    async def writing(client: Client) -> None:
        while True:
            await client.insert(SPACE, [1])
            await asyncio.sleep(0.1)

    asyncio.run(main())


def test_member_that_refuses_the_schema_is_left() -> None:
    def loading_answer(asked: Asked) -> MemberAnswer:
        return refused(ErrorCode.LOADING) if asked.kind == Type.SELECT else committed(asked)

    async def main() -> None:
        loading = FakeMember(loading_answer, uuid=FIRST, leader=FIRST)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(loading, other) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)
            await client.schema()
            assert other.kinds() == [Type.SELECT, Type.SELECT]
            await client.close()

    asyncio.run(main())


def test_reads_do_not_keep_a_member_that_refuses_all_else() -> None:
    def isolated_answer(asked: Asked) -> MemberAnswer:
        return refused(ErrorCode.NOT_LEADER) if asked.kind == Type.INSERT else committed(asked)

    async def main() -> None:
        isolated = FakeMember(isolated_answer, uuid=FIRST, leader=FIRST)
        other = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(isolated, other) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=5)

            async def reading() -> None:
                while True:
                    await client.select(SPACE)
                    await asyncio.sleep(0.1)

            read = asyncio.create_task(reading())
            assert isinstance(await client.insert(SPACE, [1]), Committed)
            read.cancel()
            await client.close()

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


def test_pool_follows_the_leader_after_its_first_connection_ended() -> None:
    """Each connection watches the leader: another one than the first may be the last."""

    async def main() -> None:
        is_held = True

        def answer(asked: Asked) -> MemberAnswer:
            return None if asked.kind == Type.INSERT and is_held else committed(asked)

        first = FakeMember(answer, uuid=FIRST, leader=FIRST)
        second = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(first, second) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=10, pool_size=2)
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
            await client.close()

    asyncio.run(main())


def test_watch_leaves_a_member_that_answers_no_more() -> None:
    """A machine that loses its power sends nothing, so its connection stays open."""

    async def main() -> None:
        first = FakeMember(committed, uuid=FIRST, leader=FIRST)
        second = FakeMember(committed, uuid=SECOND, leader=SECOND)
        async with serving(first, second) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=2)
            client._session.pool.silence_s = 0.1
            watching = client.watch("box.election")
            assert (await anext(watching))["leader_uuid"] == FIRST
            first.is_silent = True
            async with asyncio.timeout(10):
                assert (await anext(watching))["leader_uuid"] == SECOND
            await client.close()

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


# --- threads --------------------------------------------------------------------------------------


class Served:
    """Fake members in a thread, for the synchronous client."""

    def __init__(self, member: FakeMember) -> None:
        self.member = member
        self.ready = threading.Event()
        self.end: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()))

    async def main(self) -> None:
        self.loop, self.end = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self.member):
            self.ready.set()
            await self.end.wait()

    def __enter__(self) -> str:
        self.thread.start()
        self.ready.wait(10)
        return self.member.address

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join(10)


def test_close_wakes_other_threads() -> None:
    member = FakeMember(lambda one: None if one.kind == Type.INSERT else committed(one))
    results: dict[str, Outcome | Exception | list[Any]] = {}

    def run(name: str, body: Any) -> None:
        try:
            results[name] = body()
        except (QsyncError, OSError) as error:
            results[name] = error

    with Served(member) as address:
        client = SyncClient(address, "app", "secret")
        bodies = {
            "write": lambda: client.insert(SPACE, [1]),
            "watch": lambda: list(client.watch("box.status")),
        }
        threads = [threading.Thread(target=run, args=one, daemon=True) for one in bodies.items()]
        for thread in threads:
            thread.start()
        for _ in range(1000):
            if Type.INSERT in member.kinds():
                break
            time.sleep(0.005)  # until the thread has sent its request
        time.sleep(0.1)  # the watch has no request to wait for
        client.close()
        for thread in threads:
            thread.join(5)
        assert isinstance(results["write"], Unknown), results
        assert isinstance(results["watch"], ClientClosed), results
        with pytest.raises(ClientClosed):
            client.insert(SPACE, [1])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_exception_of_a_signal_handler_cancels_the_request(kind: type[BaseException]) -> None:
    """For example the handler of a time limit: the request must not be repeated any more."""
    has_ended = threading.Event()
    loop = _Loop()

    def interrupt(number: int, frame: object) -> None:
        raise kind

    async def request() -> None:
        try:
            await asyncio.sleep(0.1)  # the thread waits for the result by then
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(kind):
            loop.run(request())
        assert has_ended.wait(5)
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.stop()


def test_close_wakes_a_thread_that_connects() -> None:
    with Served(FakeMember(committed, is_silent=True)) as address:
        client = SyncClient(address, "app", "secret")
        errors: list[Exception] = []

        def write() -> None:
            try:
                client.insert(SPACE, [1])
            except (QsyncError, OSError) as error:
                errors.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        time.sleep(0.2)
        client.close()
        thread.join(5)
        assert [type(one) for one in errors] == [ClientClosed]


def test_synchronous_client_refuses_requests_after_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = SyncClient("127.0.0.1:1", "app", "secret", deadline_s=0.2)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(QsyncError, match="fork"):
        client.insert(SPACE, [1])
    client.close()  # nothing to close in the child
    monkeypatch.setattr(os, "getpid", lambda: own)
    client.close()


def test_commit_that_was_sent_is_unknown_to_a_closed_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qsync_client.sync.FINISH_S", 0.05)
    committing = threading.Event()

    async def commit(*_: object) -> Outcome:
        committing.set()
        await asyncio.Event().wait()  # longer than a closed client waits
        raise AssertionError("the event is never set")

    monkeypatch.setattr(Transaction, "_commit", commit)
    with Served(FakeMember(committed)) as address:
        client = SyncClient(address, "app", "secret")
        outcomes: list[Outcome | None] = []

        def write() -> None:
            with client.transaction() as transaction:
                transaction.insert(SPACE, [1])
            outcomes.append(transaction.outcome)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        assert committing.wait(10)
        client.close()
        thread.join(10)
        assert [type(one) for one in outcomes] == [Unknown]


def test_interrupted_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be tried again after the user has interrupted the program."""
    client = SyncClient("127.0.0.1:1", "app", "secret")
    started, ended = threading.Event(), threading.Event()

    async def request() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt(_: object) -> None:
        assert started.wait(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(concurrent.futures.Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client._loop.run(request())
    assert ended.wait(5)
    client.close()


def test_transaction_of_a_closed_client_is_rolled_back() -> None:
    with Served(FakeMember(committed)) as address:
        client = SyncClient(address, "app", "secret")
        with client.transaction() as transaction:
            transaction.insert(SPACE, [1])
            client.close()
        assert isinstance(transaction.outcome, RolledBack)


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
