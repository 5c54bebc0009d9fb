"""`kubectl qsync replace`: the members that it deletes, and those that it refuses to delete."""

from typing import Any, cast

import pytest

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes.session import KubernetesSession
from qsync_cli.replace import SELECTED_NODE, replace_volume, replacement_error
from qsync_operator.kubernetes.client import KubernetesApi
from qsync_testing.operator.fake_api import FakeApi


def status(*dead: str, voters: int = 3, quorum: int = 2) -> dict[str, Any]:
    members = [
        {"name": f"orders-{n}", "is_voting": True, "is_live": f"orders-{n}" not in dead}
        for n in range(voters)
    ]
    members.append({"name": "orders-async-0", "is_voting": False, "is_live": False})
    return {"members": members, "quorum": quorum}


@pytest.mark.parametrize(
    ("member", "leader", "reported", "is_forced", "is_refused"),
    [
        ("orders-1", "orders-0", status("orders-1"), False, False),
        ("orders-1", "orders-0", status(), False, True),
        ("orders-1", "orders-0", status(), True, False),
        ("orders-0", "orders-0", status(), True, True),
        ("orders-1", None, {}, True, True),
        ("orders-1", "orders-0", status("orders-1", "orders-2"), True, True),
        ("orders-1", "orders-0", status("orders-1", quorum=3), True, True),
        ("orders-async-0", "orders-0", status("orders-1", "orders-2"), False, False),
        ("orders-7", "orders-0", status(), False, False),
    ],
)
def test_member_is_replaced_only_where_the_quorum_stays(
    member: str, leader: str | None, reported: dict[str, Any], is_forced: bool, is_refused: bool
) -> None:
    error = replacement_error(member, leader, reported, is_forced=is_forced)
    assert (error is not None) == is_refused


def stored(api: FakeApi, kind: str, name: str, **annotations: str) -> None:
    metadata = {"name": name, "namespace": "ns", "annotations": annotations}
    api.put({"kind": kind, "metadata": metadata})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("annotations", "is_forced", "is_deleted"),
    [
        ({SELECTED_NODE: "gone"}, False, True),
        ({SELECTED_NODE: "here"}, False, False),
        ({SELECTED_NODE: "here"}, True, True),
        ({}, False, False),
    ],
)
async def test_volume_is_deleted_when_its_machine_is_gone_or_by_force(
    annotations: dict[str, str], is_forced: bool, is_deleted: bool
) -> None:
    api = FakeApi()
    # `FakeApi` has the methods that the command calls.
    session = KubernetesSession(cast(KubernetesApi, api), "ns")
    stored(api, "PersistentVolumeClaim", "data-orders-1", **annotations)
    stored(api, "PersistentVolumeClaim", "data-orders-2")
    stored(api, "Pod", "orders-1")
    api.put({"kind": "Node", "metadata": {"name": "here", "namespace": ""}})
    if is_deleted:
        await replace_volume(session, "orders-1", is_forced=is_forced)
    else:
        with pytest.raises(Failure) as failed:
            await replace_volume(session, "orders-1", is_forced=is_forced)
        assert failed.value.reason == FailureReason.REFUSED
    left = {name for kind, _, name in api.objects if kind in ("PersistentVolumeClaim", "Pod")}
    expected = {"data-orders-2"} if is_deleted else {"data-orders-1", "data-orders-2", "orders-1"}
    assert left == expected
