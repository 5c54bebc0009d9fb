"""The model and the lines of `qsync top`."""

import time
from dataclasses import replace
from typing import Any

import pytest

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.top import screen, sources
from qsync_cli.top.view import draw
from qsync_cli.where import Where
from qsync_node.histogram import BOUNDS_S, Histogram
from qsync_operator.members.links import LinkError
from qsync_operator.views.live import (
    WINDOW_S,
    LiveBrokers,
    LiveFigures,
    LiveModel,
    LiveSample,
    audit_text,
)
from qsync_operator.views.podview import Observation
from qsync_operator.views.statusview import StatusRow


def report(writes: int = 0, uptime_s: float = 100.0, **changes: object) -> dict[str, Any]:
    """Return /status of a member with a number of writes of 3 to 5 ms since its start."""
    counts = [0] * (len(BOUNDS_S) + 1)
    counts[BOUNDS_S.index(0.005)] = writes
    figures = {
        "writes": counts, "flushes": counts, "quorum_waits": counts, "errors": 0, "stalls": 0,
        "connections": 3, "disk_free_bytes": 42 << 30, "uptime_s": uptime_s, **changes,
    }  # fmt: skip
    return {"figures": figures, "archive": {"lag_seconds": 2.4}}


ROWS = [
    StatusRow("orders-0", role="leader", lag="0"),
    StatusRow("orders-1", role="follower", lag="7"),
]


def sample(at_s: float, **changes: object) -> LiveSample:
    given: dict[str, Any] = {
        "clock": "12:00:00", "lines": ["orders: Ready · orders-0 leads in term 1"], "rows": ROWS,
        "leader": "orders-0", "term": 1, **changes,
    }  # fmt: skip
    return LiveSample(at_s, **given)


def text_of(model: LiveModel, width: int = 80, height: int = 24, trouble: str = "") -> str:
    lines = draw(model, width, height, trouble)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain for line in lines)


# --- figures --------------------------------------------------------------------------------------


def test_rates_and_quantiles_are_those_between_two_observations() -> None:
    model = LiveModel()
    model.add(sample(10.0, reports={"orders-0": report(1_000_000)}))
    assert model.figures("orders-0").writes is None, "one observation has no rate"
    assert model.figures("orders-0").p50 is None
    model.add(sample(12.0, reports={"orders-0": report(1_000_600, 102.0, errors=4)}))
    found = model.figures("orders-0")
    assert (found.writes, found.errors) == (300.0, 2.0)
    assert found.p50 == pytest.approx(0.004)
    assert (found.connections, found.disk, found.archive_lag) == (3, 42 << 30, 2.4)
    assert model.figures("orders-1") == LiveFigures(), "it does not answer"


def test_old_observations_leave_the_window() -> None:
    model = LiveModel()
    for second in range(100):
        model.add(sample(float(second), reports={"orders-0": report(100 * second, second)}))
    assert model.figures("orders-0").writes == 100.0
    model.add(sample(100.0, reports={"orders-0": report(9900, 100.0)}))
    assert model.figures("orders-0").writes == pytest.approx(100 * (WINDOW_S - 1) / WINDOW_S, 0.1)
    assert len(model._samples) < 10, "the memory is bounded"


def test_restarted_member_has_no_negative_rate() -> None:
    model = LiveModel()
    model.add(sample(10.0, reports={"orders-0": report(5000, 100.0)}))
    model.add(sample(11.0, reports={"orders-0": report(10, 0.5)}))
    assert model.figures("orders-0").writes is None
    model.add(sample(12.0, reports={"orders-0": report(30, 1.5)}))
    assert model.figures("orders-0").writes == 20.0


def test_total_is_of_all_members_because_clients_write_through_any() -> None:
    model = LiveModel()
    for at_s, factor in ((0.0, 0), (1.0, 1)):
        reports = {
            "orders-0": report(300 * factor, at_s + 1), "orders-1": report(100 * factor, at_s + 1),
        }  # fmt: skip
        model.add(sample(at_s, reports=reports))
    assert model.total().writes == 400.0
    assert model.total().p99 == pytest.approx(0.005, rel=0.1)
    assert model.total().connections == 6


def test_member_of_a_version_without_figures_has_none() -> None:
    model = LiveModel()
    model.add(sample(0.0, reports={"orders-0": {"archive": None}}))
    model.add(sample(1.0, reports={"orders-0": {"archive": None}}))
    assert model.figures("orders-0") == LiveFigures()
    assert model.total().writes is None
    assert "orders-0" in text_of(model)


def test_appends_are_those_of_brokers_that_answered_twice() -> None:
    model = LiveModel()
    model.add(sample(0.0, brokers=LiveBrokers(3, 2, {"orders-0": 100.0, "orders-1": 50.0})))
    assert model.appends() is None
    model.add(sample(2.0, brokers=LiveBrokers(3, 2, {"orders-0": 300.0, "orders-2": 7000.0})))
    assert model.appends() == 100.0
    text = text_of(model)
    assert "journals 2 · brokers 2 of 3 · appends 100/s" in text


def test_metric_is_summed_over_its_labels() -> None:
    text = (
        "# HELP qsync_broker_appends_total Appends.\n"
        'qsync_broker_appends_total{status="OK"} 5.0\n'
        'qsync_broker_appends_total{status="FAILED"} 2.0\n'
        "qsync_broker_appends_total_created 9.0\nqsync_broker_journals 3.0\n"
    )
    assert sources.total(text, sources.APPENDS) == 7.0
    assert sources.total(text, sources.JOURNALS) == 3.0


def test_brokers_are_those_whose_metrics_are_known() -> None:
    text = 'qsync_broker_appends_total{status="OK"} 5.0\nqsync_broker_journals 3.0\n'
    silent, old = LinkError("connection refused"), LinkError("cannot query a: usage: pod_ask ...")
    assert sources.brokers_of({"a": text, "b": silent}) == LiveBrokers(2, 3, {"a": 5.0})
    assert sources.brokers_of({"a": silent, "b": silent}) == LiveBrokers(2, 0, {})
    assert sources.brokers_of({"a": old, "b": old}) is None, "they may well serve"
    assert sources.brokers_of({}) is None


def test_kubernetes_is_observed_by_its_members_if_the_operator_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders", "namespace": "ns", "generation": 1},
        "status": {
            "phase": "Ready", "leader": "orders-1", "term": 1, "observedGeneration": 1,
            "lastAudit": {"verdict": "Passed", "finishedAt": "2026-11-27T03:00:00Z"},
        },
    }  # fmt: skip
    leading = {
        **report(5), "role": "leader", "term": 2, "confirmed_index": 7, "replica_id": 1,
        "uuid": "u", "is_writable": True,
    }  # fmt: skip
    seen = Observation(document, [{"metadata": {"name": "orders-0"}}], {"orders-0": leading}, {})
    monkeypatch.setattr("qsync_cli.kubernetes.session.converse", lambda where, ask: (seen, {}))
    found = sources.observe_kubernetes(Where(cluster="orders"))
    assert (found.leader, found.term) == ("orders-0", 2)
    assert found.audit == audit_text("Passed", "2026-11-27T03:00:00Z")
    assert [row.role for row in found.rows] == ["leader"]
    assert found.reports["orders-0"]["figures"]["connections"] == 3
    assert found.brokers is None


# --- ticker ---------------------------------------------------------------------------------------


def test_ticker_names_losses_and_changes_of_the_leader() -> None:
    model = LiveModel()
    down = [replace(ROWS[0], role="down"), ROWS[1]]
    model.add(sample(0.0, failover="orders-0 leads after orders-1 (Switchover)"))
    model.add(sample(1.0, leader="", term=1, rows=down, clock="12:00:01",
                     failover="orders-0 leads after orders-1 (Switchover)"))  # fmt: skip
    model.add(sample(2.0, leader="orders-1", term=2, rows=down, clock="12:00:02",
                     failover="orders-1 leads after orders-0 (ProcessEnded)"))  # fmt: skip
    model.add(sample(3.0, leader="orders-1", term=2, clock="12:00:03",
                     failover="orders-1 leads after orders-0 (ProcessEnded)"))  # fmt: skip
    assert list(model.ticker) == [
        "before   orders-0 leads after orders-1 (Switchover)",
        "12:00:01 orders-0 no longer leads: no member accepts writes",
        "12:00:01 orders-0 is down",
        "12:00:02 orders-1 leads after orders-0 (ProcessEnded)",
        "12:00:03 orders-0 answers again as leader",
    ]
    model.add(sample(4.0, leader="orders-1", term=3, rows=ROWS[:1], clock="12:00:04"))
    assert list(model.ticker)[-2:] == [
        "12:00:04 orders-1 leads in term 3", "12:00:04 orders-1 was removed",
    ]  # fmt: skip
    model.add(sample(5.0, leader="orders-1", term=3, rows=ROWS[:1], clock="12:00:05",
                     failover="orders-1 leads after orders-0 (Unreachable)"))  # fmt: skip
    assert model.ticker[-1] == "12:00:05 orders-1 leads after orders-0 (Unreachable)"
    assert text_of(model).index("12:00:04") < text_of(model).index("12:00:01"), "newest first"


# --- lines ----------------------------------------------------------------------------------------


def busy(rows: int = 3, problems: int = 0) -> LiveModel:
    model = LiveModel()
    members = [StatusRow(f"orders-{i}", role="follower", lag="123456") for i in range(rows)]
    lines = ["orders: Degraded", *(f"problem {i} {'x' * 100}" for i in range(problems))]
    for second in range(30):
        reports = {row.member: report(123_456 * second, second + 1.0) for row in members}
        term = second
        model.add(sample(float(second), rows=members, lines=lines, reports=reports, term=term))
    return model


def test_everything_is_on_a_screen_of_80_by_24() -> None:
    text = text_of(busy())
    header = next(line for line in text.splitlines() if line.startswith("MEMBER"))
    assert header.split() == [
        "MEMBER", "ROLE", "LAG", "WRITES/S", "P50", "P99", "FLUSH", "DISK", "CONN", "ARCHIVE",
    ]  # fmt: skip
    assert "orders-2  follower  123456   123,456  4.0ms" in text
    assert "writes 370,368/s · p50 4.0ms" in text
    assert text.splitlines()[-1] == "q quits"
    assert "LAST CHANGES" in text


@pytest.mark.parametrize(("rows", "problems"), [(3, 0), (3, 40), (40, 0), (40, 40), (0, 0)])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (57, 13), (5, 2)])
def test_lines_fit_any_screen(rows: int, problems: int, width: int, height: int) -> None:
    text = text_of(busy(rows, problems), width, height, trouble="the API server does not answer")
    if width >= 40:
        assert "q quits" in text
        assert rows == 0 or "orders-0" in text


def test_failed_observation_is_shown_above_the_last_figures() -> None:
    text = text_of(busy(), trouble="the API server does not answer")
    assert "the API server does not answer" in text
    assert "orders-1" in text


def test_time_of_an_audit_is_local_as_the_clock_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert audit_text("Passed", "2026-11-27T23:54:55+00:00") == "Passed 2026-11-27 18:54"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert audit_text("", "") == ""


def test_fenced_member_is_marked() -> None:
    model = LiveModel()
    model.add(sample(0.0, rows=[replace(ROWS[1], fenced="yes")]))
    assert "follower*" in text_of(model)
    assert "* fenced: cannot lead" in text_of(model)


def test_bound_of_every_bucket_is_shown_in_five_characters() -> None:
    for bound in BOUNDS_S:
        model, histogram = LiveModel(), Histogram()
        model.add(sample(0.0, reports={"orders-0": report(0)}))
        histogram.observe(bound)
        model.add(sample(1.0, reports={"orders-0": report(0, 101.0, flushes=histogram.counts)}))
        assert model.figures("orders-0").flush == pytest.approx(bound, rel=0.6)
        text_of(model)


def test_without_a_terminal_the_view_names_the_other_verb() -> None:
    with pytest.raises(Failure, match="must be a terminal; run `qsync status --watch") as refused:
        screen.top("orders")
    assert refused.value.reason is FailureReason.INVALID
