"""
What a comparison's figures are drawn from, thinned: distributions and composition over time, as plain lists.

Composition is the mean over each stretch, so that the parts of a pool still sum to its usable tokens. Fleets of many
pools are summed by role.
"""

from typing import Any, Final

import numpy as np

from scoring.model import FloatArray, Role
from simulation.compare import Comparison
from simulation.fleet import FleetSpec
from simulation.result import COMPOSITION, RequestColumns, RunResult, Samples

CDF_POINTS: Final = 201
POOLS_MAX: Final = 16
"""Fleets of more pools are told by role."""
TIMES_MAX: Final = 360


def series_json(comparison: Comparison, *, times_max: int = TIMES_MAX) -> dict[str, Any]:
    """
    Return by variant what its first seed's figures need; empty for a run that was not kept whole.

    Each: `cdf` (latency -> values at evenly spaced quantiles, 0 to 1), `at_s` and `pools` (pool or role -> `role`,
    `usable_tokens`, parts of composition, `reserved_tokens`, `running_count`, `waiting_count` at those times), and
    `ttft_over_time` (`at_s`, `p50`, `p99` of requests by arrival).
    """
    found: dict[str, Any] = {}
    for item in comparison.variants:
        result = item.result
        if result is None:
            found[item.variant.name] = {}
            continue
        found[item.variant.name] = {
            "cdf": {name: quantiles(getattr(result.requests, name)) for name in ("ttft_s", "tpot_s", "e2e_s")},
            **composition_series(result, times_max),
            "ttft_over_time": ttft_over_time(result.requests),
        }
    return found


def quantiles(values: FloatArray) -> list[float]:
    """Return the values at CDF_POINTS evenly spaced quantiles; empty when there are none."""
    known = values[np.isfinite(values)]
    return np.quantile(known, np.linspace(0.0, 1.0, CDF_POINTS)).tolist() if len(known) else []


def _groups(fleet: FleetSpec) -> dict[str, tuple[str, list[int]]]:
    if len(fleet.pools) <= POOLS_MAX:
        return {pool.pool_id: (pool.role.value, [place]) for place, pool in enumerate(fleet.pools)}
    roles = (Role.PREFILL, Role.DECODE, Role.UNIFIED)
    return {role.value: (role.value, list(fleet.indices(role))) for role in roles if fleet.indices(role)}


def composition_series(result: RunResult, times_max: int) -> dict[str, Any]:
    """Return the samples thinned to at most `times_max` stretches."""
    samples = result.samples
    ticks = len(samples.at_s)
    if not ticks:
        return {"at_s": [], "pools": {}}
    count = min(ticks, times_max)
    edges = np.arange(count + 1) * ticks // count
    widths = np.diff(edges)

    def mean(values: FloatArray, places: list[int]) -> list[float]:
        summed = values[:, places].sum(axis=1)
        means = np.add.reduceat(summed, edges[:-1]) / widths
        return [round(float(value), 3) for value in means]

    pools = {}
    for name, (role, places) in _groups(result.fleet).items():
        pools[name] = {
            "role": role,
            "usable_tokens": float(samples.usable_tokens[0, places].sum()),
            **{f"{part}_tokens": mean(getattr(samples, f"{part}_tokens"), places) for part in COMPOSITION},
            "reserved_tokens": mean(samples.reserved_tokens, places),
            "running_count": mean(samples.running_count, places),
            "waiting_count": mean(waiting_count(samples), places),
        }
    return {"at_s": samples.at_s[edges[:-1]].tolist(), "pools": pools}


def waiting_count(samples: Samples) -> FloatArray:
    """Return requests that wait in each pool."""
    return samples.waiting_count


def ttft_over_time(requests: RequestColumns, count: int = 120) -> dict[str, list[float | None]]:
    """Return median and 99th percentile of TTFT by time of arrival, in at most `count` stretches of equal length."""
    arrival_s, ttft_s = requests.arrival_s, requests.ttft_s
    known = np.isfinite(ttft_s)
    if not known.any():
        return {"at_s": [], "p50": [], "p99": []}
    arrived, values = arrival_s[known], ttft_s[known]
    start_s, end_s = float(arrived.min()), float(arrived.max())
    count = max(1, min(count, len(arrived) // 20))
    at = np.minimum(((arrived - start_s) / max(end_s - start_s, 1e-9) * count).astype(int), count - 1)
    p50: list[float | None] = []
    p99: list[float | None] = []
    for place in range(count):
        part = values[at == place]
        p50.append(float(np.percentile(part, 50)) if len(part) else None)
        p99.append(float(np.percentile(part, 99)) if len(part) else None)
    width_s = (end_s - start_s) / count
    return {"at_s": (start_s + width_s * (np.arange(count) + 0.5)).tolist(), "p50": p50, "p99": p99}
