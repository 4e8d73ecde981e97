"""
What a run was like: latencies by group, goodput, work, memory over time. A `RunResult` in, plain numbers out.

Definitions, the same wherever these words appear:

- TTFT: arrival until the client can see the first token, KV hand-over included where there is one.
- TPOT: (finish - first token) / (output - 1) of one request; requests of fewer than two tokens have none.
- ITL: the gap between two consecutive tokens of a request; all gaps of all requests are one population (so a long
  answer weighs more than a short one, and a retraction is one long gap). From logarithmic bins of 1.6 %.
- E2E: arrival until the last token.
- Goodput: requests that finished within their class's TTFT and TPOT budgets, over all that arrived. A rejected,
  cancelled or too large request is a miss, so that refusing cannot win.

Unknown is None, never 0. Read next: `compare`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.model import FloatArray, Role
from scoring.slo import SLO_CLASSES, SloClass
from simulation.result import OUTCOMES, RunResult
from simulation.traffic import IntArray

STATISTICS: Final = ("mean", "p50", "p95", "p99")
LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
PROMPT_EDGES: Final = (0, 1_024, 4_096, 16_384, 65_536)
"""Lower bounds of prompt buckets, tokens; the last has no end."""
OUTPUT_EDGES: Final = (0, 64, 256, 1_024, 4_096)
GROUPS_MAX: Final = 50
"""Tenants beyond the largest so many are told as one group of the rest."""
HIGH_WATER_RATIO: Final = 0.9
"""Committed over usable from which a pool counts as at high water (chosen; the alarm line operators use)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """
    One latency of a population, in seconds; all None when nobody has it.

    Attributes:
        count: How many values.
        mean: Arithmetic mean.
        p50: Median, by linear interpolation as the other quantiles.
        p95: 95th percentile.
        p99: 99th percentile.
    """

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Return the four figures by name."""
        return {name: getattr(self, name) for name in STATISTICS}


def spread(values: FloatArray) -> Spread:
    """Return the spread of the finite values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Spread(count=0, mean=None, p50=None, p95=None, p99=None)
    p50, p95, p99 = (float(value) for value in np.percentile(known, (50, 95, 99)))
    return Spread(count=len(known), mean=float(known.mean()), p50=p50, p95=p95, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """
    One group of requests: a bucket, a tenant, a class, or everyone.

    Attributes:
        arrived_count: Requests of the group.
        finished_count: That ran to their end.
        goodput_ratio: Within both budgets, over arrived; None for an empty group.
        latency: TTFT, TPOT and E2E by name (ITL is only known for all requests together).
    """

    arrived_count: int
    finished_count: int
    goodput_ratio: float | None
    latency: Mapping[str, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """
    One pool over the run.

    Attributes:
        pool_id: `worker/rank`.
        role: Its role.
        high_water_s: Seconds with (active + in flight + fragmentation + reserved) / usable at or above the mark.
        held_mean_ratio: Mean of (active + in flight + fragmentation) / usable; None without samples.
        held_max_ratio: Its maximum.
        physical_mean_ratio: The same with reclaimable prefix counted: what "used" gauges that include it would show.
        prompt_tokens: Prompt tokens computed here.
        generated_tokens: Output tokens made here.
        prefix_hit_tokens: Found in its cache.
        retraction_count: Sequences thrown out.
        link_bytes: KV sent or received.
    """

    pool_id: str
    role: Role
    high_water_s: float | None
    held_mean_ratio: float | None
    held_max_ratio: float | None
    physical_mean_ratio: float | None
    prompt_tokens: float
    generated_tokens: float
    prefix_hit_tokens: float
    retraction_count: float
    link_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """
    One run in figures.

    Attributes:
        policy: Policy of the run.
        seed: Seed of the run.
        arrived_count: Requests.
        outcomes: Requests by how they ended; the counts add up to `arrived_count`.
        latency: The four latencies over all requests.
        goodput_ratio: See the module's docstring.
        goodput_requests_per_s: Good requests over the run's length.
        throughput_requests_per_s: Finished requests over the run's length.
        throughput_tokens_per_s: Generated tokens over the run's length.
        duration_s: First arrival to last event.
        retraction_count: Sequences thrown out of a full decode pool.
        recomputed_tokens: Tokens computed again because of that.
        prefix_hit_tokens: Prompt tokens found in the cache of the pool that computed them; None where the traffic
            does not carry prefix identities.
        prompt_tokens: Prompt tokens of all requests that were placed.
        link_bytes: KV bytes sent over links.
        work_imbalance: Role -> busiest pool over the mean pool (prompt tokens computed; generated tokens for decode);
            1 is even. None when nothing was done.
        held_imbalance: Role -> time-mean of (highest - lowest) held ratio among the role's pools; None without samples.
        pools: By pool, in the fleet's order.
        groups: Dimension (`prompt`, `output`, `tenant`, `class`) -> label -> figures.
    """

    policy: str
    seed: int
    arrived_count: int
    outcomes: Mapping[str, int]
    latency: Mapping[str, Spread]
    goodput_ratio: float | None
    goodput_requests_per_s: float
    throughput_requests_per_s: float
    throughput_tokens_per_s: float
    duration_s: float
    retraction_count: int
    recomputed_tokens: int
    prefix_hit_tokens: int | None
    prompt_tokens: int
    link_bytes: float
    work_imbalance: Mapping[str, float | None]
    held_imbalance: Mapping[str, float | None]
    pools: tuple[PoolReport, ...]
    groups: Mapping[str, Mapping[str, GroupReport]] = field(default_factory=dict)

    @property
    def finished_count(self) -> int:
        """Requests that ran to their end."""
        return self.outcomes["finished"]

    @property
    def rejected_count(self) -> int:
        """Requests nobody took: refused by the policy, or larger than every pool they could go to."""
        return self.outcomes["rejected"] + self.outcomes["too_large"]


def is_good(result: RunResult, classes: Sequence[SloClass]) -> NDArray[np.bool_]:
    """Return which requests finished within their class's TTFT and TPOT budgets; ids beyond take the last class."""
    requests = result.requests
    kind = np.minimum(requests.class_ids, len(classes) - 1)
    ttft_budget = np.array([slo.ttft_s for slo in classes])[kind]
    tpot_budget = np.array([slo.tpot_s for slo in classes])[kind]
    with np.errstate(invalid="ignore"):
        is_prompt = ~(requests.ttft_s > ttft_budget)
        is_fluent = ~(requests.tpot_s > tpot_budget)
    return np.asarray(requests.is_finished & is_prompt & is_fluent)


def bucket_labels(edges: Sequence[int]) -> tuple[str, ...]:
    """Return a label for each bucket: `1,024-4,095`, the last `65,536+`."""
    labels = [f"{low:,}-{high - 1:,}" for low, high in pairwise(edges)]
    return (*labels, f"{edges[-1]:,}+")


def bucket_of(values: IntArray, edges: Sequence[int]) -> IntArray:
    """Return the bucket of each value: the last whose lower bound does not exceed it."""
    return np.asarray(np.searchsorted(np.asarray(edges), values, side="right") - 1, np.int64)


def _group(mask: NDArray[np.bool_], columns: Mapping[str, FloatArray], good: NDArray[np.bool_]) -> GroupReport:
    count = int(mask.sum())
    return GroupReport(
        arrived_count=count,
        finished_count=int(np.isfinite(columns["e2e_s"][mask]).sum()),
        goodput_ratio=float(good[mask].mean()) if count else None,
        latency={name: spread(column[mask]) for name, column in columns.items()},
    )


def _groups(
    result: RunResult,
    good: NDArray[np.bool_],
    classes: Sequence[SloClass],
    tenant_names: Sequence[str],
    edges: tuple[Sequence[int], Sequence[int]],
) -> dict[str, dict[str, GroupReport]]:
    requests = result.requests
    columns = {"ttft_s": requests.ttft_s, "tpot_s": requests.tpot_s, "e2e_s": requests.e2e_s}
    found: dict[str, dict[str, GroupReport]] = {}
    for name, values, bounds in (
        ("prompt", requests.prompt_tokens, edges[0]),
        ("output", requests.output_tokens, edges[1]),
    ):
        at = bucket_of(values, bounds)
        found[name] = {
            label: _group(at == place, columns, good)
            for place, label in enumerate(bucket_labels(bounds))
            if np.any(at == place)
        }
    kind = np.minimum(requests.class_ids, len(classes) - 1)
    found["class"] = {
        slo.name: _group(kind == place, columns, good) for place, slo in enumerate(classes) if np.any(kind == place)
    }
    ids, counts = np.unique(requests.tenant_ids, return_counts=True)
    if len(ids) > 1:
        order = np.lexsort((ids, -counts))
        largest = ids[order[:GROUPS_MAX]]
        tenants = {
            _tenant_name(int(tenant), tenant_names): _group(requests.tenant_ids == tenant, columns, good)
            for tenant in largest
        }
        if len(ids) > GROUPS_MAX:
            rest = ~np.isin(requests.tenant_ids, largest)
            tenants[f"{len(ids) - GROUPS_MAX} others"] = _group(rest, columns, good)
        found["tenant"] = tenants
    return found


def _tenant_name(tenant: int, names: Sequence[str]) -> str:
    if tenant < len(names):
        return names[tenant] or "(none)"
    return f"tenant {tenant}"


def _pools(result: RunResult, high_water_ratio: float) -> tuple[PoolReport, ...]:
    samples = result.samples
    ticks = len(samples.at_s)
    period_s = float(samples.at_s[1] - samples.at_s[0]) if ticks > 1 else 0.0
    counters = result.counters
    reports = []
    for place, pool in enumerate(result.fleet.pools):
        water: float | None = None
        held_mean: float | None = None
        held_max: float | None = None
        physical: float | None = None
        if ticks:
            usable = samples.usable_tokens[:, place]
            held = (
                samples.active_tokens[:, place]
                + samples.in_flight_tokens[:, place]
                + samples.fragmentation_tokens[:, place]
            )
            water = float((held + samples.reserved_tokens[:, place] >= high_water_ratio * usable).sum() * period_s)
            held_mean, held_max = float((held / usable).mean()), float((held / usable).max())
            physical = float(((held + samples.prefix_tokens[:, place]) / usable).mean())
        reports.append(
            PoolReport(
                pool_id=pool.pool_id,
                role=pool.role,
                high_water_s=water,
                held_mean_ratio=held_mean,
                held_max_ratio=held_max,
                physical_mean_ratio=physical,
                prompt_tokens=float(counters["prefill_uncached_tokens"][place]),
                generated_tokens=float(counters["generated_tokens"][place]),
                prefix_hit_tokens=float(counters["prefix_hit_tokens"][place]),
                retraction_count=float(counters["retraction_count"][place]),
                link_bytes=float(counters["transfer_bytes"][place]),
            )
        )
    return tuple(reports)


def _imbalances(result: RunResult) -> tuple[dict[str, float | None], dict[str, float | None]]:
    work: dict[str, float | None] = {}
    held: dict[str, float | None] = {}
    samples = result.samples
    taken = samples.active_tokens + samples.in_flight_tokens + samples.fragmentation_tokens
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        places = list(result.fleet.indices(role))
        if not places:
            continue
        name = "generated_tokens" if role is Role.DECODE else "prefill_uncached_tokens"
        done = result.counters[name][places]
        work[role.value] = float(done.max() / done.mean()) if done.sum() > 0 else None
        held[role.value] = None
        if len(samples.at_s):
            ratio = taken[:, places] / samples.usable_tokens[:, places]
            held[role.value] = float((ratio.max(axis=1) - ratio.min(axis=1)).mean())
    return work, held


def itl_spread(result: RunResult) -> Spread:
    """Return the spread of all inter-token gaps of the run."""
    count = int(result.itl_counts.sum())
    if not count:
        return Spread(count=0, mean=None, p50=None, p95=None, p99=None)
    p50, p95, p99 = (result.itl_quantile_s(quantile) for quantile in (0.5, 0.95, 0.99))
    return Spread(count=count, mean=result.itl_mean_s, p50=p50, p95=p95, p99=p99)


def report_run(
    result: RunResult,
    *,
    classes: Sequence[SloClass] = tuple(SLO_CLASSES.values()),
    tenant_names: Sequence[str] = (),
    is_reuse_known: bool = True,
    high_water_ratio: float = HIGH_WATER_RATIO,
    prompt_edges: Sequence[int] = PROMPT_EDGES,
    output_edges: Sequence[int] = OUTPUT_EDGES,
) -> RunReport:
    """
    Return the figures of one run.

    Args:
        result: The run.
        classes: SLO classes by class id.
        tenant_names: Tenants by id.
        is_reuse_known: Whether the traffic carries prefix identities; without, hits are unknown.
        high_water_ratio: Mark of high water, committed over usable.
        prompt_edges: Lower bounds of prompt buckets, ascending from 0.
        output_edges: The same of output buckets.

    Raises:
        ValueError: no class, a mark out of (0, 1], or edges that do not ascend from 0.
    """
    if not classes:
        raise ValueError("classes is empty: goodput needs at least one SLO class")
    if not 0.0 < high_water_ratio <= 1.0:
        raise ValueError(f"high_water_ratio is {high_water_ratio}: must be in (0, 1]")
    for name, edges in (("prompt_edges", prompt_edges), ("output_edges", output_edges)):
        if not edges or edges[0] != 0 or list(edges) != sorted(set(edges)):
            raise ValueError(f"{name} is {tuple(edges)}: must ascend from 0")
    requests = result.requests
    good = is_good(result, classes)
    count = len(requests.arrival_s)
    outcomes = {name: int((requests.outcome == code).sum()) for code, name in enumerate(OUTCOMES)}
    start_s = float(requests.arrival_s.min()) if count else 0.0
    duration_s = max(result.end_s - start_s, 0.0) if math.isfinite(result.end_s) else 0.0
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    work, held = _imbalances(result)
    return RunReport(
        policy=result.policy,
        seed=result.seed,
        arrived_count=count,
        outcomes=outcomes,
        latency={
            "ttft_s": spread(requests.ttft_s),
            "tpot_s": spread(requests.tpot_s),
            "itl_s": itl_spread(result),
            "e2e_s": spread(requests.e2e_s),
        },
        goodput_ratio=float(good.mean()) if count else None,
        goodput_requests_per_s=float(good.sum()) * per_s,
        throughput_requests_per_s=outcomes["finished"] * per_s,
        throughput_tokens_per_s=float(requests.generated_tokens.sum()) * per_s,
        duration_s=duration_s,
        retraction_count=int(requests.retraction_count.sum()),
        recomputed_tokens=int(requests.recomputed_tokens.sum()),
        prefix_hit_tokens=int(requests.hit_tokens.sum()) if is_reuse_known else None,
        prompt_tokens=int(requests.prompt_tokens[requests.prefill >= 0].sum()),
        link_bytes=float(requests.link_bytes.sum()),
        work_imbalance=work,
        held_imbalance=held,
        pools=_pools(result, high_water_ratio),
        groups=_groups(result, good, classes, tenant_names, (prompt_edges, output_edges)),
    )
