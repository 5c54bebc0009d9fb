"""The client follows the leader, also one that has lost its disk, and with it its uuid."""

import asyncio

import pytest

from qsync_client import Client, Committed
from qsync_client.protocol.constants import Type
from qsync_testing.fake_member import (
    FIRST,
    SECOND,
    SPACE,
    Asked,
    FakeMember,
    MemberAnswer,
    client_of_two,
    committed,
    until,
)

THIRD = "33333333-3333-4333-8333-333333333333"


async def until_writing_to(client: Client, uuid: str) -> None:
    async with asyncio.timeout(5):
        while [link.uuid for link in client._session.pool._writers] != [uuid]:
            await asyncio.sleep(0.005)


def test_leader_with_a_new_uuid_at_a_known_address_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qsync_client.pool.DOUBT_S", 0.05)
    monkeypatch.setattr("qsync_client.pool.KNOWN_S", 0.1)

    async def main() -> None:
        first = FakeMember(committed, leader=SECOND)
        second = FakeMember(committed, leader=SECOND)
        async with client_of_two(first, second) as client:
            await client.insert(SPACE, [1])
            await until_writing_to(client, SECOND)
            first.uuid = first.leader = THIRD
            second.report_leader(THIRD)
            await until_writing_to(client, THIRD)
            await until(lambda: second.connections == 0)
            assert set(client._session.pool._uuids) == {SECOND, THIRD}

    asyncio.run(main())


def test_leader_with_a_new_uuid_is_found_soon_after_its_connection_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss shows that the uuid of the address may have changed."""
    monkeypatch.setattr("qsync_client.pool.DOUBT_S", 0.1)

    async def main() -> None:
        first = FakeMember(committed)
        second = FakeMember(committed, leader=FIRST)
        async with client_of_two(first, second) as client:
            await client.insert(SPACE, [1])
            second.leader = SECOND
            first.uuid = THIRD
            (link,) = client._session.pool._writers
            first.drop()
            while not link.is_over:
                await asyncio.sleep(0)
            assert isinstance(await client.insert(SPACE, [2]), Committed)
            await until_writing_to(client, SECOND)
            first.leader = THIRD
            second.report_leader(THIRD)
            await until_writing_to(client, THIRD)

    asyncio.run(main())


def test_known_addresses_are_not_asked_for_a_leader_at_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may have the addresses of some members only."""
    monkeypatch.setattr("qsync_client.pool.DOUBT_S", 0.01)

    async def main() -> None:
        first = FakeMember(committed, leader=SECOND)
        second = FakeMember(committed, leader=SECOND)
        async with client_of_two(first, second) as client:
            await client.insert(SPACE, [1])
            await until_writing_to(client, SECOND)
            before = len(first.writers)
            second.report_leader(THIRD)
            await asyncio.sleep(0.1)  # several attempts
            assert len(first.writers) == before

    asyncio.run(main())


def test_lost_leader_is_not_tried_again_at_once_although_another_member_names_it() -> None:
    """A member that stopped still accepts connections, and others name it for a while."""

    async def main() -> None:
        first = FakeMember(committed)
        second = FakeMember(committed, leader=FIRST)
        async with client_of_two(first, second) as client:
            await client.insert(SPACE, [1])
            (link,) = client._session.pool._writers
            first.drop()
            await until(lambda: link.is_over)
            assert isinstance(await client.insert(SPACE, [2]), Committed)
            await asyncio.sleep(0.05)  # the search in the background
            assert len(first.writers) == 1
            assert second.kinds() == [Type.INSERT]

    asyncio.run(main())


def test_new_leader_gets_further_connections_although_the_former_one_accepted_none() -> None:
    is_held = False

    def answer(asked: Asked) -> MemberAnswer:
        return None if asked.kind == Type.INSERT and is_held else committed(asked)

    async def main() -> None:
        nonlocal is_held
        first = FakeMember(committed)
        second = FakeMember(answer, leader=SECOND)
        async with client_of_two(first, second, pool_size=2) as client:
            pool = client._session.pool
            pool._grow_failed_s = asyncio.get_running_loop().time()
            first.report_leader(SECOND)
            await until_writing_to(client, SECOND)
            is_held = True
            held = asyncio.create_task(client.insert(SPACE, [1]))
            await until(lambda: Type.INSERT in second.kinds())
            is_held = False
            await client.insert(SPACE, [2])
            assert len(pool._writers) == 2
            held.cancel()

    asyncio.run(main())
