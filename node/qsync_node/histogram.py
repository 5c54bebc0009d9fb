"""Histograms of durations: constant memory, and one addition for each observation."""

from bisect import bisect_left

BOUNDS_S = (
    0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01,
    0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds of the buckets in seconds. Longer durations have a bucket of their own."""


class Histogram:
    """Durations by bucket.

    Attributes:
        counts: observations of each bucket of `BOUNDS_S`, and of longer ones.
        sum_s: sum of all observations.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float, times: int = 1) -> None:
        """Count a duration, several times if several events have it."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += times
        self.sum_s += duration_s * times

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


def quantile(counts: list[int], fraction: float) -> float | None:
    """Return a quantile in seconds, interpolated within its bucket; None without observations.

    Args:
        counts: observations of each bucket, as in `Histogram.counts`.
        fraction: 0.5 for the median.
    """
    total = sum(counts)
    if not total:
        return None
    rank, passed = fraction * total, 0
    for position, count in enumerate(counts):
        if count and passed + count >= rank:
            if position == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low = BOUNDS_S[position - 1] if position else 0.0
            return low + (BOUNDS_S[position] - low) * (rank - passed) / count
        passed += count
    return BOUNDS_S[-1]
