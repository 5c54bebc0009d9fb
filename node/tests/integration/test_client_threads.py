"""The synchronous client: threads, signals, forks, and its end."""

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from typing import Any

import pytest

from qsync_client import (
    ClientClosed,
    Outcome,
    QsyncError,
    RolledBack,
    SyncClient,
    Transaction,
    Unknown,
)
from qsync_client.protocol.constants import Type
from qsync_client.sync import _Loop
from qsync_testing.fake_member import (
    SPACE,
    FakeMember,
    committed,
    serving,
)


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
            time.sleep(0.005)  # the thread has not sent its request yet
        time.sleep(0.1)  # the watch sends nothing that shows that it waits
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
        time.sleep(0.2)  # no member answers, so nothing shows that the request waits
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
