"""The live view as lines of text: a pure function of the model and of the size of the screen."""

import rich.cells
import rich.text

from qsync_operator.views.live import LiveFigures, LiveModel, LiveSample

TITLES = ("MEMBER", "ROLE", "LAG", "WRITES/S", "P50", "P99", "FLUSH", "DISK", "CONN", "ARCHIVE")
MINIMUM = (40, 10)
TICKER_MIN = 3
_STYLES = {
    "leader": "bold green", "follower": "green", "async": "cyan", "anonymous": "cyan",
    "joining": "yellow", "down": "bold red",
}  # fmt: skip


def draw(model: LiveModel, width: int, height: int, trouble: str = "") -> list[rich.text.Text]:
    """Return at most `height` lines of at most `width` cells.

    Args:
        model: the figures.
        width: columns of the screen.
        height: lines of the screen.
        trouble: why the last observation failed, or "".
    """
    if width < MINIMUM[0] or height < MINIMUM[1]:
        return [_line(f"{MINIMUM[0]} x {MINIMUM[1]} needed", width)]
    sample = model.newest
    footer = [_line("q quits", width, "dim")]
    if sample is None:
        return [_line(trouble or "connecting", width, "red" if trouble else ""), *footer]
    members = _members(model, sample, width)
    head = [
        _line(f"{sample.clock}  {sample.lines[0]}", width, "bold"),
        *_totals(model, sample, width),
    ]
    free = height - len(head) - len(footer) - 2  # two empty lines
    members = members[: max(free - TICKER_MIN - 1, 2)]
    free -= len(members)
    problems = [_line(text, width, "yellow") for text in ([trouble] if trouble else [])]
    problems += [
        _line(text, width, "yellow") for text in sample.lines[1:] if not _is_failover(text)
    ]
    problems = problems[: max(free - TICKER_MIN - 1, 0)]
    free -= len(problems)
    ticker = [_line(text, width) for text in list(model.ticker)[::-1][: max(free - 1, 0)]]
    if ticker:
        ticker.insert(0, _line("LAST CHANGES", width, "bold"))
    empty = rich.text.Text()
    lines = [*head, *problems, empty, *members, empty, *ticker]
    return [*lines[: height - 1], *footer]


def _is_failover(text: str) -> bool:
    return text.startswith("last failover: ")


def _totals(model: LiveModel, sample: LiveSample, width: int) -> list[rich.text.Text]:
    total = model.total()
    parts = [
        f"writes {_rate(total.writes)}/s", f"p50 {_time(total.p50)}", f"p99 {_time(total.p99)}",
        f"quorum wait {_time(total.quorum_wait)}", f"errors {_rate(total.errors)}/s",
    ]  # fmt: skip
    more = [f"connections {total.connections}", f"last audit {sample.audit or 'none'}"]
    if sample.brokers is not None:
        brokers = sample.brokers
        journals = (
            f"journals {brokers.journals}",
            f"brokers {len(brokers.appends)} of {brokers.total}",
            f"appends {_rate(model.appends())}/s",
        )
        return [_line(" · ".join(group), width) for group in (parts, more, journals)]
    return [_line(" · ".join(group), width) for group in (parts, more)]


def _members(model: LiveModel, sample: LiveSample, width: int) -> list[rich.text.Text]:
    """Return the table of members, the title first. Columns that do not fit are omitted."""
    table: list[tuple[str, ...]] = [TITLES]
    for row in sample.rows:
        role = f"{row.role}*" if row.fenced == "yes" else row.role
        table.append((row.member, role, row.lag, *_cells(model.figures(row.member))))
    widths = [max(rich.cells.cell_len(cells[i]) for cells in table) for i in range(len(TITLES))]
    widths[0] = min(widths[0], max(width - 40, 8))
    lines = []
    for number, cells in enumerate(table):
        line = rich.text.Text()
        for column, (cell, size) in enumerate(zip(cells, widths, strict=True)):
            shown = cell.rjust(size) if column > 1 else rich.cells.set_cell_size(cell, size)
            if line.cell_len + size + 2 * bool(column) > width:
                break
            style = "bold" if not number else _STYLES.get(cell.rstrip("*"), "")
            line.append("  " if column else "")
            line.append(shown, style=style)
        lines.append(line)
    if any(row.fenced == "yes" for row in sample.rows):
        lines.append(_line("* fenced: cannot lead", width, "dim"))
    return lines


def _cells(figures: LiveFigures) -> tuple[str, ...]:
    connections = "-" if figures.connections is None else str(figures.connections)
    lag = figures.archive_lag
    return (
        _rate(figures.writes),
        _time(figures.p50),
        _time(figures.p99),
        _time(figures.flush),
        _size(figures.disk),
        connections,
        "-" if lag is None else f"{lag:.0f}s",
    )


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _time(seconds: float | None) -> str:
    """Return a duration in at most five characters."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f}s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}ms" if milliseconds >= 9.95 else f"{milliseconds:.1f}ms"


def _size(size: float | None) -> str:
    """Return a number of bytes in at most five characters."""
    if size is None:
        return "-"
    for unit in ("", "K", "M", "G", "T"):
        if size < 1024 or unit == "T":
            return f"{size:.0f}{unit}" if size >= 10 or not unit else f"{size:.1f}{unit}"
        size /= 1024
    raise AssertionError("the last unit has no limit")


def _line(text: str, width: int, style: str = "") -> rich.text.Text:
    line = rich.text.Text(text.replace("\n", " "), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line
