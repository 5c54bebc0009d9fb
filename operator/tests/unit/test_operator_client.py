"""The API server's client raises ApiError on failure, with status 0 if no valid answer arrived."""

from typing import Any

import aiohttp
import pytest

from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.client import KubernetesApi


class ApiAnswer:
    def __init__(self, status: int, text: bytes) -> None:
        self.status, self._text = status, text

    async def read(self) -> bytes:
        return self._text


class StubClient:
    """Replacement of the Kubernetes package's client that returns or raises one outcome."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    async def param_serialize(self, *_: object, **__: object) -> tuple[()]:
        return ()

    async def call_api(self, *_: Any, **__: Any) -> ApiAnswer:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return ApiAnswer(*self.outcome)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (aiohttp.ServerDisconnectedError(), 0),
        (aiohttp.ClientPayloadError("cut off"), 0),
        (ConnectionRefusedError(), 0),
        (TimeoutError(), 0),
        ((200, b"<html>a proxy</html>"), 0),
        ((503, b'{"message": "not now"}'), 503),
    ],
)
async def test_failed_request_is_an_api_error(outcome: object, status: int) -> None:
    client: Any = StubClient(outcome)
    with pytest.raises(ApiError) as error:
        await KubernetesApi(client).get("Pod", "ns", "orders-0")
    assert error.value.status == status
    if isinstance(outcome, ConnectionRefusedError):
        assert "; check that it runs, and that its address is the right one" in str(error.value)
