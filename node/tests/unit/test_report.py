"""The sentences and the time axis of an audit's report."""

from typing import Any

import pytest

from qsync_spark.report.charts import TimeAxis, charts_of
from qsync_spark.report.findings import AuditResult, AuditViolation, Gap
from qsync_spark.report.words import COUNTS, NEXT_STEPS, next_steps_of, size, span, summary_of

BEGIN_S = 1_790_000_000.0


def plots(*leaders: str) -> dict[str, Any]:
    """Return the data of a log of 100 rows in 100 s, with a term of 20 s for each leader."""
    terms = [
        {"term": n + 1, "leader": name, "index": 20 * n + 1, "time": BEGIN_S + 20 * n}
        for n, name in enumerate(leaders)
    ]
    member = {
        "name": "orders-0", "uuid": "a", "bytes": {"segment": 2048}, "files": 1,
        "rows": [(0, 100)], "covered": [], "unknown": [(40, 50)], "end": 100,
        "archive_delay_s": [1.5, 2.5],
    }  # fmt: skip
    return {
        "terms": terms, "members": [member], "confirm_ms": [{"until_ms": 1, "count": 0}],
        "times": [(1, BEGIN_S), (100, BEGIN_S + 99)], "span": (BEGIN_S, BEGIN_S + 99),
    }  # fmt: skip


def result_of(*leaders: str) -> AuditResult:
    result = AuditResult("orders", "file:///a", "uuid")
    result.counts = {"indexes": 100, "members": 3, "snapshotsReplayed": 2, "ledgerCommitted": 7}
    result.audited_index = 100
    result.plots = plots(*leaders)
    return result


def test_summary_of_a_passed_audit_names_rows_times_leaders_and_the_ledger() -> None:
    result = result_of("orders-0", "orders-1")
    result.has_ledger = True
    text = " ".join(summary_of(result))
    assert "archive of 3 members has 100 rows of the log, written from 2026-" in text
    assert "Leadership changed once, at 14:13:40 from orders-0 to orders-1." in text
    assert "2 snapshots equal the replay of the log" in text
    assert not any("--ledger" in step for step in next_steps_of(result))
    result.has_ledger = False
    assert any("--ledger" in step for step in next_steps_of(result))
    assert "Each of the 7 writes that the ledger records as committed is in the log." in text


def test_summary_names_the_first_violation_and_counts_parts() -> None:
    result = result_of("orders-0")
    found = AuditViolation([1], "missing row", "orders-1 lost row 7", ["orders-1"])
    result.violations, result.violation_count = [found], 1
    result.gaps = [Gap([4], "a gap"), Gap([4], "another gap")]
    result.audited_index = 90
    text = " ".join(summary_of(result))
    assert "orders-0 led all the time." in text
    assert "1 violation was found. The first one: orders-1 lost row 7." in text
    assert "2 parts could not be judged." in text
    assert "up to index 90; later rows" in text
    assert "snapshots equal" not in text


def test_every_verdict_has_next_steps() -> None:
    assert set(NEXT_STEPS) == {"Passed", "Violated", "Incomplete"}
    assert all(steps for steps in NEXT_STEPS.values())
    assert "memberRows" in COUNTS


def test_axis_maps_indexes_to_times_and_has_round_ticks() -> None:
    axis = TimeAxis([(1, BEGIN_S), (100, BEGIN_S + 99)], (BEGIN_S, BEGIN_S + 99))
    assert axis.time_at(0) == BEGIN_S
    assert axis.time_at(50) == BEGIN_S + 49
    assert axis.time_at(1000) == BEGIN_S + 99
    labels = [tick.label for tick in axis.ticks()]
    assert labels == ["14:13:30", "14:14:00", "14:14:30"]
    assert all(0 <= tick.left <= 100 for tick in axis.ticks())


@pytest.mark.parametrize(
    "length_s", [0.0, 0.0005, 0.03, 7.0, 4000.0, 86_400.0 * 40, 86_400.0 * 3000]
)
def test_axis_of_any_length_has_few_ticks(length_s: float) -> None:
    axis = TimeAxis([(1, BEGIN_S)], (BEGIN_S, BEGIN_S + length_s))
    assert len(axis.ticks()) <= 10


def test_clocks_that_go_back_do_not_turn_the_axis_around() -> None:
    points = [(1, BEGIN_S), (50, BEGIN_S + 80), (60, BEGIN_S + 70), (100, BEGIN_S + 99)]
    axis = TimeAxis(points, (BEGIN_S, BEGIN_S + 99))
    times = [axis.time_at(index) for index in range(101)]
    assert times == sorted(times)


def test_charts_show_terms_and_unknown_ranges_with_a_legend() -> None:
    leaders, coverage, *others = charts_of(plots("orders-0", "orders-1", "orders-0"), 100)
    assert [(row.name, row.text) for row in leaders.rows] == [
        ("orders-0", "2 terms"), ("orders-1", "1 term"),
    ]  # fmt: skip
    assert [text for _, text in leaders.legend] == ["orders-0 leads", "orders-1 leads"]
    assert "could not be read" in [text for _, text in coverage.legend]
    unknown = [bar for bar in coverage.rows[0].bars if "unknown" in bar.title]
    assert [bar.title for bar in unknown] == ["orders-0: unknown, index 41 to 50"]
    assert unknown[0].left == pytest.approx(100 * 39 / 99, abs=0.01)
    assert [chart.title for chart in others] == ["Delay of the archive", "Size of the archive"]


def test_an_empty_archive_has_no_charts() -> None:
    assert charts_of({}, 0) == []


def test_durations_and_sizes_have_a_unit_of_their_magnitude() -> None:
    assert [span(one) for one in (0.04, 90.0, 600.0, 9000.0, 864_000.0)] == [
        "0.0 s", "90.0 s", "10.0 min", "2.5 h", "10.0 d",
    ]  # fmt: skip
    assert [size(one) for one in (12, 2048, 3 << 20, 5 << 30)] == [
        "12 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB",
    ]  # fmt: skip
