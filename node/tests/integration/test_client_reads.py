"""Reads of a client: their isolation, and their connections to the members of its zone."""

import asyncio

import pytest

from qsync_client import Client, ClientClosed, Committed
from qsync_client.pool import Member
from qsync_client.protocol.constants import Isolation, Key, Type
from qsync_client.protocol.frame import Frame
from qsync_testing.fake_member import SPACE, FakeMember, committed, serving, until


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
