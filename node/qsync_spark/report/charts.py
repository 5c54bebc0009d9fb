"""The charts of a report, as rows of bars in HTML (pure).

Text beside a bar keeps its size on a phone, where a drawing of fixed size would shrink with the
page. Positions are percentages of the axis.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from qsync_spark.report.words import DAY_S, moment, number, size, span

COLOURS = ("#2563eb", "#16a34a", "#d97706", "#9333ea", "#dc2626", "#0891b2", "#65a30d")
ROWS, COVERED, UNKNOWN = "#2563eb", "#93c5fd", "#dc2626"
COVERAGE_LEGEND = (
    (ROWS, "archived rows"),
    (COVERED, "replaced by a snapshot"),
    (UNKNOWN, "could not be read"),
)
_KINDS = (("rows", ROWS), ("covered", COVERED), ("unknown", UNKNOWN))
_STEPS_S = (0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200,
            DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S, 365 * DAY_S)  # fmt: skip
TICKS_MAX = 5


class Bar(NamedTuple):
    """A bar from `left`, in percent of the axis."""

    left: float
    width: float
    colour: str
    title: str


class BarRow(NamedTuple):
    """A name, its bars, and a text after them."""

    name: str
    bars: list[Bar]
    text: str = ""


class Tick(NamedTuple):
    """A labelled position of the axis, in percent."""

    left: float
    label: str


class Chart(NamedTuple):
    """One chart of the page."""

    title: str
    note: str
    rows: list[BarRow]
    ticks: list[Tick]
    legend: Sequence[tuple[str, str]] = ()


class TimeAxis:
    """The time at which each index was written, by the segments of all members.

    Args:
        points: pairs of an index and its time, in any order.
        span: first and last time.
    """

    def __init__(self, points: list[tuple[int, float]], span: tuple[float, float]) -> None:
        self.begin_s, self.end_s = span
        self._indexes: list[int] = []
        self._times: list[float] = []
        latest = self.begin_s
        for index, time_s in sorted(points):
            latest = max(latest, time_s)  # clocks of leaders may differ
            self._indexes.append(index)
            self._times.append(latest)

    def time_at(self, index: int) -> float:
        """Return the time at which the row at `index` was written, interpolated."""
        at = bisect_right(self._indexes, index)
        if at == 0:
            return self.begin_s
        if at == len(self._indexes):
            return self._times[-1]
        low, high = self._indexes[at - 1], self._indexes[at]
        share = (index - low) / (high - low)
        return self._times[at - 1] + share * (self._times[at] - self._times[at - 1])

    def percent(self, time_s: float) -> float:
        length_s = self.end_s - self.begin_s
        share = (time_s - self.begin_s) / length_s if length_s > 0 else 0.0
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def ticks(self) -> list[Tick]:
        """Return at most six round times of the axis."""
        length_s = self.end_s - self.begin_s
        if length_s <= 0:
            return [Tick(0.0, moment(self.begin_s))]
        step_s = next((one for one in _STEPS_S if length_s / one <= TICKS_MAX), _STEPS_S[-1])
        first = int(self.begin_s // step_s) + 1
        times = [n * step_s for n in range(first, int(self.end_s // step_s) + 1)]
        return [Tick(self.percent(time_s), _label(time_s, step_s)) for time_s in times]


def _label(time_s: float, step_s: float) -> str:
    if step_s >= DAY_S:
        return moment(time_s).partition(" ")[0]
    shown = moment(time_s, time_s)
    if step_s < 1:
        return f"{shown}.{int(round(time_s % 1, 3) * 1000):03d}"
    return shown if step_s < 60 else shown.rpartition(":")[0]


def charts_of(plots: dict[str, Any], end: int) -> list[Chart]:
    """Return the charts of a result.

    Args:
        plots: the data that `audit.measures` collected.
        end: the last index of the log.
    """
    members = sorted(plots.get("members", []), key=lambda member: str(member["name"]))
    axis = TimeAxis([tuple(one) for one in plots.get("times", [])], plots.get("span", (0.0, 0.0)))
    charts = [_coverage(members, axis)]
    if plots.get("terms"):
        charts.insert(0, _leaders(plots["terms"], axis, end))
    charts.append(_archive_delays(members))
    charts.append(_confirms(plots.get("confirm_ms", [])))
    charts.append(_bytes(members))
    return [chart for chart in charts if chart.rows]


def _leaders(terms: list[dict[str, Any]], axis: TimeAxis, end: int) -> Chart:
    names = sorted({one["leader"] for one in terms})
    bars: dict[str, list[Bar]] = {name: [] for name in names}
    for place, one in enumerate(terms):
        following = terms[place + 1] if place + 1 < len(terms) else None
        stop_s = following["time"] if following is not None else axis.end_s
        last = following["index"] - 1 if following is not None else end
        left = axis.percent(one["time"])
        title = (
            f"term {one['term']}: {one['leader']} from {moment(one['time'])} UTC, index"
            f" {number(one['index'])} to {number(last)}"
        )
        colour = COLOURS[names.index(one["leader"]) % len(COLOURS)]
        bars[one["leader"]].append(Bar(left, axis.percent(stop_s) - left, colour, title))
    rows = [BarRow(name, bars[name], f"{len(bars[name])} terms") for name in names]
    rows = [row._replace(text="1 term") if len(row.bars) == 1 else row for row in rows]
    legend = [(COLOURS[n % len(COLOURS)], f"{name} leads") for n, name in enumerate(names)]
    note = "A bar is a term of a leader. A change of rows is a failover or a switchover."
    return Chart("Leaders over time", note, rows, axis.ticks(), legend)


def _coverage(members: list[dict[str, Any]], axis: TimeAxis) -> Chart:
    rows = []
    for member in members:
        bars = []
        for kind, colour in _KINDS:
            for after, last in member[kind]:
                left = axis.percent(axis.time_at(after))
                right = axis.percent(axis.time_at(last))
                text = f"{member['name']}: {kind}, index {number(after + 1)} to {number(last)}"
                bars.append(Bar(left, right - left, colour, text))
        rows.append(BarRow(member["name"], bars, f"to {number(member['end'])}"))
    note = "At the right is the last archived index. A blank range is in no archive of the member."
    return Chart("Archived rows over time", note, rows, axis.ticks(), COVERAGE_LEGEND)


def _bars(pairs: list[tuple[str, float, str]]) -> list[BarRow]:
    """Return rows of one bar each, for names, values and their texts."""
    most = max((value for _, value, _ in pairs), default=0.0) or 1.0
    return [
        BarRow(name, [Bar(0.0, round(100 * value / most, 3), ROWS, f"{name}: {text}")], text)
        for name, value, text in pairs
    ]


def _archive_delays(members: list[dict[str, Any]]) -> Chart:
    pairs = []
    for member in members:
        delays = sorted(member["archive_delay_s"])
        if delays:
            half, longest = delays[len(delays) // 2], delays[-1]
            text, most = (span(delay).replace(" ", "\xa0") for delay in (half, longest))
            if most != text:
                text += f", at most {most}"
            pairs.append((member["name"], max(half, 0.0), text))
    note = "Median and longest time from the last row of a segment to its upload."
    return Chart("Delay of the archive", note, _bars(pairs), [])


def _confirms(found: list[dict[str, Any]]) -> Chart:
    used = [one for one in found if one["count"]]
    pairs = [
        (_until(one["until_ms"], found[-1]["until_ms"]), one["count"], number(one["count"]))
        for one in used
    ]
    note = (
        "How many CONFIRM rows followed the one before them within this time. Times without a row"
        " are omitted."
    )
    return Chart("Pace of confirmations", note, _bars(pairs), [])


def _until(until_ms: float, last_ms: float) -> str:
    if until_ms == last_ms:
        return "longer"
    return f"≤ {until_ms:g} ms" if until_ms < 1000 else f"≤ {until_ms / 1000:g} s"


def _bytes(members: list[dict[str, Any]]) -> Chart:
    sizes = [(member["name"], float(sum(member["bytes"].values()))) for member in members]
    pairs = [(name, count, size(count)) for name, count in sizes]
    return Chart("Size of the archive", "Files of each member.", _bars(pairs), [])
