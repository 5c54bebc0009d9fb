"""Reads of a client: their isolation, and their connections to the members of its zone."""

import asyncio

import pytest

from qsync_client import Client, ClientClosed, Committed, ErrorCode, Refused
from qsync_client.pool import Member
from qsync_client.protocol.constants import Isolation, Key, Type
from qsync_client.protocol.frame import Frame
from qsync_testing.fake_member import (
    FIRST,
    SECOND,
    SPACE,
    Asked,
    FakeMember,
    MemberAnswer,
    committed,
    refused,
    serving,
    until,
)


def test_linearizable_reads_request_it() -> None:
    """Otherwise a leader that was replaced answers them with an old state."""

    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            for linearizable in (True, False):
                await client.get(SPACE, 1, linearizable=linearizable)
                await client.select(SPACE, linearizable=linearizable)
                assert await client.count(SPACE, linearizable=linearizable) == 0
                assert [row async for row in client.scan(SPACE, linearizable=linearizable)] == []
        levels = [one.body.get(Key.TXN_ISOLATION) for one in member.asked]
        assert levels == [Isolation.LINEARIZABLE] * 4 + [None] * 4

    asyncio.run(main())


def test_transaction_requests_its_isolation() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            for isolation in Isolation:
                async with client.transaction(isolation):
                    pass
        begins = [one for one in member.asked if one.kind == Type.BEGIN]
        assert [one.body.get(Key.TXN_ISOLATION) for one in begins] == list(Isolation)

    asyncio.run(main())


def test_concurrent_first_reads_share_a_connection_to_the_zone() -> None:
    async def main() -> None:
        leader, near = FakeMember(committed), FakeMember(committed)
        async with serving(leader, near) as addresses:
            members = [Member(addresses[0]), Member(addresses[1], "near")]
            client = Client(members, "app", "secret", zone="near")
            reads = await asyncio.gather(*(client.select(SPACE) for _ in range(5)))
            assert all(isinstance(one, Committed) for one in reads)
            assert near.connections == 1
            await client.close()
            await until(lambda: near.connections == 0)

    asyncio.run(main())


class MuteMember(FakeMember):
    """A member that accepts log-ins and answers no other request."""

    log_ins = 0

    def _take(self, frame: Frame, to: asyncio.StreamWriter) -> None:
        if frame[0] == Type.AUTH:
            self.log_ins += 1
            super()._take(frame, to)


def test_connection_to_a_member_that_does_not_name_the_leader_is_closed() -> None:
    """A client that retries for hours would open one more connection each time."""

    async def main() -> None:
        member = MuteMember(committed)
        async with serving(member) as addresses:
            client = Client(addresses, "app", "secret", deadline_s=2)
            client._session.pool.connect_s = 0.5
            with pytest.raises(ClientClosed):
                await client.select(SPACE)
            assert member.log_ins
            await until(lambda: member.connections == 0)
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


def test_unreachable_member_of_the_zone_is_not_tried_by_each_read() -> None:
    async def main() -> None:
        attempts = 0

        def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal attempts
            attempts += 1
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        near = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with serving(FakeMember(committed)) as (address,):
            members = [Member(address), Member(near, "near")]
            async with Client(members, "app", "secret", zone="near") as client:
                for _ in range(3):
                    assert isinstance(await client.select(SPACE), Committed)
        assert attempts == 1
        server.close()

    asyncio.run(main())


def test_unreachable_member_of_the_zone_is_the_last_that_a_later_search_tries() -> None:
    async def main() -> None:
        silent, other = FakeMember(committed, is_silent=True), FakeMember(committed)
        async with serving(silent, other) as addresses:
            members = [Member(one, "near") for one in addresses]
            async with Client([members[1], members[0]], "app", "secret", zone="near") as client:
                pool = client._session.pool
                pool._near = list(addresses)
                pool.connect_s = 0.5
                assert isinstance(await client.select(SPACE), Committed)
                reader = pool._reader
                assert reader is not None
                assert reader.address == other.address
                reader.close()
                assert isinstance(await client.select(SPACE), Committed)
                assert len(silent.writers) == 1

    asyncio.run(main())


def test_late_refusal_of_a_former_reader_does_not_end_its_successor() -> None:
    async def main() -> None:
        async with serving(FakeMember(committed)) as (address,):
            members = [Member(address, "near")]
            async with Client(members, "app", "secret", zone="near") as client:
                await client.select(SPACE)
                pool = client._session.pool
                former = pool._reader
                assert former is not None
                former.close()
                await client.select(SPACE)
                successor = pool._reader
                assert successor not in (None, former)
                former.refused_s[True] = -3600.0
                pool.observe(former, Refused(ErrorCode.LOADING, "loading"), is_read=True)
                assert pool._reader is successor

    asyncio.run(main())
