"""The data of the web page."""

import json
from typing import Any

import pytest

from qsync_node.histogram import BOUNDS_S
from qsync_operator.api.status import ClusterStatus, LastFailover
from qsync_operator.views.failovers import TimelineEntry, failover_sentence, read_failover
from qsync_operator.views.live import LiveSample
from qsync_operator.views.statusview import ClusterHealth, StatusRow
from qsync_web.page import (
    EVENTS_MAX,
    FAILOVERS_MAX,
    POINTS_MAX,
    SPACES_MAX,
    TEXT_MAX,
    ClusterObservation,
    PageAudit,
    PageHistory,
    PageSpaces,
    problems_of,
    read_spaces,
    timeline_of,
)

HOSTILE = "</script><img src=x onerror=alert(1)>"


def event(reason: str = "PhaseReady", message: str = "all members are ready") -> dict[str, str]:
    return {
        "time": "2026-01-31T12:00:00.000+00:00", "type": "Normal", "reason": reason,
        "object": "orders", "message": message,
    }  # fmt: skip


def report(writes: int, uptime_s: float) -> dict[str, Any]:
    counts = [0] * (len(BOUNDS_S) + 1)
    counts[BOUNDS_S.index(0.005)] = writes
    figures = {
        "writes": counts, "flushes": counts, "quorum_waits": counts, "errors": 0, "stalls": 0,
        "connections": 3, "disk_free_bytes": 42 << 30, "uptime_s": uptime_s,
    }  # fmt: skip
    return {"figures": figures, "archive": None}


def observation(
    at_s: float = 10.0,
    writes: int = 0,
    *,
    events: list[dict[str, str]] | None = None,
    audits: list[PageAudit] | None = None,
    spaces: PageSpaces | None = None,
) -> ClusterObservation:
    rows = [
        StatusRow("orders-0", role="leader", lag="0", term="1"),
        StatusRow("orders-1", role="follower", lag="7", term="1"),
        StatusRow("orders-2"),
    ]
    sample = LiveSample(
        at_s, "12:00:00", ["orders: Degraded", "last failover: long ago"], rows, "orders-0", 1,
        reports={"orders-0": report(writes, at_s)},
    )  # fmt: skip
    status = ClusterStatus(phase="Degraded", quorum=2, replicas=3, ready_replicas=2)
    return ClusterObservation(
        "2026-01-31T12:00:00+00:00", sample, status, ClusterHealth.DEGRADED, events or [],
        audits or [], spaces,
    )  # fmt: skip


def document(*observations: ClusterObservation) -> dict[str, Any]:
    history = PageHistory()
    for one in observations:
        history.add(one)
    found: dict[str, Any] = json.loads(json.dumps(history.document()))
    return found


def test_members_and_totals_have_the_figures_between_observations() -> None:
    found = document(observation(10.0), observation(12.0, 600))
    assert (found["phase"], found["health"], found["leader"]) == (
        "Degraded",
        "degraded",
        "orders-0",
    )
    assert found["total"]["writes"] == 300.0
    leader, follower, down = found["members"]
    assert leader["p50"] == pytest.approx(0.004)
    assert (follower["lag"], follower["writes"], follower["answers"]) == ("7", None, True)
    assert (down["answers"], down["lag"]) == (False, "-")
    assert found["points"] == [[-2.0, None, None, None, 7], [0.0, 300.0, *found["points"][1][2:]]]


def test_member_that_does_not_answer_is_a_problem_unless_another_sentence_names_it() -> None:
    assert document(observation())["problems"] == [
        "orders-2 does not answer: its figures are unknown until it does"
    ]
    rows = [StatusRow("orders-2")]
    assert problems_of(["orders-2: it does not answer"], rows) == ["orders-2: it does not answer"]
    assert len(problems_of(["orders-20, my-orders-2: they do not answer"], rows)) == 2


def test_lists_are_bounded_and_newest_first() -> None:
    events = [event(message=str(number)) for number in range(5000)]
    sizes = {"id": 512, "rows": 1, "bytes": 2, "is_sync": True}
    spaces = PageSpaces(5000, [{"name": str(number), **sizes} for number in range(5000)])
    seen = [observation(float(second), events=events, spaces=spaces) for second in range(500)]
    found = document(*seen)
    assert len(found["points"]) == POINTS_MAX
    assert [one["message"] for one in found["events"][:2]] == ["4999", "4998"]
    assert len(found["events"]) == EVENTS_MAX
    assert len(found["spaces"]["largest"]) == SPACES_MAX
    assert found["spaces"]["total"] == 5000


def test_long_and_hostile_texts_are_kept_as_text_and_shortened() -> None:
    space = {"id": 512, "name": HOSTILE + "x" * 70000, "rows": 1, "bytes": 1, "is_sync": False}
    seen = observation(
        events=[event(message=HOSTILE)],
        spaces=PageSpaces(1, [space]),
        audits=[PageAudit("20260131T120000Z", "Passed", index=7, has_page=True)],
    )
    found = document(seen)
    name = found["spaces"]["largest"][0]["name"]
    assert name.startswith(HOSTILE)
    assert len(name) == TEXT_MAX
    assert name.endswith("…")
    assert found["events"][0]["message"] == HOSTILE
    assert found["audits"][0]["index"] == 7


@pytest.mark.parametrize("answer", [None, [], {"spaces": "x"}, ValueError("no answer")])
def test_answer_without_spaces_is_unknown(answer: object) -> None:
    assert read_spaces(answer) is None


@pytest.mark.parametrize("before", ["orders-0", ""])
def test_timeline_reads_the_sentence_of_a_failover(before: str) -> None:
    said = LastFailover.model_validate(
        {
            "from": before,
            "to": "orders-1",
            "reason": "ProcessEnded",
            "unavailableMilliseconds": 57.2,
        }
    )  # fmt: skip
    found = read_failover(event("Failover", failover_sentence(said)))
    assert found == TimelineEntry(
        "2026-01-31T12:00:00.000+00:00", "orders-1", before, "ProcessEnded", 57.2
    )


def test_timeline_ignores_other_events_and_is_bounded() -> None:
    sentence = "orders-1 leads after orders-0 (Switchover): writes paused for 0 ms"
    assert read_failover(event("Failover", "a sentence of another version")) is None
    assert read_failover(event("PhaseReady", sentence)) is None
    assert len(timeline_of([event("Failover", sentence)] * 1000)) == FAILOVERS_MAX
