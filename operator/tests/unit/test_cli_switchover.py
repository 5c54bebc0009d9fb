"""The member that leads after a switchover."""

from typing import Any

import pytest

from qsync_cli.failure import Failure
from qsync_cli.switchover import TermLeader, check_successor, successor


def status(name: str, role: str, term: int, **fields: object) -> dict[str, Any]:
    return {"name": name, "role": role, "term": term, "is_writable": False, "leader_name": "",
            **fields}  # fmt: skip


OLD = status("a", "leader", 1, is_writable=True, leader_name="a")
FOLLOWER = status("a", "follower", 2, leader_name="b")
NEW = status("b", "leader", 2, leader_name="b")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([OLD, status("b", "follower", 1, leader_name="a")], None),
        ([FOLLOWER, NEW], None),  # it leads and accepts no writes yet
        ([FOLLOWER, {**NEW, "is_writable": True}], TermLeader("b", 2)),
        ([FOLLOWER, status("c", "follower", 2, leader_name="b")], None),  # b did not answer
        ([FOLLOWER], TermLeader("b", 2)),
        ([status("a", "follower", 2)], None),
    ],
)
def test_leader_after_a_switchover_is_writable_or_named_by_the_only_member(
    found: list[dict[str, Any]], expected: TermLeader | None
) -> None:
    assert successor({one["name"]: one for one in found}, 1) == expected


@pytest.mark.parametrize(
    ("now", "wanted", "text"),
    [
        ("a", None, "a leads again, in term 3"),
        ("a", "b", "a leads again, in term 3"),
        ("c", "b", "c leads instead of b, in term 3"),
        ("b", "b", ""),
        ("c", None, ""),
    ],
)
def test_switchover_fails_if_another_member_won(now: str, wanted: str | None, text: str) -> None:
    before, after = TermLeader("a", 1), TermLeader(now, 3)
    if not text:
        check_successor(before, after, wanted)
        return
    with pytest.raises(Failure, match=text):
        check_successor(before, after, wanted)
