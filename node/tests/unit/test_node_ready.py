"""The probes: a member is ready when it can serve reads, and alive while its disk writes."""

from types import SimpleNamespace
from typing import Any

import pytest

from qsync_node.server.admin import Admin


def admin_of(is_open: bool = False, **context: object) -> Any:
    replica = SimpleNamespace(
        repair=SimpleNamespace(is_open=is_open),
        leader=None,
        election=SimpleNamespace(leader_uuid=""),
    )
    state = {"has_origin": True, "is_stopped": False, "stop_reason": "", **context}
    node = SimpleNamespace(replica=replica, context=SimpleNamespace(**state))
    return SimpleNamespace(server=SimpleNamespace(node=node))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("replica", "status"),
    [
        ({}, 200),  # confirmed rows are available without a leader
        ({"has_origin": False}, 503),
        ({"is_stopped": True, "stop_reason": "the logs contradict each other"}, 503),
        ({"is_open": True}, 503),
    ],
)
async def test_member_is_ready_when_it_can_serve_reads(
    replica: dict[str, Any], status: int
) -> None:
    request: Any = None
    assert (await Admin._ready(admin_of(**replica), request)).status == status


@pytest.mark.asyncio
@pytest.mark.parametrize(("is_hung", "status"), [(False, 200), (True, 503)])
async def test_member_whose_disk_hangs_is_not_alive(is_hung: bool, status: int) -> None:
    """A restart on another machine may help, and the member counts for no quorum meanwhile."""
    request: Any = None
    admin = admin_of(is_write_path_hung=lambda: is_hung)
    assert (await Admin._live(admin, request)).status == status
