"""The readiness probe reports whether a member can serve reads, with or without a leader."""

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
