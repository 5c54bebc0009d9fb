"""Members that accept a connection and never answer delay only requests to themselves."""

import asyncio
import socket
import time

import pytest

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.members.threads import in_thread
from qsync_operator.reconcile import access, spaces
from qsync_operator.reconcile.access import AccessReconciler
from qsync_operator.reconcile.spaces import SpaceReconciler

pytestmark = pytest.mark.asyncio
MEMBERS = 64  # more than the threads of the event loop's own pool


def cluster() -> QsyncCluster:
    space = {"name": "s", "indexes": [{"name": "p", "parts": [{"field": 1, "type": "string"}]}]}
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster",
        "metadata": {"name": "c", "generation": 1}, "spec": {"spaces": [space]},
    }  # fmt: skip
    return QsyncCluster.model_validate(document)


async def _no_password(_: str) -> str | None:
    return None


async def _application(_: QsyncCluster) -> str:
    return "secret"


async def test_hung_members_leave_the_loops_own_threads_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server's client and every name resolution need these threads."""
    monkeypatch.setattr(access, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(spaces, "DDL_TIMEOUT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0), backlog=2 * MEMBERS) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        looks = []
        for _ in range(MEMBERS):
            users = AccessReconciler("secret", _no_password, _application)
            looks += [
                users.observe(cluster(), address),
                SpaceReconciler("secret").observe(cluster(), address),
            ]
        talking = [asyncio.ensure_future(observe) for observe in looks]
        await asyncio.sleep(0.1)  # all requests have begun
        other = asyncio.ensure_future(asyncio.to_thread(time.monotonic))
        first, _ = await asyncio.wait({*talking, other}, return_when=asyncio.FIRST_COMPLETED)
        assert other in first, "it waited for the timeouts of members"
        await asyncio.gather(*talking)


async def test_a_thread_reports_its_result_or_exception() -> None:
    assert await in_thread(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)


async def test_caller_that_stops_waiting_leaves_the_thread_running() -> None:
    waiting = asyncio.ensure_future(in_thread(time.sleep, 0.2))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.3)  # the thread ends unnoticed and raises nothing
