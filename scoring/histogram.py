"""
Quantiles from cumulative histograms: differences of counters, merged by bound, interpolated as Prometheus does.

A quantile of a histogram is known to lie within one bucket and no better: every figure carries that bucket as
bounds. In the last, unbounded bucket only the lower bound is known, and no point is made up.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from scoring.model import Figure, estimated, unknown

Buckets = tuple[tuple[float, float], ...]
"""Cumulative histogram: (upper bound, count of observations at most that), ascending, last bound infinite."""

_INFINITY: Final = float("inf")


def is_histogram(buckets: Buckets) -> bool:
    """Say whether bounds ascend to infinity and counts never fall."""
    if not buckets or buckets[-1][0] != _INFINITY or buckets[0][1] < 0:
        return False
    return all(left[0] < right[0] and left[1] <= right[1] for left, right in pairwise(buckets))


def difference(before: Buckets | None, after: Buckets) -> Buckets | None:
    """
    Return the observations between two readings of one histogram.

    A count that fell means the worker restarted: then `after` counts from its start, and nothing older. Other
    bounds than before mean the same. None when `after` is no histogram.
    """
    if not is_histogram(after):
        return None
    if before is None or [bound for bound, _ in before] != [bound for bound, _ in after]:
        return after
    counts = [new - old for (_, new), (_, old) in zip(after, before, strict=True)]
    if min(counts) < 0 or any(left > right for left, right in pairwise(counts)):
        return after
    return tuple((bound, count) for (bound, _), count in zip(after, counts, strict=True))


def merge(histograms: Iterable[Buckets]) -> Buckets | None:
    """
    Return the histogram of all observations together: counts of equal bounds add up, quantiles never do.

    Only bounds that every histogram has are kept (a count at another bound is not known for the others).
    None when there is none to merge.
    """
    tables = [dict(buckets) for buckets in histograms if is_histogram(buckets)]
    if not tables:
        return None
    shared = set(tables[0])
    for table in tables[1:]:
        shared &= set(table)
    return tuple((bound, sum(table[bound] for table in tables)) for bound in sorted(shared))


def quantile(buckets: Buckets | None, ratio: float) -> Figure:
    """
    Return the `ratio` quantile (0 to 1) with the bounds of its bucket.

    Interpolates linearly within the bucket from its lower bound (0 for the first), as Prometheus's
    histogram_quantile does. Unknown without observations; a lower bound only beyond the last finite bound.
    """
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio: {ratio} is not between 0 and 1")
    if buckets is None or not is_histogram(buckets):
        return unknown("no histogram")
    total = buckets[-1][1]
    if total <= 0:
        return unknown("no observation in the window")
    rank = ratio * total
    # The first bucket that holds anything answers rank 0.
    index = next(i for i, (_, count) in enumerate(buckets) if count >= rank and count > 0)
    bound, count = buckets[index]
    low = buckets[index - 1][0] if index > 0 else 0.0 if bound > 0 else -_INFINITY
    if bound == _INFINITY:
        floor = buckets[index - 1][0] if index > 0 else 0.0
        return estimated(None, f"beyond the last bucket bound of {floor:g}", low=floor)
    if low == -_INFINITY:
        return estimated(bound, "in the first bucket, whose lower end is not known", high=bound)
    below = buckets[index - 1][1] if index > 0 else 0.0
    inside = count - below
    value = low + (bound - low) * ((rank - below) / inside if inside > 0 else 1.0)
    return estimated(value, f"within the bucket {low:g} to {bound:g}, {total:.0f} observations", low=low, high=bound)


def quantiles(buckets: Buckets | None, ratios: Sequence[float] = (0.5, 0.95, 0.99)) -> dict[float, Figure]:
    """Return several quantiles of one histogram, ratio -> figure."""
    return {ratio: quantile(buckets, ratio) for ratio in ratios}
