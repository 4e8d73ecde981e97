"""
A comparison as one JSON object: what `kvscope replay --json` prints, what is kept of a run, what reports are made of.

Strict JSON: no NaN, unknown is null.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulation.compare import Comparison, VariantResult, pooled
from simulation.fleet import FleetSpec
from simulation.fleet_file import ReplayFleet, describe
from simulation.report import LATENCIES, GroupReport, RunReport
from simulation.result import OUTCOMES
from simulation.reuse import prefix_reuse
from simulation.trace import Trace, TraceReport
from simulation.traffic import TrafficArrays

FORMAT = "kvscope-replay"
VERSION = 1


def comparison_json(
    comparison: Comparison,
    trace: Trace,
    fleet: ReplayFleet,
    *,
    bounds: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Return the comparison's figures.

    With several seeds, latencies and ratios are means of the seeds' figures, counts and tokens are totals.

    Args:
        comparison: What was found.
        trace: The traffic, for what reading it found.
        fleet: What served.
        bounds: Prefix hits of other caches, from `reuse_bounds`.
        notes: More for the reader.
    """
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "policies": {item.variant.name: variant_json(item) for item in comparison.variants},
        "baseline": comparison.variants[0].variant.name,
        "seeds": list(comparison.seeds),
        "traffic": traffic_json(trace),
        "fleet": {"source": fleet.source, **describe(fleet.spec)},
        "varied": list(comparison.varied),
        "notes": [*notes, *comparison.notes, *too_large_notes(comparison, trace, fleet.spec)],
    }
    if bounds is not None:
        body["prefix_hit_bounds"] = dict(bounds)
    return body


def traffic_json(trace: Trace) -> dict[str, Any]:
    """Return what the traffic is and what reading it found."""
    report = trace.report
    traffic = trace.traffic
    return {
        "format": report.format,
        "request_count": len(trace),
        "prompt_tokens": int(traffic.prompt_tokens.sum()),
        "output_tokens": int(traffic.output_tokens.sum()),
        "span_s": report.span_s,
        "hash_block_tokens": traffic.hash_block_tokens,
        "is_reuse_known": report.has_reuse,
        "rows": rows_json(report),
        "notes": list(report.notes),
    }


def rows_json(report: TraceReport) -> dict[str, Any]:
    """Return rows read and skipped, with reasons and row numbers."""
    return {
        "read": report.read_count,
        "skipped": sum(skip.count for skip in report.skips),
        "reasons": [
            {"reason": skip.reason, "count": skip.count, "first_rows": list(skip.first_rows)} for skip in report.skips
        ],
    }


def variant_json(item: VariantResult) -> dict[str, Any]:
    """Return one variant's figures; `requests_per_s` is requests simulated a second of wall time."""
    reports = [run.report for run in item.runs]
    first = reports[0]
    wall_s = item.wall_s
    done = sum(report.arrived_count for report in reports)
    outcomes = {name: sum(report.outcomes[name] for report in reports) for name in OUTCOMES}
    hits = [report.prefix_hit_tokens for report in reports]
    found: dict[str, Any] = {
        "policy": item.variant.policy,
        **{name: pooled(item.runs, name).as_dict() for name in LATENCIES},
        "arrived_count": done,
        "finished_count": outcomes["finished"],
        "rejected_count": sum(report.rejected_count for report in reports),
        "too_large_count": outcomes["too_large"],
        "cancelled_count": outcomes["cancelled"],
        "retraction_count": sum(report.retraction_count for report in reports),
        "recomputed_tokens": sum(report.recomputed_tokens for report in reports),
        "prefix_hit_tokens": None if None in hits else sum(hit for hit in hits if hit is not None),
        "link_bytes": sum(report.link_bytes for report in reports),
        "goodput_ratio": _mean([report.goodput_ratio for report in reports]),
        "goodput_requests_per_s": _mean([report.goodput_requests_per_s for report in reports]),
        "throughput_requests_per_s": _mean([report.throughput_requests_per_s for report in reports]),
        "throughput_tokens_per_s": _mean([report.throughput_tokens_per_s for report in reports]),
        "duration_s": _mean([report.duration_s for report in reports]),
        "work_imbalance": {
            role: _mean([each.work_imbalance[role] for each in reports]) for role in first.work_imbalance
        },
        "held_imbalance": {
            role: _mean([each.held_imbalance[role] for each in reports]) for role in first.held_imbalance
        },
        "wall_s": wall_s,
        "requests_per_s": done / wall_s if wall_s > 0 else None,
        "pools": pools_json(first),
        "groups": {
            name: {label: group_json(group) for label, group in groups.items()} for name, groups in first.groups.items()
        },
        "recoveries": recoveries_json(item),
        "differences": {
            name: {"difference": each.difference, "low": each.low, "high": each.high}
            for name, each in item.differences.items()
        },
    }
    if item.variant.point is not None:
        found["point"] = {"name": item.variant.point[0], "value": item.variant.point[1]}
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_role(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    return {role: _mean([each[role] for each in found]) for role in found[0]}


def pools_json(report: RunReport) -> dict[str, Any]:
    """Return a run's pools by id."""
    return {
        pool.pool_id: {
            "role": pool.role.value,
            "high_water_s": pool.high_water_s,
            "held_mean_ratio": pool.held_mean_ratio,
            "held_max_ratio": pool.held_max_ratio,
            "physical_mean_ratio": pool.physical_mean_ratio,
            "prompt_tokens": pool.prompt_tokens,
            "generated_tokens": pool.generated_tokens,
            "prefix_hit_tokens": pool.prefix_hit_tokens,
            "retraction_count": pool.retraction_count,
            "link_bytes": pool.link_bytes,
        }
        for pool in report.pools
    }


def group_json(group: GroupReport) -> dict[str, Any]:
    """Return one group's figures."""
    return {
        "arrived_count": group.arrived_count,
        "finished_count": group.finished_count,
        "goodput_ratio": group.goodput_ratio,
        **{name: spread.as_dict() for name, spread in group.latency.items()},
    }


def recoveries_json(item: VariantResult) -> list[dict[str, Any]]:
    """Return how each drill of the first seed went; never-recovered is null."""
    result = item.result
    if result is None:
        return []
    return [
        {
            "kind": each.kind,
            "began_at_s": each.began_at_s,
            "ended_at_s": each.ended_at_s if np.isfinite(each.ended_at_s) else None,
            "waiting_before_count": each.waiting_before_count,
            "waiting_peak_count": each.waiting_peak_count,
            "time_to_recover_s": each.time_to_recover_s,
        }
        for each in result.recoveries
    ]


def too_large_notes(comparison: Comparison, trace: Trace, spec: FleetSpec) -> list[str]:
    """Return a sentence for requests that no pool could ever hold, with the row of the first."""
    largest = max(pool.usable_blocks * pool.block_size_tokens for pool in spec.pools)
    found = []
    for item in comparison.variants:
        count = item.report.outcomes["too_large"]
        if count and item.result is not None:
            rows = np.flatnonzero(item.result.requests.outcome == OUTCOMES.index("too_large"))
            row = int(rows[0])
            need = int(item.result.requests.prompt_tokens[row] + item.result.requests.output_tokens[row])
            place = f"row {int(trace.row_numbers[row])}" if row < len(trace.row_numbers) else "a burst's request"
            found.append(
                f"{item.variant.name}: {count} request(s) larger than the pool they went to, counted as rejected"
                f" (first: {place}, {need:,} tokens; the largest pool holds {largest:,})"
            )
    return found


def reuse_bounds(traffic: TrafficArrays, spec: FleetSpec) -> dict[str, int]:
    """
    Return prefix hit tokens of other caches over the same prompts in order of arrival, whole hash blocks only.

    `lru` and `oracle` are one cache as large as all pools that compute prompts together: what a fleet with one shared
    cache could have had. `infinite` never forgets; no fleet can hit more.
    """
    tokens = sum(
        pool.usable_blocks * pool.block_size_tokens for pool in spec.pools if pool.role.value in ("prefill", "unified")
    )
    block = traffic.hash_block_tokens
    capacity = max(tokens // block, 1)
    rules = {"lru": capacity, "oracle": capacity, "infinite": None}
    found = {"capacity_blocks": capacity, "block_size_tokens": block}
    for rule, blocks in rules.items():
        reuse = prefix_reuse(
            traffic,
            block_size_tokens=block,
            rule=rule,  # type: ignore[arg-type] # the keys are rules.
            capacity_blocks=blocks,
            is_tail_cached=False,
        )
        found[f"{rule}_tokens"] = reuse.prefix_hit_tokens
    return found
