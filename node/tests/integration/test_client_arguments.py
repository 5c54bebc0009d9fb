"""Invalid arguments end before a request is sent, with their cause and a remedy."""

import asyncio
import datetime
import decimal
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qsync_client import Client, InvalidArgument, RequestKey, SyncClient
from qsync_testing.fake_member import FakeMember, committed, serving

SPACE = 512


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"addresses": []}, "address"),
        ({"addresses": "localhost"}, "HOST:PORT"),
        ({"addresses": "localhost:port"}, "HOST:PORT"),
        ({"addresses": "localhost:99999"}, "65535"),
        ({"addresses": "localhost:0"}, "65535"),
        ({"addresses": ":3301"}, "HOST:PORT"),
        ({"addresses": "tcp://app:hidden@localhost:3301"}, "without user and password"),
        ({"tls": True}, "SSLContext"),
        ({"zone": "elsewhere"}, "elsewhere"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"pool_size": 0}, "pool_size"),
        ({"max_request_bytes": 0}, "max_request_bytes"),
        ({"client_id": "x" * 48}, "client_id"),
    ],
)
@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_client_with_an_invalid_argument_is_not_created(
    kind: Any, options: dict[str, Any], text: str
) -> None:
    arguments = {"addresses": "127.0.0.1:1", "user": "app", "password": "secret"}
    with pytest.raises(InvalidArgument, match=text) as failed:
        kind(**{**arguments, **options})
    assert "hidden" not in str(failed.value)
    assert ";" in str(failed.value) or ":" in str(failed.value)


REQUESTS: list[Callable[[Client], Awaitable[Any]]] = [
    lambda client: client.insert(SPACE, [decimal.Decimal(1)]),
    lambda client: client.insert(SPACE, [uuid.UUID(int=1)]),
    lambda client: client.insert(SPACE, [datetime.datetime.now()]),
    lambda client: client.insert(SPACE, [datetime.timedelta(1)]),
    lambda client: client.insert(SPACE, [2**64]),
    lambda client: client.insert(SPACE, [-(2**63) - 1]),
    lambda client: client.update(SPACE, 1, [("=", 1, decimal.Decimal(1))]),
    lambda client: client.call("name", decimal.Decimal(1)),
    lambda client: client.insert(SPACE, [b"x" * (16 << 20)]),
    lambda client: client.insert(SPACE, [1], request_key=RequestKey("a", -1, 0)),
    lambda client: client.insert(SPACE, [1], request_key="key"),  # type: ignore[arg-type]  # refused
    lambda client: client.get(SPACE, None),
    lambda client: client.get(SPACE, []),
    lambda client: client.get(SPACE, ()),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_request_with_an_invalid_argument_is_not_sent(number: int) -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with serving(member) as addresses, Client(addresses, "app", "secret") as client:
            with pytest.raises(InvalidArgument, match=r"; |: ") as failed:
                await REQUESTS[number](client)
            assert len(str(failed.value)) < 300
            assert member.kinds() == []
            async with client.transaction() as transaction:
                with pytest.raises(InvalidArgument):
                    await transaction.get(SPACE, None)

    asyncio.run(main())


def test_larger_requests_are_allowed_if_the_server_receives_them() -> None:
    async def main() -> None:
        member = FakeMember(committed)
        async with (
            serving(member) as addresses,
            Client(addresses, "app", "secret", max_request_bytes=32 << 20) as client,
        ):
            await client.insert(SPACE, [b"x" * (17 << 20)])
            assert len(member.kinds()) == 1

    asyncio.run(main())
