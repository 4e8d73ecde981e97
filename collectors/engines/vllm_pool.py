"""One vLLM engine's samples -> one `PoolReading`: conversions, sentinels, and what the counters prove."""

from collections.abc import Iterable
from typing import Any, Final

from collectors.engines.numbers import LARGEST_BYTES, Numbers
from collectors.engines.ranked_series import RankedSeries, take_gauge
from scoring.model import Finding, PoolReading, Role, Severity

COUNTERS: Final[dict[str, tuple[str, ...]]] = {
    "prompt_tokens_total": ("prompt_tokens_total",),
    "generated_tokens_total": ("generation_tokens_total",),
    "finished_total": ("request_success_total",),
    "retracted_total": ("num_preemptions_total",),
    "transfer_failed_total": ("nixl_num_failed_transfers_total", "nixl_num_failed_transfers"),
}
"""PoolReading field -> vLLM names, newest first; summed over finish reason."""

HISTOGRAMS: Final[tuple[tuple[tuple[str, ...], str | None, str | None], ...]] = (
    (("time_to_first_token_seconds",), "ttft_s_total", "ttft_count_total"),
    # `request_time_per_output_token_seconds` is a mean per request, not a gap between tokens: not taken for one.
    (("inter_token_latency_seconds", "time_per_output_token_seconds"), "itl_s_total", "itl_count_total"),
    (("e2e_request_latency_seconds",), "e2e_s_total", "e2e_count_total"),
    (("request_queue_time_seconds",), "queue_s_total", "queue_s_count_total"),
    (("nixl_xfer_time_seconds",), "transfer_latency_s_total", "transfers_total"),
    (("nixl_bytes_transferred",), "transfer_bytes_total", None),
    (("request_prefill_kv_computed_tokens",), "prefill_uncached_tokens_total", None),
)
"""(vLLM names newest first, field of the sum, field of the count)."""

WHOLE_TOLERANCE: Final = 1e-6
"""A ratio of whole blocks times its denominator is whole up to rounding of the printed float."""
REPEATED_SHARE: Final = 0.02
"""Queried tokens may lead counted prompt tokens by what is being admitted; beyond this share they are repeats."""


def _whole_blocks(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 12):
        return None
    return int(text) or None


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) <= WHOLE_TOLERANCE * max(1.0, abs(value))


def block_denominators(series: RankedSeries) -> dict[int, int]:
    """
    Return, for each rank that says its block count, the blocks that its usage ratio is a share of.

    v1 pops block 0 as the null block before it serves, so usage is n/(blocks - 1): 183/199 on a real 0.32 server.
    v0 (only the old name) and builds without a null block divide by all blocks. A ratio printed in full tells which:
    only one product is whole. Where every engine's ratio fits both (idle, full), the version's rule decides.
    """
    blocks: dict[int, int] = {}
    with_null, without_null, is_v1 = 0, 0, False
    for rank in series.ranks:
        texts = {sample.labels.get("num_gpu_blocks") for sample in series.samples.get(("cache_config_info", rank), ())}
        found = _whole_blocks(next(iter(texts))) if len(texts) == 1 else None
        if found is None:
            continue
        blocks[rank] = found
        is_v1 = is_v1 or ("kv_cache_usage_perc", rank) in series.samples
        usage = series.gauge(rank, "kv_cache_usage_perc", "gpu_cache_usage_perc").value
        if usage is None or not 0.0 < usage < 1.0:
            continue
        fits_null, fits_all = _is_whole(usage * (found - 1)), _is_whole(usage * found)
        with_null += fits_null and not fits_all
        without_null += fits_all and not fits_null
    keeps_null = is_v1 if with_null == without_null else with_null > without_null
    return {rank: max(found - 1, 1) if keeps_null else found for rank, found in blocks.items()}


def role_of(series: RankedSeries, rank: int) -> Role:
    """
    Return UNIFIED for an engine without a trace of hand-overs, else UNKNOWN: vLLM does not say its role.

    The fleet file's word outranks this, and a router's fills in where it is unknown.
    """
    hands_over = any(name.startswith("nixl_") for name, at in series.samples if at == rank)
    received = series.total(rank, "prompt_tokens_by_source_total", source="external_kv_transfer")
    return Role.UNKNOWN if hands_over or received else Role.UNIFIED


def read_pool(
    series: RankedSeries, rank: int, denominator_blocks: int | None, *, engine: str, version: str | None
) -> PoolReading:
    """Return one engine's figures; what it does not export stays None."""
    numbers = Numbers(dp_rank=rank)
    findings = numbers.findings
    block_size = _whole_blocks(series.label(rank, "cache_config_info", "block_size"))
    fields: dict[str, Any] = {"block_size_tokens": float(block_size) if block_size else None}
    if block_size and denominator_blocks:
        fields["usable_tokens"] = float(denominator_blocks * block_size)
    usage_high = _take_usage(series, rank, numbers, fields, denominator_blocks, block_size)
    _take_requests(series, rank, numbers, fields)
    _take_host_tier(series, rank, numbers, fields, block_size)
    for name, sources in COUNTERS.items():
        fields[name] = numbers.take(series.total(rank, *sources), name, source=sources[0])
    _take_histograms(series, rank, numbers, fields)
    _take_prefix(series, rank, numbers, fields)
    if series.total(rank, "engine_sleep_state", sleep_state="awake") == 0.0:
        findings.append(
            Finding(
                code="engine-asleep",
                text="vLLM says this engine sleeps (engine_sleep_state awake = 0): it serves nothing until woken.",
                dp_rank=rank,
            )
        )
    fields["ttft_buckets"] = series.buckets(rank, "time_to_first_token_seconds")
    fields["itl_buckets"] = series.buckets(rank, "inter_token_latency_seconds", "time_per_output_token_seconds")
    fields["usage_high_ratio"] = usage_high
    return PoolReading(
        dp_rank=rank,
        role=role_of(series, rank),
        engine=engine,
        version=version,
        model=series.label(rank, "num_requests_running", "model_name") or series.any_label(rank, "model_name"),
        anomalies=tuple(numbers.anomalies),
        findings=tuple(findings),
        **fields,
    )


def _take_usage(
    series: RankedSeries,
    rank: int,
    numbers: Numbers,
    fields: dict[str, Any],
    denominator_blocks: int | None,
    block_size: int | None,
) -> float | None:
    """Fill usage, used and free-or-prefix; return the upper bound where processes disagree."""
    gauge = series.gauge(rank, "kv_cache_usage_perc", "gpu_cache_usage_perc")
    if gauge.high is not None:
        numbers.anomalies.extend(("reported_usage_ratio", "used_tokens"))
        credible = 0.0 <= gauge.high <= 1.0
        numbers.findings.append(
            Finding(
                code="processes-disagree",
                text=f"{gauge.live_count} processes disagree about the usage of engine {rank}, at most {gauge.high:g}; "
                "one may be dead. Shown as an upper bound, not scored as measured.",
                dp_rank=rank,
            )
        )
        return gauge.high if credible else None
    usage = numbers.take(gauge.value, "reported_usage_ratio", source="kv_cache_usage_perc", largest=1.0)
    if usage is None:
        if "reported_usage_ratio" in numbers.anomalies:
            numbers.anomalies.append("used_tokens")
        return None
    fields["reported_usage_ratio"] = usage
    if denominator_blocks and block_size:
        used_blocks = usage * denominator_blocks
        if _is_whole(used_blocks):
            used_blocks = float(round(used_blocks))
        fields["used_tokens"] = used_blocks * block_size
        fields["free_or_prefix_tokens"] = (denominator_blocks - used_blocks) * block_size
    return None


def _take_requests(series: RankedSeries, rank: int, numbers: Numbers, fields: dict[str, Any]) -> None:
    for name, source in (
        ("running_count", "num_requests_running"),
        ("waiting_count", "num_requests_waiting"),
        ("queue_retracted_count", "num_requests_swapped"),
    ):
        fields[name] = take_gauge(numbers, series.gauge(rank, source), name, source)
    fields["queue_main_count"] = numbers.take(
        series.total(rank, "num_requests_waiting_by_reason", reason="capacity"),
        "queue_main_count",
        source="num_requests_waiting_by_reason{capacity}",
    )


def _take_host_tier(
    series: RankedSeries, rank: int, numbers: Numbers, fields: dict[str, Any], block_size: int | None
) -> None:
    """Fill the host tier of v0 (swap space): a ratio of `num_cpu_blocks`."""
    host_blocks = _whole_blocks(series.label(rank, "cache_config_info", "num_cpu_blocks"))
    if not host_blocks or not block_size:
        return
    fields["offload_usable_tokens"] = float(host_blocks * block_size)
    usage = numbers.take(series.gauge(rank, "cpu_cache_usage_perc").value, "offloaded_tokens", largest=1.0)
    if usage is not None:
        fields["offloaded_tokens"] = usage * host_blocks * block_size


def _take_histograms(series: RankedSeries, rank: int, numbers: Numbers, fields: dict[str, Any]) -> None:
    for names, sum_field, count_field in HISTOGRAMS:
        found = series.histogram(rank, *names)
        if sum_field is not None:
            fields[sum_field] = numbers.take(found.sum, sum_field, source=f"{names[0]}_sum", largest=LARGEST_BYTES)
        if count_field is not None:
            fields[count_field] = numbers.take(found.count, count_field, source=f"{names[0]}_count")
    # Newer servers count computed prompt tokens as they go; the histogram above only once a request has ended.
    if ("prompt_tokens_by_source_total", rank) in series.samples:
        computed = series.total(rank, "prompt_tokens_by_source_total", source="local_compute")
        name = "prefill_uncached_tokens_total"
        fields[name] = numbers.take(computed, name, source="prompt_tokens_by_source_total{local_compute}")


def _take_prefix(series: RankedSeries, rank: int, numbers: Numbers, fields: dict[str, Any]) -> None:
    names: Iterable[tuple[str, tuple[str, ...]]] = (
        ("prefix_query_tokens_total", ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")),
        ("prefix_hit_tokens_total", ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")),
        ("external_query_tokens_total", ("external_prefix_cache_queries_total",)),
        ("external_hit_tokens_total", ("external_prefix_cache_hits_total",)),
    )
    for name, sources in names:
        fields[name] = numbers.take(series.total(rank, *sources), name, source=sources[0])
    hit_ratio = series.gauge(rank, "gpu_prefix_cache_hit_rate").value
    if hit_ratio is not None and hit_ratio != -1.0:  # v0 exports -1 where prefix caching is off.
        fields["reported_hit_ratio"] = numbers.take(hit_ratio, "reported_hit_ratio", largest=1.0)
    _recount_external(rank, numbers, fields)
    _mark_repeats(rank, numbers, fields)


def _recount_external(rank: int, numbers: Numbers, fields: dict[str, Any]) -> None:
    """Old versions look up every prompt token outside; only what the local cache missed was really asked for."""
    queries, hits = fields["prefix_query_tokens_total"], fields["prefix_hit_tokens_total"]
    external = fields["external_query_tokens_total"]
    if not external or not hits or external != queries or hits > queries:
        return
    fields["external_query_tokens_total"] = queries - hits
    numbers.findings.append(
        Finding(
            code="external-queries-recounted",
            text=f"External lookups ({external:,.0f} tokens) repeat the local ones: local hits taken out, "
            f"{queries - hits:,.0f} remain.",
            severity=Severity.INFO,
            dp_rank=rank,
        )
    )


def _mark_repeats(rank: int, numbers: Numbers, fields: dict[str, Any]) -> None:
    """Say how much of the hit counter may be a request that met its own blocks again after preemption."""
    queries, hits = fields["prefix_query_tokens_total"], fields["prefix_hit_tokens_total"]
    prompt = fields["prompt_tokens_total"]
    if queries is None or hits is None or not prompt:
        return
    repeated = queries - prompt
    if repeated <= REPEATED_SHARE * queries:
        return
    preempted = fields.get("retracted_total") or 0.0
    numbers.findings.append(
        Finding(
            code="prefix-hits-inflated",
            text=f"Prefix hits are inflated: {repeated:,.0f} of the queried tokens are repeats ({preempted:,.0f} "
            f"preemptions or retried admissions); true hits are at most {max(0.0, hits - repeated):,.0f} "
            f"of {prompt:,.0f} prompt tokens.",
            dp_rank=rank,
        )
    )
