"""Draw docs/benchmarks.svg from the table of docs/benchmarks.md.

    python -m e2e.bench.plot

The background is transparent and text is mid-grey, so that one file serves light and dark pages.
Names stand at the ends of their lines, and letters are large enough for a phone.
"""

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from qsync_testing.paths import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURE = ROOT / "docs" / "benchmarks.svg"
GREY = "#808080"
COLOURS = {
    "qsync-pipelined": "#2f9e5b",
    "qsync": "#2f9e5b",
    "redis": "#e05d44",
    "postgresql": "#4a86d8",
    "etcd": "#c28a12",
    "tarantool": "#a169c9",
}
APART = 1.35
"""Least factor between the heights of two names."""


def medians(page: str) -> tuple[list[int], dict[str, list[float]]]:
    """Return the numbers of writes in flight, and the medians in writes per second by system."""
    head = re.search(r"^\| writes/s, .*?ms \|(.*)\|$", page, re.MULTILINE)
    assert head is not None, "the page has no table of rates: run `make bench`"
    rows = re.findall(r"^\| ([\w-]+) \|(.* / \*\*.*)\|$", page, re.MULTILINE)
    found = {
        name: [float(rate.replace(",", "")) for rate in re.findall(r"\*\*([\d,]+)\*\*", cells)]
        for name, cells in rows
    }
    return [int(cell) for cell in head[1].split("|")], found


def heights(ends: dict[str, float]) -> dict[str, float]:
    """Return the positions of the names: near the ends of their lines, without overlap."""
    placed: dict[str, float] = {}
    least = 0.0
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        placed[name] = max(end, least)
        least = placed[name] * APART
    return placed


def origin_of(page: str) -> str:
    """Return the version, the date and the machine of the measurements."""
    run = re.search(r"^`make bench`, ([\d-]+), (\d+ cores, \w+)", page, re.MULTILINE)
    version = re.search(r"^- (qsync [\d.]+)", page, re.MULTILINE)
    assert run is not None
    assert version is not None
    return f"{version[1].rstrip('.')}, {run[1]}, {run[2]}"


def summary(in_flight: list[int], rates: dict[str, list[float]]) -> list[str]:
    """Return the lines below the table: the columns, and the order of the systems."""

    def order(index: int) -> str:
        return ", ".join(sorted(rates, key=lambda name: -rates[name][index]))

    return [
        "Each write in flight has a connection of its own; with `qsync-pipelined`, all share one. "
        "The fastest first:",
        "",
        *(f"- {number} in flight: {order(i)}" for i, number in enumerate(in_flight)),
    ]


def draw(in_flight: list[int], rates: dict[str, list[float]], origin: str, path: Path) -> None:
    """Write the plot as SVG.

    Args:
        in_flight: numbers of writes in flight.
        rates: writes per second of each system, one per number.
        origin: version, date and machine, for the second line of the title.
        path: the file.
    """
    mpl.rcParams.update(
        {
            "svg.hashsalt": "qsync",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 12,
            "text.color": GREY,
            "axes.labelcolor": GREY,
            "axes.edgecolor": GREY,
            "xtick.color": GREY,
            "ytick.color": GREY,
        }
    )
    figure, axes = plt.subplots(figsize=(5.2, 4.6))
    for name, values in rates.items():
        axes.plot(
            in_flight,
            values,
            marker="o",
            markersize=4,
            color=COLOURS[name],
            linewidth=2.6 if name.startswith("qsync") else 1.5,
            linestyle="--" if name == "qsync-pipelined" else "-",
        )
    for name, height in heights({name: values[-1] for name, values in rates.items()}).items():
        axes.annotate(
            name.replace("-", "\n"),
            (in_flight[-1] * 1.15, height),
            color=COLOURS[name],
            va="center",
            linespacing=0.9,
            annotation_clip=False,
        )
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks(in_flight, [str(number) for number in in_flight])
    ticks = [1_000, 3_000, 10_000, 30_000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel("writes in flight")
    axes.set_title("durable quorum writes per second", fontsize=12, loc="left", pad=22)
    axes.text(0, 1.02, origin, transform=axes.transAxes, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GREY, alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, transparent=True, bbox_inches="tight")


if __name__ == "__main__":
    text = PAGE.read_text()
    draw(*medians(text), origin_of(text), PICTURE)
