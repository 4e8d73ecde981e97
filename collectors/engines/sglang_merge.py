"""
Where two of SGLang's paths speak about one rank: which word counts, and what belongs to the worker as a whole.

Values are `PoolReading` fields of one rank; the functions change them in place and append what is worth saying.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from collectors.engines.sglang_info import Info
from collectors.engines.sglang_loads import Row, kv_bytes
from collectors.engines.sglang_metrics import UNLABELLED, Metrics
from scoring.histogram import Buckets
from scoring.model import Finding, PoolReading, Role, Severity

FIELDS: Final = frozenset(f.name for f in fields(PoolReading))


def first_role(*said: Role) -> Role:
    """Return the first role somebody is sure of."""
    return next((role for role in said if role is not Role.UNKNOWN), Role.UNKNOWN)


def metrics_by_rank(
    metrics: Metrics | None, rows: Mapping[int, Row], expected: int | None, findings: list[Finding]
) -> dict[int, dict[str, float]]:
    """Return which scheduler series belong to which rank; series without a rank belong to an only rank or to none."""
    if metrics is None:
        return {}
    ranks = {rank: dict(values) for rank, values in metrics.ranks.items() if rank != UNLABELLED}
    unlabelled = metrics.ranks.get(UNLABELLED)
    if unlabelled and not ranks:
        if len(rows) == 1 and (expected or 1) == 1:
            return {next(iter(rows)): dict(unlabelled)}
        text = (
            f"/metrics carries one series without dp_rank for {expected or len(rows)} ranks: whichever rank wrote last."
            " Not used; per-rank series need a newer engine or --enable-metrics-for-all-schedulers."
        )
        findings.append(Finding(code="ranks-missing", text=text))
    return ranks


def settle(values: dict[str, float], row: Row, extra: Mapping[str, float], role: Role, found: list[Finding]) -> None:
    """Decide where two paths speak about the same thing, and remove what the engine is known to get wrong."""
    if "window_usable_tokens" in values and "used_tokens" in extra and "used_tokens" in row.values:
        # Beside a sliding-window pool /v1/loads reports the larger of the two pools' tokens; /metrics tells them apart.
        values["used_tokens"] = extra["used_tokens"]
    elif (
        "free_tokens" in extra and "used_tokens" in row.values and extra.get("used_tokens") != row.values["used_tokens"]
    ):
        # The two paths speak of different moments: the older `free` would not add up with the newer `used`.
        values.pop("free_tokens", None)
    if role is Role.DECODE and not row.is_total_trusted and values.pop("pending_total_tokens", None) is not None:
        text = "num_total_tokens counts preallocated requests twice before 0.5.14: the backlog is unknown."
        found.append(Finding(code="total-counts-twice", text=text, severity=Severity.INFO, dp_rank=row.dp_rank))
    if role is Role.PREFILL:
        values.pop("running_tokens", None)  # It decodes nothing; the 0 is no batch that reads nothing.
        if not values.get("running_count"):
            values.pop("running_count", None)


def add_constants(values: dict[str, float], info: Info, extra: Mapping[str, float]) -> None:
    """Add the rare answers' constants, then the series; the configured number of state slots stands over their sum."""
    values.update(info.values)
    values.update(extra)
    slots = info.values.get("state_slot_count")
    if slots is not None and "state_used_count" in extra:
        # What neither used, cached nor free adds up to is missing, and seen only against this number.
        values["state_slot_count"] = max(slots, extra.get("state_slot_count", 0.0))


def add_bytes(values: dict[str, float], gib_per_gpu: float | None, accelerators: float | None) -> None:
    if accelerators:
        values["accelerator_count"] = accelerators
    size = kv_bytes(gib_per_gpu, accelerators)
    if size is not None and values.get("usable_tokens"):
        values["kv_bytes"] = size
        values["bytes_per_token"] = size / values["usable_tokens"]


def add_worker_wide(
    values: dict[str, float],
    metrics: Metrics,
    role: Role,
    info: Info,
    accelerators: float | None,
    rank_count: int,
) -> Mapping[str, Buckets]:
    """
    Add the counters of the whole worker, in equal parts to its ranks; return its histograms in the same parts.

    With one rank they are that rank's. With several the engine does not tell them apart: equal parts keep every mean
    and every quantile exact and every sum over ranks right; only how traffic differs between ranks is not in them.
    """
    is_one_gpu = rank_count == 1 and (accelerators == 1 or info.tp_count == 1)
    for name, value in metrics.worker.items():
        if name not in FIELDS or name in values:
            continue
        if name.startswith("ttft_") and role is Role.PREFILL:
            continue  # A prefill worker sees its own one-token requests; time to first token is the decode side's.
        if name in ("evicted_tokens_total", "load_back_tokens_total") and not is_one_gpu:
            continue  # Without a tp_rank label every tensor-parallel rank was added in (until 0.5.20).
        values[name] = value / rank_count
    hits = metrics.worker.get("cached_tokens_total", metrics.worker.get("cached_parts_total"))
    queries = metrics.worker.get("prompt_tokens_total")
    if role is not Role.DECODE and "prefix_query_tokens_total" not in values and hits is not None and queries:
        values["prefix_hit_tokens_total"] = hits / rank_count
        values["prefix_query_tokens_total"] = queries / rank_count
    if role is Role.PREFILL:
        return {}
    return {
        name: tuple((bound, count / rank_count) for bound, count in table) for name, table in metrics.buckets.items()
    }
