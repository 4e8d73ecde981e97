"""
SGLang's `/metrics`: the only source of the evictable part, of other pools and tiers, and of most counters.

Traps handled here: two prefixes (content negotiation), series that exist once per process id, per tensor or context
parallel rank or per priority, histograms that used to be gauges, names that changed, and gauges nobody ever sets.
Scheduler series carry the DP rank; tokenizer series speak for the whole worker and stay apart in `worker`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from collectors.engines.numbers import LARGEST_BYTES, Numbers, as_text
from collectors.engines.scan_notes import scan_findings
from collectors.engines.sglang_loads import MAX_RANKS, hide_placeholders
from collectors.exposition import Exposition, bare_name, scan, spellings
from scoring.model import Finding, Role, Severity
from scoring.units import MIB_BYTES, MILLISECONDS_PER_S

UNLABELLED: Final = -1
"""Key of scheduler series without a DP rank: the only rank, or whichever wrote last."""

_ROLES: Final = {"unified": Role.UNIFIED, "prefill": Role.PREFILL, "decode": Role.DECODE}

# Name -> (field, factor), oldest name first: a later one that is present wins. Replicas of one rank: the largest.
_GAUGES: Final[Mapping[str, tuple[str, float]]] = {
    "max_total_num_tokens": ("usable_tokens", 1.0),
    "num_used_tokens": ("used_tokens", 1.0),
    "kv_used_tokens": ("used_tokens", 1.0),
    "kv_available_tokens": ("free_tokens", 1.0),
    "kv_evictable_tokens": ("prefix_tokens", 1.0),
    "page_size": ("block_size_tokens", 1.0),
    "token_usage": ("reported_usage_ratio", 1.0),
    "max_total_num_tokens_swa": ("window_usable_tokens", 1.0),
    "swa_used_tokens": ("window_used_tokens", 1.0),
    "swa_evictable_tokens": ("window_prefix_tokens", 1.0),
    "swa_available_tokens": ("window_free_tokens", 1.0),
    "swa_token_usage": ("window_usage_ratio", 1.0),
    "mamba_used_tokens": ("state_used_count", 1.0),  # The unit of these three is slots, whatever the name says.
    "mamba_evictable_tokens": ("state_prefix_count", 1.0),
    "mamba_available_tokens": ("state_free_count", 1.0),
    "mamba_usage": ("state_usage_ratio", 1.0),
    "hicache_host_used_tokens": ("offloaded_tokens", 1.0),
    "hicache_host_total_tokens": ("offload_usable_tokens", 1.0),
    "num_running_reqs": ("running_count", 1.0),
    "decode_sum_seq_lens": ("running_tokens", 1.0),  # As of the last decode log: every 40 steps by default.
    "num_queue_reqs": ("queue_main_count", 1.0),
    "num_grammar_queue_reqs": ("queue_grammar_count", 1.0),
    "num_prefill_prealloc_queue_reqs": ("queue_bootstrap_count", 1.0),
    "num_prefill_bootstrap_queue_reqs": ("queue_bootstrap_count", 1.0),
    "num_prefill_infight_queue_reqs": ("queue_inflight_count", 1.0),
    "num_prefill_inflight_queue_reqs": ("queue_inflight_count", 1.0),
    "num_decode_prealloc_queue_reqs": ("queue_prealloc_count", 1.0),
    "num_decode_transfer_queue_reqs": ("queue_transfer_count", 1.0),
    "num_paused_reqs": ("queue_paused_count", 1.0),
    "gen_throughput": ("generated_tokens_per_s", 1.0),
    "cache_hit_rate": ("reported_hit_ratio", 1.0),
    "kv_transfer_speed_gb_s": ("transfer_reported_bytes_per_s", 1e9),  # A gauge until 0.5.9, never set.
    "kv_transfer_latency_ms": ("transfer_reported_latency_s", 1.0 / MILLISECONDS_PER_S),
    "kv_cache_memory_usage_gb": ("kv_gib_per_gpu", 1.0),
    "num_retracted_reqs": ("retracted_in_window_count", 1.0),
}
_COUNTERS: Final[Mapping[str, tuple[str, float]]] = {
    "num_retracted_requests_total": ("retracted_total", 1.0),
    "num_retracted_input_tokens_total": ("retracted_input_tokens_total", 1.0),
    "num_retracted_output_tokens_total": ("retracted_output_tokens_total", 1.0),
    "num_bootstrap_failed_reqs": ("bootstrap_failed_total", 1.0),
    "num_bootstrap_failed_reqs_total": ("bootstrap_failed_total", 1.0),
    "num_transfer_failed_reqs": ("transfer_failed_total", 1.0),
    "num_transfer_failed_reqs_total": ("transfer_failed_total", 1.0),
    "kv_transfer_total_mb_sum": ("transfer_bytes_total", float(MIB_BYTES)),
    "kv_transfer_total_mb_count": ("transfers_total", 1.0),
    "kv_transfer_latency_ms_sum": ("transfer_latency_s_total", 1.0 / MILLISECONDS_PER_S),
    "queue_time_seconds_sum": ("queue_s_total", 1.0),
    "queue_time_seconds_count": ("queue_s_count_total", 1.0),
}
# Series with a label that splits one figure: name -> label.
_SPLIT: Final[Mapping[str, str]] = {
    "realtime_tokens_total": "mode",
    "prefill_effective_tokens_total": "mode",
    "evicted_tokens_total": "cache_type",
    "load_back_tokens_total": "pool",
}
_IN_WINDOW: Final = frozenset({"num_retracted_reqs", "num_paused_reqs"})
_HELPERS: Final = ("kv_transfer_speed_gb_s_sum", "kv_transfer_speed_gb_s_count", "kv_transfer_latency_ms_count")
# Worker-wide (tokenizer) counters; series that differ in is_streaming or custom labels add up.
_WORKER: Final[Mapping[str, str]] = {
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generated_tokens_total",
    "num_requests_total": "finished_total",
    "time_to_first_token_seconds_sum": "ttft_s_total",
    "time_to_first_token_seconds_count": "ttft_count_total",
    "inter_token_latency_seconds_sum": "itl_s_total",
    "inter_token_latency_seconds_count": "itl_count_total",
    "e2e_request_latency_seconds_sum": "e2e_s_total",
    "e2e_request_latency_seconds_count": "e2e_count_total",
}
_BUCKETS: Final = {
    "time_to_first_token_seconds_bucket": "ttft_buckets",
    "inter_token_latency_seconds_bucket": "itl_buckets",
}
_WANTED: Final = spellings(
    "sglang", (*_GAUGES, *_COUNTERS, *_SPLIT, *_HELPERS, *_WORKER, *_BUCKETS, "cached_tokens_total")
)


@dataclass(slots=True)
class Metrics:
    """
    A `/metrics` answer, understood.

    Attributes:
        ranks: DP rank (or UNLABELLED) -> PoolReading field -> number.
        worker: Worker-wide PoolReading fields, counters only.
        buckets: `ttft_buckets` and `itl_buckets`, cumulative, merged over series.
        numbers: Rank -> what was refused there.
        tp_rank_count: Distinct tensor-parallel ranks among unlabelled scheduler series.
    """

    ranks: dict[int, dict[str, float]] = field(default_factory=dict)
    worker: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    numbers: dict[int, Numbers] = field(default_factory=dict)
    role: Role = Role.UNKNOWN
    model: str | None = None
    rejected_count: int = 0
    ignored_count: int = 0
    findings: list[Finding] = field(default_factory=list)


def parse_metrics(body: bytes) -> Metrics | None:
    """Return a `/metrics` body understood, or None when it carries nothing of SGLang's. Never raises."""
    exposition = scan(body, _WANTED)
    if not exposition.samples:
        return None
    metrics = Metrics(rejected_count=exposition.rejected_count, ignored_count=exposition.ignored_count)
    split: dict[tuple[int, str, str], float] = {}
    replicas: dict[tuple[int, str], float] = {}
    processes: dict[tuple[int, str], dict[str, float]] = {}
    buckets: dict[str, dict[float, float]] = {}
    roles: set[str] = set()
    for sample in exposition.samples:
        name, labels = bare_name(sample.name, "sglang"), sample.labels
        if labels.get("priority"):
            continue  # The series without a priority is the total of these.
        roles.add(labels.get("engine_type", ""))
        if metrics.model is None:
            metrics.model = as_text(labels.get("model_name"))
        if name in _BUCKETS:
            _add_bucket(buckets.setdefault(_BUCKETS[name], {}), labels.get("le", ""), sample.value)
        elif name in _WORKER or name == "cached_tokens_total":
            _add_worker(metrics, name, labels, sample.value)
        else:
            rank = _rank(labels)
            if rank is None:
                metrics.rejected_count += 1
                continue
            numbers = metrics.numbers.setdefault(rank, Numbers(dp_rank=None if rank == UNLABELLED else rank))
            target, factor = _GAUGES.get(name) or _COUNTERS.get(name) or (name, 1.0)
            value = numbers.take(sample.value, target, source=name, scale=factor, largest=LARGEST_BYTES)
            if value is None:
                continue
            if name in ("evicted_tokens_total", "load_back_tokens_total") and "tp_rank" not in labels:
                metrics.worker[name] = metrics.worker.get(name, 0.0) + value  # All ranks added up until 0.5.20.
            elif name in _SPLIT:
                key = (rank, name, labels.get(_SPLIT[name], ""))
                split[key] = max(value, split.get(key, 0.0))
            else:
                # Replicas of one figure (tensor or context parallel ranks, process ids): the largest, never the sum.
                at = (rank, name)
                replicas[at] = max(value, replicas.get(at, 0.0))
                if value and name in _GAUGES and (process := labels.get("pid")):
                    processes.setdefault(at, {})[process] = max(value, processes.get(at, {}).get(process, 0.0))
    _refuse_disagreeing(metrics, processes, replicas)
    for name in (*_GAUGES, *_COUNTERS, *_HELPERS):
        target = (_GAUGES.get(name) or _COUNTERS.get(name) or (name, 1.0))[0]
        for rank in metrics.numbers:
            if (rank, name) in replicas:
                metrics.ranks.setdefault(rank, {})[target] = replicas[rank, name]
    _fold_splits(metrics, split)
    metrics.role = _role(roles)
    _join_cache_series(metrics)
    metrics.buckets = {name: merged for name, counts in buckets.items() if (merged := _cumulative(counts))}
    for rank, values in metrics.ranks.items():
        _finish(metrics, rank, values)
    _note_scan(metrics, exposition)
    return metrics


def _refuse_disagreeing(
    metrics: Metrics, processes: Mapping[tuple[int, str], Mapping[str, float]], replicas: dict[tuple[int, str], float]
) -> None:
    """
    Take out gauges of which several live processes say different things: one may be dead, which one nobody knows.

    Those of the last log window are left: their largest is what happened.
    """
    for (rank, name), values in processes.items():
        if len(set(values.values())) < 2 or name in _IN_WINDOW:
            continue
        high = replicas.pop((rank, name))
        target = _GAUGES[name][0]
        if target in metrics.numbers[rank].anomalies:
            continue
        metrics.numbers[rank].anomalies.append(target)
        text = (
            f"{len(values)} processes disagree about {name}, at most {high:g}; one may be dead. Only an upper bound is "
            "known: shown as unknown and not scored."
        )
        finding = Finding(code="processes-disagree", text=text, dp_rank=None if rank == UNLABELLED else rank)
        metrics.numbers[rank].findings.append(finding)
        if target == "reported_usage_ratio" and high <= 1.0:
            metrics.ranks.setdefault(rank, {})["usage_high_ratio"] = high


def _join_cache_series(metrics: Metrics) -> None:
    """
    Bring one rank's series together where the cache series alone are labelled with a DP rank.

    From 0.5.21 they carry `dp_rank="0"` even on a worker without data parallelism, whose gauges carry none.
    """
    gauges = {target for target, _ in _GAUGES.values()}
    unlabelled = metrics.ranks.get(UNLABELLED, {})
    labelled = [rank for rank in metrics.ranks if rank != UNLABELLED]
    if not gauges & unlabelled.keys() or any(gauges & metrics.ranks[rank].keys() for rank in labelled):
        return
    for rank in labelled:
        values = metrics.ranks.pop(rank)
        numbers = metrics.numbers.pop(rank, None)
        if len(labelled) == 1:
            unlabelled.update(values)
            if numbers is not None:
                metrics.numbers[UNLABELLED].anomalies.extend(numbers.anomalies)
                metrics.numbers[UNLABELLED].findings.extend(numbers.findings)


def _rank(labels: Mapping[str, str]) -> int | None:
    """Return the DP rank, UNLABELLED without one (`None` is what one version writes for that), None when absurd."""
    raw = labels.get("dp_rank", "")
    if raw in ("", "None"):
        return UNLABELLED
    return int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 7 and int(raw) < MAX_RANKS * 16 else None


def _role(engine_types: Iterable[str]) -> Role:
    """Return the one role the labels agree on; "dynamic" or a mixture is unknown (#30406 labels P/D as unified)."""
    known = {_ROLES[word] for word in engine_types if word in _ROLES}
    if len(known - {Role.UNIFIED}) == 1:
        return (known - {Role.UNIFIED}).pop()
    return known.pop() if len(known) == 1 else Role.UNKNOWN


def _add_worker(metrics: Metrics, name: str, labels: Mapping[str, str], raw: float | None) -> None:
    numbers = metrics.numbers.setdefault(UNLABELLED, Numbers())
    if name == "cached_tokens_total":
        # `total` exists beside its parts since 0.5.9; without the label the series is the total.
        source = labels.get("cache_source", "total")
        target = "cached_tokens_total" if source == "total" else "cached_parts_total"
    else:
        target = _WORKER[name]
    value = numbers.take(raw, target, source=name)
    if value is not None:
        metrics.worker[target] = metrics.worker.get(target, 0.0) + value


def _add_bucket(counts: dict[float, float], bound_text: str, count: float | None) -> None:
    try:
        bound = float(bound_text)
    except ValueError:
        return
    if count is not None and count >= 0 and bound == bound and "_" not in bound_text:
        counts[bound] = counts.get(bound, 0.0) + count


def _cumulative(counts: Mapping[float, float]) -> tuple[tuple[float, float], ...] | None:
    """Return the histogram ascending by bound, or None when it is no cumulative histogram that ends at infinity."""
    table = tuple(sorted(counts.items()))
    is_whole = bool(table) and table[-1][0] == float("inf")
    is_rising = all(left[1] <= right[1] for left, right in pairwise(table))
    return table if is_whole and is_rising else None


def _fold_splits(metrics: Metrics, split: Mapping[tuple[int, str, str], float]) -> None:
    """Add up what a label splits: prefix look-ups by tier, tokens by mode, evictions by cache, reloads by pool."""
    tiers: dict[int, dict[str, float]] = {}
    modes: dict[int, dict[str, float]] = {}
    for (rank, name, label), value in split.items():
        values = metrics.ranks.setdefault(rank, {})
        if name == "prefill_effective_tokens_total":
            tiers.setdefault(rank, {})[label] = value
        elif name == "realtime_tokens_total":
            modes.setdefault(rank, {})[label] = value
        else:
            values[name] = values.get(name, 0.0) + value
    for rank, by_mode in modes.items():
        values = metrics.ranks[rank]
        if "decode" in by_mode:
            values["generated_tokens_total"] = by_mode["decode"]
        if "prefill_compute" in by_mode:
            values["prefill_uncached_tokens_total"] = by_mode["prefill_compute"]
            if "prefill_cache" in by_mode:
                values["prefix_hit_tokens_total"] = by_mode["prefill_cache"]
                values["prefix_query_tokens_total"] = by_mode["prefill_cache"] + by_mode["prefill_compute"]
    for rank, by_tier in tiers.items():
        if "input" in by_tier:
            hits = sum(by_tier.get(tier, 0.0) for tier in ("device_hit", "host_hit", "storage_hit"))
            metrics.ranks[rank]["prefix_hit_tokens_total"] = hits
            metrics.ranks[rank]["prefix_query_tokens_total"] = hits + by_tier["input"]


def _finish(metrics: Metrics, rank: int, values: dict[str, float]) -> None:
    """Turn one rank's series into `PoolReading` fields: other pools only where they exist, placeholders away."""
    if not any(values.get(name) for name in ("window_usable_tokens", "window_used_tokens", "window_free_tokens")):
        for name in [name for name in values if name.startswith("window_")]:
            del values[name]
    elif "window_usable_tokens" not in values:
        parts = [values.get(f"window_{part}_tokens") for part in ("used", "prefix", "free")]
        if None not in parts:
            values["window_usable_tokens"] = sum(part for part in parts if part is not None)
    slots = [values.get(f"state_{part}_count") for part in ("used", "prefix", "free")]
    if not any(slots) and not values.get("state_usage_ratio"):
        for name in [name for name in values if name.startswith("state_")]:
            del values[name]
    elif None not in slots:
        values["state_slot_count"] = sum(part for part in slots if part is not None)
    if values.get("offload_usable_tokens") == 0:
        values.pop("offload_usable_tokens")
        values.pop("offloaded_tokens", None)
    speed_count, speed_sum = (
        values.pop("kv_transfer_speed_gb_s_count", 0.0),
        values.pop("kv_transfer_speed_gb_s_sum", None),
    )
    latency_count = values.pop("kv_transfer_latency_ms_count", 0.0)
    if speed_count and speed_sum is not None:
        values["transfer_reported_bytes_per_s"] = speed_sum * 1e9 / speed_count
    if latency_count and "transfer_latency_s_total" in values:
        values["transfer_reported_latency_s"] = values["transfer_latency_s_total"] / latency_count
    if "transfers_total" not in values and (latency_count or speed_count):
        values["transfers_total"] = max(latency_count, speed_count)
    role = metrics.role
    if role is not Role.UNKNOWN:
        _sum_queues(values, role)
    if role is Role.DECODE:
        # With a radix cache on decode, cached tokens are counted on both sides (#25972).
        values.pop("prefix_hit_tokens_total", None)
        values.pop("prefix_query_tokens_total", None)
    hide_placeholders(values, role)
    if values.get("usable_tokens") == 0:
        del values["usable_tokens"]
    retracted = values.pop("retracted_in_window_count", 0.0)
    if retracted:
        text = f"{retracted:.0f} requests were retracted in the engine's last log window."
        metrics.findings.append(
            Finding(
                code="retracted-in-window",
                text=text,
                severity=Severity.INFO,
                dp_rank=None if rank == UNLABELLED else rank,
            )
        )


def _sum_queues(values: dict[str, float], role: Role) -> None:
    """Set the waiting count as `/v1/loads` defines it: every queue in which nothing has been computed here yet."""
    queues = {
        Role.UNIFIED: ("queue_main_count",),
        Role.PREFILL: ("queue_main_count", "queue_bootstrap_count"),
        Role.DECODE: ("queue_main_count", "queue_prealloc_count", "queue_transfer_count"),
    }[role]
    if all(name in values for name in queues):
        values["waiting_count"] = sum(values[name] for name in queues)


def _note_scan(metrics: Metrics, exposition: Exposition) -> None:
    metrics.findings.extend(scan_findings(exposition, "sglang"))
