"""
TensorRT-LLM: `/metrics` is a JSON list of iterations (drained by each asking), Prometheus text lies elsewhere.

A row has `kvCacheStats` in blocks. Used blocks are those that requests hold; free ones include reusable prefix, so
free and prefix are one figure. A server does not say its role: it is taken for unified, and the fleet file's word
outranks that. Some versions count host blocks into `max` and not into `free`: where the first
iteration proves it (used differs from what was ever allocated), the device pool is `free + allocTotal`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.numbers import Numbers, as_mapping, as_number, decode_json
from collectors.engines.ranked_series import MOST_RANKS, RankedSeries, refusal, take_gauge
from collectors.engines.scan_notes import scan_findings
from collectors.exposition import is_exposition, scan, spellings
from scoring.model import Finding, PoolReading, Role, Severity, WorkerReading

METRICS: Final = "/metrics"
PROMETHEUS: Final = "/prometheus/metrics"
MOST_BLOCKS: Final = 1e12
KV_STATS: Final = "kvCacheStats"

_TEXT_HISTOGRAMS: Final = (
    ("time_to_first_token_seconds", "ttft_s_total", "ttft_count_total"),
    ("time_per_output_token_seconds", "itl_s_total", "itl_count_total"),
    ("e2e_request_latency_seconds", "e2e_s_total", "e2e_count_total"),
    ("request_queue_time_seconds", "queue_s_total", "queue_s_count_total"),
)
TEXT_NAMES: Final = (
    "request_success_total",
    "kv_cache_hit_rate",
    "kv_cache_utilization",
    "time_to_first_token_seconds_bucket",
    *(f"{name}{end}" for name, _, _ in _TEXT_HISTOGRAMS for end in ("_sum", "_count")),
)
WANTED: Final = spellings("trtllm", TEXT_NAMES)


class TrtLlm:
    """TensorRT-LLM's server, one row a rank where it is set to tell all ranks."""

    name = "trtllm"
    questions = (
        Question(path=METRICS, is_essential=True),
        Question(path=PROMETHEUS, accept="text/plain", max_bytes=4 * 1024 * 1024),
    )
    wanted = WANTED

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/metrics` is a list of iterations, or the text carries TensorRT-LLM's own names."""
        answer = answers.get(METRICS)
        if answer is None or answer.status != 200:
            return False
        head = answer.body[:64].lstrip()
        if head.startswith(b"["):
            return b'"kvCacheStats"' in answer.body or b'"iterLatencyMS"' in answer.body or head[1:].lstrip() == b"]"
        if b"trtllm" not in answer.body or b"dynamo_component_" in answer.body or not is_exposition(answer.body):
            return False
        return bool(scan(answer.body, WANTED).samples)

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the newest iteration of each rank into a pool; never raise on a payload."""
        refused = refusal(answers, METRICS, self.name)
        if refused is not None:
            return refused
        body = answers[METRICS].body
        text = read_text(answers.get(PROMETHEUS))
        if is_exposition(body):
            own = read_text(answers[METRICS])
            if own is None:
                return NotUnderstood("no-trtllm-series", f"trtllm: the text at {METRICS} has no trtllm_ series.")
            return own
        rows = decode_json(body)
        if not isinstance(rows, list):
            return NotUnderstood(
                "not-a-list", f"trtllm: {METRICS} should be a JSON list of iterations; this is something else or cut."
            )
        return _json_reading(rows, text)


def _json_reading(rows: list[Any], text: WorkerReading | None) -> WorkerReading | NotUnderstood:
    newest: dict[int, Mapping[str, Any]] = {}
    rejected, has_rank = 0, False
    for row in rows:
        rank, iteration = _place(row)
        if rank is None or (rank not in newest and len(newest) >= MOST_RANKS):
            rejected += 1
            continue
        has_rank = has_rank or row.get("rank") is not None
        known = newest.get(rank)
        if known is None or iteration >= (as_number(known.get("iter")) or 0.0):
            newest[rank] = row
    if not newest:
        if rejected:
            return NotUnderstood("no-iteration", f"trtllm: none of {rejected} rows at {METRICS} is an iteration.")
        # Each asking drains the list: nothing since the last one means that no iteration ran.
        note = Finding(
            code="no-iteration-since",
            text="No iteration since the last asking: an idle engine reports nothing, its last figures grow old.",
            severity=Severity.INFO,
        )
        return WorkerReading(
            engine="trtllm", is_nothing_yet=text is None, pools=text.pools if text else (), findings=(note,)
        )
    pools = tuple(_pool(newest[rank], rank) for rank in sorted(newest))
    findings = [finding for pool in pools for finding in pool.findings]
    if not has_rank:
        note = Finding(
            code="rank-zero-only",
            text="Rows carry no rank: only rank 0 is covered. Other ranks of this worker, if any, are not seen.",
            severity=Severity.INFO,
        )
        findings.append(note)
        pools = tuple(replace(pool, findings=(*pool.findings, note)) for pool in pools)
    if text is not None and len(pools) == 1:
        pools = (_with_counters(pools[0], text.pools[0]),)
    return WorkerReading(engine="trtllm", pools=pools, findings=tuple(findings), rejected_count=rejected)


def _place(row: object) -> tuple[int | None, float]:
    """Return rank and iteration of a row, (None, 0) when it is no iteration."""
    if not isinstance(row, Mapping) or not isinstance(row.get(KV_STATS), Mapping):
        return None, 0.0
    rank = row.get("rank", 0)
    if rank is None:
        rank = 0
    if type(rank) is not int or not 0 <= rank < 1_000_000:
        return None, 0.0
    return rank, as_number(row.get("iter")) or 0.0


def _pool(row: Mapping[str, Any], rank: int) -> PoolReading:
    numbers = Numbers(dp_rank=rank)
    stats = as_mapping(row.get(KV_STATS))
    fields: dict[str, Any] = {}
    for name, key in (
        ("running_count", "numActiveRequests"),
        ("waiting_count", "numQueuedRequests"),
        ("max_running_count", "maxNumActiveRequests"),
    ):
        fields[name] = numbers.take(row.get(key), name, source=key)
    fields["reported_hit_ratio"] = numbers.take(
        stats.get("cacheHitRate"), "reported_hit_ratio", source="cacheHitRate", largest=1.0
    )
    block = numbers.take(stats.get("tokensPerBlock"), "block_size_tokens", source="tokensPerBlock", largest=1e6)
    fields["block_size_tokens"] = block or None
    _take_blocks(row, stats, rank, numbers, fields, block or None)
    reused, missed = as_number(stats.get("reusedBlocks")), as_number(stats.get("missedBlocks"))
    if block and reused is not None and missed is not None:
        fields["prefix_hit_tokens_total"] = reused * block
        fields["prefix_query_tokens_total"] = (reused + missed) * block
    reading = PoolReading(
        dp_rank=rank,
        role=Role.UNIFIED,
        engine="trtllm",
        anomalies=tuple(numbers.anomalies),
        findings=tuple(numbers.findings),
    )
    return replace(reading, **fields)


def _take_blocks(
    row: Mapping[str, Any],
    stats: Mapping[str, Any],
    rank: int,
    numbers: Numbers,
    fields: dict[str, Any],
    block: float | None,
) -> None:
    most = numbers.take(stats.get("maxNumBlocks"), "usable_tokens", source="maxNumBlocks", largest=MOST_BLOCKS)
    used = numbers.take(stats.get("usedNumBlocks"), "used_tokens", source="usedNumBlocks", largest=MOST_BLOCKS)
    free = numbers.take(
        stats.get("freeNumBlocks"), "free_or_prefix_tokens", source="freeNumBlocks", largest=MOST_BLOCKS
    )
    if not most or block is None:
        return
    if used is not None and used > most:
        numbers.refuse(stats.get("usedNumBlocks"), "used_tokens", source="usedNumBlocks", why=f"more than {most:g}")
        used = None
    if free is not None and free > most:
        why = f"{free - most:g} more than maxNumBlocks {most:g}"
        numbers.refuse(stats.get("freeNumBlocks"), "free_or_prefix_tokens", source="freeNumBlocks", why=why)
        free = None
    if used is not None:
        fields["reported_usage_ratio"] = used / most
    elif "used_tokens" in numbers.anomalies:
        numbers.anomalies.append("reported_usage_ratio")
    device = _device_blocks(row, stats, most, used, free)
    if device is not None and free is not None:
        held = device - free
        numbers.findings.append(
            Finding(
                code="host-tier-in-denominator",
                text=f"maxNumBlocks {most:g} counts host blocks too: {held:g} blocks were ever allocated and {free:g} "
                f"are free, so the device pool is {device:g} blocks and {most - device:g} lie on the host. "
                f"Usage is {held / device:.1%}, not {(most - free) / most:.1%}.",
                dp_rank=rank,
            )
        )
        fields["offload_usable_tokens"] = (most - device) * block
        most, used = device, held
    elif used is not None and free is not None and used + free != most:
        numbers.findings.append(
            Finding(
                code="blocks-do-not-add-up",
                text=f"used {used:g} + free {free:g} blocks are not max {most:g}: off by {used + free - most:g}.",
                dp_rank=rank,
            )
        )
    fields["usable_tokens"] = most * block
    fields["used_tokens"] = None if used is None else used * block
    fields["free_or_prefix_tokens"] = None if free is None else free * block


def _device_blocks(
    row: Mapping[str, Any], stats: Mapping[str, Any], most: float, used: float | None, free: float | None
) -> float | None:
    """
    Return the blocks of the device pool where an iteration proves that `max` holds more, else None.

    While everything ever allocated was allocated in this iteration, nothing has been freed: held = allocTotal. A used
    count above that is host blocks.
    """
    allocated = as_number(stats.get("allocTotalBlocks"))
    new = as_number(stats.get("allocNewBlocks"))
    if allocated is None or used is None or free is None or not allocated or as_number(stats.get("reusedBlocks")):
        return None
    is_first = allocated == new or as_number(row.get("iter")) == 0.0
    device = free + allocated
    return device if is_first and used > allocated and device < most and used + free == most else None


def read_text(answer: Answer | None) -> WorkerReading | None:
    """Return what the Prometheus text says: one pool a rank label, counters and a usage ratio; None without any."""
    if answer is None or answer.status != 200 or not is_exposition(answer.body):
        return None
    exposition = scan(answer.body, WANTED)
    series = RankedSeries.of(exposition, "trtllm")
    pools = []
    for rank in series.ranks:
        numbers = Numbers(dp_rank=rank)
        fields: dict[str, Any] = {}
        for name, source in (
            ("reported_usage_ratio", "kv_cache_utilization"),
            ("reported_hit_ratio", "kv_cache_hit_rate"),
        ):
            fields[name] = take_gauge(numbers, series.gauge(rank, source), name, source, largest=1.0)
        source = "request_success_total"
        fields["finished_total"] = numbers.take(series.total(rank, source), "finished_total", source=source)
        for source, sum_field, count_field in _TEXT_HISTOGRAMS:
            found = series.histogram(rank, source)
            fields[sum_field] = numbers.take(found.sum, sum_field, source=f"{source}_sum")
            fields[count_field] = numbers.take(found.count, count_field, source=f"{source}_count")
        reading = PoolReading(
            dp_rank=rank,
            role=Role.UNIFIED,
            engine="trtllm",
            model=series.any_label(rank, "model_name"),
            ttft_buckets=series.buckets(rank, "time_to_first_token_seconds"),
            anomalies=tuple(numbers.anomalies),
            findings=tuple(numbers.findings),
        )
        pools.append(replace(reading, **fields))
    if not pools:
        return None
    return WorkerReading(
        engine="trtllm",
        pools=tuple(pools),
        findings=(*scan_findings(exposition, "trtllm"), *(finding for pool in pools for finding in pool.findings)),
        rejected_count=exposition.rejected_count + series.rejected_count,
        ignored_count=exposition.ignored_count,
    )


def _with_counters(pool: PoolReading, text: PoolReading) -> PoolReading:
    """Add to the iteration's figures the counters that only the text has."""
    fields = ["finished_total", *(name for _, first, second in _TEXT_HISTOGRAMS for name in (first, second))]
    more: dict[str, Any] = {name: getattr(text, name) for name in fields}
    return replace(pool, **more, model=text.model, ttft_buckets=text.ttft_buckets)
