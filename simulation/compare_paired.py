"""
What a difference between two variants is worth: a paired bootstrap over runs of consecutive arrivals.

The same runs of arrivals are drawn for both sides, so that what is common to both (a burst, a long prompt) cancels,
and what follows each other in time stays together (Kuensch 1989, block bootstrap). Several seeds are drawn together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.model import FloatArray
from scoring.slo import SloClass
from simulation.report import STATISTICS, is_good
from simulation.result import RunResult
from simulation.sweep import Done
from simulation.traffic import IntArray

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 400
RUNS_MIN: Final = 8
"""Fewer runs of arrivals than this give no interval: there is nothing to draw from."""
RUNS_MAX: Final = 60
RUN_REQUESTS_MIN: Final = 5
MIN_REQUESTS: Final = RUNS_MIN * RUN_REQUESTS_MIN
RANKS_MAX: Final = 8_192
COMPARED: Final = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """
    A difference with its interval.

    Attributes:
        difference: Variant less baseline.
        low: Lower end of the 95 % interval; None when there is too little traffic to tell.
        high: Upper end.
    """

    difference: float | None
    low: float | None
    high: float | None

    @property
    def is_told(self) -> bool | None:
        """Say whether the interval excludes 0; None without an interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def _runs_of_arrivals(arrival_s: FloatArray) -> tuple[IntArray, int]:
    """Return each request's run of consecutive arrivals, and how many runs there are (0: too few requests)."""
    count = len(arrival_s)
    runs = min(RUNS_MAX, count // RUN_REQUESTS_MIN)
    if runs < RUNS_MIN:
        return np.zeros(count, np.int64), 0
    place = np.empty(count, np.int64)
    place[np.argsort(arrival_s, kind="stable")] = np.arange(count) * runs // count
    return place, runs


def _drawn_statistics(values: FloatArray, block: IntArray, drawn: FloatArray) -> FloatArray:
    """
    Return mean, p50, p95, p99 when run `b` of arrivals is drawn `drawn[i, b]` times; shape (resamples, 4).

    NaN values are left out. Beyond RANKS_MAX values, neighbours in rank count as one: quantiles are then off by at
    most that many ranks, and memory does not grow with the traffic.
    """
    out = np.full((len(drawn), len(STATISTICS)), np.nan)
    known = np.isfinite(values)
    if not known.any():
        return out
    held, runs = values[known], block[known]
    run_count = drawn.shape[1]
    total = drawn @ np.bincount(runs, minlength=run_count)
    is_drawn = total > 0
    out[is_drawn, 0] = (drawn @ np.bincount(runs, weights=held, minlength=run_count))[is_drawn] / total[is_drawn]
    order = np.argsort(held, kind="stable")
    ranks = min(len(held), RANKS_MAX)
    rank = np.arange(len(held)) * ranks // len(held)
    counts = np.zeros((run_count, ranks), np.float64)
    np.add.at(counts, (runs[order], rank), 1.0)
    tops = np.empty(ranks)
    tops[rank] = held[order]  # the last of equal ranks wins: the largest value of the group.
    reached = np.cumsum(drawn @ counts, axis=1)
    for at, quantile in enumerate((0.5, 0.95, 0.99), start=1):
        places = (reached < (quantile * total)[:, None]).sum(axis=1)
        out[is_drawn, at] = tops[np.minimum(places, ranks - 1)][is_drawn]
    return out


def paired_differences(
    baseline: Sequence[Done], runs: Sequence[Done], classes: Sequence[SloClass], *, seed: int = 0
) -> dict[str, Interval]:
    """
    Return the differences of two variants' runs with their intervals.

    Rows that only one side has (a burst's extra requests under another fault list) are left out of both.
    """
    ours, theirs = [run.result for run in runs], [run.result for run in baseline]
    if any(result is None for result in (*ours, *theirs)):
        return {}
    metrics: dict[str, tuple[FloatArray, FloatArray]] = {}
    columns = (_columns(theirs, ours, classes), _columns(ours, theirs, classes))
    for name in columns[0]:
        metrics[name] = (columns[0][name], columns[1][name])
    block = metrics.pop("run")[0].astype(np.int64)
    run_count = int(block.max()) + 1 if len(block) and block.min() >= 0 else 0
    drawn = np.zeros((0, 0))
    if run_count:
        rng = np.random.default_rng([seed, run_count])
        drawn = rng.multinomial(run_count, np.full(run_count, 1.0 / run_count), RESAMPLES).astype(np.float64)
    found: dict[str, Interval] = {}
    for name, (base, other) in metrics.items():
        is_latency = name in COMPARED
        statistics = STATISTICS if is_latency else ("mean",)
        points = [_point(other, base, statistic) for statistic in statistics]
        bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(statistics)
        if run_count:
            spread = _drawn_statistics(other, block, drawn) - _drawn_statistics(base, block, drawn)
            tail = (1.0 - CONFIDENCE) / 2.0
            bounds = [_bounds(spread[:, at], tail) for at in range(len(statistics))]
        for statistic, point, (low, high) in zip(statistics, points, bounds, strict=True):
            key = f"{name}.{statistic}" if is_latency else name
            found[key] = Interval(difference=point, low=low, high=high)
    return found


def _bounds(values: FloatArray, tail: float) -> tuple[float | None, float | None]:
    known = values[np.isfinite(values)]
    if len(known) < len(values) / 2:
        return None, None
    low, high = np.quantile(known, (tail, 1.0 - tail))
    return float(low), float(high)


def _point(other: FloatArray, base: FloatArray, statistic: str) -> float | None:
    sides = []
    for values in (other, base):
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        quantile = {"p50": 50.0, "p95": 95.0, "p99": 99.0}.get(statistic)
        sides.append(float(known.mean() if quantile is None else np.percentile(known, quantile)))
    return sides[0] - sides[1]


def _columns(
    sides: Sequence[RunResult | None], others: Sequence[RunResult | None], classes: Sequence[SloClass]
) -> dict[str, FloatArray]:
    """Return the per-request metrics of all seeds in one row each; `run` numbers runs of arrivals over all seeds."""
    parts: dict[str, list[FloatArray]] = {}
    first_run = 0
    for result, other in zip(sides, others, strict=True):
        assert result is not None and other is not None  # the caller has looked.  # noqa: PT018
        requests = result.requests
        count = min(len(requests.arrival_s), len(other.requests.arrival_s))
        place, runs = _runs_of_arrivals(requests.arrival_s[:count])
        numbered = place + first_run if runs else np.full(count, -1)
        first_run += runs
        for name, values in (
            ("run", numbered),
            ("ttft_s", requests.ttft_s),
            ("tpot_s", requests.tpot_s),
            ("e2e_s", requests.e2e_s),
            ("goodput_ratio", is_good(result, classes)),
            ("finished_ratio", requests.is_finished),
        ):
            parts.setdefault(name, []).append(np.asarray(values[:count], np.float64))
    return {name: np.concatenate(values) for name, values in parts.items()}
